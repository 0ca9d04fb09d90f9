/**
 * Conversations that go on from one request to the next. A client sends all of its messages each time; the chat that
 * has said the longest beginning of them answers the rest, and reads nothing twice. One that nobody goes on with is
 * closed when others come, and its pages then serve whoever begins alike (`engine/session/prefixes.ts`).
 */
import { createHash } from 'node:crypto';
import type { SessionOptions } from '../options/types.ts';
import type { Chat } from '../thread/chat.ts';
import type { Engine } from '../thread/engine.ts';
import type { ChatMessage, ChatTool, ToolCall } from '../transformer/types.ts';

/** What a conversation is opened with. Two requests that differ in any of it are of two conversations. */
export interface ConversationTerms {
  readonly tools: readonly ChatTool[];
  readonly template: string | undefined;
  readonly session: SessionOptions;
}

/** A chat that answers a request, and how many of the request's messages it holds already. */
export interface Taken {
  readonly chat: Chat;
  readonly held: number;
  /** What the request's terms and messages come to, which is where the chat is kept. */
  readonly terms: string;
}

export class Conversations {
  readonly #engine: Engine;
  readonly #most: number;
  /** By the digest of all that was said in it, the one that waits longest first. */
  readonly #waiting = new Map<string, Chat>();
  #isClosed = false;

  /** `most`: so many wait, and more are closed. */
  constructor(engine: Engine, most: number) {
    this.#engine = engine;
    this.#most = most;
  }

  /** How many wait for their next question. */
  get waiting(): number {
    return this.#waiting.size;
  }

  /**
   * The chat that holds most of these messages and no other, or a new one. `most`: of them, so many at most. Throws
   * what Engine.chat throws.
   */
  async take(terms: ConversationTerms, messages: readonly ChatMessage[], most: number): Promise<Taken> {
    const digest = digestOf([terms.tools, terms.template ?? null, terms.session]);
    const said = digestsOf(digest, messages);
    for (let held = most; held > 0; held--) {
      const chat = this.#waiting.get(said[held]!);
      if (chat === undefined) continue;
      this.#waiting.delete(said[held]!);
      return { chat, held, terms: digest };
    }
    const { tools, template, session } = terms;
    const chat = await this.#engine.chat({ ...session, tools, ...(template === undefined ? {} : { template }) });
    return { chat, held: 0, terms: digest };
  }

  /** Takes a chat back that has answered, or has not. Closes those that have waited longest. */
  async giveBack({ chat, terms }: Taken): Promise<void> {
    // An answer that was cut off by the end of the server comes back after it.
    if (this.#isClosed || chat.messages.length === 0) return chat.close();
    const said = digestsOf(terms, chat.messages).at(-1)!;
    const twin = this.#waiting.get(said);
    this.#waiting.delete(said);
    this.#waiting.set(said, chat);
    const leaving = twin === undefined ? [] : [twin];
    for (const [key, oldest] of this.#waiting) {
      if (this.#waiting.size <= this.#most) break;
      this.#waiting.delete(key);
      leaving.push(oldest);
    }
    for (const one of leaving) await one.close();
  }

  /** Closes those that wait, and later those that come back. */
  async close(): Promise<void> {
    this.#isClosed = true;
    const all = [...this.#waiting.values()];
    this.#waiting.clear();
    for (const chat of all) await chat.close();
  }
}

/** The arguments of a call as JSON, numbers as they were written. */
export const argumentsOf = (call: ToolCall): string => call.argumentsText ?? JSON.stringify(call.arguments);

/** The template that conversations are rendered by; undefined: the model's own. */
export const templateOf = ({ info }: Engine, given: string | undefined): string | undefined =>
  given ?? (info.chat ? undefined : 'hermes');

const digestOf = (value: unknown): string => createHash('sha256').update(JSON.stringify(value)).digest('base64');

/** By number of messages, the digest of so many of them. Ids of calls are those of whoever keeps them, and left out. */
function digestsOf(terms: string, messages: readonly ChatMessage[]): string[] {
  const digests = [terms];
  for (const { role, content, toolCalls = [], name = null } of messages) {
    const calls = toolCalls.map((call) => [call.name, argumentsOf(call)]);
    digests.push(digestOf([digests.at(-1), role, content, calls, name]));
  }
  return digests;
}
