/**
 * Pages that a fork does not share: those that are in the window of the cache that it goes on from, or have left it and
 * may not all have moved. Each of the two goes on to move its own, so that neither is moved under the other.
 */
import {
  FORMAT_NAMES,
  firstToken,
  isForeign,
  isFreed,
  type KvCache,
  type PageTable,
  SIDES,
} from '../../native/index.ts';
import type { PolicyContext } from '../../policy/index.ts';
import { latentOf } from './forms.ts';

/** What copying the pages of a cache from `first` on takes, up to `end`: left out, all of them. */
export function copyBytes(
  kv: { readonly table: (layer: number) => PageTable },
  { layers, pageBytes, pack }: Pick<PolicyContext, 'layers' | 'pageBytes' | 'pack'>,
  first: number,
  end = Number.POSITIVE_INFINITY,
): number {
  let bytes = 0;
  if (end <= first) return bytes;
  for (let layer = 0; layer < layers; layer++) {
    const table = kv.table(layer);
    for (let page = first; page < Math.min(end, table.pages); page++) {
      if (isForeign(table, page)) bytes += pack?.pageBytes ?? 0;
      if (isFreed(table, page)) continue;
      for (const formats of [table.kFormat, table.vFormat]) bytes += pageBytes[FORMAT_NAMES[formats[page]!]!]!;
      const latent = latentOf(table, page);
      if (latent !== null) bytes += pageBytes[latent.name] ?? 0;
    }
  }
  return bytes;
}

/**
 * Gives `fork`, which goes on from `origin`, copies of the sealed pages from `first` on. They are as they were, without
 * latents; the queries that were kept of their tokens for trials are gone.
 */
export function ownPages(fork: KvCache, origin: KvCache, first: number): void {
  const { layers, kvHeads, headDim } = origin.shape;
  const { pages } = origin.table(0);
  if (first >= pages) return;
  // After tokens were taken back, the last page may be full and sealed.
  const numbers = (origin.length() - firstToken(pages)) * kvHeads * headDim;
  fork.truncate(firstToken(first));
  for (let layer = 0; layer < layers; layer++) {
    for (let page = first; page < pages; page++) {
      fork.importPage(layer, origin.exportPage(layer, page));
      if (latentOf(fork.table(layer), page)?.isHeld === false) fork.dropLatent(layer, page);
    }
    const [k, v] = SIDES.map((side) => origin.decode(layer, pages, side).subarray(0, numbers));
    if (numbers > 0) fork.append(layer, k!, v!);
  }
}
