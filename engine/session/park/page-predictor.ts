/**
 * Pages of a cache as predicted pages, one after the other and each by layer from the first on: rotary embedding, sinks
 * and formats around residual.ts. A page comes back in the formats that it had; it is coded anew in them.
 *
 * Bytes of a page: the ids of its formats, u8 for keys and for values, the sinks if it is the first (4 rows of keys and
 * of values, f16), then residual.ts.
 */
import {
  type CacheShape,
  checkServed,
  FORMAT_NAMES,
  FORMATS,
  type FormatName,
  firstToken,
  fromHalf,
  isFreed,
  type KvCache,
  KvError,
  PAGE_TOKENS,
  type PageRecords,
  rope,
  SIDES,
  SINK_TOKENS,
  type Side,
  toHalf,
} from '../../../native/index.ts';
import type { RopeTable, RotaryConfig } from '../../transformer/rope.ts';
import type { Predictor } from './predictor.ts';
import { type Below, decodePage, encodePage, levelsOf, type PageRows } from './residual.ts';
import { unrotate } from './unrotate.ts';

/** A page as it comes back: rows to append, keys after the rotary embedding, and the formats that it had. */
export interface ReturnedPage extends PageRows {
  readonly formats: Readonly<Record<Side, FormatName>>;
}

/** For one cache, in one direction. */
export class PagePredictor {
  readonly predictor: Predictor;
  readonly #config: RotaryConfig & Pick<CacheShape, 'kvHeads'>;
  readonly #table: RopeTable;
  /** What the layer above is predicted from: as the binary has it, and as the reference does. */
  #written: Int8Array | null = null;
  #below: Below = null;
  /** Where the binary writes. */
  #room = new Uint8Array();

  constructor(predictor: Predictor, config: RotaryConfig & Pick<CacheShape, 'kvHeads'>, table: RopeTable) {
    this.predictor = predictor;
    this.#config = config;
    this.#table = table;
  }

  /** The bytes of a page, or null where they would be no fewer than `storedBytes`, or it is freed. */
  encode(kv: KvCache, layer: number, page: number, storedBytes: number): Buffer | null {
    if (isFreed(kv.table(layer), page)) {
      this.#written = null;
      return null;
    }
    const head = headOf(kv, layer, page);
    // Above a freed page nothing is predicted.
    const isFirst = layer > 0 && this.#written === null;
    const room = isFirst ? 0 : Math.max(0, storedBytes - head.length - 1);
    if (this.#room.length < room) this.#room = new Uint8Array(room);
    const rows = this.#rowsOf(kv, layer, page);
    const levels = new Int8Array(2 * rows.k.length);
    const below = layer === 0 ? null : (this.#written ?? new Int8Array(levels.length));
    const out = this.#room.subarray(0, room);
    const written = this.predictor.packedToWrite().write(layer, below, rows, firstRowOf(page), out, levels);
    this.#written = levels;
    return written === 0 ? null : Buffer.concat([head, out.subarray(0, written)]);
  }

  /** What the binary reads so many pages by. */
  packed(pages: number): NonNullable<PageRecords['predicted']> {
    const { rotaryDim, ropeInterleaved } = this.#config;
    const rotary = { ...this.#table.rows(0, firstToken(pages)), rotaryDim, interleaved: ropeInterleaved };
    return { predictor: this.predictor.packed(), rotary };
  }

  // What follows is the reference of what the binary does (PackedPredictor.write, KvCache.importPages).

  /** The same bytes as encode(). */
  encodeByReference(kv: KvCache, layer: number, page: number, storedBytes: number): Buffer | null {
    const rows = this.#rowsOf(kv, layer, page);
    const map = this.predictor.data.layers[layer]!;
    const made = encodePage(this.predictor, map, layer === 0 ? null : this.#below, rows, firstRowOf(page));
    const bytes = Buffer.concat([headOf(kv, layer, page), made.bytes]);
    const isShorter = bytes.length < storedBytes;
    this.#below = levelsOf(map, isShorter ? made.rows : rows);
    return isShorter ? bytes : null;
  }

  /** A page that is in the cache as it was stored: what the layer above is predicted from. */
  pass(kv: KvCache, layer: number, page: number): void {
    this.#below = levelsOf(this.predictor.data.layers[layer]!, this.#rowsOf(kv, layer, page));
  }

  /** Throws 'bad-file', 'unsupported' for a format that there is not. */
  decode(layer: number, page: number, bytes: Buffer): ReturnedPage {
    const { width } = this.predictor;
    const sinkBytes = page === 0 ? 2 * 2 * SINK_TOKENS * width : 0;
    if (bytes.length < 2 + sinkBytes) throw new KvError('bad-file', 'a predicted page is cut off');
    const map = this.predictor.data.layers[layer]!;
    const rows = decodePage(this.predictor, map, layer === 0 ? null : this.#below, bytes.subarray(2 + sinkBytes));
    this.#below = levelsOf(map, rows);
    const { kvHeads, headDim, rotaryDim, ropeInterleaved } = this.#config;
    const { cos, sin } = this.#table.rows(firstToken(page), PAGE_TOKENS);
    rope(rows.k, PAGE_TOKENS, kvHeads, headDim, rotaryDim, cos, sin, ropeInterleaved);
    const sinks = Uint16Array.from({ length: sinkBytes / 2 }, (_, i) => bytes.readUInt16LE(2 + 2 * i));
    const exact = fromHalf(sinks);
    rows.k.set(exact.subarray(0, exact.length / 2));
    rows.v.set(exact.subarray(exact.length / 2));
    return { ...rows, formats: { k: formatOf(bytes[0]!), v: formatOf(bytes[1]!) } };
  }

  #rowsOf(kv: KvCache, layer: number, page: number): PageRows {
    const k = unrotate(kv.decode(layer, page, 'k'), firstToken(page), this.#table, this.#config);
    return { k, v: kv.decode(layer, page, 'v') };
  }
}

/** Throws 'unsupported' for the id of none. */
export function formatOf(id: number): FormatName {
  const name = FORMAT_NAMES.find((one) => FORMATS[one].id === id);
  if (name === undefined) throw new KvError('unsupported', `there is no format ${id}`, { values: { format: id } });
  return checkServed(name);
}

/** Sinks are kept exactly. */
const firstRowOf = (page: number): number => (page === 0 ? SINK_TOKENS : 0);

/** What stands before the residuals of a page. */
function headOf(kv: KvCache, layer: number, page: number): Buffer {
  const formats = Buffer.from(SIDES.map((side) => FORMATS[kv.format(layer, page, side)].id));
  return Buffer.concat([formats, ...(page === 0 ? sinksOf(kv, layer) : [])]);
}

/** The first rows of keys and of values, as f16. */
function sinksOf(kv: KvCache, layer: number): Buffer[] {
  return SIDES.map((side) => {
    const { kvHeads, headDim } = kv.shape;
    return Buffer.from(toHalf(kv.decode(layer, 0, side).slice(0, SINK_TOKENS * kvHeads * headDim)).buffer);
  });
}
