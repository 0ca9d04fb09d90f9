/**
 * What pages of a parked session are predicted by, packed for the binary, and all pages of a cache put in place at
 * once: those that were stored as they are and those that are predicted from layer to layer. engine/session/park/
 * writes predicted pages, says what their bytes mean, and is the reference of what the binary computes.
 */
import { closed, fail, floats, formatId, integer, record, shapeError, show } from './arguments.ts';
import { KvError } from './error.ts';
import { firstToken } from './geometry.ts';
import type { Side } from './layout.ts';
import { type CacheHandle, check, codeOf, errorOf, loadBinary, type PredictorHandle } from './load.ts';
import { seesFreed } from './sliding.ts';
import { storedContent } from './stored.ts';
import type { CacheShape, PageRecord, PageRecords, RotaryTable } from './types.ts';

/** How one side of a layer is put together: base + scales·(weights·levels). w: KV heads × head size. */
export interface PredictedSide {
  /**
   * [w, contraction]. Columns: w residuals, then the layer below (keys and values, 2w) if there is one, then for values
   * this layer's keys (w).
   */
  readonly weights: Int8Array;
  /** [w] */
  readonly scales: Float32Array;
  /** [w] */
  readonly base: Float32Array;
  /** What residuals are multiplied by, [w]. */
  readonly factors: Uint8Array;
  /** Which distribution residuals have, [w]. */
  readonly tables: Uint8Array;
}

/**
 * One layer: both sides, and how its keys and values become 8 bits for the layer above: (row − centres)·gains, [2w].
 */
export interface PredictedLayer {
  readonly k: PredictedSide;
  readonly v: PredictedSide;
  readonly centres: Float32Array;
  readonly gains: Float32Array;
}

/**
 * A predictor in the binary. Throws 'bad-argument', 'bad-shape', 'bad-value' for numbers that are not finite or shares
 * that do not add up.
 */
export class PackedPredictor {
  #handle: PredictorHandle | undefined;

