/**
 * adapter_config.json of PEFT. Whatever changes what an adapter computes, and is not served, is refused by its name; a
 * field that is not known here is refused unless it says nothing.
 */
import { join } from 'node:path';
import { z } from 'zod';
import { readJson } from '../../native/index.ts';
import { issues } from '../transformer/config.ts';
import { CONFIG_BYTES_MAX } from '../transformer/limits.ts';
import { badAdapter, unservedAdapter } from './factors.ts';
import { invocationTokens } from './invocation.ts';

const pattern = z.record(z.string().max(1024), z.number()).nullish();

const schema = z.looseObject({
  peft_type: z.string(),
  r: z.int().min(1),
  lora_alpha: z.number(),
  use_rslora: z.boolean().nullish(),
  use_dora: z.boolean().nullish(),
  rank_pattern: pattern,
  alpha_pattern: pattern,
  alora_invocation_tokens: invocationTokens.nullish(),
});

/** Fields that say how an adapter was made, or repeat what its tensors say. */
const TOLD: ReadonlySet<string> = new Set([
  ...['peft_type', 'r', 'lora_alpha', 'use_rslora', 'use_dora', 'rank_pattern', 'alpha_pattern'],
  ...['alora_invocation_tokens'],
  ...['auto_mapping', 'base_model_name_or_path', 'revision', 'inference_mode', 'lora_dropout', 'target_modules'],
  ...['exclude_modules', 'layers_to_transform', 'layers_pattern', 'peft_version', 'runtime_config', 'eva_config'],
  ...['qalora_group_size', 'ensure_weight_tying'],
]);

/** Values of fields that change nothing, beside null, false and what is empty. */
const HARMLESS: Readonly<Record<string, readonly unknown[]>> = {
  bias: ['none'],
  task_type: ['CAUSAL_LM'],
  // The others have changed the weights of the base model, so that the adapter does not fit those that are loaded.
  init_lora_weights: [true, 'gaussian', 'eva'],
  megatron_core: ['megatron.core'],
};

const HINTS: Readonly<Record<string, string>> = {
  init_lora_weights:
    'convert it to an adapter of the unchanged model, as PEFT does with path_initial_model_for_weight_conversion',
  modules_to_save: 'merge it into the model, whose other weights it changes',
  trainable_token_indices: 'merge it into the model, whose other weights it changes',
  bias: 'merge it into the model, whose other weights it changes',
};

const saysNothing = (value: unknown): boolean =>
  value == null || value === false || (typeof value === 'object' && Object.keys(value).length === 0);

export interface PeftConfig {
  readonly isDora: boolean;
  /** Of an activated LoRA. */
  readonly invocation: readonly number[] | undefined;
  /** The rank that a module must have, and the factor on what it adds. */
  of(module: string): { readonly rank: number; readonly scale: number };
}

/** Throws 'bad-file', 'unsupported' naming the field, and what reading the file throws. */
export function readPeftConfig(dir: string): PeftConfig {
  const path = join(dir, 'adapter_config.json');
  const checked = schema.safeParse(readJson(path, { code: 'bad-file', bytesMax: CONFIG_BYTES_MAX }));
  if (!checked.success) throw badAdapter(path, issues(checked.error).join('; '), {});
  const given = checked.data;
  if (given.peft_type !== 'LORA') throw unservedAdapter(path, 'peft_type', given.peft_type);
  for (const [field, value] of Object.entries(given)) {
    if (TOLD.has(field) || saysNothing(value)) continue;
    if (HARMLESS[field]?.includes(value) !== true) throw unservedAdapter(path, field, value, HINTS[field]);
  }
  const invocation = given.alora_invocation_tokens ?? undefined;
  if (invocation !== undefined && given.use_dora === true)
    throw unservedAdapter(path, 'alora_invocation_tokens beside use_dora', invocation);
  const ranks = literal(path, 'rank_pattern', given.rank_pattern);
  const alphas = literal(path, 'alpha_pattern', given.alpha_pattern);
  return {
    isDora: given.use_dora === true,
    invocation,
    of(module) {
      const rank = matching(ranks, module) ?? given.r;
      const alpha = matching(alphas, module) ?? given.lora_alpha;
      return { rank, scale: alpha / (given.use_rslora === true ? Math.sqrt(rank) : rank) };
    },
  };
}

type Pattern = readonly (readonly [key: string, value: number])[];

/** PEFT reads keys as regular expressions; those are served that are names, or the ends of names. */
function literal(path: string, field: string, given: z.infer<typeof pattern>): Pattern {
  const entries = Object.entries(given ?? {});
  const strange = entries.find(([key]) => !/^[\w.-]+$/.test(key));
  if (strange !== undefined)
    throw unservedAdapter(path, field, strange[0], 'write the whole name of the module, or its end, as the key');
  return entries;
}

const matching = (pattern: Pattern, module: string): number | undefined =>
  pattern.find(([key]) => module === key || module.endsWith(`.${key}`))?.[1];
