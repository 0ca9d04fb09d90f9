/**
 * A page of one layer as residuals: what is left of its keys and values when the layer below has predicted them, in
 * steps of one size, entropy-coded. The writer computes residuals against what the reader will have (closed loop), so
 * that errors do not add up from layer to layer.
 *
 * Columns of residuals are coded from those that spread most to those that spread least (Predictor.order), and the last
 * ones, which hold nothing but zeros, not at all: a reader neither decodes nor multiplies them.
 *
 * Bytes: for keys and for values i8 by how many half octaves the distributions are wider than they were fitted, then
 * for both u16 how many columns are coded, then the columns of keys and those of values, coded as one (rans.ts).
 */
import { KvError, PAGE_TOKENS } from '../../../native/index.ts';
import { DEVIATIONS, type LayerMap, type Predictor, putInputs, type SideMap } from './predictor.ts';
import { LEVEL_MAX } from './rans.ts';

/** A residual becomes the next step from 0 where it is this far from the last: values near 0 cost fewest bits. */
const ROUND_UP = 0.42;
/** Half octaves by which distributions may be moved. */
const SHIFTS: readonly number[] = [-4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6];

/** The head of a page has two shifts and two counts of columns. */
const HEAD_BYTES = 6;

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
  for (let i = 0; i < found.length; i++) {
    const value = found[i]!;
    const size = Math.min(LEVEL_MAX, Math.floor(Math.abs(value) + ROUND_UP));
    levels[i] = value < 0 ? -size : size;
  }
  return levels;
}

/** Columns of codes [128, w] in the order of coding, as far as any holds a number that is not 0. */
function columnsOf(codes: Int8Array, order: Uint16Array): { columns: Int8Array; count: number } {
  const width = order.length;
  const columns = new Int8Array(codes.length);
  let count = 0;
  for (let i = 0, at = 0; i < width; i++)
    for (let t = 0, from = order[i]!; t < PAGE_TOKENS; t++, from += width, at++) {
      const code = codes[from]!;
      columns[at] = code;
      if (code !== 0) count = i + 1;
    }
  return { columns: columns.subarray(0, count * PAGE_TOKENS), count };
}

/** What was made of one side: columns that are coded, how wide, and by which distributions. */
interface CodedSide {
  readonly columns: Int8Array;
  readonly shift: number;
  readonly tables: Uint8Array;
}

/** The distributions that make columns shortest. */
function coded({ distributions }: Predictor, { tables }: SideMap, order: Uint16Array, codes: Int8Array): CodedSide {
  const { columns, count } = columnsOf(codes, order);
  const fitted = Uint8Array.from(order.subarray(0, count), (column) => tables[column]!);
  const counts = distributions.counts(columns, count);
  const costs = SHIFTS.map((shift) => distributions.bits(counts, moved(fitted, shift)));
  const shift = SHIFTS[costs.indexOf(Math.min(...costs))]!;
  return { columns, shift, tables: moved(fitted, shift) };
}

/**
 * Writes a page. → its bytes, and the rows that a reader will have. Rows before firstRow (sinks, which are kept
 * exactly) are not coded.
 */
export function encodePage(
  predictor: Predictor,
  layer: LayerMap,
  below: Below,
  rows: PageRows,
  firstRow: number,
): { bytes: Buffer; rows: PageRows } {
  const { width, distributions } = predictor;
  const sides: CodedSide[] = [];
  const side = (map: SideMap, wanted: Float32Array, keys: Float32Array | null): Float32Array => {
    const levels = inputLevels(map, layer, width, below, keys);
    const residuals = predictor.multiply(map, levels);
    for (let i = 0; i < residuals.length; i++) residuals[i] = wanted[i]! - residuals[i]!;
    const codes = codesOf(predictor, map, residuals);
    codes.fill(0, 0, firstRow * width);
    putResiduals(levels, map, codes);
    sides.push(coded(predictor, map, predictor.order(map), codes));
    return predictor.multiply(map, levels);
  };
  const k = side(layer.k, rows.k, null);
  const v = side(layer.v, rows.v, k);
  const head = Buffer.alloc(HEAD_BYTES);
  for (const [i, { shift, tables }] of sides.entries()) {
    head.writeInt8(shift, i);
    head.writeUInt16LE(tables.length, 2 + 2 * i);
  }
  const [first, second] = sides.map((one) => one.columns) as [Int8Array, Int8Array];
  const columns = new Int8Array(first.length + second.length);
  columns.set(first);
  columns.set(second, first.length);
  const bytes = distributions.encode(columns, Buffer.concat(sides.map((one) => one.tables)));
  return { bytes: Buffer.concat([head, bytes]), rows: { k, v } };
}

/** The rows of a page that encodePage wrote. Throws 'bad-file'. */
export function decodePage(predictor: Predictor, layer: LayerMap, below: Below, bytes: Uint8Array): PageRows {
  const { width, distributions } = predictor;
  const file = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
  if (file.length < HEAD_BYTES) throw damaged();
  const maps = [layer.k, layer.v];
  const heads = maps.map((map, i) => ({ map, shift: file.readInt8(i), count: file.readUInt16LE(2 + 2 * i) }));
  if (heads.some(({ shift, count }) => !SHIFTS.includes(shift) || count > width)) throw damaged();
  const tables = heads.map(({ map, shift, count }) =>
    moved(
      Uint8Array.from(predictor.order(map).subarray(0, count), (column) => map.tables[column]!),
      shift,
    ),
  );
  const columns = new Int8Array(PAGE_TOKENS * (heads[0]!.count + heads[1]!.count));
  distributions.decode(file.subarray(HEAD_BYTES), Buffer.concat(tables), columns);
  let at = 0;
  const side = (i: number, keys: Float32Array | null): Float32Array => {
    const { map, count } = heads[i]!;
    const codes = new Int8Array(PAGE_TOKENS * width);
    for (const column of predictor.order(map).subarray(0, count))
      for (let t = 0; t < PAGE_TOKENS; t++, at++) codes[t * width + column] = columns[at]!;
    const levels = inputLevels(map, layer, width, below, keys);
    putResiduals(levels, map, codes);
    return predictor.multiply(map, levels);
  };
  const k = side(0, null);
  return { k, v: side(1, k) };
}

const damaged = (): KvError => new KvError('bad-file', 'a predicted page is damaged');
