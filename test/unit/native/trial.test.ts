/**
 * A trial must say what a full recomputation would: for each kept query, attention over the decoded history with the
 * page as it is, and with one side of it replaced by what a transcode would leave (made on a twin that shares nothing),
 * in float64. One that was started must say the same to the bit, whatever happens to the cache before it is asked for.
 */
import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import {
  encodeLatent,
  FORMAT_NAMES,
  FORMATS,
  type FormatName,
  fromHalf,
  isMove,
  type KvCache,
  type KvCacheOptions,
  LATENT_NAMES,
  type LatentLayerWeights,
  type LatentName,
  openKvCache,
  openPool,
  PARTS,
  type Part,
  SERVED_FORMATS,
  type TrialCandidate,
  toHalf,
} from '../../../native/index.ts';
import { isTried } from '../../native/compared.ts';
import { denseAttention, history, normals, uniform } from '../../native/dense.ts';
import { twinOf } from '../../native/twin.ts';
import { IS_SHORT, isShare } from '../../tier.ts';

interface Kept {
  readonly position: number;
  readonly q: Float32Array;
  readonly norm: number;
}

/** True if a candidate is a latent. */
const isLatent = (one: TrialCandidate): one is Extract<TrialCandidate, { format: LatentName }> =>
  (LATENT_NAMES as readonly string[]).includes(one.format);

const shapeOf = (headDim: number) => ({ layers: 1, queryHeads: 6, kvHeads: 2, headDim });

function open(options: Omit<KvCacheOptions, 'pool' | 'shape'> & { headDim?: number } = {}): KvCache {
  const { headDim = 64, ...rest } = options;
  return openKvCache({ shape: shapeOf(headDim), pool: openPool(128_000_000), ...rest });
}

/** Appends and attends `length` tokens in chunks; answers the queries that the cache should still hold. */
function run(
  cache: KvCache,
  random: () => number,
  length: number,
  chunk: number,
  withNorms: boolean,
  attendOnlyAfter = 0,
): Kept[] {
  const { queryHeads, kvHeads, headDim } = cache.shape;
  const kept = new Map<number, Kept>();
  for (let start = 0; start < length; start += chunk) {
    const tokens = Math.min(chunk, length - start);
    cache.append(0, normals(random, tokens * kvHeads * headDim), normals(random, tokens * kvHeads * headDim));
    if (start < attendOnlyAfter) continue;
    const q = normals(random, tokens * queryHeads * headDim, 2);
    const xNorms = Float32Array.from({ length: tokens }, () => 1 + random());
    cache.attend(0, q, new Float32Array(q.length), withNorms ? { xNorms } : {});
    for (let t = 0; t < tokens; t++) {
      const position = start + t;
      if (position % 8 !== 7) continue;
      const row = fromHalf(toHalf(q.slice(t * queryHeads * headDim, (t + 1) * queryHeads * headDim)));
      kept.set(Math.floor(position / 8) % 16, { position, q: row, norm: xNorms[t]! });
    }
  }
  return [...kept.values()];
}

interface BruteForce {
  readonly window?: number;
  readonly slopes?: Float32Array;
  /** [32, H·d]. */
  readonly sketch?: Float32Array;
  readonly weights?: LatentLayerWeights;
}

/** Keys and values of a cache of one layer, decoded. */
const decoded = (cache: KvCache): [k: Float32Array, v: Float32Array] => [
  history(cache, 0, 'k'),
  history(cache, 0, 'v'),
];

/** Keys and values as they are when a page of a twin has become what a candidate says. */
function moved(
  cache: KvCache,
  page: number,
  candidate: TrialCandidate,
  kept: readonly Kept[],
  weights?: LatentLayerWeights,
) {
  const twin = twinOf(cache, {}, weights === undefined ? [] : [weights]);
  // A steered format asks the kept queries, which the twin does not have.
  if (!isLatent(candidate) && FORMATS[candidate.format as FormatName].steered) reattend(twin, kept);
  if (isLatent(candidate)) twin.toLatent(0, page, candidate.format);
  else twin.transcode(0, page, candidate.side, candidate.format);
  const history = decoded(twin);
  twin.close();
  return history;
}

