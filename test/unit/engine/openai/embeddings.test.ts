// Texts as vectors: those of an independent computation in float64, the same in any company, over HTTP as OpenAI's
// clients read them, and nothing is left behind in the engine.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createEngine, serve } from '../../../../engine/index.ts';
import { createLoopBackend } from '../../../../engine/transformer/dense-loops.ts';
import { loadModel } from '../../../../engine/transformer/load.ts';
import { Rotary } from '../../../../engine/transformer/rotary.ts';
import type { DenseBackend, LoadedModel } from '../../../../engine/transformer/types.ts';
import { logitsAt, plainAttention } from '../../../model/forward.ts';
import { refused } from '../../../refusal.ts';
import { MODEL } from '../on-reference.ts';
import { CLIENTS, type Served, withServer } from './served.ts';

let served: Served;
withServer((one) => {
  served = one;
});
let model: LoadedModel;
let dense: DenseBackend;
beforeAll(async () => {
  model = await loadModel(MODEL);
  dense = await createLoopBackend(model, { precision: 'exact', threads: 1 });
});
afterAll(async () => {
  await dense.close();
  model.weights.close();
});

const TEXTS = ['Bees make wax.', 'The keeper went home, and it rained. '.repeat(12), 'no'];

/** The same by plain loops, and attention, norm and mean in float64. */
async function plainly(text: string): Promise<number[]> {
  const ids = await served.engine.tokenize(text);
  const attention = plainAttention(model.config);
  const states: Pick<DenseBackend, 'embed' | 'first' | 'next' | 'last' | 'logits'> = {
    embed: (all) => dense.embed(all),
    first: (x, tokens) => dense.first(x, tokens),
    next: (layer, mixed, x, tokens) => dense.next(layer, mixed, x, tokens),
    last: (mixed, x, tokens) => dense.last(mixed, x, tokens),
    logits: async (x) => x,
  };
  const positions = ids.map((_, at) => at);
  const rotary = new Rotary(model.config);
  const rows = await logitsAt(states as DenseBackend, model.config, rotary, attention, ids, 64, positions);
  const gains = model.weights.tensor('norm').readFloat32();
  const mean = Array.from(gains, () => 0);
  for (const row of rows) {
    const square = row.reduce((sum, x) => sum + x * x, 0) / row.length;
    for (const [i, x] of row.entries())
      mean[i]! += (x / Math.sqrt(square + model.config.normEpsilon)) * (gains[i]! / rows.length);
  }
  const length = Math.hypot(...mean);
  return mean.map((x) => x / length);
}

const cosine = (a: ArrayLike<number>, b: ArrayLike<number>): number =>
  Array.from(a).reduce((sum, x, i) => sum + x * b[i]!, 0);

