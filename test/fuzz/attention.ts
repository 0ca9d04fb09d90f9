/**
 * Page attention as a whole: rows meet pages of mixed formats with any bytes in them; and caches, with everything that
 * happens to a page. Where no side is f16 every machine gives the same bits; f16 sides fuse where the hardware can, and
 * have a bound.
 */
import {
  CODED_HEAD_DIMS,
  FORMATS,
  isMove,
  nameOfId,
  PAGE_TOKENS,
  SERVED_FORMATS,
  SINK_TOKENS,
  SKETCH_ROWS,
  TRIAL_CANDIDATES,
  WINDOW_FORMAT,
} from '../../native/format.ts';
import type { Binary, CacheHandle, PoolHandle } from '../../native/load.ts';
import { gaussian } from '../native/rows.ts';
import { sideBytes } from '../native/sides.ts';
import { type Case, type Cases, type Numbers, one, type Random, succeed, whole } from './case.ts';
import { largestOf, randomSide } from './side.ts';

const F16 = 0;
const IDS = SERVED_FORMATS.map((name) => FORMATS[name].id);
const WINDOW = FORMATS[WINDOW_FORMAT].id;
/** True if a side in the format `from` may go on to `to`. */
const isDown = (from: number, to: number): boolean => from !== to && isMove(nameOfId(from), nameOfId(to));

/** Rows of one size, or of any sizes (isWild), where one token often takes everything. */
function randomRows(random: Random, d: number, isWild: boolean): Float32Array {
  const size = isWild ? one(random, [1, 8, 2 ** -16, 2000]) : 1;
  const spread = isWild ? one(random, [0, 3, 12]) : 0.5;
  const sizes = Float64Array.from({ length: PAGE_TOKENS }, () =>
    random() < 0.05 ? 0 : size * 2 ** (spread * (random() - 0.5)),
  );
  return Float32Array.from({ length: PAGE_TOKENS * d }, (_, i) => {
    const x = sizes[Math.floor(i / d)]! * gaussian(random);
    return Math.max(-65504, Math.min(65504, x));
  });
}

interface Asked {
  readonly d: number;
  readonly heads: number;
  readonly perHead: number;
  readonly q: Float32Array;
  readonly slope: Float32Array;
  readonly cap: number;
  readonly tokens: number;
}

/**
 * Largest differences of [log-sum-exp, output, skipped] between two machines when keys (or only values) are f16. A
 * score is a sum of d products, off by d · 2^-23 · Σ|q·k| on each, two roundings more with a slope. A cap brings scores
 * no further apart than they are, but for its own error of 4 · 2^-23. Weights are then off by a factor 2^δ twice (their
 * own score, the sum), sums of them by 2^-23 a token; a value that is coded is weighed by integers, which may be off by
 * one in 32512 for each of 128 tokens.
 */
function bounds(asked: Asked, largestKey: number, largestValue: number, codedValues: number): Float64Array[] {
  const { d, heads, perHead, q, slope, cap, tokens } = asked;
  const roundings = d + 4 + (cap > 0 ? 4 : 0);
  const rows = heads * perHead;
  const lse = new Float64Array(rows);
  const out = new Float64Array(rows * d);
  for (let r = 0; r < rows; r++) {
    let size = 0;
    for (let c = 0; c < d; c++) size += Math.abs(q[r * d + c]!);
    const score = size * largestKey;
    const delta =
      largestKey === 0 ? 0 : 2 * roundings * 2 ** -23 * (score + Math.abs(slope[r] ?? 0) * tokens) + 2 ** -100;
    const weights = 2 ** Math.min(2 * delta, 1000) - 1 + tokens * 2 ** -22 + 1e-6;
    lse[r] = delta + tokens * 2 ** -22 + 1e-6;
    const each = largestValue * (2 * weights + tokens * 2 ** -21 + codedValues * (PAGE_TOKENS / 32512));
    out.fill(each, r * d, (r + 1) * d);
  }
  return [lse, out];
}

/** Of scores; 0 for none. */
const randomCap = (random: Random): number => one(random, [0, 0, 0, 50, 2 ** (20 * (random() - 0.5))]);