/** ε of each candidate by brute force. */
function bruteForce(
  cache: KvCache,
  page: number,
  candidates: readonly TrialCandidate[],
  kept: readonly Kept[],
  options: BruteForce = {},
): number[] {
  const size = (x: Float64Array) => Math.hypot(...x);
  const attended = ([k, v]: [Float32Array, Float32Array], { position, q }: Kept): Float64Array =>
    denseAttention(cache.shape, q, k, v, { ...options, positions: [position] }).out;
  const now = decoded(cache);
  const asked = kept
    .filter(({ position }) => position >= (page + 1) * 128)
    .filter(({ position }) => !options.window || position - options.window + 1 <= page * 128)
    .map((one) => ({ one, before: attended(now, one) }));
  return candidates.map((candidate) => {
    const then = moved(cache, page, candidate, kept, options.weights);
    const errors = asked.map(({ one, before }) => {
      const delta = attended(then, one).map((x, i) => x - before[i]!);
      const { sketch } = options;
      if (sketch === undefined) return size(delta) / size(before);
      const seen = Float64Array.from({ length: 32 }, (_, r) =>
        delta.reduce((sum, x, i) => sum + x * sketch[r * delta.length + i]!, 0),
      );
      return size(seen) / one.norm;
    });
    return errors.reduce((sum, error) => sum + error, 0) / errors.length;
  });
}

const below = (now: FormatName, side: Part): TrialCandidate[] =>
  SERVED_FORMATS.filter((name) => FORMATS[name].rank > FORMATS[now].rank && isMove(now, name)).map((format) => ({
    side,
    format,
  }));

/**
 * Errors are differences of two outputs: float32 rounding of the outputs is what remains, so small errors are known
 * less well.
 */
function agree(found: Float64Array, expected: readonly number[]): void {
  expected.forEach((value, i) => {
    expect(Math.abs(found[i]! - value)).toBeLessThan(0.005 * value + 2e-5);
  });
}

describe('a page that holds all mass', () => {
  it('is tried within what two means of its values can differ by, and near what attention would do, whatever it loses', () => {
    const { kvHeads, headDim, queryHeads } = shapeOf(64);
    for (const size of [1, 4, 16, 64, 300].filter((_, place) => isShare(place, 5))) {
      const cache = openKvCache({ shape: shapeOf(64), pool: openPool(128_000_000), windowFormat: 'f16' });
      const random = uniform(size);
      // Every query looks along the keys of page 1 and away from all others; large scores make small errors of keys
      // change everything.
      const direction = normals(random, headDim);
      const along = (tokens: number, heads: number, factor: number, noise: number): Float32Array =>
        fromHalf(
          toHalf(normals(random, tokens * heads * headDim, noise).map((x, i) => x + factor * direction[i % headDim]!)),
        );
      for (const factor of [-1, 1, -1])
        cache.append(0, along(128, kvHeads, factor, 0.3), normals(random, 128 * kvHeads * headDim));
      cache.append(0, along(1, kvHeads, -1, 0.3), normals(random, kvHeads * headDim));
      const q = along(128, queryHeads, size, size / 4);
      const kept: Kept[] = [];
      cache.attend(0, q, new Float32Array(q.length));
      const row = queryHeads * headDim;
      for (let t = 0; t < 128; t++)
        if ((257 + t) % 8 === 7) kept.push({ position: 257 + t, q: q.slice(t * row, (t + 1) * row), norm: 1 });
      const candidates = PARTS.flatMap((side) => below('f16', side));
      const found = cache.trial(0, 1, candidates);
      const largest = Math.max(
        ...Array.from({ length: 128 * kvHeads }, (_, i) =>
          Math.hypot(...cache.decode(0, 1, 'v').subarray(i * headDim, (i + 1) * headDim)),
        ),
      );
      for (const [i, expected] of bruteForce(cache, 1, candidates, kept).entries()) {
        const candidate = candidates[i]!;
        const what = `size ${size}, ${candidate.side} to ${candidate.format}: ${found[i]} for ${expected}`;
        // ‖o‖ is that of a value or two here, or of a mean of many.
        expect(found[i]! >= 0 && found[i]! < (2 * largest) / 0.3, what).toBe(true);
        expect(Math.abs(found[i]! - expected), what).toBeLessThan(0.1 * expected + 0.005);
      }
    }
  });
});

