/** Which field of a request an engine means that refuses one of its options. */
import { asRecord, KvError } from '../../native/index.ts';

/** By the name of an option among the values of an error: the fields that may have said it. */
const FIELDS: Readonly<Record<string, readonly string[]>> = {
  temperature: ['temperature'],
  topP: ['top_p'],
  topK: ['top_k'],
  minP: ['min_p'],
  typicalP: ['typical_p'],
  repeatPenalty: ['repeat_penalty'],
  repeatLastN: ['repeat_last_n'],
  frequencyPenalty: ['frequency_penalty'],
  presencePenalty: ['presence_penalty'],
  logitBias: ['logit_bias'],
  token: ['logit_bias'],
  seed: ['seed'],
  stop: ['stop', 'stop_sequences'],
  maxTokens: ['max_completion_tokens', 'max_tokens', 'max_output_tokens'],
  grammar: ['grammar', 'response_format', 'text', 'format'],
  toolChoice: ['tool_choice'],
  logprobs: ['top_logprobs', 'logprobs'],
  kvBudget: ['kv_budget'],
  budgetBytes: ['kv_budget'],
  kldBudget: ['kld_budget'],
  adapters: ['adapters'],
  name: ['adapters'],
  cacheSalt: ['cache_salt', 'prompt_cache_key'],
  schedulingPriority: ['priority'],
};

/** The same error, with the field of the request in `param` where an option of it was refused. */
export function withField(error: unknown, body: unknown): unknown {
  if (!(error instanceof KvError) || 'param' in error.values || error.code === 'context-too-long') return error;
  const given = asRecord(body) ?? {};
  const param = Object.keys(error.values)
    .flatMap((option) => FIELDS[option] ?? [])
    .find((field) => given[field] != null);
  if (param === undefined) return error;
  const { code, message, values, hint, cause } = error;
  return new KvError(code, message, { values: { ...values, param }, hint, cause });
}
