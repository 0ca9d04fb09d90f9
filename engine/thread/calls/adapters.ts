/** Calls about the adapters of an engine. */
import type { Caller } from '../../../native/index.ts';
import type { NamedAdapter } from '../../adapters/adapters.ts';
import type { ProposedAdapters } from '../../adapters/proposal.ts';
import type { Prompt } from '../../options/types.ts';
import type { Host } from '../host.ts';
import { propose } from '../proposing.ts';

export const adapterCalls = (host: Host) => ({
  addAdapter: ({ name, path }: { readonly name: string; readonly path: string }): NamedAdapter =>
    host.adapters.add(name, path),

  removeAdapter: ({ name }: { readonly name: string }): number => host.adapters.remove(name),

  proposeAdapters: ({ prompt }: { readonly prompt: Prompt }, { signal }: Caller<never>): Promise<ProposedAdapters> =>
    propose(host, prompt, signal),

  adapters: (): NamedAdapter[] => host.adapters.list(),
});