  /** shares: of each distribution 43 numbers that add up to 4096. */
  constructor(shape: Pick<CacheShape, 'kvHeads' | 'headDim'>, shares: Uint16Array, layers: readonly PredictedLayer[]) {
    record(shape, 'shape');
    if (!Array.isArray(layers)) fail('layers must be an array', { layers: show(layers) });
    const { kvHeads, headDim } = shape;
    const { Predictor } = loadBinary();
    this.#handle = new Predictor();
    check(this.#handle.open(kvHeads, headDim, shares), 'open a predictor', { kvHeads, headDim });
    const arrays = (side: PredictedSide) => {
      record(side, 'a side');
      const { weights, scales, base, factors, tables } = side;
      return [weights, scales, base, factors, tables] as const;
    };
    for (const [layer, one] of (layers as readonly PredictedLayer[]).entries()) {
      record(one, 'a layer');
      const { k, v, centres, gains } = one;
      check(this.#handle.addLayer(...arrays(k), ...arrays(v), centres, gains), `pack layer ${layer} of a predictor`);
    }
  }

  /**
   * What writers need besides, once for each side: `turn` [w, w], whose row c turns residuals [w] into codes of column
   * c. Throws what the constructor throws.
   */
  setBack(layer: number, side: Side, turn: Float32Array): void {
    if (side !== 'k' && side !== 'v') fail("the side must be 'k' or 'v'", { side: show(side) });
    const status = this.handle.setBack(layer, side === 'k', floats(turn, 'turn'));
    check(status, `pack the way back of layer ${show(layer)}`, { layer: show(layer) });
  }

  /**
   * Writes the residuals of a page of one layer behind each other into `out`. Rows k and v: [128, w], keys before the
   * rotary embedding; those before firstRow are not coded. below: what the call for the layer below left in `levels`,
   * null for layer 0. levels [128·2w] takes what the layer above is predicted from: of what a reader will have, or of
   * the rows themselves where nothing was written. → how many bytes were written, 0 where they have no room in `out`.
   */
  write(
    layer: number,
    below: Int8Array | null,
    rows: { readonly k: Float32Array; readonly v: Float32Array },
    firstRow: number,
    out: Uint8Array,
    levels: Int8Array,
  ): number {
    record(rows, 'rows');
    const [k, v] = [floats(rows.k, 'k'), floats(rows.v, 'v')];
    const written = new Float64Array(1);
    const status = this.handle.write(layer, below ?? undefined, k, v, firstRow, out, levels, written);
    check(status, `write a page of layer ${show(layer)}`, { layer: show(layer), firstRow: show(firstRow) });
    return written[0]!;
  }

  get handle(): PredictorHandle {
    return this.#handle ?? closed('predictor');
  }

  /** What it takes outside of the heap of JavaScript. */
  get bytes(): number {
    const out = new Float64Array(1);
    check(this.handle.bytes(out), 'read the predictor');
    return out[0]!;
  }

  close(): void {
    this.handle.close();
    this.#handle = undefined;
  }
}

/** How records of stored pages are told to the binary; 1 is a page that is predicted. */
const WAYS = { resident: 0, freed: 2, evicted: 3, foreign: 4 } as const;
/** Numbers of a record in the binary. */
const NUMBERS = 5;

/** See KvCache.importPages. `held`: pages that the cache has. */
export function importPages(handle: CacheHandle, shape: CacheShape, given: PageRecords, held = 0): void {
  record(given, 'pages');
  const { bytes, records, predicted } = given;
  if (!(bytes instanceof Uint8Array)) fail('bytes must be a Uint8Array', { bytes: show(bytes) });
  if (!Array.isArray(records)) fail('records must be an array', { records: show(records) });
  if (records.length % shape.layers !== 0)
    shapeError('there must be a record for every layer of each page', {
      records: records.length,
      layers: shape.layers,
    });
  const pages = records.length / shape.layers;
  const numbers = new Float64Array(NUMBERS * records.length);
  const contentOf = storedContent(shape);
  let hasFreed = false;
  for (const [i, one] of (records as readonly PageRecord[]).entries()) {
    record(one, 'a record');
    const { at, length, formats } = one;
    integer(at, 'at', 0, bytes.length);
    integer(length, 'length', 0, bytes.length - at);
    if (formats !== null) {
      record(formats, 'formats');
      numbers.set([1, formatId(formats.k), formatId(formats.v), at, length], NUMBERS * i);
      continue;
    }
    const content = contentOf(bytes.subarray(at, at + length), firstToken(held + Math.floor(i / shape.layers)));
    hasFreed ||= content.kind === 'freed';
    numbers.set([WAYS[content.kind], content.k, content.v, at + content.at, content.length], NUMBERS * i);
  }
  // -1: no record is damaged. The call may end before it says so.
  const out = Float64Array.of(-1);
  if (predicted !== null) record(predicted, 'predicted');
  const by = predicted?.predictor?.handle as PredictorHandle | undefined;
  const { cos, sin, rotaryDim, interleaved } = rotaryOf(predicted, held + pages, shape);
  const status = handle.importPages(bytes, numbers, by, cos, sin, rotaryDim, interleaved, out);
  const [found] = out as unknown as [number];
  if (found >= 0)
    throw new KvError(
      'bad-file',
      `page ${held + Math.floor(found / shape.layers)} of layer ${found % shape.layers} is damaged`,
      {
        cause: errorOf(status, 'import pages', {}),
      },
    );
  if (codeOf(status) === 'unsupported' && hasFreed) throw seesFreed('put these pages in place', { pages });
  check(status, 'import pages', { pages, bytes: bytes.length });
}

/** The rows of the table for so many pages. */
function rotaryOf(predicted: PageRecords['predicted'], pages: number, { headDim }: CacheShape): Partial<RotaryTable> {
  if (predicted === null) return {};
  record(predicted.rotary, 'rotary');
  const { cos, sin, rotaryDim, interleaved } = predicted.rotary;
  integer(rotaryDim, 'rotaryDim', 2, headDim);
  const count = firstToken(pages) * (rotaryDim / 2);
  if (floats(cos, 'cos').length < count || floats(sin, 'sin').length < count)
    shapeError('the table must reach over all pages', { cos: cos.length, sin: sin.length, wanted: count });
  return { cos: cos.subarray(0, count), sin: sin.subarray(0, count), rotaryDim, interleaved };
}