describe('trial', () => {
  it('equals brute force for every move down, without a sketch', () => {
    for (const headDim of IS_SHORT ? [96] : [64, 96]) {
      const cache = open({ headDim, windowFormat: 'f16' });
      const kept = run(cache, uniform(headDim), 330, 128, false, 128);
      for (const page of IS_SHORT ? [1] : [0, 1]) {
        const sources = SERVED_FORMATS.filter((name) => below(name, 'k').length > 0);
        for (const now of sources.filter((_, place) => isShare(place, 12))) {
          // Only what the kept queries saw may be compared: the page changes format, and they attend again.
          const fresh = twinOf(cache);
          fresh.transcode(0, page, 'kv', now);
          const again = reattend(fresh, kept);
          const candidates = PARTS.flatMap((side) => below(now, side)).filter(({ format }) =>
            isTried(now, format as FormatName),
          );
          const found = fresh.trial(0, page, candidates);
          agree(found, bruteForce(fresh, page, candidates, again));
          fresh.close();
        }
      }
    }
  });

  it('equals brute force against the residual stream, through the sketch', () => {
    const cache = open();
    const random = uniform(11);
    const sketch = normals(random, 32 * 6 * 64, 0.05);
    expect(cache.hasSketch(0)).toBe(false);
    cache.setOutputSketch(0, sketch);
    const kept = run(cache, random, 400, 100, true);
    expect(cache.hasSketch(0)).toBe(true);
    const candidates: TrialCandidate[] = [
      { side: 'k', format: 'rot4' },
      { side: 'k', format: 'rot2' },
      { side: 'v', format: 'rot3' },
    ];
    for (const page of [0, 1, 2]) {
      const usable = kept.filter((one) => one.position >= (page + 1) * 128);
      const found = cache.trial(0, page, candidates);
      agree(found, bruteForce(cache, page, candidates, usable, { sketch }));
    }
    const q = normals(random, 6 * 64 * 8);
    cache.attend(0, q, new Float32Array(q.length)); // no norms: the two kinds are not mixed
    expect(cache.hasSketch(0)).toBe(false);
  });

  it('equals brute force for latents, beside keys and values and in their place, at once and in the background', () => {
    const shapes = [
      [64, 1],
      [96, 2],
    ] as const;
    for (const [headDim, threads] of IS_SHORT ? shapes.slice(1) : shapes) {
      const width = 80;
      const random = uniform(headDim + 5);
      const cache = open({ headDim, threads });
      const matrix = (): Float32Array => normals(random, 2 * headDim * width, 0.1);
      const weights = { width, wk: matrix(), wv: matrix(), vBias: normals(random, 2 * headDim) };
      cache.setLatentWeights(0, weights);
      const kept = run(cache, random, 400, 100, false);
      const x = normals(random, 128 * width);
      const agreed = (
        page: number,
        latent: LatentName,
        seen: readonly Kept[],
        others: readonly TrialCandidate[],
      ): void => {
        const names = LATENT_NAMES.slice(LATENT_NAMES.indexOf(latent));
        const candidates = [...others, ...names.map((format) => ({ side: 'kv', format }) as const), ...others];
        const found = cache.trial(0, page, candidates);
        cache.startTrial(0, page, candidates);
        agree(found, bruteForce(cache, page, candidates, seen, { weights }));
        expect(cache.finishTrials(true)).toEqual([found]);
      };
      for (const page of [0, 1].filter((page) => isShare(page, 2))) {
        cache.keepLatent(0, page, 'xq8', encodeLatent('xq8', x, width, page === 0 ? 4 : 0));
        agreed(page, 'xq8', kept, [...below('q8', 'kv'), { side: 'v', format: 'rot2' }]);
        cache.startTrial(0, page, [{ side: 'kv', format: 'xq3' }]);
        const [started] = cache.trial(0, page, [{ side: 'kv', format: 'xq3' }]);
        // The page changes beneath it.
        cache.toLatent(0, page, 'xq4');
        expect(cache.finishTrials(true)).toEqual([Float64Array.of(started!)]);
        agreed(page, 'xq4', reattend(cache, kept), []);
      }
    }
  });

  it('knows windows and ALiBi, and leaves out queries that cannot see the page whole', () => {
    const random = uniform(12);
    const slopes = Float32Array.from({ length: 6 }, (_, h) => 0.01 * (h + 1));
    const cache = open({ slidingWindow: [300], alibiSlopes: slopes });
    const kept = run(cache, random, 512, 64, false);
    const candidate: TrialCandidate = { side: 'v', format: 'rot3' };
    agree(cache.trial(0, 2, [candidate]), bruteForce(cache, 2, [candidate], kept, { window: 300, slopes }));
    expect(cache.trial(0, 0, [candidate])[0]).toBeNaN(); // page 0 has left every window
    const half = kept.filter((one) => one.position - 300 + 1 <= 128);
    expect(half.length).toBeGreaterThan(0);
    expect(half.length).toBeLessThan(16);
    agree(cache.trial(0, 1, [candidate]), bruteForce(cache, 1, [candidate], kept, { window: 300, slopes }));
  });

  it('gives NaN while no later query is kept, and 0 for the format it has', () => {
    const cache = open();
    const random = uniform(13);
    const rows = normals(random, 129 * 128);
    cache.append(0, rows, rows);
    expect(cache.trial(0, 0, [{ side: 'k', format: 'rot4' }])[0]).toBeNaN();
    run(cache, random, 128, 128, false);
    expect(cache.trial(0, 0, [{ side: 'k', format: 'q8' }])[0]).toBe(0);
    expect(cache.trial(0, 0, []).length).toBe(0);
  });

  it('changes nothing, and answers the same with more threads', () => {
    const answers = [1, 3].map((threads) => {
      const cache = open({ threads });
      run(cache, uniform(14), 400, 128, false);
      const before = [history(cache, 0, 'k'), history(cache, 0, 'v'), cache.table(0), cache.memory().totalBytes];
      const found = cache.trial(0, 1, [...below('q8', 'k'), ...below('q8', 'v')]);
      expect([history(cache, 0, 'k'), history(cache, 0, 'v'), cache.table(0), cache.memory().totalBytes]).toEqual(
        before,
      );
      return found;
    });
    answers[0]!.forEach((value, i) => {
      expect(answers[1]![i]).toBeCloseTo(value, 5);
    });
  });

  it('holds sixteen queries of the last page in decode as in prefill', () => {
    const errors = [1, 128, 40].map((chunk) => {
      const cache = open({ windowFormat: 'f16' });
      const random = uniform(15);
      const k = normals(random, 256 * 128);
      const q = normals(random, 256 * 6 * 64);
      for (let start = 0; start < 256; start += chunk) {
        const end = Math.min(256, start + chunk);
        cache.append(0, k.subarray(start * 128, end * 128), k.subarray(start * 128, end * 128));
        cache.attend(0, q.subarray(start * 384, end * 384), new Float32Array((end - start) * 384));
      }
      return cache.trial(0, 0, [{ side: 'k', format: 'rot2' }])[0]!;
    });
    expect(errors[1]).toBeCloseTo(errors[0]!, 4);
    expect(errors[2]).toBeCloseTo(errors[0]!, 4);
  });
});

