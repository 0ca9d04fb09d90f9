/**
 * Measures one decode query over the history of a recorded run, with 16 bits for all weights of values and with 8 bits where setPlaneShare() allows
 * them, next to f16 and in the same rounds. Random rows would not do: they give every page the same mass.
 */
import { Trace } from '../../engine/trace/reader.ts';
import {
  type KvCache,
  KvError,
  openKvCache,
  openPool,
  PAGE_TOKENS,
  type PagePool,
  pageBytes,
} from '../../native/index.ts';
import { ARENA_BYTES } from './arena.ts';
import type { Bench } from './bench.ts';
import { attentionError } from './error.ts';
import { median, sideBySide } from './measure.ts';
import { groupOf, type Pair, pairName, pairs, type Shape, shapeName, shapes } from './shapes.ts';
import { columns } from './table.ts';

const SHAPES = shapes('9/3x64,16/4x64');
const PAIRS = pairs('f16,rot4:rot4,rot2:rot2');

const PASSES = 15;

/** Rows of one layer of the arena, and the query that is asked of it. */
interface Source {
  readonly pages: readonly { readonly k: Float32Array; readonly v: Float32Array }[];
  /** Rows of the page after them, up to the token of the query. */
  readonly open: { readonly k: Float32Array; readonly v: Float32Array };
  readonly q: Float32Array;
}

interface Filled {
  readonly cache: KvCache;
  readonly pool: PagePool;
  readonly pair: Pair;
  readonly layers: number;
  /** The query of each layer. */
  readonly queries: readonly Float32Array[];
}

export async function planes(bench: Bench): Promise<void> {
  const { settings } = bench;
  if (settings.rows === null) {
    throw new KvError('bad-argument', 'planes measures over a recorded run', {
      hint: '--rows FILE; record one with: palimpsest trace record',
    });
  }
  const trace = Trace.open(settings.rows);
  try {
    for (const shape of settings.shapes ?? SHAPES) await planesAt(bench, trace, shape);
  } finally {
    trace.close();
  }
}

async function planesAt(bench: Bench, trace: Trace, shape: Shape): Promise<void> {
  const { settings, stream } = bench;
  const pages = (settings.tokens?.[0] ?? (trace.pages - 1) * PAGE_TOKENS) / PAGE_TOKENS;
  if (shape.headDim !== trace.shape.headDim || !Number.isInteger(pages) || pages < 1 || pages >= trace.pages)
    throw new KvError(
      'bad-argument',
      `the trace has no ${pages} pages of heads of ${shape.headDim} and one after them`,
    );
  const sources = Array.from({ length: trace.shape.layers }, (_, layer) => sourceOf(trace, layer, shape, pages));
  const filled: Filled[] = [];
  try {
    for (const pair of settings.formats ?? PAIRS) filled.push(fill(shape, pair, pages, sources, settings.arenaBytes));
    const out = new Float32Array(shape.queryHeads * shape.headDim);
    const cases = filled.flatMap((one) =>
      (pairName(one.pair) === 'f16' ? [0] : settings.planes).map((share) => ({ one, share })),
    );
    const { seconds } = await sideBySide(
      cases.map(({ one: { cache, queries }, share }) => ({
        prepare: () => cache.setPlaneShare(share),
        run: () => {
          for (const [layer, q] of queries.entries()) cache.attend(layer, q, out, { observe: false });
        },
      })),
      { stream, threads: 1, rounds: settings.rounds },
    );
    const tokens = pages * PAGE_TOKENS;
    const ns = cases.map(({ one }, i) => (seconds[i]! * 1e9) / one.layers / tokens / shape.kvHeads);
    const file = settings.rows?.split('/').at(-1);
    const near = inCache(cases, sources.length, out).map((least) => (least * 1e9) / tokens / shape.kvHeads);
    bench.say(`\nplanes ${shapeName(shape)} (g = ${groupOf(shape)}), ${tokens} tokens of ${file}, 1 thread`);
    const lines = cases.map(({ one, share }, i) => {
      const { single, errors } = measured(one, share, sources.length, out);
      const plain = cases.findIndex((other) => other.one === one && other.share === 0);
      return [
        pairName(one.pair),
        share,
        ns[i]!.toFixed(2),
        `${(ns[0]! / ns[i]!).toFixed(2)}×`,
        plain < 0 ? null : `${(ns[plain]! / ns[i]!).toFixed(2)}×`,
        near[i]!.toFixed(2),
        plain < 0 ? null : `${(near[plain]! / near[i]!).toFixed(2)}×`,
        `${(100 * single).toFixed(0)}%`,
        median(errors).toExponential(1),
        Math.max(...errors).toExponential(1),
      ];
    });
    for (const line of columns(
      [
        'format',
        'share',
        'ns/token',
        'vs f16',
        'vs 16 bits',
        'in cache',
        'vs 16 bits',
        '8 bits',
        'error, median',
        'largest',
      ],
      lines,
    ))
      bench.say(`  ${line}`);
  } finally {
    for (const { cache, pool } of filled) {
      cache.close();
      pool.close();
    }
  }
}

/**
 * Seconds of one call of each case for a layer that lies in the processor's caches: the least of PASSES in turns, on average over the recorded layers. The
 * least is what is left on a machine with other work, which drowns the difference in what memory takes.
 */
