/** The families that are served. */
import { KvError } from '../../../native/index.ts';
import type { Family } from './family.ts';
import { llama } from './llama.ts';
import { mistral } from './mistral.ts';
import { qwen2 } from './qwen2.ts';
import { qwen3 } from './qwen3.ts';

export const FAMILIES: readonly Family[] = [llama, mistral, qwen2, qwen3];

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
  throw new KvError('unsupported', `${source}: ${key} ${shown} is not served`, {
    values: { file: source, [key]: wanted ?? null, served },
    hint: `served are ${served.join(', ')}`,
  });
}
