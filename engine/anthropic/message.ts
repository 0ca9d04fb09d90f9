/** `/v1/messages` of Anthropic's API: an answer as a message of blocks, at once or as events. */
import { randomUUID } from 'node:crypto';
import { turnOf } from '../openai/asked.ts';
import { cacheOf, callsOf } from '../openai/chat-completion.ts';
import { argumentsOf } from '../openai/conversation.ts';
import type { EventStream } from '../openai/event-stream.ts';
import type { Failure } from '../openai/failure.ts';
import { OneAnswer } from '../openai/one-answer.ts';
import { type ChatRequest, checkedBody } from '../openai/request.ts';
import type { Asker, Service } from '../openai/service.ts';
import { type Answer, BegunTurn } from '../openai/turn.ts';
import { COUNT_REQUEST, chatRequestOf, MESSAGES_REQUEST, saidIn } from './request.ts';

/** Tokens that a conversation takes. Throws what a request is refused with. */
export async function countTokens(service: Service, body: unknown): Promise<object> {
  const request = checkedBody(COUNT_REQUEST, body);
  service.checkModel(request.model);
  const { messages, tools } = saidIn(request);
  const { template } = service;
  const goesOn = messages.at(-1)!.role === 'assistant';
  const options = { tools, ...(template === undefined ? {} : { template }) };
  const ids = await service.engine.renderTokens(messages, {
    ...options,
    ...(goesOn ? { continueFinalMessage: true, addGenerationPrompt: false } : {}),
  });
  return { input_tokens: ids.length };
}

/** A request for a message whose answer has begun. */
export class MessageAnswer extends OneAnswer {
  readonly #request: ChatRequest;
  readonly #id = `msg_${randomUUID().replaceAll('-', '')}`;

  private constructor(service: Service, request: ChatRequest, begun: BegunTurn) {
    super(service, begun, request.stream);
    this.#request = request;
  }

  /** Throws what a request is refused with, before anything is told. */
  static async begin(service: Service, body: unknown, asker: Asker): Promise<MessageAnswer> {
    const given = checkedBody(MESSAGES_REQUEST, body);
    service.checkModel(given.model);
    const request = chatRequestOf(given);
    const turn = turnOf(service, request, saidIn(given), asker);
    return new MessageAnswer(service, request, await BegunTurn.begin(service.conversations, turn));
  }

  protected asWhole(answer: Answer): object {
    const calls = this.#calls(answer);
    const content = [
      ...(answer.text === '' && calls.length > 0 ? [] : [{ type: 'text', text: answer.text }]),
      ...calls,
    ];
    return {
      ...this.#head(),
      content,
      ...endOf(answer, calls.length),
      usage: usageOf(answer),
      palimpsest: cacheOf(answer),
    };
  }

  protected async tellAll(events: EventStream): Promise<void> {
    const tell = (type: string, more: object): Promise<void> => events.send({ type, ...more }, type);
    const usage = { input_tokens: 0, output_tokens: 0 };
    await tell('message_start', {
      message: { ...this.#head(), content: [], stop_reason: null, stop_sequence: null, usage },
    });
    let index = 0;
    for await (const { text } of this.begun.texts()) {
      if (index === 0) await tell('content_block_start', { index: 0, content_block: { type: 'text', text: '' } });
      index = 1;
      await tell('content_block_delta', { index: 0, delta: { type: 'text_delta', text } });
    }
    if (index === 1) await tell('content_block_stop', { index: 0 });
    const answer = await this.begun.end();
    const calls = callsOf(answer, this.#isParallel);
    for (const call of calls) {
      const content_block = { type: 'tool_use', id: call.id, name: call.name, input: {} };
      await tell('content_block_start', { index, content_block });
      const delta = { type: 'input_json_delta', partial_json: argumentsOf(call) };
      await tell('content_block_delta', { index, delta });
      await tell('content_block_stop', { index });
      index++;
    }
    const delta = endOf(answer, calls.length);
    await tell('message_delta', { delta, usage: usageOf(answer), palimpsest: cacheOf(answer) });
    await tell('message_stop', {});
  }

  protected tellFailure(events: EventStream, error: Failure['error']): Promise<void> {
    return events.send({ type: 'error', error }, 'error');
  }

  get #isParallel(): boolean {
    return this.#request.parallel_tool_calls !== false;
  }

  #calls(answer: Answer) {
    return callsOf(answer, this.#isParallel).map(({ id, name, arguments: input }) => ({
      type: 'tool_use',
      id,
      name,
      input,
    }));
  }

  #head() {
    return { id: this.#id, type: 'message', role: 'assistant', model: this.service.model };
  }
}

/** Why it ended. */
function endOf({ finish, stoppedBy }: Answer, calls: number) {
  const other = calls > 0 ? 'tool_use' : stoppedBy === null ? 'end_turn' : 'stop_sequence';
  const stop_reason = finish === 'length' ? 'max_tokens' : other;
  return { stop_reason, stop_sequence: stop_reason === 'stop_sequence' ? stoppedBy : null };
}

/** Tokens of the prompt that were read, those that were not, and those of the answer. */
const usageOf = ({ promptTokens, cachedTokens, tokens }: Answer) => ({
  input_tokens: promptTokens,
  cache_creation_input_tokens: 0,
  cache_read_input_tokens: cachedTokens,
  output_tokens: tokens,
});
