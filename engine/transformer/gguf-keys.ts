/** The keys of a GGUF file's metadata. Those of a model begin with its architecture. */
import { type Experts, KvError } from '../../native/index.ts';
import { badConfig, unsupportedConfig } from './config.ts';
import type { GgufValue } from './gguf.ts';

export const GGUF_SOURCE = 'GGUF metadata';

type Metadata = ReadonlyMap<string, GgufValue>;

/** The number under a key, or null if there is none. A list counts as one number if all its elements are equal. */
export function numberOf(metadata: Metadata, key: string): number | null {
  const value = metadata.get(key);
  if (value === undefined) return null;
  if (typeof value === 'number') return value;
  if (typeof value === 'object' && value.length > 0 && typeof value[0] === 'number') {
    if ((value as ArrayLike<number> & { every(test: (n: number) => boolean): boolean }).every((n) => n === value[0]))
      return value[0];
    throw new KvError('unsupported', `${GGUF_SOURCE}: ${key} differs between layers`, { values: { key } });
  }
  throw badConfig(GGUF_SOURCE, [`${key} is not a number`]);
}

export class GgufKeys {
  readonly architecture: string;
  readonly #metadata: Metadata;

  constructor(metadata: Metadata, architecture: string) {
    this.#metadata = metadata;
    this.architecture = architecture;
  }

  optional(key: string): number | null {
    return numberOf(this.#metadata, `${this.architecture}.${key}`);
  }

  number(key: string): number {
    const value = this.optional(key);
    if (value === null) throw badConfig(GGUF_SOURCE, [`${this.architecture}.${key} is missing`]);
    return value;
  }

  /**
   * Which layers are windowed: the key holds one flag for each, or a number n, every n-th of which is not. `otherwise`
   * is n where there is no such key.
   */
  pattern(key: string, layers: number, otherwise: number): (layer: number) => boolean {
    const value = this.#metadata.get(`${this.architecture}.${key}`) ?? otherwise;
    if (typeof value === 'number' && Number.isInteger(value) && value >= 1) return (layer) => (layer + 1) % value !== 0;
    if (ArrayBuffer.isView(value) && value.length >= layers && value.every((flag) => flag === 0 || flag === 1))
      return (layer) => value[layer] === 1;
    throw badConfig(GGUF_SOURCE, [`${this.architecture}.${key} is no pattern of ${layers} layers`]);
  }

  /** Refuses a key that changes what a model computes, unless it is 0. */
  refuse(key: string): void {
    const value = this.#metadata.get(`${this.architecture}.${key}`) ?? 0;
    const isNothing = ArrayBuffer.isView(value) ? value.every((one) => one === 0) : value === 0 || value === false;
    if (!isNothing)
      throw unsupportedConfig(
        GGUF_SOURCE,
        `${this.architecture}.${key}`,
        typeof value === 'object' ? [...value].slice(0, 8) : value,
      );
  }

  flag(key: string): boolean | null {
    const value = this.#metadata.get(`${this.architecture}.${key}`);
    if (value === undefined) return null;
    if (typeof value !== 'boolean')
      throw badConfig(GGUF_SOURCE, [`${this.architecture}.${key} is neither true nor false`]);
    return value;
  }

  text(key: string): string | null {
    const value = this.#metadata.get(`${this.architecture}.${key}`);
    if (value === undefined) return null;
    if (typeof value !== 'string') throw badConfig(GGUF_SOURCE, [`${this.architecture}.${key} is not a text`]);
    return value;
  }
}

/** The number of llama.cpp for a softmax over the scores; 0: the one of the architecture, which here is the same. */
const SOFTMAX = 1;

/** The experts of a file's layers; null: it has none. Their shares add up to 1, unless the file says otherwise. */
export function ggufExperts(keys: GgufKeys): Experts | null {
  const count = keys.optional('expert_count') ?? 0;
  if (count === 0) return null;
  const refuse = (key: string, isServed: (value: number) => boolean): void => {
    const value = keys.optional(key);
    if (value !== null && value !== 0 && !isServed(value))
      throw unsupportedConfig(GGUF_SOURCE, `${keys.architecture}.${key}`, value);
  };
  refuse('expert_gating_func', (value) => value === SOFTMAX);
  refuse('expert_weights_scale', (value) => value === 1);
  refuse('expert_group_count', (value) => value === 1);
  return {
    count,
    used: keys.number('expert_used_count'),
    shareAmongChosen: keys.flag('expert_weights_norm') ?? true,
  };
}
