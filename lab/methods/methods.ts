/** The methods of the lab by the names that caches have in `--caches`. */
import type { CacheMethod, CacheMethods } from 'palimpsest/lab';
import { formatsModule } from '../formats.ts';
import { yardsticks } from '../rules/index.ts';
import { evicted, evictionCaches, evictionOf } from './evict.ts';
import { kvarnCaches, kvarnOf, kvarnPages } from './kvarn.ts';
import { kvQuantCaches, kvQuantOf, kvQuantPages } from './kvquant.ts';
import { modifiedCaches, modifiedOf, modifiedPages } from './modifiers.ts';
import { nsnPages } from './nsn.ts';
import { oscarCaches, oscarOf, oscarPages } from './oscar.ts';
import { type PageMethod, readPaged } from './paged.ts';
import { productPages, productTextPages } from './product.ts';
import { xquantPages } from './rematerialize.ts';
import { rotateKvOf, rotateKvPages } from './rotatekv.ts';
import { transformCaches, transformOf, transformPages } from './transform.ts';
import { formatPages, formatsOf, windowless, windowlessOf } from './windowless.ts';
import { xquantCaches, xquantOf } from './xquant.ts';

/** Published methods of coded pages that have one name. */
const PUBLISHED: ReadonlyMap<string, PageMethod> = new Map<string, PageMethod>([
  ['nsn2', nsnPages],
  ['pq2', productPages],
  ['pq2-text', productTextPages],
]);

/** What is measured without a window as well: two bits, where a window is most of a short cache. */
const WINDOWLESS = ['oscar2', 'oscar2-wide', 'kvarn2', 'nsn2', 'trellis2:trellis2', 'trellis2:trellis1', 'rot2:rot2'];

/** The method of coded pages that a cache names; null for any other cache. */
export function pageMethodOf(cache: string): PageMethod | null {
  const xquant = xquantOf(cache);
  if (xquant !== null) return xquantPages(xquant);
  const modified = modifiedOf(cache);
  if (modified !== null) return modifiedPages(modified);
  const kvQuant = kvQuantOf(cache);
  if (kvQuant !== null) return kvQuantPages(kvQuant);
  const kvarn = kvarnOf(cache);
  if (kvarn !== null) return kvarnPages(kvarn);
  const oscar = oscarOf(cache);
  if (oscar !== null) return oscarPages(oscar);
  const transform = transformOf(cache);
  if (transform !== null) return transformPages(transform);
  const rotated = rotateKvOf(cache);
  return rotated === null ? (PUBLISHED.get(cache) ?? null) : rotateKvPages(rotated);
}

/** Every method of the lab at the widths and shares at which it is measured. */
export const methodCaches = (): string[] => [
  ...evictionCaches(),
  ...xquantCaches(),
  ...['rotatekv4', 'rotatekv3', 'rotatekv2'],
  ...kvQuantCaches(),
  ...kvarnCaches(),
  ...oscarCaches(),
  ...transformCaches(),
  ...PUBLISHED.keys(),
  ...modifiedCaches(),
  ...WINDOWLESS.map(windowless),
];

/** The method that a cache names: an eviction rule, or one of coded pages; null for the caches of sessions. */
export function methodOf(cache: string): CacheMethod | null {
  const eviction = evictionOf(cache);
  if (eviction !== null) return (runtime, reading) => evicted(runtime, eviction, reading);
  const bare = windowlessOf(cache);
  const pages = bare === null ? pageMethodOf(cache) : windowlessPages(bare);
  return pages === null ? null : (runtime, reading) => readPaged(runtime, pages, reading, { hasWindow: bare === null });
}

function windowlessPages(bare: string): PageMethod | null {
  const formats = formatsOf(bare);
  return formats === null ? pageMethodOf(bare) : formatPages(formats);
}

/** What the product registers. */
export const methods: CacheMethods = {
  from: 'palimpsest-lab',
  find: methodOf,
  yardsticks,
  formats: formatsModule,
};
