// A thousand schemas at random, each followed with random logits over the tokens of a real model: whatever is complete must fulfil its schema, as another
// library (ajv) reads it. So every keyword that is taken is followed to the letter, whichever tokens a model prefers.
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { Ajv2020 } from 'ajv/dist/2020.js';
import { describe, expect, it } from 'vitest';
import { Grammars } from '../../../../engine/grammar/grammars.ts';
import { fetchedPath } from '../../../../engine/model/fetch.ts';
import { loadModel } from '../../../../engine/model/load.ts';
import type { LoadedModel } from '../../../../engine/model/types.ts';
import { RandomNumbers } from '../../../../engine/sampling/random.ts';
import { Sampler } from '../../../../engine/sampling/sampler.ts';
import { KvError } from '../../../../native/index.ts';
import { Rng } from '../model/rng.ts';
import { MODEL } from '../on-reference.ts';
import { randomSchema } from './random-schema.ts';

const cacheDir = process.env['PALIMPSEST_CACHE'] ?? join(import.meta.dirname, '../../../../.cache');
const fetched = existsSync(fetchedPath('smollm2-135m', cacheDir));
const TOKENS_MAX = 300;

/** Logits at random, in which tokens that close something are likelier, so that most texts end. */
class RandomLogits {
  readonly #bias: Float32Array;
  readonly #noise: Float32Array;
  readonly #logits: Float32Array;

  constructor({ config, tokenizer }: LoadedModel, seed: number) {
    this.#bias = Float32Array.from({ length: config.vocabSize }, (_, id) =>
      /["\]}0-9]$/.test(tokenizer.decode([id], { continues: true })) ? 4 : 0,
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

/** → how many texts were complete; expects those to fulfil their schemas */
async function follow(model: LoadedModel, count: number, seed: number): Promise<number> {
  const rng = new RandomNumbers(seed);
  const ajv = new Ajv2020({ strict: false, validateFormats: false, logger: false, ownProperties: true });
  const logits = new RandomLogits(model, seed);
  const grammars = new Grammars(model);
  const size = model.config.vocabSize;
  let complete = 0;
  for (let i = 0; i < count; i++) {
    const schema = randomSchema(rng);
    const what = `seed ${seed}, schema ${i}: ${JSON.stringify(schema)}`;
    const constraint = await grammars.open({ jsonSchema: schema }).catch((error: unknown) => {
      if (error instanceof KvError && error.code === 'unsupported') return null;
      throw new Error(what, { cause: error });
    });
    if (constraint === null) continue;
    const sampler = new Sampler(
      { temperature: 1, topK: 0, topP: 1, minP: 0, seed: i },
      { size, tokenizer: model.tokenizer },
    );
    const ids: number[] = [];
    while (!constraint.isOver && ids.length < TOKENS_MAX) {
      if (constraint.isComplete && rng.uniform() < 0.3) break;
      const mask = constraint.isComplete ? withoutEnds(constraint.mask, model) : constraint.mask;
      const id = sampler.next(logits.next(rng), ids, mask);
      ids.push(id);
      await constraint.accept(id);
    }
    const text = model.tokenizer.decode(ids, { continues: true });
    if (constraint.isComplete) {
      complete++;
      const value: unknown = JSON.parse(text);
      expect(ajv.validate(schema, value), `${what}\n${text}\n${ajv.errorsText()}`).toBe(true);
      ajv.removeSchema();
    }
    constraint.close();
  }
  return complete;
}

function withoutEnds(mask: Int32Array, { config, tokenizer }: LoadedModel): Int32Array {
  const own = mask.slice();
  for (const id of [...config.eosIds, ...tokenizer.eosIds]) own[id >>> 5]! &= ~(1 << (id & 31));
  return own;
}

describe('schemas at random', () => {
  it('are fulfilled by every text that is complete: 1,000 over the reference model', async () => {
    const model = await loadModel(MODEL, {});
    expect(await follow(model, 1000, 1)).toBeGreaterThan(800);
    model.weights.close();
  });

  it.skipIf(!fetched)('likewise 20 over SmolLM2 (skipped when not fetched: npm run fetch:model)', async () => {
    const model = await loadModel('smollm2-135m', { cacheDir });
    expect(await follow(model, 20, 2)).toBeGreaterThan(14);
    model.weights.close();
  });
});
