/**
 * A conversation with a model: messages in, text out. The chat keeps the messages, the cache of its session what was
 * read and written of them. Before each answer the conversation is rendered anew, and the cache keeps what it has in
 * common with that, so nothing that stays is read twice.
 *
 *   const chat = await engine.chat({ system, tools, kvBudget, … })   a session of its own, or `session`
 *   const reply = chat.send('…')            a question, messages, or what tools gave back
 *   for await (const text of reply) …       text as it comes; calls are held back
 *   await reply.result                      text, toolCalls, tokens reused, read and written, what was dropped
 *   await chat.count('…')                   what a question would take, before it is sent
 *   chat.send([], { continueFinalMessage: true })   goes on with an answer that was cut, or with the beginning of one
 *   chat.regenerate()                       the last answer anew, with the next seed
 *   chat.edit(index, '…')                   another content for a message; later ones stay
 *   chat.rewind(messages)                   back to so many messages; nothing is read
 *   await chat.fork()                       another chat that goes on from here
 */
import { checkKeys, checkOptions, KvError, plural, show } from '../../native/index.ts';
import { SEND_OPTIONS } from '../options/table.ts';
import type { SendOptions } from '../options/types.ts';
import type { ParsedCall } from '../session/chat/calls/call.ts';
import { systemMessages } from '../session/chat/turns.ts';
import type { Answered, ChatAnswer, ChatCount, Conversation } from '../session/chat/types.ts';
import type { ChatMessage, ToolCall } from '../transformer/types.ts';
import type { HostClient } from './calls/index.ts';
import { type EngineSession, Generation } from './engine-session.ts';
import type { Entry, KeptChat } from './kept-chat.ts';
import type { OpenedChat } from './open-chat.ts';

/** What can be sent: a question, one message, or several, such as the answers of all tools. */
export type ChatInput = string | ChatMessage | readonly ChatMessage[];

/** A conversation over one session. Made by engine.chat. */
export class Chat {
  /**
   * Its cache: reports, memory, parking. Nothing else should be read into it meanwhile; what is, is taken back before
   * the next answer.
   */
  readonly session: EngineSession;
  /** Tokens after which the end of the context is reached, answers included. */
  readonly contextTokens: number;
  /**
   * Most tokens that the conversation may have: with atContextEnd 'compress' what its bytes hold in the lowest formats,
   * otherwise contextTokens.
   */
  readonly mostTokens: number;
  /** How the model writes calls of tools, by its template; null: in no way that is known here, so calls are text. */
  readonly callFormat: string | null;
  readonly #client: HostClient;
  readonly #opened: OpenedChat;
  #entries: readonly Entry[];
  #calls = 0;
  #isBusy = false;

  /** @internal use engine.chat */
  constructor(client: HostClient, opened: OpenedChat, entries?: readonly Entry[], calls = 0) {
    const { session, conversation, callFormat } = opened;
    this.session = session;
    this.contextTokens = conversation.contextTokens;
    this.mostTokens = conversation.mostTokens;
    this.callFormat = callFormat;
    this.#client = client;
    this.#opened = opened;
    this.#entries = entries ?? conversation.messages.map(entryOf);
    this.#calls = calls;
  }

  /** What was said, the system message included; what was dropped is not. */
  get messages(): readonly ChatMessage[] {
    return this.#entries.map(({ message }) => message);
  }

  /**
   * Says something and is answered. Where that fails or is aborted while it is read, nothing was said; an answer that
   * is aborted stays as far as it came. Options replace those of the chat. The result rejects with 'context-too-long'
   * and the numbers where it does not fit, 'busy', and what generate refuses. With `continueFinalMessage` the answer is
   * the rest of the last message, an assistant's, and the input may be an empty list.
   */
  send(input: ChatInput, options: SendOptions = {}): Generation<ChatAnswer> {
    const isMore = options?.continueFinalMessage === true && Array.isArray(input) && input.length === 0;
    return this.#answer(() => (isMore ? this.#entries : [...this.#entries, ...said(input)]), options);
  }

