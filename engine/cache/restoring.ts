/**
 * Keys and values of a page that are made again of its originals because somebody asks for them. Where a page has a
 * latent, they are made of that first (latents.ts), and then of the originals that there are (Remaking.refine).
 */
import {
  type CacheShape,
  FORMATS,
  type FormatName,
  type KvCache,
  KvError,
  pageBytes,
  SIDES,
  type StoredSide,
} from '../../native/index.ts';
import type { PageSide } from '../../policy/index.ts';
import type { Canaries } from './canaries.ts';
import type { Mover } from './mover.ts';
import type { Remaking } from './remaking.ts';
import type { TrialQueue } from './trials.ts';

/** A cache whose pages can be made again. */
interface Restorable {
  readonly kv: KvCache;
  readonly shape: CacheShape;
  readonly length: number;
  readonly hasForks: boolean;
  readonly mover: Mover;
  readonly canaries: Canaries;
  readonly remaking: Remaking;
  readonly trials: TrialQueue;
}

interface Asked {
  readonly layer: number;
  readonly page: number;
  /** What both sides are to be in. */
  readonly format: FormatName;
}

/**
 * Puts both sides of a sealed page into a format, as far as they are in a lower one. → bytes by which the cache grew.
 * Throws 'unsupported', 'budget-exceeded'; the page is then as it was.
 */
export function restoreOriginals(cache: Restorable, { layer, page, format }: Asked): number {
  if (!Object.hasOwn(FORMATS, format)) throw refused(`there is no format ${JSON.stringify(format)}`, { format });
  checkUnshared(cache, { layer, page });
  const { kv, shape, mover, remaking, length: tokens } = cache;
  const finer = SIDES.flatMap(
    (side): { readonly at: PageSide; readonly has: FormatName; readonly codes: StoredSide }[] => {
      const at = { layer, page, side };
      const has = remaking.formOf(at);
      if (has === format) return [];
      if (FORMATS[has].rank < FORMATS[format].rank)
        throw refused(`the page has a side in ${has}, which is better than ${format}`, { layer, page, has, format });
      const codes = remaking.codes(at, format);
      if (codes === null)
        throw refused(`there is no original of the page from which ${format} can be made`, {
          layer,
          page,
          side,
          format,
        });
      return [{ at, has, codes }];
    },
  );
  const bytesOf = (of: FormatName): number => pageBytes(of, shape.kvHeads, shape.headDim);
  const bytes = finer.reduce((sum, { has }) => sum + bytesOf(format) - bytesOf(has), 0);
  // Both or none.
  if (bytes > kv.roomBytes)
    throw new KvError('budget-exceeded', `restoring page ${page} of layer ${layer} takes ${bytes} bytes more`, {
      values: { layer, page, format, bytes, roomBytes: kv.roomBytes },
      hint: 'ask for a lower format, or give the session a larger kvBudget',
    });
  cache.trials.finish();
  return (
    0 -
    mover.change({ cause: 'restore', layer, page, tokens }, () => {
      cache.canaries.drop(layer, page);
      return finer.reduce((freed, { at, codes }) => freed + remaking.put(at, codes), 0);
    })
  );
}

/** Throws 'unsupported' while a fork shares the pages. */
export function checkUnshared({ hasForks }: Pick<Restorable, 'hasForks'>, at: Pick<Asked, 'layer' | 'page'>): void {
  if (hasForks) throw refused('its pages are shared with a fork, which knows nothing of originals', { ...at });
}

const refused = (message: string, values: Readonly<Record<string, unknown>>): KvError =>
  new KvError('unsupported', message, { values, hint: 'a page comes back in formats from that of its original down' });
