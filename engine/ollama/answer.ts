/** `/api/chat` and `/api/generate` of Ollama's API: an answer at once, or as lines of JSON. */
import { turnOf } from '../openai/asked.ts';
import { cacheOf } from '../openai/chat-completion.ts';
import type { EventStream } from '../openai/event-stream.ts';
import type { Failure } from '../openai/failure.ts';
import { OneAnswer } from '../openai/one-answer.ts';
import { checkedBody } from '../openai/request.ts';
import type { Asker, Service } from '../openai/service.ts';
import { type Answer, BegunTurn, type Turn } from '../openai/turn.ts';
import { chatRequestOf, GENERATE_REQUEST, OLLAMA_CHAT_REQUEST, saidIn, untagged } from './request.ts';

/** Nanoseconds, whole ones. */
const nanoseconds = (ms: number): number => Math.round(ms * 1e6);

/** How a text is told: as a message of a chat, or by itself. */
type Telling = (text: string, answer?: Answer) => object;

/** A text alone. */
const asText: Telling = (text) => ({ response: text });

/** A message, with its calls where it is complete. */
const asMessage: Telling = (text, answer) => {
  const calls = (answer?.toolCalls ?? []).map(({ name, arguments: given }) => ({
    function: { name, arguments: given },
  }));
  return { message: { role: 'assistant', content: text, ...(calls.length === 0 ? {} : { tool_calls: calls }) } };
};

/** A request whose answer has begun. */
export class OllamaAnswer extends OneAnswer {
  readonly isLines = true;
  readonly #telling: Telling;

  private constructor(service: Service, begun: BegunTurn, telling: Telling, isStreamed: boolean) {
    super(service, begun, isStreamed);
    this.#telling = telling;
  }

  /** Throws what a request is refused with, before anything is told. */
  static async chat(service: Service, body: unknown, asker: Asker): Promise<OllamaAnswer> {
    const given = checkedBody(OLLAMA_CHAT_REQUEST, body);
    service.checkModel(untagged(given.model));
    const request = chatRequestOf(given, given);
    const turn = turnOf(service, request, saidIn(given), asker);
    return OllamaAnswer.#begin(service, turn, asMessage, request.stream === true);
  }

  /** The same of a prompt by itself, which is a question of a user. */
  static async generate(service: Service, body: unknown, asker: Asker): Promise<OllamaAnswer> {
    const given = checkedBody(GENERATE_REQUEST, body);
    service.checkModel(untagged(given.model));
    const system = given.system == null ? [] : [{ role: 'system' as const, content: given.system }];
    const messages = [...system, { role: 'user' as const, content: given.prompt }];
    const request = chatRequestOf(given, { messages });
    const turn = turnOf(service, request, saidIn({ messages, tools: null }), asker);
    return OllamaAnswer.#begin(service, turn, asText, request.stream === true);
  }

  static async #begin(service: Service, turn: Turn, telling: Telling, isStreamed: boolean): Promise<OllamaAnswer> {
    return new OllamaAnswer(service, await BegunTurn.begin(service.conversations, turn), telling, isStreamed);
  }

  protected asWhole(answer: Answer): object {
    return this.#last(answer, answer.text);
  }

  protected async tellAll(lines: EventStream): Promise<void> {
    for await (const { text } of this.begun.texts())
      await lines.send({ ...this.#head(), ...this.#telling(text), done: false });
    const answer = await this.begun.end();
    await lines.send(this.#last(answer, ''));
  }

  protected tellFailure(lines: EventStream, { message }: Failure['error']): Promise<void> {
    return lines.send({ error: message });
  }

  #head() {
    return { model: this.service.model, created_at: new Date().toISOString() };
  }

  #last(answer: Answer, text: string): object {
    const { promptTokens, cachedTokens, tokens, firstMs, totalMs, finish } = answer;
    return {
      ...this.#head(),
      ...this.#telling(text, answer),
      done: true,
      done_reason: finish === 'length' ? 'length' : 'stop',
      total_duration: nanoseconds(totalMs),
      load_duration: 0,
      prompt_eval_count: promptTokens + cachedTokens,
      prompt_eval_duration: nanoseconds(firstMs),
      eval_count: tokens,
      eval_duration: nanoseconds(totalMs - firstMs),
      palimpsest: { ...cacheOf(answer), cached_tokens: cachedTokens },
    };
  }
}
