// Schemas at random, each followed with random logits over the tokens of a real model: whatever is complete must fulfil
// its schema, as another library (ajv) reads it. So every keyword that is taken is followed to the letter, whichever
// tokens a model prefers.
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { Ajv2020 } from 'ajv/dist/2020.js';
import { describe, expect, it } from 'vitest';
import { fetchedPath } from '../../../../../engine/transformer/fetch.ts';
import { Grammars } from '../../../../../engine/transformer/grammar/grammars.ts';
import { loadModel } from '../../../../../engine/transformer/load.ts';
import { RandomNumbers } from '../../../../../engine/transformer/sampling/random.ts';
import { Sampler } from '../../../../../engine/transformer/sampling/sampler.ts';
import type { LoadedModel } from '../../../../../engine/transformer/types.ts';
import { KvError } from '../../../../../native/index.ts';
import { seedFrom, volume } from '../../../../tier.ts';
import { MODEL } from '../../on-reference.ts';
import { randomSchema } from './random-schema.ts';
import { RandomLogits, randomText } from './random-text.ts';

const cacheDir = process.env['PALIMPSEST_CACHE'] ?? join(import.meta.dirname, '../../../../../.cache');
const fetched = existsSync(fetchedPath('smollm2-135m', cacheDir));
const SCHEMAS = volume('schemas');
const SEED = seedFrom(1);

/** → how many texts were complete; expects those to fulfil their schemas */
async function follow(model: LoadedModel, count: number, seed: number): Promise<number> {
  const rng = new RandomNumbers(seed);
  const ajv = new Ajv2020({
    strict: false,
    validateFormats: false,
    logger: false,
    ownProperties: true,
    multipleOfPrecision: 9,
  });
  const logits = new RandomLogits(model, seed);
  const grammars = Grammars.of(model);
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
    const ids = await randomText(model, constraint, sampler, logits, rng);
    const text = model.tokenizer.decode(ids, { continues: true });
    if (constraint.isComplete && (await constraint.fulfils(text))) {
      complete++;
      const value: unknown = JSON.parse(text);
      expect(ajv.validate(schema, value), `${what}\n${text}\n${ajv.errorsText()}`).toBe(true);
      ajv.removeSchema();
    }
    constraint.close();
  }
  await grammars.close();
  return complete;
}

describe('schemas at random', () => {
  it(`are fulfilled by every text that is complete: ${SCHEMAS} over the reference model, seed ${SEED}`, async () => {
    const model = await loadModel(MODEL, {});
    expect(await follow(model, SCHEMAS, SEED)).toBeGreaterThan(0.8 * SCHEMAS);
    model.weights.close();
  });

  it.skipIf(!fetched)('likewise 20 over SmolLM2 (skipped when not fetched: npm run fetch:model)', async () => {
    const model = await loadModel('smollm2-135m', { cacheDir });
    expect(await follow(model, 20, 2)).toBeGreaterThan(14);
    model.weights.close();
  });
});
