/**
 * trellisB: rows of the rot family with a trellis code in place of a code for each channel, after QTIP (Tseng et al., arXiv 2406.11235), which has it for
 * weights, and turbo2_tcq and turbo3_tcq of buun-llama-cpp, which have it for keys and values.
 *
 * The codes of a row are a ring of d·B bits. The level of a channel is looked up by the 8 bits that end with its own B, so neighbours share bits and each of
 * them has 256 levels to choose from, not 2^B. Any channel can be decoded by itself. The encoder finds the ring with the least squared error by Viterbi's
 * algorithm; that a ring closes is seen to as QTIP does, by a first pass over the 32 channels around the end, whose bits in
 * the middle both ends of the second pass share.
 * Levels are those of a standard normal in an order that is drawn, moved to the means of what they serve over 15 rounds, in steps of 1/32: whole numbers in a
 * byte, the same for every model.
 *
 * Mean, rows near zero, rotation and the unbiased scale of a byte are those of rot (native/formats/rot.ts), and so are the bytes. Codes do not nest: a page
 * with fewer bits is coded again.
 *
 *   trellisB     256 levels
 *   trellisB-10  1,024 levels, by 10 bits
 */
import { PAGE_TOKENS, reference } from '../../native/index.ts';
import { headwise } from './headwise.ts';
import type { PageMethod } from './paged.ts';
import { rotHeadBytes } from './rot-head.ts';
import { gaussians, uniforms } from './words.ts';

export type TrellisBits = 1 | 2 | 3 | 4;

/** Levels are whole numbers over this. */
const DIVISOR = 32;
const FITTED_ROWS = 400;
const FITTED_CHANNELS = 64;
const ROUNDS = 15;
/** Channels that decide on the bits which both ends of a row share. */
const SEAM = 32;

export interface TrellisShape {
  /** Bits of a channel. */
  readonly bits: TrellisBits;
  /** Bits by which a level is looked up. */
  readonly window: number;
}

/** The shape and the formats of sides that a cache names; null for any other cache. */
export function trellisOf(cache: string): { readonly k: TrellisShape; readonly v: TrellisShape } | null {
  const [, k, v, window = '8'] = /^trellis([2-4])(?::trellis([1-4]))?(?:-(10))?$/.exec(cache) ?? [];
  if (k === undefined) return null;
  const shape = (bits: string): TrellisShape => ({ bits: Number(bits) as TrellisBits, window: Number(window) });
  return { k: shape(k), v: shape(v ?? k) };
}

export const trellisCaches = (): string[] => ['trellis4', 'trellis3', 'trellis3:trellis2', 'trellis2', 'trellis2-10'];

/** Finds the best ring of a row among those that a shape and its levels have. Rows have so many channels. */
export class Trellis {
  readonly levels: Float64Array;
  /** The window of each channel of the row that was coded last. */
  readonly windows: Int32Array;
  readonly #shape: TrellisShape;
  /** Windows that continue alike: those with the same bits but the first B. */
  readonly #groups: number;
  readonly #cost: Float64Array;
  readonly #best: Float64Array;
  readonly #from: Uint8Array;
  /** Channels around where a ring closes. */
  readonly #seam: Float64Array;

  constructor(shape: TrellisShape, levels: Float64Array, channels: number) {
    this.#shape = shape;
    this.levels = levels;
    this.windows = new Int32Array(channels);
    this.#groups = 2 ** (shape.window - shape.bits);
    this.#cost = new Float64Array(2 ** shape.window);
    this.#best = new Float64Array(this.#groups);
    this.#from = new Uint8Array(channels * this.#groups);
    this.#seam = new Float64Array(Math.min(SEAM, channels));
  }

  /** Codes a row, and leaves its windows in `windows`. → squared error */
  code(row: Float64Array): number {
    const d = row.length;
    const half = this.#seam.length >> 1;
    for (let c = 0; c < 2 * half; c++) this.#seam[c] = row[(c - half + d) % d]!;
    this.#search(this.#seam, null);
    return this.#search(row, this.windows[half - 1]! & (this.#groups - 1));
  }

  /** The path of least error whose bits before the first and behind the last channel are `ends`; null: any. */
  #search(row: Float64Array, ends: number | null): number {
    for (let g = 0; g < this.#groups; g++) this.#best[g] = ends === null || g === ends ? 0 : Number.POSITIVE_INFINITY;
    this.#step(row[0]!);
    for (let c = 1; c < row.length; c++) {
      this.#merge(c * this.#groups);
      this.#step(row[c]!);
    }
    return this.#trace(row.length, ends);
  }

  /** For each group the window before it with the least error. These loops take all the time that a trellis takes. */
  #merge(at: number): void {
    const cost = this.#cost;
    const best = this.#best;
    const from = this.#from;
    const groups = best.length;
    const windows = cost.length;
    for (let g = 0; g < groups; g++) {
      let least = cost[g]!;
      let chosen = 0;
      for (let place = g + groups, high = 1; place < windows; place += groups, high++) {
        const isLess = cost[place]! < least;
        chosen = isLess ? high : chosen;
        least = isLess ? cost[place]! : least;
      }
      best[g] = least;
      from[at + g] = chosen;
    }
  }

  /** Adds the error of a channel in each window. */
  #step(x: number): void {
    const levels = this.levels;
    const cost = this.#cost;
    const best = this.#best;
    const each = cost.length / best.length;
    for (let g = 0, w = 0; g < best.length; g++) {
      const before = best[g]!;
      for (const end = w + each; w < end; w++) {
        const error = x - levels[w]!;
        cost[w] = before + error * error;
      }
    }
  }

  #trace(channels: number, ends: number | null): number {
    const [groups, cost, from, bits] = [this.#groups, this.#cost, this.#from, this.#shape.bits];
    let [window, least] = [0, Number.POSITIVE_INFINITY];
    for (let w = 0; w < cost.length; w++)
      if (cost[w]! < least && (ends === null || (w & (groups - 1)) === ends)) [window, least] = [w, cost[w]!];
    for (let c = channels - 1; c >= 0; c--) {
      this.windows[c] = window;
      const group = window >> bits;
      window = from[c * groups + group]! * groups + group;
    }
    return least;
  }
}

