/**
 * What parked pages are predicted by. A page of a layer is reconstructed from the layer below: y = base + A·x + B·c,
 * where x are the reconstructed keys and values of the layer below (for values also this layer's keys) in 8 bits, keys
 * before the rotary embedding, and c are the coded residuals. A comes from ridge regression. B turns residuals back
 * from the basis in which they are uncorrelated and equal errors cost equally much. Both are one matrix of 8-bit
 * weights, whose products are exact, so that writer and reader predict the same numbers on every machine.
 *
 * A file of it is 'KVPRED01', u32 bytes of a head in JSON, the head, the arrays of each layer as they stand in
 * `arraysOf`, and SHA-256 of all before.
 */
import { z } from 'zod';
import { type CacheShape, GemmWeights, KvError, PackedPredictor, parseJson } from '../../../native/index.ts';
import { RopeTable, type RotaryConfig } from '../../transformer/rope.ts';
import { DIGEST_BYTES, sha256 } from './container.ts';
import { inverse, Singular } from './linear.ts';
import { Distributions, LEVEL_MAX, SYMBOLS } from './rans.ts';

const MAGIC = 'KVPRED01';
/** Standard deviations of the distributions: half octaves from 0.05. */
export const DEVIATIONS: readonly number[] = Array.from({ length: 18 }, (_, i) => 0.05 * Math.SQRT2 ** i);

/** How one side of one layer is put together. w: KV heads × head size. */
export interface SideMap {
  /** Columns of `weights`: w residuals, then the inputs. */
  readonly contraction: number;
  /** [w, contraction], and what each row is multiplied by, [w]. */
  readonly weights: Int8Array;
  readonly scales: Float32Array;
  /** [w] */
  readonly base: Float32Array;
  /** By what a residual is multiplied, so that it fills 8 bits, and which distribution it has, [w]. */
  readonly factors: Uint8Array;
  readonly tables: Uint8Array;
}

/** One layer: both sides, and how its keys and values become inputs in 8 bits: (y − centres) · gains, [2w]. */
export interface LayerMap {
  readonly k: SideMap;
  readonly v: SideMap;
  readonly centres: Float32Array;
  readonly gains: Float32Array;
}

const count = z.int().min(1).max(4096);
const headSchema = z.strictObject({
  modelDigest: z.string().regex(/^[0-9a-f]{64}$/),
  layers: count,
  kvHeads: count,
  headDim: count,
});

/** A predictor of one model. */
export interface PredictorData {
  readonly modelDigest: string;
  readonly shape: Pick<CacheShape, 'layers' | 'kvHeads' | 'headDim'>;
  /** Shares of each distribution, [DEVIATIONS, SYMBOLS]. */
  readonly shares: Uint16Array;
  readonly layers: readonly LayerMap[];
}

const inputsOf = (layer: number, side: 'k' | 'v', width: number): number =>
  (layer === 0 ? 0 : 2 * width) + (side === 'v' ? width : 0);

/** Every array of a layer in the order of the file. */
const arraysOf = ({ k, v, centres, gains }: LayerMap): ArrayBufferView[] => [
  ...[k, v].flatMap(({ scales, base, factors, tables, weights }) => [scales, base, factors, tables, weights]),
  centres,
  gains,
];

const bytesOf = (array: ArrayBufferView): Uint8Array =>
  new Uint8Array(array.buffer, array.byteOffset, array.byteLength);

/** The bytes of its file. */
export function formPredictor({ modelDigest, shape, shares, layers }: PredictorData): Buffer {
  const { kvHeads, headDim } = shape;
  const json = Buffer.from(JSON.stringify({ modelDigest, layers: layers.length, kvHeads, headDim }));
  const fixed = Buffer.alloc(12);
  fixed.write(MAGIC, 'latin1');
  fixed.writeUInt32LE(json.length, 8);
  const body = Buffer.concat([fixed, json, bytesOf(shares), ...layers.flatMap(arraysOf).map(bytesOf)]);
  return Buffer.concat([body, sha256(body)]);
}