  /**
   * Answers the last question anew, in place of the answer, with the next seed unless one is given; without a
   * temperature it says the same again. An answer that went on with a beginning goes on with it again.
   */
  regenerate(options: SendOptions = {}): Generation<ChatAnswer> {
    const before = this.#entries.at(-1);
    const isAnswer = before?.message.role === 'assistant';
    const begun = isAnswer ? before.begun : null;
    const seed = {
      ...(isAnswer && before.seed !== null ? { seed: before.seed + 1 } : {}),
      ...(begun === null ? {} : { continueFinalMessage: true }),
      ...options,
    };
    return this.#answer(() => {
      const earlier = isAnswer ? this.#entries.slice(0, -1) : this.#entries;
      const question = begun === null ? earlier : [...earlier, begun];
      if (question.length > systemMessages(question.map(({ message }) => message))) return question;
      throw new KvError('bad-argument', 'nothing was asked yet', { hint: 'send() something first' });
    }, seed);
  }

  /** What sending this would take, or without it what the conversation takes. Nothing is read. */
  async count(input?: ChatInput): Promise<ChatCount> {
    const entries = input === undefined ? this.#entries : [...this.#entries, ...said(input)];
    return this.#client.call('countChat', { session: this.session.id, chat: this.#told(entries) });
  }

  /**
   * Gives a message another content; a call of an answer stays. What follows stays as well, and is read again from
   * there with the next answer.
   */
  edit(index: number, content: string): void {
    this.#ready();
    const entry = this.#entries[this.#index(index, this.#entries.length - 1)];
    if (entry === undefined || typeof content !== 'string')
      throw new KvError('bad-argument', 'there is no such message, or its content is no text', {
        values: { index: show(index), messages: this.#entries.length, content: typeof content },
      });
    this.#entries = this.#entries.with(index, entryOf({ ...entry.message, content }));
  }

  /** Goes back to the first `messages` messages; by default to before the last question. → what was taken back */
  rewind(messages: number = this.#lastQuestion()): readonly ChatMessage[] {
    this.#ready();
    const kept = this.#index(messages, this.#entries.length);
    const taken = this.messages.slice(kept);
    this.#entries = this.#entries.slice(0, kept);
    return taken;
  }

  /**
   * Another chat that goes on from here, over a fork of the session: pages are shared until either changes them. Each
   * is closed by itself.
   */
  async fork(): Promise<Chat> {
    this.#ready();
    const entries = this.#entries;
    const session = await this.session.fork();
    return new Chat(this.#client, { ...this.#opened, session }, entries, this.#calls);
  }

  /** @internal The conversation as it is now, to go on elsewhere by Engine.resumeChat. Throws what park() throws. */
  async save(): Promise<KeptChat> {
    this.#ready();
    const { contextTokens, mostTokens, date } = this.#opened.conversation;
    const chat = { entries: this.#entries, calls: this.#calls, contextTokens, mostTokens, dateMs: date.getTime() };
    return { chat, parked: await this.#client.call('parkedBytes', { session: this.session.id }) };
  }

  /** Closes the session. */
  async close(): Promise<void> {
    await this.session.close();
  }

  /** The same as close(). */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #answer(entriesOf: () => readonly Entry[], options: SendOptions): Generation<ChatAnswer> {
    const left = new AbortController();
    return new Generation<ChatAnswer>(
      async (onEvent) => {
        checkKeys(options, SEND_OPTIONS, 'send');
        this.#ready();
        const { signal, onProgress: _, continueFinalMessage = false, ...plain } = options;
        checkOptions(options, SEND_OPTIONS);
        const entries = entriesOf();
        if (continueFinalMessage) checkContinued(entries.at(-1)?.message);
        const generate = { ...this.#opened.generate, ...plain };
        const either = signal === undefined ? left.signal : AbortSignal.any([signal, left.signal]);
        const params = { session: this.session.id, chat: this.#told(entries, continueFinalMessage), options: generate };
        this.#isBusy = true;
        let text = '';
        const hear: typeof onEvent = (event) => {
          text += event.text ?? '';
          onEvent(event);
        };
        try {
          const answered = await this.#client.call('answerChat', params, { onEvent: hear, signal: either });
          return this.#keep(entries, answered, generate.seed ?? 0, continueFinalMessage);
        } catch (error) {
          if (text !== '' && isOutOfRoom(error))
            this.#entries = withAnswer(entries, entryOf({ role: 'assistant', content: text }), continueFinalMessage);
          throw error;
        } finally {
          this.#isBusy = false;
        }
      },
      () => left.abort(),
      options?.onProgress,
    );
  }

  #keep(entries: readonly Entry[], answered: Answered, seed: number, continues: boolean): ChatAnswer {
    const { calls, written, droppedMessages, ...generated } = answered;
    const toolCalls = calls.map((call) => this.#identified(call));
    const message: ChatMessage = {
      role: 'assistant',
      content: generated.text,
      ...(toolCalls.length === 0 ? {} : { toolCalls }),
    };
    const system = systemMessages(entries.map((entry) => entry.message));
    const dropped = entries.slice(system, system + droppedMessages).map((entry) => entry.message);
    const left = entries.toSpliced(system, droppedMessages);
    this.#entries = withAnswer(left, { message, written, seed, begun: null }, continues);
    return { ...generated, message: this.#entries.at(-1)!.message, toolCalls, dropped, seed };
  }

  /** Templates of Mistral want ids of nine letters and digits. */
  #identified({ id, ...call }: ParsedCall): ToolCall {
    const taken = new Set(this.#entries.flatMap(({ message }) => (message.toolCalls ?? []).map((one) => one.id)));
    const next = (): string => `call${String(++this.#calls).padStart(5, '0')}`;
    let own = id ?? next();
    // A conversation that began elsewhere has calls of its own.
    while (id === undefined && taken.has(own)) own = next();
    return { id: own, ...call };
  }

  #told(entries: readonly Entry[], continueFinalMessage = false): Conversation {
    return {
      ...this.#opened.conversation,
      continueFinalMessage,
      messages: entries.map(({ message }) => message),
      written: entries.map(({ written }) => written),
    };
  }

  #lastQuestion(): number {
    return Math.max(
      systemMessages(this.messages),
      this.#entries.findLastIndex(({ message }) => message.role === 'user'),
    );
  }

  #index(value: number, most: number): number {
    if (Number.isInteger(value) && value >= 0 && value <= most) return value;
    throw new KvError(
      'bad-argument',
      `a chat of ${plural(this.#entries.length, 'message')} has no place ${show(value)}`,
      {
        values: { index: show(value), messages: this.#entries.length },
      },
    );
  }

  #ready(): void {
    if (this.#isBusy)
      throw new KvError('busy', 'the chat is answering', {
        values: { session: this.session.id },
        hint: 'wait for the result of the running answer, or fork() before it',
      });
  }
}

/** True for an answer that began and found no room to go on: what was read of it stays. */
const isOutOfRoom = (error: unknown): boolean =>
  error instanceof KvError && (error.code === 'budget-exceeded' || error.code === 'budget-too-small');

const entryOf = (message: ChatMessage): Entry => ({ message, written: null, seed: null, begun: null });

/** Entries with an answer, which may be the rest of the last one. */
function withAnswer(entries: readonly Entry[], answer: Entry, continues: boolean): readonly Entry[] {
  if (!continues) return [...entries, answer];
  const begun = entries.at(-1)!;
  const message = { ...begun.message, ...answer.message, content: begun.message.content + answer.message.content };
  const written = begun.written === null || answer.written === null ? null : [...begun.written, ...answer.written];
  return [...entries.slice(0, -1), { ...answer, message, written, begun }];
}

/** Throws 'bad-argument' for what no answer can go on with. */
function checkContinued(last: ChatMessage | undefined): void {
  if (last?.role === 'assistant' && (last.toolCalls ?? []).length === 0) return;
  throw new KvError('bad-argument', 'continueFinalMessage goes on with a text of the assistant', {
    values: { role: last?.role ?? null, calls: last?.toolCalls?.length ?? 0 },
    hint: "send [question, { role: 'assistant', content: 'The answer is' }], or [] behind an answer that was cut",
  });
}

function said(input: ChatInput): Entry[] {
  const messages: readonly ChatMessage[] =
    typeof input === 'string'
      ? [{ role: 'user', content: input }]
      : Array.isArray(input)
        ? input
        : [input as ChatMessage];
  if (messages.length > 0) return messages.map(entryOf);
  throw new KvError('bad-argument', 'nothing is said', { hint: 'a text, a message, or a list of messages' });
}