/** Nanoseconds that the calling thread has run; null where the system does not say. */
function cpuOfThread(): number | null {
  try {
    return Number(readFileSync('/proc/thread-self/schedstat', 'utf8').split(' ')[0]);
  } catch {
    return null;
  }
}

describe('startTrial', () => {
  const candidates: TrialCandidate[] = [...below('q8', 'k'), ...below('q8', 'v')];

  it('finds to the bit what trial() finds, whatever the cache does until it is asked', () => {
    for (const withNorms of [false, true]) {
      const pool = openPool(128_000_000);
      const cache = openKvCache({ shape: { ...shapeOf(64), layers: 1 }, pool });
      const random = uniform(16);
      if (withNorms) cache.setOutputSketch(0, normals(random, 32 * 6 * 64, 0.05));
      run(cache, random, 600, 100, withNorms);
      const pages = [0, 1, 2, 1];
      const expected = pages.map((page) => cache.trial(0, page, candidates));
      // Twice, because memory of finished trials serves later ones.
      for (let round = 0; round < 2; round++) {
        for (const page of pages) cache.startTrial(0, page, candidates);
        expect(cache.trialsUnderWay).toBe(pages.length);
        if (round === 1) {
          cache.transcode(0, 1, 'k', 'rot3');
          cache.startMove(0, 2, 'v', 'rot2');
          cache.finishMoves(true);
          run(cache, random, 300, 100, withNorms);
          if (withNorms) cache.setOutputSketch(0, normals(random, 32 * 6 * 64, 1));
        }
        expect(cache.finishTrials(true)).toEqual(expected);
        expect(cache.trialsUnderWay).toBe(0);
        expect(cache.finishTrials(true)).toEqual([]);
      }
      expect(pool.auditBytes()).toBe(pool.usedBytes);
      cache.close();
      expect(pool.usedBytes).toBe(0);
      pool.close();
    }
  });

  it.skipIf(cpuOfThread() === null)(
    'is worked off by whoever waits for it as well, not by its thread alone (needs Linux, which says what a thread has run)',
    () => {
      const cache = open();
      run(cache, uniform(19), 600, 100, false);
      const pages = Array.from({ length: 150 }, (_, i) => i % 3);
      const spent = (work: () => void): number => {
        const before = cpuOfThread()!;
        work();
        return cpuOfThread()! - before;
      };
      const expected: Float64Array[] = [];
      const alone = spent(() => expected.push(...pages.map((page) => cache.trial(0, page, candidates))));
      const found: Float64Array[] = [];
      // A build without threads has done all of it when a trial is started.
      const here = spent(() => {
        for (const page of pages) cache.startTrial(0, page, candidates);
        found.push(...cache.finishTrials(true));
      });
      expect(found).toEqual(expected);
      // Half of it on two cores, more where the thread has none.
      expect(here).toBeGreaterThan(0.15 * alone);
      cache.close();
    },
  );

  it('answers those that have ended without waiting, in order and each once', () => {
    const cache = open();
    run(cache, uniform(17), 600, 100, false);
    const pages = [0, 1, 2, 0, 1, 2];
    const expected = pages.map((page) => cache.trial(0, page, candidates.slice(page)));
    for (const page of pages) cache.startTrial(0, page, candidates.slice(page));
    const found: Float64Array[] = [];
    while (cache.trialsUnderWay > 3) found.push(...cache.finishTrials(false));
    found.push(...cache.finishTrials(true));
    expect(found).toEqual(expected);
    cache.close();
  });

  it('is dropped by close(), and a fork has none', () => {
    const pool = openPool(128_000_000);
    const cache = openKvCache({ shape: shapeOf(64), pool });
    run(cache, uniform(18), 600, 100, false);
    for (const page of [0, 1, 2, 1, 0]) cache.startTrial(0, page, candidates);
    const fork = cache.fork();
    expect(fork.trialsUnderWay).toBe(0);
    const expected = fork.trial(0, 1, candidates);
    cache.close();
    fork.startTrial(0, 1, candidates);
    expect(fork.finishTrials(true)).toEqual([expected]);
    fork.close();
    expect(pool.usedBytes).toBe(0);
    pool.close();
  });

  it('refuses what trial() refuses, and says NaN where no query sees the page', () => {
    const cache = open();
    const rows = normals(uniform(19), 129 * 128);
    cache.append(0, rows, rows);
    cache.startTrial(0, 0, [{ side: 'k', format: 'rot4' }]);
    cache.startTrial(0, 0, []);
    const [first, second] = cache.finishTrials(true);
    expect([...first!]).toEqual([Number.NaN]);
    expect(second!.length).toBe(0);
    const refused = (work: () => void, code: string) =>
      expect(work).toThrowError(expect.objectContaining({ name: 'KvError', code }));
    refused(() => cache.startTrial(0, 1, candidates), 'bad-argument');
    refused(() => cache.startTrial(1, 0, candidates), 'bad-argument');
    refused(() => cache.startTrial(0, 0, new Array(129).fill(candidates[0]!)), 'bad-argument');
    refused(() => cache.finishTrials('yes' as never), 'bad-argument');
    cache.transcode(0, 0, 'k', 'rot3');
    refused(() => cache.startTrial(0, 0, [{ side: 'k', format: 'rot4' }]), 'unsupported');
    expect(cache.trialsUnderWay).toBe(0);
    cache.close();
    refused(() => cache.startTrial(0, 0, []), 'closed');
  });
});