/** Throws 'bad-file', 'checksum-mismatch'. */
export function parsePredictor(bytes: Uint8Array, what: string): PredictorData {
  const file = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
  const refuse = (why: string): never => {
    throw new KvError('bad-file', `${what} ${why}`, { values: { file: what, bytes: file.length } });
  };
  if (file.length < 12 + DIGEST_BYTES || file.toString('latin1', 0, 8) !== MAGIC) refuse('is no predictor');
  const end = file.length - DIGEST_BYTES;
  if (!sha256(file.subarray(0, end)).equals(file.subarray(end)))
    throw new KvError('checksum-mismatch', `${what} was changed or cut off`, { values: { file: what } });
  const headBytes = file.readUInt32LE(8);
  if (headBytes > end - 12) refuse('is cut off');
  const read = headSchema.safeParse(parseJson(file.subarray(12, 12 + headBytes), { what, code: 'bad-file' }));
  if (!read.success) return refuse('has a head that makes no sense');
  const { modelDigest, layers, kvHeads, headDim } = read.data;
  const width = kvHeads * headDim;
  const sideBytes = (layer: number, side: 'k' | 'v'): number => width * (10 + width + inputsOf(layer, side, width));
  let wanted = 12 + headBytes + 2 * DEVIATIONS.length * SYMBOLS;
  for (let layer = 0; layer < layers; layer++) wanted += sideBytes(layer, 'k') + sideBytes(layer, 'v') + 16 * width;
  if (wanted !== end) refuse('has other sizes than its head says');
  let at = 12 + headBytes;
  const take = (size: number): ArrayBuffer => new Uint8Array(file.subarray(at, (at += size))).buffer;
  const floats = (length: number): Float32Array => {
    const values = new Float32Array(take(4 * length));
    return values.every(Number.isFinite) ? values : refuse('holds numbers that are not finite');
  };
  const side = (layer: number, name: 'k' | 'v'): SideMap => {
    const contraction = width + inputsOf(layer, name, width);
    const [scales, base] = [floats(width), floats(width)];
    const [factors, tables] = [new Uint8Array(take(width)), new Uint8Array(take(width))];
    if (factors.some((factor) => factor < 1 || factor * LEVEL_MAX > 127) || tables.some((t) => t >= DEVIATIONS.length))
      refuse('has factors or distributions that there are not');
    return { contraction, scales, base, factors, tables, weights: new Int8Array(take(width * contraction)) };
  };
  const shares = new Uint16Array(take(2 * DEVIATIONS.length * SYMBOLS));
  const maps = Array.from({ length: layers }, (_, layer): LayerMap => {
    const [k, v] = [side(layer, 'k'), side(layer, 'v')];
    return { k, v, centres: floats(2 * width), gains: floats(2 * width) };
  });
  return { modelDigest, shape: { layers, kvHeads, headDim }, shares, layers: maps };
}

const columnOrder = (tables: Uint8Array): Uint16Array =>
  Uint16Array.from([...tables.keys()].sort((a, b) => tables[b]! - tables[a]! || a - b));

function made(known: Map<SideMap, GemmWeights>, map: SideMap, make: () => GemmWeights): GemmWeights {
  const found = known.get(map) ?? make();
  known.set(map, found);
  return found;
}

/** From residuals to codes, [w, w]. Throws Singular where codes cannot tell all residuals apart. */
export function turnBack({ weights, scales, contraction, factors }: SideMap, width: number): Float32Array {
  // Row o: what one step of each code adds to output o.
  const turn = new Float64Array(width * width);
  for (let o = 0, at = 0; o < width; o++)
    for (let j = 0; j < width; j++, at++) turn[at] = weights[o * contraction + j]! * scales[o]! * factors[j]!;
  return Float32Array.from(inverse(turn, width));
}

/** A predictor ready for use. Its owner closes it. */
export class Predictor {
  readonly data: PredictorData;
  /** By which parked sessions know it again. */
  readonly digest: string;
  readonly distributions: Distributions;
  readonly width: number;
  readonly #forward = new Map<SideMap, GemmWeights>();
  /** From residuals to codes: the inverses of the matrices that turn codes into residuals. */
  readonly #back = new Map<SideMap, GemmWeights>();
  #rotary: RopeTable | undefined;
  readonly #orders = new Map<SideMap, Uint16Array>();
  #packed: PackedPredictor | undefined;
  #canWrite = false;

