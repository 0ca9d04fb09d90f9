/** `/v1/responses`: an answer with what it was asked by, whole or as the events of its growing. */
import { randomUUID } from 'node:crypto';
import type { GeneratedToken } from '../transformer/sampling/logprobs.ts';
import type { ToolCall } from '../transformer/types.ts';
import { responseTurnOf } from './asked.ts';
import { cacheOf, callsOf, logprobsOf, timingsOf } from './chat-completion.ts';
import { argumentsOf } from './conversation.ts';
import { type Diagnostics, diagnose } from './diagnostics.ts';
import type { EventStream } from './event-stream.ts';
import type { Failure } from './failure.ts';
import { OneAnswer } from './one-answer.ts';
import { checkedBody, type InputItem, RESPONSE_REQUEST, type ResponseRequest } from './request.ts';
import { conversationOf, itemsOf } from './response-input.ts';
import type { ResponseStore } from './response-store.ts';
import type { Asker, Service } from './service.ts';
import { type Answer, BegunTurn, type Turn } from './turn.ts';

/** A message or a call that a response has. */
type Output = ReturnType<typeof messageItem> | ReturnType<typeof callItem>;

const idOf = (kind: 'resp' | 'msg' | 'fc'): string => `${kind}_${randomUUID().replaceAll('-', '')}`;
const nowS = (): number => Math.floor(Date.now() / 1000);

const textPart = (text: string, logprobs: readonly GeneratedToken[] | null) => ({
  type: 'output_text',
  text,
  annotations: [],
  logprobs: logprobs === null ? [] : logprobsOf(logprobs).content,
});

const messageItem = (id: string, status: string, content: readonly ReturnType<typeof textPart>[]) => ({
  id,
  type: 'message' as const,
  status,
  role: 'assistant',
  content,
});

const callItem = (id: string, status: string, call: ToolCall, text: string) => ({
  id,
  type: 'function_call' as const,
  status,
  call_id: call.id,
  name: call.name,
  arguments: text,
});

/** A request for a response whose answer has begun. */
export class ResponseAnswer extends OneAnswer {
  readonly #store: ResponseStore;
  readonly #owner: string | undefined;
  readonly #request: ResponseRequest;
  readonly #items: readonly InputItem[];
  readonly #turn: Turn;
  readonly #id = idOf('resp');
  readonly #message = idOf('msg');
  readonly #createdS = nowS();
  #sequence = 0;

  private constructor(
    {
      service,
      store,
      owner,
    }: { readonly service: Service; readonly store: ResponseStore; readonly owner: string | undefined },
    request: ResponseRequest,
    items: readonly InputItem[],
    { turn, begun }: { readonly turn: Turn; readonly begun: BegunTurn },
  ) {
    super(service, begun, request.stream);
    this.#store = store;
    this.#owner = owner;
    this.#request = request;
    this.#items = items;
    this.#turn = turn;
  }

  /** Throws what a request is refused with, before anything is told. */
  static async begin(service: Service, store: ResponseStore, body: unknown, asker: Asker): Promise<ResponseAnswer> {
    const request = checkedBody(RESPONSE_REQUEST, body);
    service.checkModel(request.model);
    const { previous_response_id: previous } = request;
    const before = previous == null ? [] : (await store.get(previous, 'previous_response_id', asker.salt)).items;
    const items = [...before, ...itemsOf(request)];
    const turn = responseTurnOf(service, request, conversationOf(request, items), asker);
    const owner = asker.salt;
    const begun = await BegunTurn.begin(service.conversations, turn);
    return new ResponseAnswer({ service, store, owner }, request, items, { turn, begun });
  }

  protected asWhole(answer: Answer): Promise<object> {
    return this.#end(answer, this.#outputs(answer));
  }

  protected async tellAll(events: EventStream): Promise<void> {
    const told = this.#store.begin(this.#id, this.#owner);
    try {
      await this.#tellAll(this.#numbered(events));
    } finally {
      told();
    }
  }

