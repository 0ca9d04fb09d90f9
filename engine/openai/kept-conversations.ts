/**
 * Conversations in a store: each is kept behind its answer, under the digest of all that was said in it, so that any
 * server goes on with it. What is kept never changes, so nothing needs to be locked: who goes on has a copy.
 */
import { KvError } from '../../native/index.ts';
import type { Store } from '../store/store.ts';
import type { Engine } from '../thread/engine.ts';
import { chatBytes, keptChat } from '../thread/kept-chat.ts';
import { askedOf, type ConversationTerms, type Held, knownOf } from './conversation.ts';

export class KeptConversations {
  readonly #engine: Engine;
  readonly #store: Store;
  /** One is kept after the other. */
  #keeping: Promise<void> = Promise.resolve();

  constructor(engine: Engine, store: Store) {
    this.#engine = engine;
    this.#store = store;
  }

  /**
   * A copy of the conversation that holds most of what was said, of more than `here` messages; null: there is none, or
   * it cannot be had, and then the messages are read. said: by number of messages, their digest.
   */
  async find(
    terms: ConversationTerms,
    said: readonly string[],
    here: number,
  ): Promise<(Held & { readonly held: number }) | null> {
    const asked = said.slice(here + 1).reverse();
    if (asked.length === 0) return null;
    try {
      const found = await this.#store.first('conversation', asked.map(this.#keyOf));
      if (found === null) return null;
      const chat = await this.#engine.resumeChat(keptChat(found.bytes), askedOf(terms), terms.own);
      const keptAs = asked.find((one) => this.#keyOf(one) === found.key)!;
      const known = knownOf(chat, terms, said[0]!, found.sessions);
      return { chat, known: { ...known, keptAs }, held: said.indexOf(keptAs) };
    } catch (error) {
      if (error instanceof KvError) return null;
      throw error;
    }
  }

  /** Keeps a conversation behind the others that are to be kept; null: somebody has gone on with it by then. */
  keepLater(said: string, heldNow: () => Held | null): void {
    this.#keeping = this.#keeping.then(async () => {
      const held = heldNow();
      if (held === null || held.known.isErased) return;
      const { chat, known } = held;
      const before = known.keptAs;
      try {
        await this.#store.put('conversation', this.#keyOf(said), chatBytes(await chat.save()), known.sessions);
        // It was erased meanwhile.
        if (known.isErased) await this.#store.remove('conversation', this.#keyOf(said));
        known.keptAs = said;
        // What it goes on with is not needed any more.
        if (before !== null) await this.#store.remove('conversation', this.#keyOf(before));
      } catch {
        // Whoever goes on elsewhere has it read again.
      }
    });
  }

  /** Removes all that hold something of a session, and what one went on with. Throws as the store does. */
  async erase(session: string, keptAs: string | null = null): Promise<void> {
    // One of them may be on its way there.
    await this.#keeping;
    await this.#store.erase('conversation', session);
    if (keptAs !== null) await this.#store.remove('conversation', this.#keyOf(keptAs));
  }

  /** Waits until all are kept that are to be. */
  settled(): Promise<void> {
    return this.#keeping;
  }

  /** Another model, or another version of what is kept, has keys of its own. */
  readonly #keyOf = (said: string): string => `${this.#engine.info.digest.slice(0, 32)} ${said}`;
}