  constructor(data: PredictorData) {
    this.data = data;
    this.digest = sha256(formPredictor(data)).toString('hex');
    this.distributions = new Distributions(data.shares);
    this.width = data.shape.kvHeads * data.shape.headDim;
  }

  /** base + weights·levels for rows of levels [rows, contraction] → [rows, w]. */
  multiply(map: SideMap, levels: Int8Array): Float32Array {
    const { contraction, scales, base } = map;
    const weights = made(this.#forward, map, () => {
      const floats = new Float32Array(map.weights.length);
      for (let at = 0; at < floats.length; at++) floats[at] = map.weights[at]! * scales[Math.floor(at / contraction)]!;
      return new GemmWeights(floats, this.width, contraction);
    });
    return weights.multiply(levels, new Float32Array(levels.length / contraction).fill(1), { base });
  }

  /** What codes would give residuals scale·levels, [rows, w] → [rows, w]. */
  analyze(map: SideMap, levels: Int8Array, rowScales: Float32Array): Float32Array {
    const { width } = this;
    const weights = made(this.#back, map, () => new GemmWeights(this.#turnBack(map), width, width));
    return weights.multiply(levels, rowScales, { planes: 2 });
  }

  /** From residuals to codes, [w, w]. Throws 'bad-file' for a predictor that no fit gives. */
  #turnBack(map: SideMap): Float32Array {
    try {
      return turnBack(map, this.width);
    } catch (cause) {
      if (!(cause instanceof Singular)) throw cause;
      throw new KvError('bad-file', 'the predictor cannot code what it predicts', {
        values: { model: this.digest.slice(0, 16), why: cause.message },
        hint: 'fit it again: palimpsest calibrate --predictor',
      });
    }
  }

  /**
   * Columns of residuals from those that spread most to those that spread least, those that spread alike as they stand.
   */
  order(map: SideMap): Uint16Array {
    const found = this.#orders.get(map) ?? columnOrder(map.tables);
    this.#orders.set(map, found);
    return found;
  }

  /** Cosines and sines of so many positions, kept for the next cache. */
  rotary(config: RotaryConfig, tokens: number): RopeTable {
    // With these scalings frequencies depend on how long a text becomes.
    if (this.#rotary === undefined || ['ntk', 'longrope'].includes(config.ropeScaling.kind))
      this.#rotary = new RopeTable(config, tokens);
    return this.#rotary;
  }

  /** The same in the binary, made when it is first needed. */
  packed(): PackedPredictor {
    const { shape, shares, layers } = this.data;
    this.#packed ??= new PackedPredictor(shape, shares, layers);
    return this.#packed;
  }

  /** The same for writers. */
  packedToWrite(): PackedPredictor {
    const packed = this.packed();
    if (!this.#canWrite)
      for (const [layer, { k, v }] of this.data.layers.entries()) {
        packed.setBack(layer, 'k', this.#turnBack(k));
        packed.setBack(layer, 'v', this.#turnBack(v));
      }
    this.#canWrite = true;
    return packed;
  }

  close(): void {
    for (const weights of [this.#forward, this.#back]) {
      for (const one of weights.values()) one.close();
      weights.clear();
    }
    this.#packed?.close();
    this.#packed = undefined;
    this.#canWrite = false;
  }
}

/**
 * Added to a small float32 it leaves no bits for a fraction: the sum is rounded to the nearest integer, halves to even.
 */
const TO_WHOLE = 1.5 * 2 ** 23;

/**
 * Rows of inputs in 8 bits, computed in float32: [rows, of width `w`], from `at` on in rows of `contraction` levels.
 */
export function putInputs(
  levels: Int8Array,
  contraction: number,
  at: number,
  rows: Float32Array,
  width: number,
  centres: Float32Array,
  gains: Float32Array,
): void {
  for (let t = 0, from = 0; from < rows.length; t++)
    for (let c = 0, to = t * contraction + at; c < width; c++, to++, from++) {
      const value = Math.fround(Math.fround(rows[from]! - centres[c]!) * gains[c]!);
      const held = value > 127 ? 127 : value < -127 ? -127 : value;
      levels[to] = Math.fround(held + TO_WHOLE) - TO_WHOLE;
    }
}