function attendPages(random: Random): Case {
  const d = one(random, CODED_HEAD_DIMS);
  const heads = whole(random, 1, 3);
  const perHead = random() < 0.1 ? whole(random, 9, Math.floor(64 / heads)) : whole(random, 1, 8);
  const rows = heads * perHead;
  const pages = whole(random, 1, d > 128 ? 2 : 4);
  const last = one(random, [1, PAGE_TOKENS, PAGE_TOKENS, whole(random, 1, PAGE_TOKENS)]);
  const tokens = (pages - 1) * PAGE_TOKENS + last;
  const window = one(random, [0, 0, 0, 1, whole(random, 2, 200)]);
  const isCoded = random() < 0.7;
  const ids = isCoded ? IDS.filter((id) => id !== F16) : IDS;
  const formats = Int32Array.from({ length: 2 * pages }, () => one(random, ids));
  const anyF16 = formats.includes(F16);
  const keyF16 = formats.some((format, i) => i % 2 === 0 && format === F16);
  // Pages whose integers may differ: those of coded values, where a score may.
  const codedValues = keyF16 ? formats.filter((format, i) => i % 2 === 1 && format !== F16).length : 0;
  const cap = randomCap(random);
  // What a row skips depends on its scores to the last bit.
  const skipShare = anyF16 ? 0 : one(random, [0, 0, 1e-3, 0.5]);
  const inRuns = random() < 0.6;
  const hasSinks = random() < 0.5;

  // Scores from all equal to far beyond what 2^x can tell apart.
  const isWild = random() < 0.4;
  const size = (isWild ? one(random, [0, 1, 30, 1e4]) : 1) / Math.sqrt(d);
  const q = Float32Array.from({ length: rows * d }, () => size * gaussian(random));
  if (random() < 0.2) q.fill(0, 0, d);
  const slope = Float32Array.from(
    { length: random() < 0.5 ? 0 : rows },
    () => random() * (isWild ? one(random, [1, 50]) : 0.01),
  );
  const isDecode = random() < 0.6;
  const position = Int32Array.from({ length: rows }, () =>
    isDecode || random() < 0.5 ? tokens - 1 : whole(random, 0, tokens - 1),
  );
  const sinks = Float32Array.from({ length: hasSinks ? 2 * heads * SINK_TOKENS * d : 0 }, () => gaussian(random));
  if (hasSinks && isWild) for (let i = 0; i < sinks.length / 2; i++) sinks[i]! *= 50;
  const all = new Uint8Array(pages * 2 * heads * sideBytes(d));
  let largestKey = 0;
  let largestValue = hasSinks ? 6 : 0;
  for (let page = 0; page < pages; page++) {
    for (let side = 0; side < 2; side++) {
      for (let head = 0; head < heads; head++) {
        const format = nameOfId(formats[2 * page + side]!);
        const bytes = randomSide(random, format, side === 0, d, randomRows(random, d, isWild));
        const largest = largestOf(format, side === 0, d, bytes);
        all.set(bytes, ((page * 2 + side) * heads + head) * sideBytes(d));
        // Scores of coded keys are equal to the bit.
        if (side === 0 && formats[2 * page] === F16) largestKey = Math.max(largestKey, largest);
        if (side === 1) largestValue = Math.max(largestValue, largest);
      }
    }
  }
  return {
    shape: `d ${d}, heads ${heads} of ${perHead}, tokens ${tokens}, window ${window}, formats ${formats.join(' ')}, q ${size}, skip ${skipShare}, cap ${cap}`,
    bounds: () =>
      anyF16 ? bounds({ d, heads, perHead, q, slope, cap, tokens }, largestKey, largestValue, codedValues) : [],
    run({ kernels, isa }) {
      const [max, sum, mixed] = [new Float32Array(rows), new Float32Array(rows), new Float32Array(rows * d)];
      const skipped = new Int32Array(2);
      const [mass, top] = [new Float32Array(rows * pages), new Float32Array(rows * pages)];
      kernels.attendPages(
        ...([
          isa,
          d,
          heads,
          perHead,
          pages,
          last,
          window,
          inRuns,
          skipShare,
          cap,
          formats,
          all,
          q,
          position,
          slope,
        ] as const),
        ...([sinks, max, sum, mixed, skipped, mass, top] as const),
      );
      // Which of two equal zeros is the largest depends on the width of a vector, and changes nothing that follows.
      if (!anyF16) return [max.map((x) => x + 0), sum, mixed, skipped, mass, top.map((x) => x + 0)];
      const lse = Float64Array.from(max, (x, r) => x + Math.log2(sum[r]!));
      const out = Float64Array.from(mixed, (x, i) => (sum[Math.floor(i / d)] === 0 ? 0 : x / sum[Math.floor(i / d)]!));
      return [lse, out, skipped];
    },
  };
}

