/**
 * rotatekvB: RotateKV (Su et al., arXiv 2501.16383) with B bits.
 *
 *   keys    before their rotary embedding, all KV heads of a token rotated as one row; the channels then in an order in
 *   which those with like means share a
 *           group; uniform steps from the least to the largest of every 64 channels of a token
 *   values  rotated and coded likewise, in the order they have
 *   sinks   tokens whose hidden state has a massive channel, wherever they are, stay in f16 in that layer, 20 at most;
 *   the first four do in any case
 *
 * The order of a layer is that of the sums of its rotated keys over 1,024 tokens of the text that ships with the
 * package. It is part of the model and not counted. Groups have low and step in f16: B + 0.5 bits, and two bytes for
 * the place of a massive token. The paper leaves open what is massive: here ten times the largest channel of the median
 * token of a page.
 */
import { firstToken, type ModelConfig, PAGE_TOKENS, type Runtime } from 'palimpsest/lab';
import { hadamard } from './hadamard.ts';
import { ownRows } from './own-rows.ts';
import { f16Bytes, type PageMethod, unrotate } from './paged.ts';
import { quantizeUniform, uniformBytes } from './xquant.ts';

/** Channels of a token that share low and step. */
const GROUP = 64;
const CALIBRATED_TOKENS = 1024;
const MASSIVE_TIMES = 10;
const MASSIVE_MOST = 20;
/** Bytes of the place of a token. */
const PLACE_BYTES = 2;

export type RotateBits = 2 | 3 | 4;

/** The bits that a cache names; null for any other cache. */
export function rotateKvOf(cache: string): RotateBits | null {
  const [, bits] = /^rotatekv([234])$/.exec(cache) ?? [];
  return bits === undefined ? null : (Number(bits) as RotateBits);
}

/** Channels of rotated rows [rows, width] by their sums, least first. */
export function orderOf(rows: Float32Array, width: number): Uint16Array {
  const sums = new Float64Array(width);
  for (let i = 0; i < rows.length; i++) sums[i % width]! += rows[i]!;
  return Uint16Array.from(sums.keys()).sort((one, other) => sums[one]! - sums[other]! || one - other);
}

/** Rows with their channels in an order. */
export const reordered = (rows: Float32Array, order: Uint16Array): Float32Array =>
  rows.map((_, i) => rows[i - (i % order.length) + order[i % order.length]!]!);

/** Rows that were in an order, as they were before. */
export function restored(rows: Float32Array, order: Uint16Array): Float32Array {
  const places = new Uint16Array(order.length);
  for (const [at, channel] of order.entries()) places[channel] = at;
  return reordered(rows, places);
}

/** Rotates, orders and codes rows [rows, width] from firstRow on, and takes it back: what the rows decode to. */
export function codedRows(rows: Float32Array, bits: RotateBits, order: Uint16Array, firstRow: number): Float32Array {
  const width = order.length;
  const turned = rows.slice();
  hadamard(turned, width);
  const coded = reordered(turned, order);
  quantizeUniform(coded, width, bits, 'token', firstRow, GROUP);
  const back = restored(coded, order);
  hadamard(back, width);
  return back;
}

const known = new WeakMap<Runtime, Promise<readonly Uint16Array[]>>();

/** The orders of all layers of a model. */
function ordersOf(runtime: Runtime, width: number): Promise<readonly Uint16Array[]> {
  const found =
    known.get(runtime) ??
    ownRows(runtime, CALIBRATED_TOKENS).then((layers) =>
      layers.map(({ k }) => {
        const turned = k.slice();
        hadamard(turned, width);
        return orderOf(turned, width);
      }),
    );
  known.set(runtime, found);
  return found;
}

/** Which tokens have a channel in x [tokens, m] that is far larger than those of others. */
export function massiveRows(x: Float32Array, tokens: number): number[] {
  const m = x.length / tokens;
  const peaks = Array.from({ length: tokens }, (_, t) =>
    x.subarray(t * m, (t + 1) * m).reduce((most, one) => Math.max(most, Math.abs(one)), 0),
  );
  const median = peaks.toSorted((one, other) => one - other)[tokens >> 1]!;
  return [...peaks.keys()].filter((t) => peaks[t]! > MASSIVE_TIMES * median);
}

export const rotateKvPages =
  (bits: RotateBits): PageMethod =>
  async (runtime, rope) => {
    const { config } = runtime.model;
    const { layers, kvHeads, headDim, hiddenSize } = config;
    const width = kvHeads * headDim;
    const orders = await ordersOf(runtime, width);
    const same = Uint16Array.from({ length: width }, (_, channel) => channel);
    const massive = orders.map((): number[] => []);
    return {
      see: ({ layer, tokens, x }, start) => {
        const found = massiveRows(x.subarray(0, tokens * hiddenSize), tokens).map((t) => start + t);
        const own = massive[layer]!;
        own.push(...found.slice(0, MASSIVE_MOST - own.length));
      },
      code: (page, kept, firstRow) => {
        const first = firstToken(page);
        for (const [layer, { k, v }] of kept.entries()) {
          const put = (all: Float32Array, rows: Float32Array): void => {
            for (let t = firstRow; t < PAGE_TOKENS; t++)
              if (!massive[layer]!.includes(first + t))
                all.set(rows.subarray(t * width, (t + 1) * width), (first + t) * width);
          };
          const keys = k.slice(first * width, (first + PAGE_TOKENS) * width);
          unrotate(keys, kvHeads, first, rope, config);
          const coded = codedRows(keys, bits, orders[layer]!, firstRow);
          rope.apply(coded, PAGE_TOKENS, kvHeads, first);
          put(k, coded);
          put(v, codedRows(v.slice(first * width, (first + PAGE_TOKENS) * width), bits, same, firstRow));
        }
      },
      heldBytes: (coded, windowTokens) =>
        layers * coded * 2 * uniformBytes(width, bits, 'token', GROUP) +
        f16Bytes(config, windowTokens) +
        massive.reduce((sum, found) => sum + keptBytes(found, coded, config), 0),
    };
  };

/** Bytes of massive tokens of coded pages in one layer. */
const keptBytes = (massive: readonly number[], coded: number, { kvHeads, headDim }: ModelConfig): number =>
  massive.filter((token) => token < firstToken(coded)).length * (4 * kvHeads * headDim + PLACE_BYTES);
