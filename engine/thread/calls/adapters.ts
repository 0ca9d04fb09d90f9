/** Calls about the adapters of an engine. */
import type { NamedAdapter } from '../../adapters/adapters.ts';
import type { Host } from '../host.ts';

export const adapterCalls = (host: Host) => ({
  addAdapter: ({ name, path }: { readonly name: string; readonly path: string }): NamedAdapter =>
    host.adapters.add(name, path),

  removeAdapter: ({ name }: { readonly name: string }): number => host.adapters.remove(name),

  adapters: (): NamedAdapter[] => host.adapters.list(),
});
