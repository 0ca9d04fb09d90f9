/** Where the bytes of a cache are: by tier and format, with the sealed pages that are in them. */
import {
  type CacheMemory,
  FORMAT_NAMES,
  type FormatName,
  isFreed,
  type LatentName,
  movablePages,
  sealedPages,
} from '../../native/index.ts';
import { isLatent, type PageForm } from '../../policy/index.ts';
import { tierOf } from '../metrics/meter.ts';
import { latentOf } from './forms.ts';
import type { Governed } from './governed.ts';

/** What a cache has in one tier and one format. */
export interface TierRow {
  /** As in the metric `kv_bytes`: `open`, `sinks`, tiers of formats, `latent`, `kept` beside the pages, or `parked`. */
  readonly tier: 'open' | 'sinks' | 'exact' | 'warm' | 'archive' | 'latent' | 'kept' | 'parked';
  /** The format, or the latent; `predicted` of parked pages. */
  readonly format: FormatName | LatentName | 'predicted';
  /** Sealed pages of all layers whose keys are in it; both sides of a page are in the latent that it is held as. */
  readonly keyPages: number;
  /** The same of values. */
  readonly valuePages: number;
  /** Bytes of them, or of the open pages, the sinks and what is kept. */
  readonly bytes: number;
}

/** A cache by tiers, at one moment. */
export interface TierSummary {
  /** Tokens in the cache. */
  readonly tokens: number;
  /** Sealed pages of all layers that are still in the window, where nothing moves; they are among those of the rows. */
  readonly windowPages: number;
  /** The sum of the rows: what the cache takes of its budget, kept originals included. */
  readonly bytes: number;
  /** What there is, in the order of tiers: rows without bytes are left out. */
  readonly rows: readonly TierRow[];
}

/** Pages by the formats of their sides, and by the latent that they are held as or keep. */
interface PageCounts {
  readonly k: number[];
  readonly v: number[];
  readonly held: Map<string, number>;
  readonly kept: Map<string, number>;
}

const zeros = (): number[] => FORMAT_NAMES.map(() => 0);

/** The sealed pages of all layers from `from` on. */
function countPages({ kv, shape }: Governed, from: number): PageCounts {
  const counts: PageCounts = { k: zeros(), v: zeros(), held: new Map(), kept: new Map() };
  const { k, v } = counts;
  for (let layer = 0; layer < shape.layers; layer++) {
    const table = kv.table(layer);
    const { kFormat, vFormat } = table;
    for (let page = from; page < table.pages; page++) {
      if (isFreed(table, page)) continue;
      const latent = latentOf(table, page);
      if (latent !== null) {
        const which = latent.isHeld ? counts.held : counts.kept;
        which.set(latent.name, (which.get(latent.name) ?? 0) + 1);
        if (latent.isHeld) continue;
      }
      k[kFormat[page]!]!++;
      v[vFormat[page]!]!++;
    }
  }
  return counts;
}

/** Rows of the sealed pages from `from` on, those before being counted elsewhere, and of latents that they keep. */
function pageRows(cache: Governed, from: number): TierRow[] {
  const { k, v, held, kept } = countPages(cache, from);
  const { latents, terms } = cache;
  const bytesOf = (form: PageForm): number =>
    (isLatent(form) ? latents?.bytesOf(form) : undefined) ?? terms.context.pageBytes[form] ?? 0;
  const sides = FORMAT_NAMES.map((format, rank): TierRow => {
    const [keyPages, valuePages] = [k[rank]!, v[rank]!];
    return { tier: tierOf(format), format, keyPages, valuePages, bytes: (keyPages + valuePages) * bytesOf(format) };
  });
  const latentRows = (tier: 'latent' | 'kept', counts: PageCounts['held']): TierRow[] =>
    [...counts].map(([name, pages]) => {
      const format = name as TierRow['format'] & PageForm;
      const counted = tier === 'latent' ? pages : 0;
      return { tier, format, keyPages: counted, valuePages: counted, bytes: pages * bytesOf(format) };
    });
  return [...sides, ...latentRows('latent', held), ...latentRows('kept', kept)];
}

/**
 * Rows of what one cache takes, but for the originals that it and its kin keep. Pages before `from` are those of a
 * cache that was counted already.
 */
export function tierRows(cache: Governed, from = 0, ofPages?: (memory: CacheMemory) => TierRow[]): TierRow[] {
  const { kv, terms, away } = cache;
  const row = (tier: TierRow['tier'], format: TierRow['format'], bytes: number): TierRow => ({
    tier,
    format,
    keyPages: 0,
    valuePages: 0,
    bytes,
  });
  if (away !== null) return [row('parked', 'predicted', away.heldBytes)];
  const memory = kv.memory();
  const rows = [
    row('open', terms.context.openFormat ?? 'f16', memory.openBytes),
    row('sinks', 'f16', memory.sinkBytes),
    ...(ofPages?.(memory) ?? pageRows(cache, from)),
  ];
  return rows.filter(({ bytes }) => bytes > 0);
}

/**
 * Summaries of one cache from token to token. Tables of pages are read again only when pages came, went or changed
 * their form; all of these change the bytes or are told by the mover.
 */
export class TierSummaries {
  readonly #cache: Governed;
  #rows: readonly TierRow[] = [];
  #countedAt = '';

  constructor(cache: Governed) {
    this.#cache = cache;
  }

  /** The cache as it is now. */
  now(): TierSummary {
    const cache = this.#cache;
    const { length: tokens, terms, shape, canaryBytes } = cache;
    const rows = tierRows(cache, 0, (memory) => this.#pages(memory));
    if (canaryBytes > 0 && cache.away === null)
      rows.push({ tier: 'kept', format: terms.context.windowFormat, keyPages: 0, valuePages: 0, bytes: canaryBytes });
    return {
      tokens,
      windowPages: shape.layers * (sealedPages(tokens) - movablePages(tokens, terms.context.windowTokens)),
      bytes: rows.reduce((sum, { bytes }) => sum + bytes, 0),
      rows,
    };
  }

  #pages({ pageBytes }: CacheMemory): TierRow[] {
    const { length, mover } = this.#cache;
    const at = `${sealedPages(length)} ${pageBytes} ${mover.changesSoFar}`;
    if (at !== this.#countedAt) {
      this.#rows = pageRows(this.#cache, 0);
      this.#countedAt = at;
    }
    return [...this.#rows];
  }
}
