/** Texts that follow a constraint, drawn from random logits over the tokens of a model. */
import type { Constraint } from '../../../../../engine/transformer/grammar/constraint.ts';
import type { RandomNumbers } from '../../../../../engine/transformer/sampling/random.ts';
import type { Sampler } from '../../../../../engine/transformer/sampling/sampler.ts';
import type { LoadedModel } from '../../../../../engine/transformer/types.ts';
import { Rng } from '../rng.ts';

const TOKENS_MAX = 300;

/** Logits at random, in which tokens that close something are likelier, so that most texts end. */
export class RandomLogits {
  readonly #bias: Float32Array;
  readonly #noise: Float32Array;
  readonly #logits: Float32Array;

  constructor({ config, tokenizer }: LoadedModel, seed: number) {
    this.#bias = Float32Array.from({ length: config.vocabSize }, (_, id) =>
      /["\]}0-9>]$/.test(tokenizer.decode([id], { continues: true, special: true })) ? 4 : 0,
    );
    this.#noise = new Rng(seed).normal(2 * config.vocabSize, 4);
    this.#logits = new Float32Array(config.vocabSize);
  }

  next(rng: RandomNumbers): Float32Array {
    const shift = Math.floor(rng.uniform() * this.#logits.length);
    for (let id = 0; id < this.#logits.length; id++) this.#logits[id] = this.#noise[id + shift]! + this.#bias[id]!;
    return this.#logits;
  }
}

/** Writes until the text is over, is complete and chance ends it, or has too many tokens. → its ids */
export async function randomText(
  model: LoadedModel,
  constraint: Constraint,
  sampler: Sampler,
  logits: RandomLogits,
  rng: RandomNumbers,
): Promise<number[]> {
  const ids: number[] = [];
  while (!constraint.isOver && ids.length < TOKENS_MAX) {
    if (constraint.isComplete && rng.uniform() < 0.3) break;
    const mask = constraint.isComplete ? withoutEnds(constraint.mask, model) : constraint.mask;
    const id = sampler.next(logits.next(rng), ids, mask);
    ids.push(id);
    await constraint.accept(id);
  }
  return ids;
}

function withoutEnds(mask: Int32Array, { config, tokenizer }: LoadedModel): Int32Array {
  const own = mask.slice();
  for (const id of [...config.eosIds, ...tokenizer.eosIds]) own[id >>> 5]! &= ~(1 << (id & 31));
  return own;
}
