/**
 * One side of a sealed page as bytes, and such bytes in its place: for forms that are kept outside a cache while the
 * cache goes on. Unlike stored pages they have no head. types.ts describes KvCache's methods.
 */
import { fail, formatId, record, shapeError, show, sideId } from './arguments.ts';
import { nameOfId, pageBytes, type Side } from './format.ts';
import { type CacheHandle, check, codeOf } from './load.ts';
import { checkHeadDim, checkStatus } from './moves.ts';
import type { CacheShape, StoredSide } from './types.ts';

/** `refuse` throws for a page that has no sides. */
export function exportSide(
  handle: CacheHandle,
  layer: number,
  page: number,
  side: Side,
  refuse: () => unknown,
): StoredSide {
  const about = new Float64Array(2);
  const id = sideId(side);
  const doing = `export a side of page ${page} of layer ${layer}`;
  const status = handle.exportSide(layer, page, id, about);
  if (codeOf(status) === 'unsupported') refuse();
  check(status, doing, { layer, page, side });
  const bytes = new Uint8Array(about[1]!);
  check(handle.exportSide(layer, page, id, about, bytes), doing, { layer, page, side });
  return { format: nameOfId(about[0]!), bytes };
}

/** If it throws, nothing has changed. `refuse` throws for a page that has no sides. */
export function exchangeSide(
  handle: CacheHandle,
  { kvHeads, headDim }: CacheShape,
  layer: number,
  page: number,
  side: Side,
  stored: StoredSide,
  refuse: () => unknown,
): number {
  const id = sideId(side);
  record(stored, 'stored');
  const { format, bytes } = stored;
  const to = formatId(format);
  if (!(bytes instanceof Uint8Array)) fail('bytes must be a Uint8Array', { bytes: show(bytes) });
  checkHeadDim(format, headDim);
  const wanted = pageBytes(format, kvHeads, headDim);
  if (bytes.length !== wanted) {
    shapeError(`a side in ${format} has ${wanted} bytes`, { bytes: bytes.length, wanted, format });
  }
  const freed = new Float64Array(1);
  const status = handle.exchangeSide(layer, page, id, to, bytes, freed);
  if (codeOf(status) === 'unsupported') refuse();
  checkStatus(status, `exchange a side of page ${page} of layer ${layer}`, { layer, page, side, format });
  return freed[0]!;
}
