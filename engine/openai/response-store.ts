/** Responses that others may go on behind, or be compared with: the newest, in memory. */
import { KvError } from '../../native/index.ts';
import type { ChatMessage } from '../transformer/types.ts';
import type { ConversationTerms } from './conversations.ts';
import type { InputItem } from './request.ts';

export interface StoredResponse {
  /** As it was told. */
  readonly response: { readonly id: string };
  /** All that was said up to its end, without instructions. */
  readonly items: readonly InputItem[];
  /** What the model read for it. */
  readonly prompt: readonly ChatMessage[];
  readonly terms: ConversationTerms;
  /** Whose it is; undefined: of whoever may ask. */
  readonly owner: string | undefined;
  /** Bytes of its items as JSON. */
  readonly bytes: number;
}

/** Bytes of what is stored; the oldest leave first. This number was chosen. */
const BYTES_MAX = 64 * 2 ** 20;

export class ResponseStore {
  readonly #all = new Map<string, StoredResponse>();
  #bytes = 0;

  keep(stored: Omit<StoredResponse, 'bytes'>): void {
    const bytes = Buffer.byteLength(JSON.stringify([stored.items, stored.prompt, stored.response]));
    this.#all.set(stored.response.id, { ...stored, bytes });
    this.#bytes += bytes;
    for (const id of this.#all.keys()) {
      if (this.#bytes <= BYTES_MAX) break;
      this.forget(id);
    }
  }

  /** null: there is none of this owner, or no longer. */
  find(id: string, owner: string | undefined): StoredResponse | null {
    const found = this.#all.get(id);
    return found === undefined || found.owner !== owner ? null : found;
  }

  /** Throws 'not-found'. param: where a request names it. */
  get(id: string, param: string, owner: string | undefined): StoredResponse {
    const found = this.find(id, owner);
    if (found !== null) return found;
    throw new KvError('not-found', `there is no response ${id.slice(0, 80)}, or no longer`, {
      values: { param, response: id.slice(0, 80) },
      hint: 'send the whole conversation as input; store: false and restarts of the server leave nothing',
    });
  }

  forget(id: string): void {
    this.#bytes -= this.#all.get(id)?.bytes ?? 0;
    this.#all.delete(id);
  }
}
