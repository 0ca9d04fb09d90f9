/** What pages are in now: formats of keys and values, or a latent in place of both. */
import {
  FORMAT_NAMES,
  isFreed,
  type KvCache,
  LATENT_NAMES,
  type LatentName,
  PAGE_KINDS,
  type PageTable,
  type Part,
  SIDES,
} from '../../native/index.ts';
import type { LaterForm } from '../../policy/index.ts';

const HELD = PAGE_KINDS.indexOf('latent');

/** The latent of a page, and whether the page is held as it; null where it has none. */
export function latentOf(
  table: PageTable,
  page: number,
): { readonly name: LatentName; readonly isHeld: boolean } | null {
  const name = LATENT_NAMES[table.latent[page]! - 1];
  return name === undefined ? null : { name, isHeld: table.kind[page] === HELD };
}

/** What a page is in: the latent that it is held as, or the formats of its sides, or that it is freed. */
export function formsOf(
  kv: KvCache,
  layer: number,
  page: number,
): readonly { readonly side: Part; readonly form: LaterForm }[] {
  const table = kv.table(layer);
  if (isFreed(table, page)) return SIDES.map((side) => ({ side, form: 'freed' }));
  const latent = latentOf(table, page);
  if (latent?.isHeld === true) return [{ side: 'kv', form: latent.name }];
  const [k, v] = [FORMAT_NAMES[table.kFormat[page]!]!, FORMAT_NAMES[table.vFormat[page]!]!];
  return SIDES.map((side) => ({ side, form: side === 'k' ? k : v }));
}

/** What keys and values of each page are in; both are in the latent of a page that is held as one. */
export function formsBySide(table: PageTable): { readonly k: readonly LaterForm[]; readonly v: readonly LaterForm[] } {
  const of = (formats: Uint8Array): LaterForm[] =>
    Array.from(formats, (format, page) => {
      if (isFreed(table, page)) return 'freed';
      const latent = latentOf(table, page);
      return latent?.isHeld === true ? latent.name : FORMAT_NAMES[format]!;
    });
  return { k: of(table.kFormat), v: of(table.vFormat) };
}
