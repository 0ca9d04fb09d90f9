/** One answer in a conversation, for whichever API it was asked by: begun, told as it comes, and ended. */
import { KvError } from '../../native/index.ts';
import type { SessionReport } from '../cache/types.ts';
import type { SendOptions } from '../options/types.ts';
import type { ChatAnswer } from '../session/chat/types.ts';
import type { StreamedText } from '../session/types.ts';
import type { Generation } from '../thread/engine-session.ts';
import type { ChatMessage } from '../transformer/types.ts';
import type { ConversationTerms } from './conversation.ts';
import type { Conversations, Taken } from './conversations.ts';
import { Refusal } from './failure.ts';

/** What a request took. */
export interface UsedTokens {
  /** Tokens of its prompt that were read, and those that were not, because a cache held them. */
  readonly promptTokens: number;
  readonly cachedTokens: number;
  /** Tokens that were written. */
  readonly tokens: number;
}

/** What is to be answered. */
export interface Turn {
  readonly terms: ConversationTerms;
  readonly messages: readonly ChatMessage[];
  readonly options: SendOptions;
  /** Tokens of an answer whose length nobody bounded, where the context has room for them. */
  readonly maxTokens: number;
  /** The session that is to go on; null: whichever holds most. */
  readonly session?: string | null;
  /** False: a last message of the assistant is answered, not gone on with. */
  readonly continues: boolean;
  /** False: nothing of it is kept in a store. */
  readonly keeps: boolean;
  /** Ends it: whoever asked is gone. */
  readonly signal: AbortSignal;
  /** Is told at its end what it took. */
  readonly used?: ((tokens: UsedTokens) => void) | undefined;
}

/** An answer with what the cache did for it. */
export interface Answer extends ChatAnswer {
  readonly report: SessionReport;
  /** Milliseconds from the request to the first text, and to the end. */
  readonly firstMs: number;
  readonly totalMs: number;
}

/** Errors after which the chat is what it was before. */
const HARMLESS: readonly string[] = ['aborted', 'bad-argument', 'bad-value', 'context-too-long', 'unsupported', 'busy'];

/** An answer that has begun. */
export class BegunTurn {
  readonly #conversations: Conversations;
  readonly #taken: Taken;
  readonly #generation: Generation<ChatAnswer>;
  readonly #used: Turn['used'];
  readonly #startMs = performance.now();
  #firstMs: number | null = null;
  #speak = (): void => {};
  /** Resolves with its first text, or its end. */
  readonly spoken = new Promise<void>((resolve) => {
    this.#speak = resolve;
  });

  private constructor(
    conversations: Conversations,
    taken: Taken,
    generation: Generation<ChatAnswer>,
    used: Turn['used'],
  ) {
    this.#used = used;
    this.#conversations = conversations;
    this.#taken = taken;
    this.#generation = generation;
  }

  /** Begins, and waits until the prompt is being read. Throws what it is refused with. */
  static async begin(conversations: Conversations, turn: Turn): Promise<BegunTurn> {
    const { terms, messages, signal } = turn;
    const last = messages.at(-1)!;
    const goesOn = turn.continues && last.role === 'assistant';
    checkEnd(messages);
    const most = goesOn ? messages.length : messages.length - 1;
    const going = { most, session: turn.session ?? null, keeps: turn.keeps };
    const taken = await conversations.take(terms, messages, going);
    let begun = (): void => {};
    const reading = new Promise<void>((resolve) => {
      begun = resolve;
    });
    try {
      const rest = messages.slice(taken.held);
      const maxTokens = turn.options.maxTokens ?? (await roomFor(taken, rest, turn.maxTokens));
      const generation = taken.chat.send(rest, {
        ...turn.options,
        maxTokens,
        signal,
        onProgress: () => begun(),
        ...(goesOn ? { continueFinalMessage: true } : {}),
      });
      const turned = new BegunTurn(conversations, taken, generation, turn.used);
      await Promise.race([reading, generation.result]);
      return turned;
    } catch (error) {
      throw await leave(conversations, taken, error);
    }
  }

  /** Its session in the log. */
  get session(): string {
    return this.#taken.chat.session.id;
  }

  /** The sessions that something of its conversation was said in. */
  get sessions(): readonly string[] {
    return this.#taken.known.sessions;
  }

  /** Texts as they come. */
  async *texts(): AsyncGenerator<StreamedText, void> {
    try {
      for await (const event of this.#generation.events()) {
        this.#firstMs ??= performance.now() - this.#startMs;
        this.#speak();
        yield event;
      }
    } catch {
      // What it failed with is told by end().
    } finally {
      this.#speak();
    }
  }

  /** Waits for its end. goesOn: the conversation waits for its next question then. Throws what it failed with. */
  async end(goesOn = true): Promise<Answer> {
    try {
      const answer = await this.#generation.result;
      this.#used?.(answer);
      const totalMs = performance.now() - this.#startMs;
      const report = await this.#taken.chat.session.report();
      // What another conversation fails with when it leaves is not of this answer.
      await (goesOn ? this.#conversations.giveBack(this.#taken) : this.#conversations.drop(this.#taken, 'done')).catch(
        () => {},
      );
      return { ...answer, report, firstMs: this.#firstMs ?? totalMs, totalMs };
    } catch (error) {
      throw await leave(this.#conversations, this.#taken, error);
    }
  }

  /** The same, and nobody reads its texts before. */
  async whole(goesOn = true): Promise<Answer> {
    for await (const _ of this.texts());
    return this.end(goesOn);
  }
}

/** Errors of a parked chat or of the log, which say nothing of the request. */
const OURS: readonly string[] = ['sealed', 'bad-file', 'checksum-mismatch', 'not-found'];

/**
 * A chat that was left in the middle goes on later only where nothing went wrong in it. → what its client is told. Who
 * asks again after a chat did not come back has another one, which reads the conversation anew.
 */
async function leave(conversations: Conversations, taken: Taken, error: unknown): Promise<unknown> {
  const isSound = error instanceof KvError && HARMLESS.includes(error.code);
  await (isSound ? conversations.giveBack(taken) : conversations.drop(taken, 'error')).catch(() => {});
  const isOurs = error instanceof KvError && OURS.includes(error.code);
  return isOurs ? new Refusal(500, error, { 'x-should-retry': 'true' }) : error;
}

/** Tokens for an answer of any length: as many as are usual, or as the context has left. */
async function roomFor({ chat }: Taken, messages: readonly ChatMessage[], usual: number): Promise<number> {
  const { roomTokens } = await (messages.length === 0 ? chat.count() : chat.count(messages));
  return Math.max(1, Math.min(usual, roomTokens));
}

/** Throws 'bad-argument' for conversations that nobody can answer. */
function checkEnd(messages: readonly ChatMessage[]): void {
  const [before, last] = [messages.at(-2), messages.at(-1)!];
  const param = `messages[${messages.length - 1}]`;
  if (last.role === 'assistant' && before?.role === 'assistant')
    throw new KvError('bad-argument', 'a conversation ends with one message of the assistant, not with two', {
      values: { param },
    });
  if (last.role === 'assistant' && (last.toolCalls ?? []).length > 0)
    throw new KvError('bad-argument', 'the calls of the last message have no answer yet', {
      values: { param },
      hint: 'add a message of role tool for each of them',
    });
}
