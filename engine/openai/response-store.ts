/** Responses that others may go on behind, or be compared with: in a store, or the newest in memory. */
import { z } from 'zod';
import { KvError, parseJson } from '../../native/index.ts';
import type { Store } from '../store/store.ts';
import type { ChatMessage } from '../transformer/types.ts';
import type { ConversationTerms } from './conversation.ts';
import { Refusal } from './failure.ts';
import { type InputItem, knownItem } from './request.ts';

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
  /** The sessions that something of its conversation was said in, its own last. */
  readonly sessions: readonly string[];
}

/** In memory. Bytes of what is stored; the oldest leave first. This number was chosen. */
const BYTES_MAX = 64 * 2 ** 20;

/** What is checked of a response that a store gave back: its digest was right, so that a server has written it. */
const storedResponse = z.object({
  response: z.looseObject({ id: z.string() }),
  items: z.array(knownItem),
  prompt: z.array(z.looseObject({ role: z.enum(['system', 'user', 'assistant', 'tool']), content: z.string() })),
  terms: z.object({ tools: z.array(z.looseObject({})), template: z.string().optional(), session: z.looseObject({}) }),
  owner: z.string().optional(),
  sessions: z.array(z.string()),
});

export class ResponseStore {
  readonly #store: Store | null;
  readonly #all = new Map<string, { readonly stored: StoredResponse; readonly bytes: number }>();
  /** By the ids of those that are being told, whose they are. */
  readonly #told = new Map<string, string | undefined>();
  #bytes = 0;

  /** null: responses are kept in memory, for this process alone. */
  constructor(store: Store | null) {
    this.#store = store;
  }

  /** When this resolves it is there for every server of the store. Throws 'database', 'io'. */
  async keep(stored: StoredResponse): Promise<void> {
    const text = Buffer.from(JSON.stringify(stored));
    const { id } = stored.response;
    if (this.#store !== null) return this.#store.put('response', id, text, stored.sessions);
    this.#all.set(id, { stored, bytes: text.length });
    this.#bytes += text.length;
    for (const oldest of this.#all.keys()) {
      if (this.#bytes <= BYTES_MAX) break;
      this.#forget(oldest);
    }
  }

  /** Its client knows the id of a response from now on, and there is nothing under it until the function is called. */
  begin(id: string, owner: string | undefined): () => void {
    this.#told.set(id, owner);
    return () => this.#told.delete(id);
  }

  /** null: there is none of this owner, or no longer. Throws 'database', 'io', 'checksum-mismatch', 'bad-file'. */
  async find(id: string, owner: string | undefined): Promise<StoredResponse | null> {
    const found = this.#store === null ? this.#all.get(id)?.stored : await this.#read(this.#store, id);
    return found === undefined || found.owner !== owner ? null : found;
  }

  /** Throws 'not-found', a Refusal of one that is being told, and what find throws. param: where a request names it. */
  async get(id: string, param: string, owner: string | undefined): Promise<StoredResponse> {
    const found = await this.find(id, owner);
    if (found !== null) return found;
    if (this.#told.has(id) && this.#told.get(id) === owner)
      throw new Refusal(
        409,
        new KvError('busy', `the response ${id} is still being told`, {
          values: { param, response: id },
          hint: 'wait for its end, or end it by leaving its stream',
        }),
      );
    throw new KvError('not-found', `there is no response ${id.slice(0, 80)}, or no longer`, {
      values: { param, response: id.slice(0, 80) },
      hint: 'send the whole conversation as input; store: false leaves nothing, nor do restarts without --store',
    });
  }

  async forget(id: string): Promise<void> {
    if (this.#store === null) this.#forget(id);
    else await this.#store.remove('response', id);
  }

  /** Forgets all that hold something of a session. Throws 'database', 'io'. */
  async erase(session: string): Promise<void> {
    await this.#store?.erase('response', session);
    for (const [id, { stored }] of this.#all) if (stored.sessions.includes(session)) this.#forget(id);
  }

  #forget(id: string): void {
    this.#bytes -= this.#all.get(id)?.bytes ?? 0;
    this.#all.delete(id);
  }

  async #read(store: Store, id: string): Promise<StoredResponse | undefined> {
    const found = await store.first('response', [id]);
    if (found === null) return undefined;
    const what = 'a kept response';
    const { success, data } = storedResponse.safeParse(parseJson(found.bytes, { what, code: 'bad-file' }));
    if (!success || data.response.id !== id) throw new KvError('bad-file', `${what} makes no sense`);
    return data as unknown as StoredResponse;
  }
}