/** A pool and a cache on a machine; `work` gets the cache and must leave it open. */
export function withCache(
  binary: Binary,
  isa: number,
  shape: readonly number[],
  { scale, window, slopes, cap = 0 }: { scale: number; window: number; slopes: Float32Array; cap?: number },
  work: (cache: CacheHandle, pool: PoolHandle) => void,
): void {
  succeed(binary.setIsa(isa), 'setIsa');
  const pool = new binary.Pool();
  const cache = new binary.Cache();
  succeed(pool.open(2 ** 26), 'pool.open');
  const scoreCap = cap === 0 ? undefined : cap;
  succeed(
    cache.open(pool, Int32Array.from(shape), scale, Int32Array.of(window), slopes, undefined, scoreCap),
    'cache.open',
  );
  try {
    work(cache, pool);
  } finally {
    cache.close();
    pool.close();
  }
}

/** Rows, moves and options of a cache of one layer. An open page in f16 holds zeros: their part is exact. */
function chosenCache(random: Random) {
  const d = one(random, [64, 64, 80, 96, 128]);
  const heads = whole(random, 1, 2);
  const group = whole(random, 1, 4);
  const pages = whole(random, 1, 3);
  const open = whole(random, 1, PAGE_TOKENS);
  const openFormat = one(random, [F16, WINDOW]);
  const tokens = pages * PAGE_TOKENS + open;
  const row = heads * d;
  const spread = one(random, [1, 1, 20, 0.01]);
  const side = (): Float32Array => {
    const x = new Float32Array(tokens * row);
    const exact = openFormat === F16 ? open : 0;
    for (let i = 0; i < (tokens - exact) * row; i++) x[i] = spread * gaussian(random);
    if (random() < 0.3) for (let i = 0; i < SINK_TOKENS * row; i++) x[i]! *= 50;
    return x;
  };
  const [k, v] = [side(), side()];
  const moves = movesFor(random, pages, whole(random, 0, 2 * pages));
  const slopes = Float32Array.from({ length: random() < 0.3 ? heads * group : 0 }, () => random());
  const scale = one(random, [1 / Math.sqrt(d), 1 / Math.sqrt(d), 1, 0]);
  const cap = randomCap(random);
  return {
    ...{ d, heads, group, pages, open, openFormat, tokens, row, scale, slopes, cap },
    says: `cap ${cap}, d ${d}, heads ${heads} of ${group}, tokens ${tokens}, moves ${moves.length}`,
    /** Formats of all sides afterwards. */
    fill(cache: CacheHandle): Uint8Array {
      succeed(cache.append(0, k, v), 'append');
      // Rows that were appended last are attended in f16, until somebody takes tokens back.
      succeed(cache.truncate(tokens), 'truncate');
      const now = new Uint8Array(2 * pages).fill(WINDOW);
      for (const { page, side, to } of moves) {
        if (!isDown(now[2 * page + side]!, to)) continue;
        succeed(cache.transcode(0, page, side, to, new Float64Array(1)), 'transcode');
        now[2 * page + side] = to;
      }
      return now;
    },
    decoded(cache: CacheHandle): Float32Array[] {
      return Array.from({ length: 2 * pages }, (_, i) => {
        const rows = new Float32Array(PAGE_TOKENS * row);
        succeed(cache.decode(0, i >> 1, i % 2, rows), 'decode');
        return rows;
      });
    },
  };
}

interface PageMove {
  readonly page: number;
  readonly side: number;
  readonly to: number;
}

function movesFor(random: Random, pages: number, count: number): PageMove[] {
  return Array.from({ length: count }, () => ({
    page: whole(random, 0, pages - 1),
    side: whole(random, 0, 1),
    to: FORMATS[one(random, TRIAL_CANDIDATES)].id,
  }));
}

