/**
 * Pages whose keys and values somebody else codes: the checks of KvCache's methods for them, which types.ts describes.
 */
import { fail, floats, formatId, shapeError, show } from './arguments.ts';
import { KvError } from './error.ts';
import type { FormatName } from './format.ts';
import { PAGE_TOKENS } from './layout.ts';
import { type CacheHandle, check, codeOf } from './load.ts';
import { checkHeadDim } from './moves.ts';
import type { CacheShape, PageRows } from './types.ts';

/** The most bytes of a page. */
const BYTES_MOST = 2 ** 24;

const unsupported = (layer: number, page: number, what: string, hint: string): KvError =>
  new KvError('unsupported', `page ${page} of layer ${layer} ${what}`, { values: { layer, page }, hint });

/** → bytes freed */
export function holdForeign(
  handle: CacheHandle,
  layer: number,
  page: number,
  bytes: Uint8Array,
  out: Float64Array,
): number {
  if (!(bytes instanceof Uint8Array)) fail('bytes must be a Uint8Array', { bytes: show(bytes) });
  if (bytes.length === 0 || bytes.length > BYTES_MOST)
    shapeError(`a page has 1 to ${BYTES_MOST} bytes`, { bytes: bytes.length });
  const status = handle.holdForeign(layer, page, bytes, out);
  if (codeOf(status) === 'unsupported')
    throw unsupported(
      layer,
      page,
      'is gone, or is being moved',
      'hold a page that is there while no move is under way',
    );
  check(status, `hold page ${page} of layer ${layer} as bytes`, { layer, page, bytes: bytes.length });
  return out[0]!;
}

/** → `out`, or where it is left out, new bytes */
export function foreignBytes(handle: CacheHandle, layer: number, page: number, out?: Uint8Array): Uint8Array {
  const about = new Float64Array(1);
  const doing = `read the bytes of page ${page} of layer ${layer}`;
  const status = handle.foreignBytes(layer, page, about);
  if (codeOf(status) === 'unsupported')
    throw unsupported(layer, page, 'is not held as bytes', 'table().kind says which pages are');
  check(status, doing, { layer, page });
  const bytes = out ?? new Uint8Array(about[0]!);
  if (!(bytes instanceof Uint8Array)) fail('out must be a Uint8Array', { out: show(out) });
  if (bytes.length !== about[0]) shapeError(`the page has ${about[0]} bytes`, { out: bytes.length });
  check(handle.foreignBytes(layer, page, about, bytes), doing, { layer, page });
  return bytes;
}

/** → bytes freed */
export function restoreForeign(
  handle: CacheHandle,
  shape: CacheShape,
  { layer, page, format }: { readonly layer: number; readonly page: number; readonly format: FormatName },
  { k, v }: PageRows,
  out: Float64Array,
): number {
  const id = formatId(format);
  checkHeadDim(format, shape.headDim);
  for (const [name, rows] of Object.entries({ k, v })) checkRows(shape, name, rows);
  const status = handle.restoreForeign(layer, page, id, k, v, out);
  if (codeOf(status) === 'unsupported')
    throw unsupported(layer, page, 'is not held as bytes', 'table().kind says which pages are');
  check(status, `make page ${page} of layer ${layer} again in ${format}`, { layer, page, format });
  return out[0]!;
}

/** → the error, NaN when no kept query sees the whole page */
export function trialForeign(
  handle: CacheHandle,
  shape: CacheShape,
  layer: number,
  page: number,
  { k, v }: Partial<PageRows>,
  out: Float64Array,
): number {
  for (const [name, rows] of Object.entries({ k, v })) if (rows !== undefined) checkRows(shape, name, rows);
  if (k === undefined && v === undefined) fail('rows must have k, v or both', {});
  const status = handle.trialForeign(layer, page, k, v, out);
  if (codeOf(status) === 'unsupported')
    throw unsupported(layer, page, 'has no keys and values to compare with', 'try pages that are resident');
  check(status, `try rows of page ${page} of layer ${layer}`, { layer, page });
  return out[0]!;
}

function checkRows({ kvHeads, headDim }: CacheShape, name: string, rows: unknown): void {
  const wanted = PAGE_TOKENS * kvHeads * headDim;
  if (floats(rows, name).length !== wanted)
    shapeError(`${name} must be [${PAGE_TOKENS}, n, d]`, { [name]: (rows as Float32Array).length, wanted });
}
