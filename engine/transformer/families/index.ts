/** The families that are served. */
import { KvError } from '../../../native/index.ts';
import { falcon } from './falcon.ts';
import type { Family } from './family.ts';
import { gemma2 } from './gemma2.ts';
import { gemma3 } from './gemma3.ts';
import { gptNeox } from './gpt-neox.ts';
import { granite } from './granite.ts';
import { llama } from './llama.ts';
import { mistral } from './mistral.ts';
import { mixtral } from './mixtral.ts';
import { mpt } from './mpt.ts';
import { olmo2 } from './olmo2.ts';
import { phi3 } from './phi3.ts';
import { qwen2 } from './qwen2.ts';
import { qwen3 } from './qwen3.ts';
import { qwen3Moe } from './qwen3-moe.ts';
import { smollm3 } from './smollm3.ts';

export const FAMILIES: readonly Family[] = [
  llama,
  mistral,
  mixtral,
  qwen2,
  qwen3,
  qwen3Moe,
  smollm3,
  gemma2,
  gemma3,
  phi3,
  olmo2,
  granite,
  gptNeox,
  falcon,
  mpt,
];

const SHARED = 'one of its experts answers every token, which is not served';

/** Families that people ask for and that are refused, with the reason. */
const NOT_SERVED: Readonly<Record<string, string>> = {
  qwen2_moe: SHARED,
  qwen2moe: SHARED,
  deepseek_v2: SHARED,
  deepseek_v3: SHARED,
  deepseek2: SHARED,
  bloom: 'its embedding has a norm of its own, which is not served',
  olmo3: 'only some of its layers stretch their rotary embedding',
};

/** The family of a `model_type` of config.json. Throws 'unsupported' with the list of those that are served. */
export const familyOfType = (type: unknown): Family => find(type, 'config.json', 'model_type', 'modelTypes');

/** The family of a `general.architecture` of a GGUF file. */
export const familyOfArchitecture = (architecture: unknown): Family =>
  find(architecture, 'GGUF metadata', 'general.architecture', 'architectures');

function find(wanted: unknown, source: string, key: string, names: 'modelTypes' | 'architectures'): Family {
  const found = FAMILIES.find((family) => (family[names] as readonly unknown[]).includes(wanted));
  if (found !== undefined) return found;
  const served = FAMILIES.flatMap((family) => family[names]);
  const shown = typeof wanted === 'string' ? JSON.stringify(wanted.slice(0, 80)) : 'nothing';
  const reason = typeof wanted === 'string' && Object.hasOwn(NOT_SERVED, wanted) ? `: ${NOT_SERVED[wanted]}` : '';
  throw new KvError('unsupported', `${source}: ${key} ${shown} is not served${reason}`, {
    values: { file: source, [key]: wanted ?? null, served },
    hint: `served are ${served.join(', ')}`,
  });
}