  async #tellAll(tell: Tell): Promise<void> {
    await tell('response.created', { response: this.#head('in_progress', []) });
    await tell('response.in_progress', { response: this.#head('in_progress', []) });
    const answer = await this.#tellText(tell);
    const outputs = this.#outputs(answer);
    for (const [index, output] of outputs.entries())
      if (output.type === 'function_call') await tellCall(tell, index, output);
    const response = await this.#end(answer, outputs);
    await tell(`response.${response.status}`, { response });
  }

  protected async tellFailure(events: EventStream, error: Failure['error']): Promise<void> {
    const tell = this.#numbered(events);
    const { code, message, param } = error;
    await tell('response.failed', { response: { ...this.#head('failed', []), error: { code, message } } });
    // Clients of the older kind look for this one.
    await tell('error', { code, message, param, error });
  }

  #numbered(events: EventStream): Tell {
    return (type, more) => events.send({ type, sequence_number: this.#sequence++, ...more }, type);
  }

  /** The text of the answer, which is an item of its own where there is any. */
  async #tellText(tell: Tell): Promise<Answer> {
    const at = { item_id: this.#message, output_index: 0, content_index: 0 };
    const added = async (): Promise<void> => {
      await tell('response.output_item.added', {
        output_index: 0,
        item: messageItem(this.#message, 'in_progress', []),
      });
      await tell('response.content_part.added', { ...at, part: textPart('', null) });
    };
    let text = '';
    for await (const piece of this.begun.texts()) {
      if (piece.text === '') continue;
      if (text === '') await added();
      text += piece.text;
      const logprobs = piece.logprobs === null ? [] : logprobsOf(piece.logprobs).content;
      await tell('response.output_text.delta', { ...at, delta: piece.text, logprobs });
    }
    const answer = await this.begun.end();
    const [message] = this.#outputs(answer);
    if (message?.type !== 'message') return answer;
    const [part] = message.content;
    if (text === '') await added();
    await tell('response.output_text.done', { ...at, text: answer.text, logprobs: part!.logprobs });
    await tell('response.content_part.done', { ...at, part });
    await tell('response.output_item.done', { output_index: 0, item: message });
    return answer;
  }

  /** What the answer is made of: its text, and its calls behind it. */
  #outputs(answer: Answer): readonly Output[] {
    const calls = callsOf(answer, this.#request.parallel_tool_calls !== false);
    const status = answer.finish === 'length' ? 'incomplete' : 'completed';
    const isCallAlone = answer.text === '' && calls.length > 0;
    const message = messageItem(this.#message, status, [textPart(answer.text, answer.logprobs)]);
    return [
      ...(isCallAlone ? [] : [message]),
      ...calls.map((call) => callItem(`fc_${call.id}_${this.#id.slice(5)}`, 'completed', call, argumentsOf(call))),
    ];
  }

  /** The response at its end, kept for those that go on behind it. */
  async #end(answer: Answer, output: readonly Output[]) {
    const status = answer.finish === 'length' ? ('incomplete' as const) : ('completed' as const);
    const diagnostics = await this.#diagnostics(answer);
    const prompt = answer.promptTokens + answer.cachedTokens;
    const response = {
      ...this.#head(status, output),
      completed_at: nowS(),
      incomplete_details: status === 'incomplete' ? { reason: 'max_output_tokens' } : null,
      usage: {
        input_tokens: prompt,
        input_tokens_details: { cached_tokens: answer.cachedTokens },
        output_tokens: answer.tokens,
        output_tokens_details: { reasoning_tokens: 0 },
        total_tokens: prompt + answer.tokens,
      },
      ...(diagnostics === null ? {} : { prompt_cache_diagnostics: diagnostics }),
      timings: timingsOf(answer),
      palimpsest: cacheOf(answer),
      status,
    };
    if (this.#request.store !== false)
      await this.#store.keep({
        response,
        items: [...this.#items, ...(output as readonly InputItem[])],
        prompt: this.#turn.messages,
        terms: this.#turn.terms,
        owner: this.#owner,
        sessions: this.begun.sessions,
      });
    return response;
  }

  /** null: nobody asked. */
  async #diagnostics({ cachedTokens }: Answer): Promise<Diagnostics | null> {
    const compared = this.#request.prompt_cache_options?.comparison_response_id;
    if (compared == null) return null;
    const { terms, messages: prompt } = this.#turn;
    const before = await this.#store.find(compared, this.#owner);
    return diagnose(this.service.engine, before, { terms, prompt, cachedTokens });
  }

  #head(status: string, output: readonly Output[]) {
    const { request, options } = { request: this.#request, options: this.#turn.options };
    return {
      id: this.#id,
      object: 'response',
      created_at: this.#createdS,
      completed_at: null as number | null,
      status,
      background: false,
      error: null,
      incomplete_details: null as { readonly reason: string } | null,
      instructions: request.instructions ?? null,
      max_output_tokens: request.max_output_tokens ?? null,
      max_tool_calls: null,
      model: this.service.model,
      output,
      parallel_tool_calls: request.parallel_tool_calls !== false,
      previous_response_id: request.previous_response_id ?? null,
      prompt_cache_key: request.prompt_cache_key ?? null,
      reasoning: { effort: null, summary: null },
      safety_identifier: null,
      service_tier: 'default',
      store: request.store !== false,
      temperature: options.temperature ?? 0,
      top_p: options.topP ?? 1,
      top_logprobs: request.top_logprobs ?? 0,
      frequency_penalty: options.frequencyPenalty ?? 0,
      presence_penalty: options.presencePenalty ?? 0,
      text: { format: request.text?.format ?? { type: 'text' } },
      tool_choice: request.tool_choice ?? 'auto',
      tools: (request.tools ?? []).map((tool) => ({ description: null, parameters: null, strict: null, ...tool })),
      truncation: 'disabled',
      usage: null as object | null,
      user: null,
      metadata: request.metadata ?? {},
    };
  }
}

type Tell = (type: string, more: object) => Promise<void>;

/** A call, whose arguments are there all at once. */
async function tellCall(tell: Tell, index: number, call: ReturnType<typeof callItem>): Promise<void> {
  const at = { item_id: call.id, output_index: index };
  await tell('response.output_item.added', {
    output_index: index,
    item: { ...call, status: 'in_progress', arguments: '' },
  });
  await tell('response.function_call_arguments.delta', { ...at, delta: call.arguments });
  await tell('response.function_call_arguments.done', { ...at, name: call.name, arguments: call.arguments });
  await tell('response.output_item.done', { output_index: index, item: call });
}