describe('format', () => {
  it('is that of the table, and asks for a sealed page', () => {
    const cache = open();
    run(cache, uniform(20), 400, 100, false);
    cache.transcode(0, 1, 'v', 'rot3');
    const { kFormat, vFormat } = cache.table(0);
    for (const page of [0, 1, 2]) {
      expect(cache.format(0, page, 'k')).toBe(FORMAT_NAMES[kFormat[page]!]);
      expect(cache.format(0, page, 'v')).toBe(FORMAT_NAMES[vFormat[page]!]);
    }
    for (const wrong of [
      () => cache.format(0, 3, 'k'),
      () => cache.format(0, 0, 'q' as 'k'),
      () => cache.format(9, 0, 'k'),
    ])
      expect(wrong).toThrowError(expect.objectContaining({ code: 'bad-argument' }));
    cache.close();
  });
});

/**
 * Lets the kept queries see the cache as it is now: all of them again in one call, the last rows of a longer block, so
 * that every slot is written anew.
 */
function reattend(cache: KvCache, kept: readonly Kept[]): Kept[] {
  const { queryHeads, headDim } = cache.shape;
  const width = queryHeads * headDim;
  const length = cache.length();
  const q = new Float32Array(128 * width);
  for (const { position, q: row } of kept) {
    if (position >= length - 128) q.set(row, (position - (length - 128)) * width);
  }
  cache.attend(0, q, new Float32Array(q.length));
  return kept.filter(({ position }) => position >= length - 128);
}