function inCache(cases: readonly { one: Filled; share: number }[], recorded: number, out: Float32Array): number[] {
  const sums = cases.map(() => 0);
  for (let layer = 0; layer < recorded; layer++) {
    const least = cases.map(() => Number.POSITIVE_INFINITY);
    for (let pass = 0; pass < PASSES; pass++) {
      for (const [i, { one, share }] of cases.entries()) {
        one.cache.setPlaneShare(share);
        // The first call brings the layer into the caches.
        for (let call = 0; call < 2; call++) {
          const start = performance.now();
          one.cache.attend(layer, one.queries[layer]!, out, { observe: false });
          least[i] = Math.min(least[i]!, (performance.now() - start) / 1000);
        }
      }
    }
    for (const [i, seconds] of least.entries()) sums[i]! += seconds / recorded;
  }
  return sums;
}

/** The share of heads of pages that had weights of 8 bits, and the errors of attention, of every layer that was recorded. */
function measured({ cache, queries, layers }: Filled, share: number, recorded: number, out: Float32Array) {
  cache.setPlaneShare(share);
  const counts = { met: 0, single: 0 };
  const errors: number[] = [];
  for (let layer = 0; layer < Math.min(recorded, layers); layer++) {
    const before = cache.planes(layer);
    cache.attend(layer, queries[layer]!, out, { observe: false });
    const after = cache.planes(layer);
    counts.met += after.met - before.met;
    counts.single += after.single - before.single;
    errors.push(attentionError(cache, layer, queries[layer]!, out));
  }
  return { single: counts.met === 0 ? 0 : counts.single / counts.met, errors };
}

/**
 * Rows for a layer of the shape. Where the shape has more KV heads than the trace, they come from the next layers; where it has more query heads
 * to a KV head, they are the same heads some tokens earlier.
 */
function sourceOf(trace: Trace, layer: number, { kvHeads, queryHeads, headDim }: Shape, pages: number): Source {
  const { shape } = trace;
  const [group, theirs] = [queryHeads / kvHeads, shape.queryHeads / shape.kvHeads];
  const layers = [
    ...new Set(Array.from({ length: kvHeads }, (_, head) => (layer + Math.floor(head / shape.kvHeads)) % shape.layers)),
  ];
  const read = (page: number) => layers.map((one) => trace.page(page, one));
  const gather = (page: number, side: 'k' | 'v', count: number): Float32Array => {
    const rows = new Float32Array(count * kvHeads * headDim);
    const found = read(page);
    for (let t = 0; t < count; t++) {
      for (let head = 0; head < kvHeads; head++) {
        const from = (t * shape.kvHeads + (head % shape.kvHeads)) * headDim;
        rows.set(
          found[Math.floor(head / shape.kvHeads)]![side].subarray(from, from + headDim),
          (t * kvHeads + head) * headDim,
        );
      }
    }
    return rows;
  };
  const last = read(pages);
  const asked = last[0]!.queryRows.length - 1;
  const q = new Float32Array(queryHeads * headDim);
  for (let head = 0; head < queryHeads; head++) {
    const [kv, own] = [Math.floor(head / group), head % group];
    const query = Math.max(0, asked - Math.floor(own / theirs));
    const from = (query * shape.queryHeads + (kv % shape.kvHeads) * theirs + (own % theirs)) * headDim;
    q.set(last[Math.floor(kv / shape.kvHeads)]!.q.subarray(from, from + headDim), head * headDim);
  }
  const seen = last[0]!.queryRows[asked]! + 1;
  return {
    pages: Array.from({ length: pages }, (_, page) => ({
      k: gather(page, 'k', PAGE_TOKENS),
      v: gather(page, 'v', PAGE_TOKENS),
    })),
    open: { k: gather(pages, 'k', seen), v: gather(pages, 'v', seen) },
    q,
  };
}

/** As openArena: so many layers that a pass finds none of them in the processor's caches. */
function fill(shape: Shape, pair: Pair, pages: number, sources: readonly Source[], arenaBytes = ARENA_BYTES): Filled {
  const { kvHeads, headDim } = shape;
  const layerBytes = pages * (pageBytes(pair.k, kvHeads, headDim) + pageBytes(pair.v, kvHeads, headDim));
  const layers = Math.max(sources.length, Math.ceil(arenaBytes / layerBytes));
  const pool = openPool(2 ** 40);
  const windowFormat = pair.k === 'q8' || pair.v === 'q8' ? 'q8' : 'f16';
  const cache = openKvCache({ shape: { ...shape, layers }, pool, windowFormat, threads: 1 });
  const queries: Float32Array[] = [];
  for (let layer = 0; layer < layers; layer++) {
    const { pages: rows, open, q } = sources[layer % sources.length]!;
    for (const { k, v } of [...rows, open]) cache.append(layer, k, v);
    for (let page = 0; page < pages; page++) {
      if (pair.k !== windowFormat) cache.transcode(layer, page, 'k', pair.k);
      if (pair.v !== windowFormat) cache.transcode(layer, page, 'v', pair.v);
    }
    queries.push(q);
  }
  return { cache, pool, pair, layers, queries };
}
