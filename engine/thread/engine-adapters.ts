/** The caller's side of the adapters of an engine. */
import { resolve } from 'node:path';
import { checkOption, checkPath } from '../../native/index.ts';
import type { NamedAdapter } from '../adapters/adapters.ts';
import type { ProposedAdapters } from '../adapters/proposal.ts';
import { ENGINE_OPTIONS } from '../options/table.ts';
import type { Prompt } from '../options/types.ts';
import type { HostClient } from './calls/index.ts';

/** Adapters that sessions can be opened with, by name. */
export class EngineAdapters {
  readonly #calls: HostClient;

  /** @internal */
  constructor(calls: HostClient) {
    this.#calls = calls;
  }

  /**
   * Reads an adapter for the model, a PEFT folder or a GGUF file, and keeps it in memory. A name that is in use stands
   * for the new one from now on; open sessions keep what they have. Throws 'not-found', 'bad-file', 'unsupported'
   * naming the field that is not served, 'model-mismatch' for an adapter of another model, 'bad-model' for numbers that
   * are not finite.
   */
  async add(name: string, path: string): Promise<NamedAdapter> {
    checkPath(path, 'an adapter');
    checkOption('adapters', ENGINE_OPTIONS.adapters, { [name]: path });
    return this.#calls.call('addAdapter', { name, path: resolve(path) });
  }

  /**
   * Forgets a name, for sessions to come. → open sessions that still have the adapter, whose memory is freed when the
   * last of them is closed. Throws 'not-found'.
   */
  async remove(name: string): Promise<number> {
    return this.#calls.call('removeAdapter', { name });
  }

  /** Those that have a name, in its order. */
  async list(): Promise<NamedAdapter[]> {
    return this.#calls.call('adapters', undefined);
  }

  /**
   * What earlier sessions of the model used whose texts were like this one: adapters with their scales, where these
   * are, what the sessions' caches came to, which sessions they are, and why. A hint: nothing is read or opened for it.
   * A text of fewer than 256 tokens says too little of its kind. A session with `adapters: { proposedFor: prompt }`
   * takes what is proposed, and the log has it.
   */
  async propose(prompt: Prompt, options: { readonly signal?: AbortSignal } = {}): Promise<ProposedAdapters> {
    return this.#calls.call('proposeAdapters', { prompt }, options);
  }
}
