/** Methods that code each KV head of each side of a page by itself. */
import { firstToken, type ModelConfig, PAGE_TOKENS, type RopeTable, type Side } from 'palimpsest/lab';
import { f16Bytes, type KeptRows, type PageCode, unrotate } from './paged.ts';

export const SIDES: readonly Side[] = ['k', 'v'];

/** Which head of which page. */
export interface Place {
  readonly layer: number;
  readonly side: Side;
  readonly head: number;
  readonly page: number;
  /** Rows before this one are sinks, which are kept elsewhere. */
  readonly firstRow: number;
}

/** Codes rows [128, d] and decodes them in place. → bytes of what is kept of them */
export type HeadCode = (rows: Float32Array, place: Place) => number;

/** Rows [128, d] of one head of a page. */
export function takeHead(
  rows: Float32Array,
  page: number,
  head: number,
  { kvHeads, headDim }: Pick<ModelConfig, 'kvHeads' | 'headDim'>,
): Float32Array {
  const out = new Float32Array(PAGE_TOKENS * headDim);
  for (let t = 0; t < PAGE_TOKENS; t++) {
    const from = ((firstToken(page) + t) * kvHeads + head) * headDim;
    out.set(rows.subarray(from, from + headDim), t * headDim);
  }
  return out;
}

/** Puts them back, from firstRow on. */
export function putHead(
  rows: Float32Array,
  decoded: Float32Array,
  { page, head, firstRow }: Pick<Place, 'page' | 'head' | 'firstRow'>,
  { kvHeads, headDim }: Pick<ModelConfig, 'kvHeads' | 'headDim'>,
): void {
  for (let t = firstRow; t < PAGE_TOKENS; t++) {
    const to = ((firstToken(page) + t) * kvHeads + head) * headDim;
    rows.set(decoded.subarray(t * headDim, (t + 1) * headDim), to);
  }
}

export interface Headwise extends Pick<PageCode, 'see'> {
  readonly code: HeadCode;
  /** True if keys are coded as they are before their rotary embedding. */
  readonly isBeforeRope?: boolean;
}

/** The page code of a head code. The window is in f16. */
export function headwise(
  config: ModelConfig,
  rope: RopeTable,
  { code, see, isBeforeRope = false }: Headwise,
): PageCode {
  let bytes = 0;
  const codeHead = (kept: KeptRows, place: Place): void => {
    const all = kept[place.side];
    const rows = takeHead(all, place.page, place.head, config);
    const isTurned = isBeforeRope && place.side === 'k';
    const start = firstToken(place.page);
    if (isTurned) unrotate(rows, 1, start, rope, config);
    bytes += code(rows, place);
    if (isTurned) rope.apply(rows, PAGE_TOKENS, 1, start);
    putHead(all, rows, place, config);
  };
  return {
    ...(see === undefined ? {} : { see }),
    code: (page, layers, firstRow) => {
      for (const [layer, kept] of layers.entries())
        for (const side of SIDES)
          for (let head = 0; head < config.kvHeads; head++) codeHead(kept, { layer, side, head, page, firstRow });
    },
    heldBytes: (_coded, windowTokens) => bytes + f16Bytes(config, windowTokens),
  };
}