/**
 * A cache from append to attention: sealed in 8 bits, moved here and there on codes, decoded, attended by one token or
 * many.
 */
function cached(random: Random): Case {
  const chosen = chosenCache(random);
  const { d, heads, group, open, openFormat, tokens, row, scale, slopes, cap } = chosen;
  const count = one(random, [1, 1, whole(random, 2, open)]);
  const q = Float32Array.from({ length: Math.min(count, open) * row * group }, () => gaussian(random));
  const window = one(random, [0, 0, whole(random, 1, tokens)]);
  return {
    shape: `${chosen.says}, queries ${count}, window ${window}`,
    run({ binary, isa }) {
      const results: Numbers[] = [];
      withCache(
        binary,
        isa,
        [1, heads * group, heads, d, WINDOW, 1, openFormat],
        { scale, window, slopes, cap },
        (cache) => {
          chosen.fill(cache);
          const out = new Float32Array(q.length);
          succeed(cache.attend(0, q, out, undefined, undefined, true), 'attend');
          results.push(out, ...chosen.decoded(cache));
        },
      );
      return results;
    },
  };
}

/**
 * Trials of every page, at once and in the background, and moves in the background. Of one machine both trials must
 * answer the same to the bit. Machines may differ in the last bits of a logarithm and of the sketch, which meets f16.
 */
function tried(random: Random): Case {
  const chosen = chosenCache(random);
  const { d, heads, group, pages, open, openFormat, row, scale, slopes, cap } = chosen;
  const q = Float32Array.from({ length: open * row * group }, () => gaussian(random));
  const norms = Float32Array.from({ length: open }, () => 1 + random());
  const sketch = Float32Array.from({ length: random() < 0.5 ? SKETCH_ROWS * row * group : 0 }, () => gaussian(random));
  const candidates = movesFor(random, pages, whole(random, 1, 12));
  const later = movesFor(random, pages, whole(random, 0, 4));
  return {
    shape: `${chosen.says}, queries ${open}, candidates ${candidates.length}, sketch ${sketch.length > 0}`,
    run({ binary, isa }) {
      const results: Numbers[] = [];
      withCache(
        binary,
        isa,
        [1, heads * group, heads, d, WINDOW, 1, openFormat],
        { scale, window: 0, slopes, cap },
        (cache) => {
          const now = chosen.fill(cache);
          if (sketch.length > 0) succeed(cache.setSketch(0, sketch), 'setSketch');
          succeed(cache.attend(0, q, new Float32Array(q.length), norms, undefined, true), 'attend');
          const isOpen = ({ page, side, to }: PageMove): boolean => isDown(now[2 * page + side]!, to);
          const lists = Array.from({ length: pages }, (_, page) =>
            Uint8Array.from(
              candidates.filter((move) => move.page === page && isOpen(move)).flatMap(({ side, to }) => [side, to]),
            ),
          );
          const atOnce = lists.map((moves, page) => {
            const errors = new Float64Array(moves.length / 2);
            succeed(cache.trial(0, page, moves, errors), 'trial');
            return errors;
          });
          for (const [page, moves] of lists.entries()) succeed(cache.startTrial(0, page, moves), 'startTrial');
          const errors = Float64Array.from(atOnce.flatMap((list) => [...list]));
          // Of half of them the pages are moved away beneath.
          const started = new Float64Array(1 + errors.length);
          const finish = (): void => succeed(cache.finishTrials(true, started), 'finishTrials');
          if (later.length % 2 === 0) finish();
          let under = 0;
          for (const move of later.filter(isOpen)) {
            if (cache.startMove(0, move.page, move.side, move.to) === 0) under++;
          }
          const moved = new Float64Array(1 + 2 * under);
          succeed(cache.finishMoves(true, moved), 'finishMoves');
          if (later.length % 2 === 1) finish();
          const both = [Float64Array.of(pages, ...errors), started];
          if (!both[0]!.every((error, i) => Object.is(error, both[1]![i]))) throw new Error('a started trial differs');
          results.push(errors, moved, ...chosen.decoded(cache));
        },
      );
      return results;
    },
    bounds: ([errors]) => [Float64Array.from(errors!, (error) => 1e-4 * error + 1e-6)],
  };
}

export const ATTENTION_CASES: Cases = { attendPages, cached, tried };