/** The ring of windows as bits, B of each channel, and the windows of a ring: what a decoder does. */
export const ringOf = (windows: Int32Array, { bits }: TrellisShape): Uint8Array =>
  Uint8Array.from(windows, (window) => window & (2 ** bits - 1));
export function windowsOf(ring: Uint8Array, { bits, window }: TrellisShape): Int32Array {
  const d = ring.length;
  const back = Math.ceil(window / bits) - 1;
  return Int32Array.from(ring, (_, c) => {
    let seen = 0;
    for (let before = back; before >= 0; before--) seen = (seen << bits) | ring[(c - before + d) % d]!;
    return seen & (2 ** window - 1);
  });
}

const fitted = new Map<string, Float64Array>();

/** The levels of a shape, [2^window]. */
export function trellisLevels(shape: TrellisShape): Float64Array {
  const name = `${shape.bits} ${shape.window}`;
  const levels = fitted.get(name) ?? fitTrellis(shape);
  fitted.set(name, levels);
  return levels;
}

function fitTrellis(shape: TrellisShape): Float64Array {
  const count = 2 ** shape.window;
  const levels = drawn(count);
  const trellis = new Trellis(shape, levels, FITTED_CHANNELS);
  for (let round = 0; round < ROUNDS; round++) {
    const rows = Float64Array.from(gaussians(FITTED_ROWS * FITTED_CHANNELS, 100 + round));
    const sums = new Float64Array(count);
    const served = new Float64Array(count);
    for (let at = 0; at < rows.length; at += FITTED_CHANNELS) {
      trellis.code(rows.subarray(at, at + FITTED_CHANNELS));
      for (const [c, window] of trellis.windows.entries()) {
        sums[window]! += rows[at + c]!;
        served[window]!++;
      }
    }
    for (let w = 0; w < count; w++) if (served[w]! > 0) levels[w] = sums[w]! / served[w]!;
  }
  return levels.map((level) => Math.round(level * DIVISOR) / DIVISOR);
}

/** So many levels of a standard normal, each as likely, in an order that is drawn: a sample of their quantiles. */
function drawn(count: number): Float64Array {
  const sorted = gaussians(64 * count, 5).sort();
  const quantiles = Float64Array.from({ length: count }, (_, at) => {
    const own = sorted.subarray(64 * at, 64 * at + 64);
    return own.reduce((sum, one) => sum + one, 0) / own.length;
  });
  const uniform = uniforms(3);
  for (let at = count - 1; at > 0; at--) {
    const other = Math.floor(uniform() * (at + 1));
    [quantiles[at], quantiles[other]] = [quantiles[other]!, quantiles[at]!];
  }
  return quantiles;
}

/** Codes and decodes rows [128, d] in place. */
export function codeTrellis(rows: Float32Array, shape: TrellisShape, firstRow: number): void {
  const d = rows.length / PAGE_TOKENS;
  const head = reference.CODECS.rot4.encode(rows, d, firstRow);
  const unit = reference.meanUnit(head);
  const trellis = new Trellis(shape, trellisLevels(shape), d);
  for (let t = firstRow; t < PAGE_TOKENS; t++) {
    const row = rows.subarray(t * d, (t + 1) * d);
    const from = Float32Array.from(head.means, (mean) => (head.fromZero[t] ? 0 : mean * unit));
    const decoded = codedRow(
      row.map((x, c) => (x - from[c]!) * 2 ** -head.reference),
      trellis,
    );
    for (let c = 0; c < d; c++) row[c] = from[c]! + decoded[c]! * 2 ** head.reference;
  }
}

/** What a row without its mean decodes to. */
function codedRow(row: Float32Array, trellis: Trellis): Float32Array {
  const y = row.slice();
  reference.rotate(y);
  const square = y.reduce((sum, one) => sum + one * one, 0);
  if (!(square > 0)) return y;
  const rms = Math.sqrt(square / y.length);
  trellis.code(Float64Array.from(y, (one) => one / rms));
  const levelOf = Float32Array.from(trellis.windows, (window) => trellis.levels[window]!);
  const along = y.reduce((sum, one, c) => sum + one * levelOf[c]!, 0);
  const scale = along > 0 ? reference.rotScale(reference.scaleCode(square / along)) : 0;
  const decoded = levelOf.map((one) => one * scale);
  reference.rotate(decoded, true);
  return decoded;
}

export const trellisPages =
  (shapes: { readonly k: TrellisShape; readonly v: TrellisShape }): PageMethod =>
  ({ model: { config } }, rope) =>
    headwise(config, rope, {
      code: (rows, { side, firstRow }) => {
        codeTrellis(rows, shapes[side], firstRow);
        return rotHeadBytes(shapes[side].bits, config.headDim);
      },
    });
