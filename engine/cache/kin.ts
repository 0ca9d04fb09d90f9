/**
 * The kin of a cache: its origin, its forks, and theirs. All have one budget, and the originals that are kept of pages
 * belong to all; each two share pages from the first on, as do caches of a pool that began with the pages of another
 * one (lender.ts) and are no family.
 */
import type { FormChange, PageSide, SharedPages } from '../../policy/index.ts';
import type { Canaries } from './canaries.ts';

/** A page was moved, of a cache whose pages and those of its family took so many bytes before. */
export type OnMove = (move: FormChange, bytesBefore: number) => void;

/** What a cache hears of pages that it shares with a relative, and that this one has changed. */
export interface Hears {
  readonly moved: (move: FormChange, bytesBefore: number, isFamily: boolean) => void;
  /** Codes that were damaged were made again. */
  readonly mended: (side: PageSide) => void;
  /** True: it is what is kept of a session that was closed, and nobody reads by it. */
  readonly isKept?: true;
}

/** What a cache keeps of pages before they move. */
type KeptOriginals = Pick<Canaries, 'bytes'>;

interface Family {
  /** Those that are open. */
  users: number;
  /** Of the cache that the others were forked from. */
  readonly canaries: KeptOriginals;
}

/** Changes of what any caches have in common, so that what was found of them is known to be old. */
let changes = 0;

export class Kin {
  readonly #family: Family;
  readonly #canaries: KeptOriginals;
  readonly #hears: Hears;
  readonly #reads: boolean;
  /** Pages from 0 on that this cache shares with each of its relatives. */
  readonly #shared = new Map<Kin, number>();

  /**
   * `canaries`: of this cache. `hears`: what is told of changes that relatives make of shared pages. `origin`: what it
   * is forked from, where it is.
   */
  constructor(canaries: KeptOriginals, hears: Hears, origin?: Kin) {
    this.#canaries = canaries;
    this.#reads = hears.isKept !== true;
    this.#hears = hears;
    this.#family = origin === undefined ? { users: 0, canaries } : origin.#family;
    this.#family.users++;
  }

  /** Another number where any caches have come to have other pages in common. */
  static get changes(): number {
    return changes;
  }

  /** Another cache begins with so many pages of this one, and holds them together with it. */
  share(other: Kin, pages: number): void {
    changes++;
    for (const [relative, count] of [...this.#shared, [this, pages] as const]) {
      other.#shared.set(relative, Math.min(count, pages));
      relative.#shared.set(other, Math.min(count, pages));
    }
  }

  /** Pages behind the first `pages` are gone here. */
  cut(pages: number): void {
    changes++;
    for (const [relative, count] of this.#shared) {
      this.#shared.set(relative, Math.min(count, pages));
      relative.#shared.set(this, Math.min(count, pages));
    }
  }

  /** A page of this cache was moved: whoever shares it is told. */
  moved(move: FormChange, bytesBefore: number): void {
    for (const [relative, pages] of this.#shared)
      if (move.page < pages) relative.#hears.moved(move, bytesBefore, this.has(relative));
  }

  /** Codes of a page of this cache were damaged and made again: whoever shares it is told. */
  mended(side: PageSide): void {
    for (const [relative, pages] of this.#shared) if (side.page < pages) relative.#hears.mended(side);
  }

  /** True if the other cache is this one, its origin, or a fork of either. */
  has(other: Kin): boolean {
    return this.#family === other.#family;
  }

  /** What is the same for all of a family. */
  get family(): object {
    return this.#family;
  }

  /** Pages from 0 on that a relative holds as well. */
  sharedWith(relative: Kin): number {
    return this.#shared.get(relative) ?? 0;
  }

  /** Which of these holds most of its pages from 0 on as well, and how many; null: none of them any. */
  sharedWithin(relatives: ReadonlySet<Kin>): { readonly relative: Kin; readonly pages: number } | null {
    let most: { readonly relative: Kin; readonly pages: number } | null = null;
    for (const [relative, pages] of this.#shared)
      if (pages > (most?.pages ?? 0) && relatives.has(relative)) most = { relative, pages };
    return most;
  }

  /** How many others that read by them hold pages together with this one and are no family. */
  sharers(): readonly SharedPages[] {
    const sessions = new Map<number, number>();
    for (const [relative, pages] of this.#shared)
      if (pages > 0 && relative.#reads && !this.has(relative)) sessions.set(pages, (sessions.get(pages) ?? 0) + 1);
    return [...sessions].sort(([a], [b]) => b - a).map(([pages, count]) => ({ pages, sessions: count }));
  }

  /** Pages from 0 on that anybody else who reads by them holds as well. */
  get sharedPages(): number {
    let most = 0;
    for (const [relative, pages] of this.#shared) if (relative.#reads) most = Math.max(most, pages);
    return most;
  }

  /** The same of those as well by whom nobody reads. */
  get heldPages(): number {
    return Math.max(0, ...this.#shared.values());
  }

  /** True if others hold pages of this one as well. */
  get isShared(): boolean {
    return this.hasOthers || this.heldPages > 0;
  }

  /** True if others of its family are open. */
  get hasOthers(): boolean {
    return this.#family.users > 1;
  }

  /** Bytes of the originals that any of them keeps. */
  get canaryBytes(): number {
    return this.#family.canaries.bytes;
  }

  /** True if this cache keeps them: forks share those of their origin. */
  get keepsCanaries(): boolean {
    return this.#family.canaries === this.#canaries;
  }

  /** This cache is closed. → whether it was the last that was open */
  leave(): boolean {
    changes++;
    for (const relative of this.#shared.keys()) relative.#shared.delete(this);
    return --this.#family.users === 0;
  }
}
