/**
 * What a mean over one length does not show: divergence and bytes along a long text, the time of single decode steps,
 * and the protocol of short chunks that others report with.
 */

import type { SessionOptions } from '../../engine/options/types.ts';
import { addDivergence, emptySums, NO_TARGET } from '../../engine/session/divergence.ts';
import { setupOf } from '../../engine/session/experience.ts';
import { Session } from '../../engine/session/session.ts';
import type { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { type FormatPair, PAGE_TOKENS } from '../../native/index.ts';
import { now } from '../../scripts/bench/measure.ts';
import type { CourseRow, LatencyRow, ShortRow } from './frontier-rows.ts';
import { comparedBy } from './score.ts';

/** A chunk: a context of one page, as many tokens that are scored, and the successor of the last. */
export const SHORT_SCORED = 64;
export const SHORT_CHUNKS = 50;
export const SHORT_TOKENS = PAGE_TOKENS + SHORT_SCORED + 1;
/** Tokens of a stretch of a course. */
export const STRETCH = 512;
/** One token in so many of a course is compared. */
const SAMPLED_EVERY = 8;
/** Steps that are timed: two pages, so that pages are sealed and moved in them. */
const TIMED_STEPS = 2 * PAGE_TOKENS;

/** Opens a session that starts from what ships, as a user's does. */
export async function openShipped(runtime: Runtime, options: SessionOptions): Promise<Session> {
  return Session.open(runtime, await setupOf(runtime, options, { book: null, log: null }));
}

/**
 * Chunks whose context is quantized whole, window or not, right after it was read exactly. The scored tokens follow one
 * by one, so that even the first of them sees nothing but the quantized context.
 */
export async function shortScore(
  runtime: Runtime,
  chunks: readonly (readonly number[])[],
  { k, v }: FormatPair,
): Promise<ShortRow['measured']> {
  const { layers, kvHeads, headDim } = runtime.shape;
  const { hiddenSize } = runtime.model.config;
  const sums = emptySums();
  let bits = 0;
  for (const ids of chunks) {
    const read = async (isExact: boolean): Promise<Float32Array> => {
      const session = await openShipped(runtime, {
        exact: true,
        tokensExpected: ids.length,
        compareTokens: SHORT_SCORED,
      });
      try {
        // One token more seals the page. It is read again from the quantized one.
        await session.read(ids.slice(0, PAGE_TOKENS + 1));
        session.rewind(PAGE_TOKENS);
        if (!isExact) {
          for (let layer = 0; layer < layers; layer++) {
            session.cache.transcode(layer, 0, 'k', k);
            session.cache.transcode(layer, 0, 'v', v);
          }
          const { pageBytes, sinkBytes } = session.cache.memory();
          bits = (8 * (pageBytes + sinkBytes)) / (2 * layers * kvHeads * headDim * PAGE_TOKENS);
        }
        await session.read(ids.slice(PAGE_TOKENS, PAGE_TOKENS + SHORT_SCORED));
        return session.hiddenRows();
      } finally {
        session.close();
      }
    };
    const targets = Int32Array.from(ids.slice(PAGE_TOKENS + 1, SHORT_TOKENS));
    await addDivergence(sums, runtime.dense, await read(true), await read(false), targets, hiddenSize);
  }
  const { tokens: scored, ...compared } = comparedBy(sums);
  return { bits, scored, ...compared };
}

/** Non-overlapping chunks from the beginning of a text. */
export const chunksOf = (ids: readonly number[]): number[][] =>
  Array.from({ length: Math.floor(ids.length / SHORT_TOKENS) }, (_, at) =>
    ids.slice(at * SHORT_TOKENS, (at + 1) * SHORT_TOKENS),
  );

/** Reads a text and keeps the residual rows of all but the first page, and the bytes at the end of each stretch. */
async function rowsAlong(
  runtime: Runtime,
  ids: readonly number[],
  options: SessionOptions,
): Promise<{ rows: Float32Array; bytes: number[] }> {
  const bytes: number[] = [];
  const session = await openShipped(runtime, {
    ...options,
    tokensExpected: ids.length,
    compareTokens: ids.length - PAGE_TOKENS,
  });
  try {
    const onProgress = ({ tokens, kvBytes }: { tokens: number; kvBytes: number }): void => {
      if (tokens % STRETCH === 0 || tokens === ids.length) bytes.push(kvBytes);
    };
    await session.read(ids, { onProgress });
    return { rows: session.hiddenRows(), bytes };
  } finally {
    session.close();
  }
}

/** Compares the course of a cache with that of the exact one, whose rows are asked for once. */
export class Courses {
  readonly #runtime: Runtime;
  #exact: { readonly ids: readonly number[]; readonly rows: Float32Array } | null = null;

  constructor(runtime: Runtime) {
    this.#runtime = runtime;
  }

  async of(ids: readonly number[], options: SessionOptions): Promise<NonNullable<CourseRow['course']>> {
    const runtime = this.#runtime;
    const { rows: ours, bytes } = await rowsAlong(runtime, ids, options);
    if (this.#exact?.ids !== ids) this.#exact = { ids, rows: (await rowsAlong(runtime, ids, { exact: true })).rows };
    const { hiddenSize } = runtime.model.config;
    const { layers, kvHeads, headDim } = runtime.shape;
    const course: NonNullable<CourseRow['course']> = [];
    for (const [stretch, bytesThen] of bytes.entries()) {
      const from = Math.max(PAGE_TOKENS, stretch * STRETCH);
      const to = Math.min(ids.length, (stretch + 1) * STRETCH);
      const places = Array.from(
        { length: Math.ceil((to - from) / SAMPLED_EVERY) },
        (_, at) => from + at * SAMPLED_EVERY,
      );
      const sampled = (rows: Float32Array): Float32Array => {
        const out = new Float32Array(places.length * hiddenSize);
        for (const [at, place] of places.entries()) {
          const first = (place - PAGE_TOKENS) * hiddenSize;
          out.set(rows.subarray(first, first + hiddenSize), at * hiddenSize);
        }
        return out;
      };
      const sums = emptySums();
      const targets = new Int32Array(places.length).fill(NO_TARGET);
      await addDivergence(sums, runtime.dense, sampled(this.#exact.rows), sampled(ours), targets, hiddenSize);
      course.push({
        tokens: to,
        bytes: bytesThen,
        bytesF16: to * layers * kvHeads * headDim * 4,
        sampled: places.length,
        meanKld: comparedBy(sums).meanKld,
      });
    }
    return course;
  }
}

/**
 * Times single steps behind a text, each with one token of it. Choosing the next token is not part of a step. With one
 * thread, time is that of the processor.
 */
export async function stepTimes(
  runtime: Runtime,
  ids: readonly number[],
  options: SessionOptions,
): Promise<NonNullable<LatencyRow['steps']>> {
  const session = await openShipped(runtime, { ...options, tokensExpected: ids.length });
  const count = Math.min(TIMED_STEPS, Math.floor(ids.length / 2));
  try {
    await session.read(ids.slice(0, ids.length - count));
    const times: number[] = [];
    for (const id of ids.slice(ids.length - count)) {
      const start = now(runtime.threads);
      await session.read([id]);
      times.push(1000 * (now(runtime.threads) - start));
    }
    times.sort((a, b) => a - b);
    const at = (share: number): number => times[Math.min(count - 1, Math.floor(share * count))]!;
    return { count, p50Ms: at(0.5), p95Ms: at(0.95), p99Ms: at(0.99), mostMs: times.at(-1)! };
  } finally {
    session.close();
  }
}
