/** A GGUF file with `general.type` 'adapter', as llama.cpp's converter writes it. */

import { issues } from '../transformer/config.ts';
import type { Family } from '../transformer/families/family.ts';
import { familyOfArchitecture } from '../transformer/families/index.ts';
import { type GgufFile, openGguf } from '../transformer/gguf.ts';
import { ggufNaming } from '../transformer/names.ts';
import {
  type AdapterFile,
  addHalf,
  badAdapter,
  type Factors,
  type Halves,
  rankOf,
  unservedAdapter,
} from './factors.ts';
import { invocationTokens } from './invocation.ts';

const HALF = /^(.+\.weight)\.lora_(a|b)$/;
const INVOCATION = 'adapter.alora.invocation_tokens';
const KEYS: ReadonlySet<string> = new Set(['adapter.type', 'adapter.lora.alpha', INVOCATION]);
/** Under this name models of families are stored that have none of their own. */
const STORED_AS = 'llama';

/** family: of the model that it is read for. Throws 'not-found', 'bad-file', 'unsupported', 'model-mismatch', 'io'. */
export function openGgufAdapter(path: string, family: Family): AdapterFile {
  const file = openGguf(path);
  try {
    const factors = pairs(path, file);
    const stored = familyOfArchitecture(file.metadata.get('general.architecture'));
    checkFamily(path, file, family);
    const [naming, interleaved] = [ggufNaming(stored), stored.ggufInterleaved === true];
    const invocation = invocationIn(path, file);
    return { format: 'GGUF', path, factors, naming, interleaved, invocation, close: () => file.close() };
  } catch (error) {
    file.close();
    throw error;
  }
}

function checkFamily(path: string, { metadata }: GgufFile, { architectures, name }: Family): void {
  const architecture = metadata.get('general.architecture');
  const served = architectures.length === 0 ? [STORED_AS] : architectures;
  if (!served.includes(String(architecture)))
    throw unservedAdapter(path, 'general.architecture', architecture, `the model is of the family ${name}`);
}

function invocationIn(path: string, { metadata }: GgufFile): readonly number[] | undefined {
  const given = metadata.get(INVOCATION);
  if (given === undefined) return undefined;
  const read = invocationTokens.safeParse(ArrayBuffer.isView(given) ? Array.from(given as Int32Array, Number) : given);
  if (read.success) return read.data;
  throw badAdapter(path, `${INVOCATION}: ${issues(read.error).join('; ')}`, { field: INVOCATION });
}

function pairs(path: string, { metadata, tensors }: GgufFile): Map<string, Factors> {
  for (const [key, expected] of [
    ['general.type', 'adapter'],
    ['adapter.type', 'lora'],
  ] as const)
    if (metadata.get(key) !== expected) throw unservedAdapter(path, key, metadata.get(key) ?? null);
  for (const key of metadata.keys())
    if (key.startsWith('adapter.') && !KEYS.has(key)) throw unservedAdapter(path, 'the key', key);
  const alpha = metadata.get('adapter.lora.alpha');
  if (typeof alpha !== 'number' || !Number.isFinite(alpha))
    throw badAdapter(path, 'adapter.lora.alpha is no number', { field: 'adapter.lora.alpha' });
  const halves: Halves = new Map();
  for (const [name, tensor] of tensors) {
    const [, weight, half] = HALF.exec(name) ?? [];
    if (weight === undefined) throw unservedAdapter(path, 'the tensor', name.slice(0, 200));
    addHalf(halves, weight, half as 'a' | 'b', tensor);
  }
  const factors = new Map<string, Factors>();
  for (const [weight, pair] of halves) {
    const rank = rankOf(path, weight, pair);
    // llama.cpp takes an alpha of 0 for none.
    factors.set(weight, { file: weight, a: pair.a!, b: pair.b!, scale: alpha === 0 ? 1 : alpha / rank });
  }
  return factors;
}
