/** What a request asks of an engine: options of a session and of an answer, from OpenAI's names. */
import { randomInt } from 'node:crypto';
import { given } from '../../native/index.ts';
import { PROPOSED } from '../options/table.ts';
import type { GenerateOptions, SendOptions, SessionAdapter, SessionOptions, ToolChoice } from '../options/types.ts';
import type { GrammarOption } from '../transformer/grammar/options.ts';
import type { ChatMessage, ChatTool } from '../transformer/types.ts';
import type { ChatRequest, CompletionRequest, EitherRequest, ResponseRequest } from './request.ts';
import type { Asker, Service } from './service.ts';
import type { Turn } from './turn.ts';

/** Left out where it is null, too. */
const set = <T>(value: T | null | undefined): T | undefined => value ?? undefined;

/** Seeds of answers that nobody gave one are below it. */
const SEEDS = 2 ** 32;
export const drawnSeed = (): number => randomInt(SEEDS);

/**
 * What OpenAI's salt and key say of who shares a cache: those whose both are the same. Undefined where neither is
 * given. `salt`: of whoever asks.
 */
export function saltOf({ cache_salt, prompt_cache_key }: EitherRequest, salt: string | undefined): string | undefined {
  const parts = [salt ?? null, cache_salt ?? null, prompt_cache_key ?? null];
  return parts.every((part) => part === null) ? undefined : JSON.stringify(parts);
}

/** The options of the session that answers. */
export function sessionAsked(
  request: EitherRequest,
  { salt, priority, weight }: Omit<Asker, 'signal'>,
): SessionOptions {
  const own = set(request.priority);
  return given<SessionOptions>({
    kvBudget: set(request.kv_budget),
    kldBudget: set(request.kld_budget),
    adapters: adaptersAsked(request),
    cacheSalt: saltOf(request, salt),
    schedulingPriority: priority === undefined ? own : Math.max(own ?? priority, priority),
    schedulingWeight: weight,
  });
}

function adaptersAsked({ adapters }: EitherRequest): SessionOptions['adapters'] {
  if (adapters === 'proposed') return PROPOSED;
  return adapters?.map(({ name, scale }) => given<SessionAdapter>({ name, scale: set(scale) }));
}

/** How tokens are drawn; what the request leaves out is as `defaults` have it. */
function samplingAsked(request: EitherRequest): GenerateOptions {
  const { logit_bias: bias, stop } = request;
  return given<GenerateOptions>({
    temperature: set(request.temperature),
    topP: set(request.top_p),
    topK: set(request.top_k),
    minP: set(request.min_p),
    typicalP: set(request.typical_p),
    repeatPenalty: set(request.repeat_penalty),
    repeatLastN: set(request.repeat_last_n),
    frequencyPenalty: set(request.frequency_penalty),
    presencePenalty: set(request.presence_penalty),
    logitBias: bias == null ? undefined : (bias as Readonly<Record<number, number>>),
    // A negative one is a seed to other servers.
    seed: request.seed == null ? drawnSeed() : Math.abs(request.seed),
    stop: stop == null ? undefined : typeof stop === 'string' ? [stop] : stop,
    receipt: set(request.receipt),
  });
}

/** The options of an answer in a conversation. */
export function answerAsked(request: ChatRequest, defaults: GenerateOptions): SendOptions & { readonly seed: number } {
  const { logprobs, top_logprobs: top } = request;
  return {
    ...defaults,
    ...given<SendOptions>({
      ...samplingAsked(request),
      maxTokens: set(request.max_completion_tokens ?? request.max_tokens),
      grammar: grammarAsked(request),
      toolChoice: choiceAsked(request),
      parallelToolCalls: set(request.parallel_tool_calls),
      logprobs: logprobs === true ? (top ?? 0) : undefined,
    }),
  } as SendOptions & { readonly seed: number };
}

/** What is said in a conversation, and what may be called there. */
export interface Said {
  readonly messages: readonly ChatMessage[];
  readonly tools: readonly ChatTool[];
}

/** What a request in a conversation has answered. */
export const turnOf = (service: Service, request: ChatRequest, said: Said, asker: Asker): Turn => ({
  ...turnBut(service, request, said, asker),
  options: answerAsked(request, service.sampling),
  continues: request.add_generation_prompt !== true,
});

/** The same of a response. */
export const responseTurnOf = (service: Service, request: ResponseRequest, said: Said, asker: Asker): Turn => ({
  ...turnBut(service, request, said, asker),
  options: responseAsked(request, service.sampling),
  continues: false,
});

/** What both have, whatever their answers are to be. */
const turnBut = (
  service: Service,
  request: EitherRequest & Pick<ChatRequest, 'store'>,
  { messages, tools }: Said,
  asker: Asker,
): Omit<Turn, 'options' | 'continues'> => ({
  terms: {
    tools,
    template: service.template,
    session: service.sessionFor(sessionAsked(request, asker)),
    own: asker.own,
    owner: asker.salt,
  },
  session: request.session ?? null,
  keeps: request.store !== false,
  messages,
  maxTokens: service.limits.maxTokens,
  signal: asker.signal,
  used: asker.used,
});

/** The options of a completion. */
export function completionAsked(
  request: CompletionRequest,
  defaults: GenerateOptions,
): GenerateOptions & { readonly seed: number } {
  return {
    ...defaults,
    ...given<GenerateOptions>({
      ...samplingAsked(request),
      maxTokens: set(request.max_tokens),
      grammar: request.grammar == null ? undefined : { gbnf: request.grammar },
      logprobs: set(request.logprobs),
    }),
  } as GenerateOptions & { readonly seed: number };
}

function grammarAsked({ response_format: format, grammar }: ChatRequest): GrammarOption | undefined {
  if (grammar != null) return { gbnf: grammar };
  if (format == null || format.type === 'text') return undefined;
  if (format.type === 'json_schema') return { jsonSchema: format.json_schema.schema };
  return { jsonSchema: format.schema ?? { type: 'object' } };
}

/** Where there are tools, calls of them fulfil their schemas, as far as they can be followed. */
function choiceAsked({ tool_choice: choice, tools }: ChatRequest): ToolChoice | undefined {
  if (choice == null) return (tools ?? []).length === 0 ? undefined : 'auto';
  return typeof choice === 'string' ? choice : { name: choice.function.name };
}

/** The options of a response's answer. */
function responseAsked(request: ResponseRequest, defaults: GenerateOptions): SendOptions & { readonly seed: number } {
  const { text, include, top_logprobs: top, tool_choice: choice, tools } = request;
  const chosen = choice != null && typeof choice !== 'string' ? { name: choice.name } : choice;
  return {
    ...defaults,
    ...given<SendOptions>({
      ...samplingAsked(request),
      maxTokens: set(request.max_output_tokens),
      grammar: formatAsked(text?.format ?? null),
      toolChoice: chosen ?? ((tools ?? []).length === 0 ? undefined : 'auto'),
      parallelToolCalls: set(request.parallel_tool_calls),
      logprobs: include?.includes(LOGPROBS) === true ? (top ?? 0) : undefined,
    }),
  } as SendOptions & { readonly seed: number };
}

/** What asks for log probabilities in `include`. */
const LOGPROBS = 'message.output_text.logprobs';

function formatAsked(format: NonNullable<ResponseRequest['text']>['format']): GrammarOption | undefined {
  if (format == null || format.type === 'text') return undefined;
  return { jsonSchema: format.type === 'json_schema' ? format.schema : { type: 'object' } };
}
