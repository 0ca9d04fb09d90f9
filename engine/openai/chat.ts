/** `/v1/chat/completions`: a request, its answers at once or as events. */
import { given, KvError } from '../../native/index.ts';
import { conversationIn } from '../transformer/conversation-file.ts';
import type { GeneratedToken } from '../transformer/sampling/logprobs.ts';
import { turnOf } from './asked.ts';
import { cacheOf, callDeltas, callsOf, chatChunk, chatCompletion, finishOf, lastChunk } from './chat-completion.ts';
import type { EventStream } from './event-stream.ts';
import { failureOf } from './failure.ts';
import { CHAT_REQUEST, type ChatRequest, checkedBody } from './request.ts';
import type { Asker, Service, Told } from './service.ts';
import { type Answer, BegunTurn, type Turn } from './turn.ts';

/** A request for a chat completion whose first answer has begun. */
export class ChatCompletion {
  readonly #service: Service;
  readonly #request: ChatRequest;
  readonly #turns: readonly Turn[];
  readonly #first: BegunTurn;
  readonly #told: Told;

  private constructor(service: Service, request: ChatRequest, turns: readonly Turn[], first: BegunTurn) {
    this.#service = service;
    this.#request = request;
    this.#turns = turns;
    this.#first = first;
    this.#told = service.told('chatcmpl');
  }

  /** bytes: the body, body: the same as an object. Throws what a request is refused with, before anything is told. */
  static async begin(service: Service, bytes: Uint8Array, body: unknown, asker: Asker): Promise<ChatCompletion> {
    const request = checkedBody(CHAT_REQUEST, body);
    service.checkModel(request.model);
    const { messages, options } = conversationIn(bytes, 'the body');
    const turn = turnOf(service, request, { messages, tools: options.tools }, asker);
    const { seed = 0 } = turn.options;
    const n = request.n ?? 1;
    if (seed > Number.MAX_SAFE_INTEGER - (n - 1))
      throw new KvError('bad-argument', 'each answer has the next seed, and the last one would be too large', {
        values: { param: 'seed', n },
        hint: 'a smaller seed',
      });
    const turns = Array.from({ length: n }, (_, at) => ({ ...turn, options: { ...turn.options, seed: seed + at } }));
    return new ChatCompletion(service, request, turns, await BegunTurn.begin(service.conversations, turns[0]!));
  }

  get isStreamed(): boolean {
    return this.#request.stream === true;
  }

  /** The session of its first answer. */
  get session(): string {
    return this.#first.session;
  }

  /** All of it at once. Throws what an answer failed with. */
  async whole(): Promise<object> {
    const answers = await this.#each((turn, index) => turn.whole(index === 0));
    return chatCompletion(this.#told, answers, this.#isParallel);
  }

  /** Told as it comes. What goes wrong on the way is the last event, and nothing follows it. */
  async tell(events: EventStream): Promise<void> {
    try {
      const answers = await this.#each((turn, index) => this.#tellOne(turn, index, events));
      if (this.#tellsUsage) await events.send(lastChunk(this.#told, answers));
      await events.send('[DONE]');
    } catch (error) {
      await events.send({ error: failureOf(error).error });
    }
  }

  get #tellsUsage(): boolean {
    return this.#request.stream_options?.include_usage === true;
  }

  get #isParallel(): boolean {
    return this.#request.parallel_tool_calls !== false;
  }

  /**
   * Does something with each answer. The others begin when the first has its first text, and so over pages of a prompt
   * that is read.
   */
  async #each(work: (turn: BegunTurn, index: number) => Promise<Answer>): Promise<Answer[]> {
    const [, ...others] = this.#turns;
    const first = work(this.#first, 0);
    first.catch(() => {});
    await Promise.race([this.#first.spoken, first.catch(() => {})]);
    const begun = others.map(async (turn, index) =>
      work(await BegunTurn.begin(this.#service.conversations, turn), index + 1),
    );
    const settled = await Promise.allSettled([first, ...begun]);
    return settled.map((one) => {
      if (one.status === 'rejected') throw one.reason;
      return one.value;
    });
  }

  async #tellOne(turn: BegunTurn, index: number, events: EventStream): Promise<Answer> {
    const piece = (delta: object, more?: Parameters<typeof chatChunk>[3]): Promise<void> =>
      events.send(chatChunk(this.#told, index, delta, more));
    await piece({ role: 'assistant', content: '' });
    let toldTokens = 0;
    for await (const { text, logprobs } of turn.texts()) {
      toldTokens += logprobs?.length ?? 0;
      await piece({ content: text }, { logprobs });
    }
    // Of several answers a client goes on with the first, or begins with the pages of its prompt.
    const answer = await turn.end(index === 0);
    const rest: readonly GeneratedToken[] = answer.logprobs?.slice(toldTokens) ?? [];
    if (rest.length > 0) await piece({ content: '' }, { logprobs: rest });
    for (const [at, call] of callsOf(answer, this.#isParallel).entries())
      for (const delta of callDeltas(call, at)) await piece(delta);
    // Else the piece behind it says this.
    const palimpsest = answer.receipt === null || this.#tellsUsage ? undefined : cacheOf(answer);
    await piece({}, given({ finish: finishOf(answer), palimpsest }));
    return answer;
  }
}