describe('engine.embed', () => {
  it('is the mean of the last states by any computation of them', async () => {
    const { vectors } = await served.engine.embed(TEXTS);
    for (const [at, text] of TEXTS.entries()) {
      const expected = await plainly(text);
      expect(cosine(vectors[at]!, vectors[at]!)).toBeCloseTo(1, 6);
      // Matrices of the file and the cache are f16 here, and those of the reference are not.
      expect(1 - cosine(vectors[at]!, expected)).toBeLessThan(1e-4);
    }
    // Which tells texts apart by much more.
    expect(1 - cosine(vectors[0]!, vectors[1]!)).toBeGreaterThan(1e-2);
  });

  it('is the same to the bit alone, among others, and beside an answer that is written', async () => {
    const alone: Float32Array[] = [];
    for (const text of TEXTS) alone.push((await served.engine.embed([text])).vectors[0]!);
    const session = await served.engine.openSession({ tokensExpected: 400 });
    const writing = session.generate('Once', { maxTokens: 200 });
    const many = Array.from({ length: 40 }, (_, at) => TEXTS[at % 3]!);
    const { vectors, tokens } = await served.engine.embed(many);
    for (const [at, vector] of vectors.entries()) expect(vector).toEqual(alone[at % 3]);
    const counts = await Promise.all(many.map(async (text) => (await served.engine.tokenize(text)).length));
    expect(tokens).toBe(counts.reduce((sum, one) => sum + one));
    await writing.result;
    await session.close();
  });

  it('leaves no session and no bytes, and begins no other text', async () => {
    const told = async (): Promise<string[]> =>
      (await served.engine.metrics())
        .split('\n')
        .filter((line) => /^palimpsest_(sessions_open|prefix_cache_bytes)\b/.test(line));
    const before = await told();
    expect(before.length).toBe(2);
    const text = 'A text that nobody has read before. '.repeat(40);
    await served.engine.embed([text, text]);
    expect(await told()).toEqual(before);
    const session = await served.engine.openSession({ tokensExpected: 800 });
    expect((await session.generate(text, { maxTokens: 1 }).result).cachedTokens).toBe(0);
    await session.close();
  });

  it.each<[string, unknown[], string]>([
    ['a text of nothing in tokens', [[]], 'bad-argument'],
    ['a token that is none', [[10 ** 7]], 'bad-value'],
    ['a text beyond the context', ['word '.repeat(5000)], 'context-too-long'],
  ])('refuses %s', async (_, texts, code) => {
    expect((await refused(served.engine.embed(texts as string[]))).code).toBe(code);
  });

  it('ends when it is aborted', async () => {
    const gone = new AbortController();
    gone.abort();
    expect((await refused(served.engine.embed(TEXTS, { signal: gone.signal }))).code).toBe('aborted');
  });
});

describe.each(CLIENTS)('/v1/embeddings by %s', (_, OpenAI) => {
  it('has the vectors in either encoding, for letters and tokens', async () => {
    const client = new OpenAI({ baseURL: `${served.url}/v1`, apiKey: 'none', maxRetries: 0 });
    const { vectors, tokens } = await served.engine.embed(TEXTS);
    // The client asks for base64 where nothing is said.
    const coded = await client.embeddings.create({ model: 'reference', input: TEXTS });
    expect(coded.data.map(({ embedding }) => Float32Array.from(embedding))).toEqual(vectors);
    expect(coded.usage).toEqual({ prompt_tokens: tokens, total_tokens: tokens });
    const plain = await client.embeddings.create({ model: 'reference', input: TEXTS[0]!, encoding_format: 'float' });
    expect(Float32Array.from(plain.data[0]!.embedding)).toEqual(vectors[0]);
    const ids = await Promise.all(TEXTS.map((text) => served.engine.tokenize(text)));
    const counted = await client.embeddings.create({ model: 'reference', input: ids });
    expect(counted.data.map(({ embedding }) => Float32Array.from(embedding))).toEqual(vectors);
    const one = await client.embeddings.create({ model: 'reference', input: ids[2]! });
    expect(Float32Array.from(one.data[0]!.embedding)).toEqual(vectors[2]);
  });

  it('refuses what is no text, too long a text and other dimensions', async () => {
    const client = new OpenAI({ baseURL: `${served.url}/v1`, apiKey: 'none', maxRetries: 0 });
    const asked = (more: object) => client.embeddings.create({ model: 'reference', input: 'x', ...more } as never);
    await expect(asked({ input: '' })).rejects.toMatchObject({ status: 400, param: 'input' });
    await expect(asked({ input: [] })).rejects.toMatchObject({ status: 400, param: 'input' });
    await expect(asked({ dimensions: 5 })).rejects.toMatchObject({ status: 400, param: 'dimensions' });
    const long = asked({ input: 'word '.repeat(5000) });
    await expect(long).rejects.toMatchObject({ status: 400, code: 'context_length_exceeded' });
  });
});

it('refuses over HTTP what the budget of the server cannot hold, with 413', async () => {
  await using engine = await createEngine({ model: 'reference', threads: 1, stateDir: null, kvBudget: '512KiB' });
  await using view = await serve(engine, { port: 0, answers: {} });
  const answer = await fetch(`${view.url}/v1/embeddings`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'reference', input: 'word '.repeat(1500) }),
  });
  expect(answer.status).toBe(413);
  expect(await answer.json()).toMatchObject({ error: { code: 'budget-too-small', type: 'invalid_request_error' } });
});
