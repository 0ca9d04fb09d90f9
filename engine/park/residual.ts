/**
 * A page of one layer as residuals: what is left of its keys and values when the layer below has predicted them, in steps of one size, entropy-coded. The writer computes
 * residuals against what the reader will have (closed loop), so that errors do not add up from layer to layer.
 *
 * Bytes: for keys, then for values: u32 bytes of what follows, i8 by how many half octaves the distributions are wider than they were fitted, then rans.ts.
 */
import { KvError, PAGE_TOKENS } from '../../native/index.ts';
import { DEVIATIONS, type LayerMap, type Predictor, putInputs, type SideMap } from './predictor.ts';
import { LEVEL_MAX } from './rans.ts';

/** A residual becomes the next step from 0 where it is this far from the last: values near 0 cost fewest bits. */
const ROUND_UP = 0.42;
/** Half octaves by which distributions may be moved. */
const SHIFTS = [-4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6];

/** Rows of one page, before the rotary embedding, [128, w] each. */
export interface PageRows {
  readonly k: Float32Array;
  readonly v: Float32Array;
}

/** What a layer predicts from: the levels of the layer below, [128, 2w]; null: it is the first. */
export type Below = Int8Array | null;

/** The levels that the layer above predicts from. */
export function levelsOf({ centres, gains }: LayerMap, { k, v }: PageRows): Int8Array {
  const width = centres.length / 2;
  const levels = new Int8Array(2 * k.length);
  putInputs(levels, 2 * width, 0, k, width, centres, gains);
  putInputs(levels, 2 * width, width, v, width, centres.subarray(width), gains.subarray(width));
  return levels;
}

const moved = (tables: Uint8Array, shift: number): Uint8Array =>
  tables.map((table) => Math.min(DEVIATIONS.length - 1, Math.max(0, table + shift)));

/** Rows of levels for a product, with the residuals at 0. For values `keys` are those of this layer. */
function inputLevels(map: SideMap, layer: LayerMap, width: number, below: Below, keys: Float32Array | null): Int8Array {
  const { contraction } = map;
  const levels = new Int8Array(PAGE_TOKENS * contraction);
  if (below !== null)
    for (let t = 0; t < PAGE_TOKENS; t++)
      levels.set(below.subarray(2 * width * t, 2 * width * (t + 1)), t * contraction + width);
  if (keys !== null) putInputs(levels, contraction, contraction - width, keys, width, layer.centres, layer.gains);
  return levels;
}

function putResiduals(levels: Int8Array, { contraction, factors }: SideMap, codes: Int8Array): void {
  const width = factors.length;
  for (let t = 0, at = 0; t < PAGE_TOKENS; t++)
    for (let j = 0; j < width; j++, at++) levels[t * contraction + j] = codes[at]! * factors[j]!;
}

/** Codes of residuals [128, w]. Each row is rounded to 8 bits first, which is a few hundredths of a step. */
function codesOf(predictor: Predictor, map: SideMap, residuals: Float32Array): Int8Array {
  const { width } = predictor;
  const levels = new Int8Array(residuals.length);
  const scales = new Float32Array(PAGE_TOKENS);
  for (let t = 0; t < PAGE_TOKENS; t++) {
    const [from, end] = [t * width, (t + 1) * width];
    let most = 0;
    for (let i = from; i < end; i++) most = Math.max(most, Math.abs(residuals[i]!));
    scales[t] = most / 127;
    if (most > 0) for (let i = from; i < end; i++) levels[i] = Math.round((127 * residuals[i]!) / most);
  }
  const found = predictor.analyze(map, levels, scales);
  for (const [i, value] of found.entries()) {
    const size = Math.min(LEVEL_MAX, Math.floor(Math.abs(value) + ROUND_UP));
    levels[i] = value < 0 ? -size : size;
  }
  return levels;
}

/** Writes a page. → its bytes, and the rows that a reader will have. Rows before firstRow (sinks, which are kept exactly) are not coded. */
export function encodePage(
  predictor: Predictor,
  layer: LayerMap,
  below: Below,
  rows: PageRows,
  firstRow: number,
): { bytes: Buffer; rows: PageRows } {
  const { width, distributions } = predictor;
  const parts: Buffer[] = [];
  const side = (map: SideMap, wanted: Float32Array, keys: Float32Array | null): Float32Array => {
    const levels = inputLevels(map, layer, width, below, keys);
    const residuals = predictor.multiply(map, levels);
    for (let i = 0; i < residuals.length; i++) residuals[i] = wanted[i]! - residuals[i]!;
    const codes = codesOf(predictor, map, residuals);
    codes.fill(0, 0, firstRow * width);
    putResiduals(levels, map, codes);
    const counts = distributions.counts(codes, width);
    const costs = SHIFTS.map((shift) => distributions.bits(counts, moved(map.tables, shift)));
    const shift = SHIFTS[costs.indexOf(Math.min(...costs))]!;
    const coded = distributions.encode(codes, moved(map.tables, shift));
    const head = Buffer.alloc(5);
    head.writeUInt32LE(coded.length + 1);
    head.writeInt8(shift, 4);
    parts.push(head, coded);
    return predictor.multiply(map, levels);
  };
  const k = side(layer.k, rows.k, null);
  const v = side(layer.v, rows.v, k);
  return { bytes: Buffer.concat(parts), rows: { k, v } };
}

/** The rows of a page that encodePage wrote. Throws 'bad-file'. */
export function decodePage(predictor: Predictor, layer: LayerMap, below: Below, bytes: Uint8Array): PageRows {
  const { width, distributions } = predictor;
  const file = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
  const codes = new Int8Array(PAGE_TOKENS * width);
  let at = 0;
  const side = (map: SideMap, keys: Float32Array | null): Float32Array => {
    const size = at + 4 <= file.length ? file.readUInt32LE(at) : 0;
    if (size < 1 || size > file.length - at - 4) throw damaged();
    const shift = file.readInt8(at + 4);
    if (!SHIFTS.includes(shift)) throw damaged();
    distributions.decode(file.subarray(at + 5, at + 4 + size), moved(map.tables, shift), codes);
    at += 4 + size;
    const levels = inputLevels(map, layer, width, below, keys);
    putResiduals(levels, map, codes);
    return predictor.multiply(map, levels);
  };
  const k = side(layer.k, null);
  const v = side(layer.v, k);
  if (at !== file.length) throw damaged();
  return { k, v };
}

const damaged = (): KvError => new KvError('bad-file', 'a predicted page is damaged');
