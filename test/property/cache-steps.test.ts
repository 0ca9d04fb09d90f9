// A hundred thousand random steps of caches of one's own on one pool, half of them in f16 and half in 8 bits, against
// plain attention in float64 over rows that are kept beside them: tokens are appended, taken back, forked, begun again,
// saved and loaded, and closed, in whatever order comes.
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { loadCache, openCache, openPool, type PolicyCache } from '../../engine/index.ts';
import { uniform } from '../native/dense.ts';
import { volume } from '../tier.ts';
import { scratchFolders } from '../unit/witness/folder.ts';

const folder = scratchFolders();
const SHAPE = { layers: 1, queryHeads: 2, kvHeads: 1, headDim: 64 } as const;
const D = SHAPE.headDim;
const STEPS = volume('cache steps');
/** Caches that are open at a time, and tokens in each. */
const CACHES_MAX = 4;
const TOKENS_MAX = 280;

/** A cache, and the rows that it was given, [tokens, D]. */
interface Pair {
  cache: PolicyCache;
  readonly keys: Float32Array;
  readonly values: Float32Array;
  tokens: number;
  /** Sealed pages. A full page is sealed by the token behind it, and stays so when that is taken back. */
  sealed: number;
}

const sealedAt = (tokens: number): number => Math.max(0, Math.ceil(tokens / 128) - 1);

/** softmax(q·kᵀ/√D)·v for one query head in float64. */
function attended(pair: Pair, q: Float32Array, head: number, tokens: number): Float64Array {
  const scores = new Float64Array(tokens);
  for (let t = 0; t < tokens; t++)
    for (let c = 0; c < D; c++) scores[t]! += (q[head * D + c]! * pair.keys[t * D + c]!) / Math.sqrt(D);
  const most = scores.reduce((top, score) => Math.max(top, score), Number.NEGATIVE_INFINITY);
  const out = new Float64Array(D);
  let total = 0;
  for (let t = 0; t < tokens; t++) {
    const weight = Math.exp(scores[t]! - most);
    total += weight;
    for (let c = 0; c < D; c++) out[c]! += weight * pair.values[t * D + c]!;
  }
  return out.map((value) => value / total);
}

function distance(out: Float32Array, exact: Float64Array, head: number): number {
  let [error, size] = [0, 0];
  for (const [c, value] of exact.entries()) {
    error += (out[head * D + c]! - value) ** 2;
    size += value ** 2;
  }
  return Math.sqrt(error / size);
}

it.each([
  ['f16', 'f16:f16', 2e-3, 71],
  ['8 bits', 'q8:q8', 3e-2, 72],
] as const)(`${STEPS} random steps in %s`, async (_, cacheTypes, errorMost, seed) => {
  const random = uniform(seed);
  const below = (count: number): number => Math.floor(random() * count);
  const path = join(folder(), 'saved.cache');
  const pool = openPool(64 * 2 ** 20);
  // A cache in f16 keeps no budget, and the bytes of a pool are one.
  const options = cacheTypes === 'f16:f16' ? { cacheTypes } : { cacheTypes, pool };
  const opened = async (): Promise<Pair> => ({
    cache: await openCache({ ...SHAPE, ...options }),
    keys: new Float32Array(TOKENS_MAX * D),
    values: new Float32Array(TOKENS_MAX * D),
    tokens: 0,
    sealed: 0,
  });
  const pairs = [await opened()];
  const done = { append: 0, truncate: 0, refused: 0, fork: 0, reset: 0, load: 0, close: 0 };

  const append = (pair: Pair): void => {
    const tokens = random() < 0.9 ? 1 + below(3) : 1 + below(60);
    const { tokens: start } = pair;
    if (start + tokens > TOKENS_MAX) {
      truncate(pair);
      return;
    }
    const [k, v, q] = [1, 1, 2].map((heads) =>
      Float32Array.from({ length: tokens * heads * D }, () => 2 * random() - 1),
    );
    pair.cache.append(0, k!, v!);
    pair.keys.set(k!, start * D);
    pair.values.set(v!, start * D);
    pair.tokens += tokens;
    pair.sealed = Math.max(pair.sealed, sealedAt(pair.tokens));
    const out = pair.cache.attention(0, q!);
    // The last row is enough: it sees all the others.
    const last = (tokens - 1) * 2 * D;
    const head = below(2);
    const exact = attended(pair, q!.subarray(last), head, pair.tokens);
    const error = distance(out.subarray(last), exact, head);
    if (!(error < errorMost)) expect.fail(`after ${JSON.stringify(done)}: ${error} at ${pair.tokens} tokens`);
    done.append++;
  };
  const truncate = (pair: Pair): void => {
    const tokens = random() < 0.7 ? Math.max(0, pair.tokens - below(8)) : below(pair.tokens + 1);
    try {
      pair.cache.truncate(tokens);
      pair.tokens = tokens;
      pair.sealed = Math.min(pair.sealed, tokens % 128 === 0 ? tokens / 128 : sealedAt(tokens));
      done.truncate++;
    } catch (error) {
      // A page that was sealed is opened again only for a cache that shares it with nobody; whole pages always go.
      expect(error).toMatchObject({ code: 'unsupported' });
      expect([pairs.length > 1, tokens < pair.sealed * 128, tokens % 128 > 0]).toEqual([true, true, true]);
      done.refused++;
    }
  };
  const fork = ({ cache, keys, values, tokens, sealed }: Pair): void => {
    if (pairs.length === CACHES_MAX) return;
    pairs.push({ cache: cache.fork(), keys: keys.slice(), values: values.slice(), tokens, sealed });
    done.fork++;
  };
  const reset = async (pair: Pair): Promise<void> => {
    await pair.cache.reset();
    pair.tokens = 0;
    pair.sealed = 0;
    done.reset++;
  };
  const load = async (pair: Pair): Promise<void> => {
    pair.cache.save(path);
    await pair.cache.close();
    pair.cache = await loadCache(path, options);
    // A full page at the end is saved as rows.
    pair.sealed = sealedAt(pair.tokens);
    done.load++;
  };
  const close = async (at: number): Promise<void> => {
    await pairs[at]!.cache.close();
    pairs.splice(at, 1);
    if (pairs.length === 0) pairs.push(await opened());
    done.close++;
  };

  for (let step = 0; step < STEPS; step++) {
    const at = below(pairs.length);
    const pair = pairs[at]!;
    const what = random();
    if (what < 0.88) append(pair);
    else if (what < 0.96) truncate(pair);
    else if (what < 0.98) fork(pair);
    else if (what < 0.985) await reset(pair);
    else if (what < 0.988) await load(pair);
    else if (what < 0.995 || pair.tokens > 256) await close(at);
    expect(pairs[at]?.cache.length ?? 0).toBe(pairs[at]?.tokens ?? 0);
  }
  for (const count of Object.values(done)) expect(count).toBeGreaterThan(STEPS / 1000);
  for (const { cache } of pairs) await cache.close();
  expect(pool.usedBytes).toBe(0);
  pool.close();
});
