/**
 * Rows of a page side that are kept as they were: their places in the form of the binary. types.ts describes KvCache's
 * methods.
 */
import { fail, record, show, sideId, sideNumber } from './arguments.ts';
import type { Side } from './format.ts';
import { HEADS_MAX, KEPT_ROWS_MAX, KEPT_ROWS_OPERATIONS, PAGE_PART_ALIGN, PAGE_TOKENS, padded } from './layout.ts';
import { type CacheHandle, codeOf, errorOf } from './load.ts';
import type { RowPlace } from './types.ts';

/** The bytes that so many rows take. */
export const keptRowsBytes = (rows: number, headDim: number): number => padded(rows * (4 + headDim), PAGE_PART_ALIGN);

/** Keeps rows of a page side. `check` throws for a layer or page that does not exist. Returns the bytes they take. */
export function keepRows(
  handle: CacheHandle,
  layer: number,
  page: number,
  side: Side,
  rows: readonly RowPlace[],
  check: () => unknown,
): number {
  if (!Array.isArray(rows) || rows.length === 0 || rows.length > KEPT_ROWS_MAX)
    fail(`rows must be 1 to ${KEPT_ROWS_MAX} places`, { rows: show(rows) });
  for (const row of rows) record(row, 'a row');
  const isPlace = ({ head, token }: RowPlace): boolean =>
    Number.isInteger(head) &&
    head >= 0 &&
    head < HEADS_MAX &&
    Number.isInteger(token) &&
    token >= 0 &&
    token < PAGE_TOKENS;
  const places = rows.map((row) => (isPlace(row) ? row.head * PAGE_TOKENS + row.token : Number.NaN));
  if (!places.every((place, i) => place > (places[i - 1] ?? -1) && place <= 0xffff))
    fail('rows must ascend by head and token', { rows: show(rows) });
  return keptRows(handle, 'keep', layer, page, side, Uint16Array.from(places), check);
}

const NO_PLACES = new Uint16Array(0);

/**
 * Does something with the kept rows of a page side. Returns the bytes taken or freed, the error or the number of rows.
 */
export function keptRows(
  handle: CacheHandle,
  operation: keyof typeof KEPT_ROWS_OPERATIONS,
  layer: number,
  page: number,
  side: Side,
  places: Uint16Array | null,
  check: () => unknown,
): number {
  const out = new Float64Array(1);
  const status = handle.keptRows(
    KEPT_ROWS_OPERATIONS[operation],
    layer,
    page,
    sideNumber(side),
    places ?? NO_PLACES,
    out,
  );
  if (status === 0) return out[0]!;
  check();
  sideId(side);
  if (codeOf(status) === 'bad-argument')
    fail('a place lies beyond the heads, or among the sinks', { layer, page, side, places: show(places) });
  throw errorOf(status, `${operation} rows of page ${page} of layer ${layer}`, { layer, page, side });
}
