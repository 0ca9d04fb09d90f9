/**
 * Pages of which nothing is left, since a sliding window has left them behind or a policy let them go:
 * KvCache.freePage() and evictPage(), which types.ts describes, and what such pages refuse.
 */
import { KvError } from './error.ts';
import { firstToken } from './geometry.ts';
import { type CacheHandle, check, codeOf } from './load.ts';
import { PAGE_KINDS, type PageTable } from './types.ts';

const FREED = PAGE_KINDS.indexOf('freed');

const EVICTED = PAGE_KINDS.indexOf('evicted');

const FOREIGN = PAGE_KINDS.indexOf('foreign');

/** True for a page that is held as bytes of somebody else. */
export const isForeign = (table: PageTable, page: number): boolean => table.kind[page] === FOREIGN;

/** True for a page of which nothing is left in a format or a latent. */
export const isFreed = (table: PageTable, page: number): boolean =>
  table.kind[page] === FREED || isEvicted(table, page);

/** True for one of these that attention skips where it would see it. */
export const isEvicted = (table: PageTable, page: number): boolean =>
  table.kind[page] === EVICTED || isForeign(table, page);

/** The error of everything that needs the keys and values of a page of which nothing is left. */
export const freedPage = (page: number): KvError =>
  new KvError('unsupported', `page ${page} has been freed: nothing is left of it`, {
    values: { page },
    hint: 'table().kind says which pages are still there',
  });

/**
 * The error of attention that would see freed pages, or whose queries are those of evicted ones, and of going back or
 * importing to where that would be so.
 */
export const seesFreed = (doing: string, values: Readonly<Record<string, unknown>>): KvError =>
  new KvError('unsupported', `cannot ${doing}: pages that it would see have been freed`, {
    values,
    hint: 'read these tokens again, fork() before you append what may be taken back, and give a cache the sliding windows that its pages were freed by',
  });

/** → bytes freed */
export function freePage(handle: CacheHandle, layer: number, page: number, out: Float64Array, tokens: number): number {
  const status = handle.freePage(layer, page, out);
  if (codeOf(status) === 'unsupported')
    throw new KvError('unsupported', `page ${page} of layer ${layer} may still be seen, or is being moved`, {
      values: { layer, page, tokens, first: firstToken(page) },
      hint: 'free a page when the sliding window of its layer has left it behind and no move of it is under way',
    });
  check(status, `free page ${page} of layer ${layer}`, { layer, page });
  return out[0]!;
}

/** → bytes freed */
export function evictPage(handle: CacheHandle, layer: number, page: number, out: Float64Array): number {
  const status = handle.evictPage(layer, page, out);
  if (codeOf(status) === 'unsupported')
    throw new KvError('unsupported', `page ${page} of layer ${layer} is freed, or is being moved`, {
      values: { layer, page },
      hint: 'evict a page that is there while no move of it is under way',
    });
  check(status, `evict page ${page} of layer ${layer}`, { layer, page });
  return out[0]!;
}
