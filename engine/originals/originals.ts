/**
 * The originals of a cache: what its page sides were before their first move, kept outside of its budget, in a file of
 * the session or in memory, up to a stated number of bytes. What does not fit any more is not kept: the earlier pages
 * have theirs. Where the disk fails, the session goes on without originals from then on, and says so. They are of this
 * cache alone: a fork, and a session that is resumed, begins without any.
 */
import { tmpdir } from 'node:os';
import {
  assert,
  FORMATS,
  type FormatName,
  type KvCache,
  KvError,
  SIDES,
  type Side,
  type StoredSide,
} from '../../native/index.ts';
import { Encoder } from './encoder.ts';
import { HeldRecords, type RecordPlace, type Records } from './records.ts';
import { SealedFile } from './sealed-file.ts';
import type { OriginalsReport, OriginalsTerms } from './types.ts';

interface Kept {
  readonly format: FormatName;
  readonly place: RecordPlace;
}

interface OriginalsParts {
  readonly cache: KvCache;
  readonly terms: OriginalsTerms;
  /** What a page is in before its first move. */
  readonly windowFormat: FormatName;
  /** Hears of the error after which there are no originals any more. */
  readonly onLost: (error: KvError) => void;
}

export class Originals {
  readonly terms: OriginalsTerms;
  readonly #cache: KvCache;
  readonly #windowFormat: FormatName;
  readonly #onLost: (error: KvError) => void;
  readonly #encoder: Encoder;
  readonly #kept = new Map<string, Kept>();
  #records: Records | null = null;
  #leftOut = 0;
  #lost: KvError | null = null;

  /** Throws 'io', 'not-found' where no file can be made. */
  constructor({ cache, terms, windowFormat, onLost }: OriginalsParts) {
    this.terms = terms;
    this.#cache = cache;
    this.#windowFormat = windowFormat;
    this.#onLost = onLost;
    this.#encoder = new Encoder(cache.shape);
    const { place, dir, bytesMax, files } = terms;
    if (place === 'memory') this.#records = new HeldRecords(bytesMax);
    else this.#records = new SealedFile(dir ?? tmpdir(), bytesMax, (error) => this.#lose(error), files);
  }

  /** Called before a side of a page is moved: where it is still in the format of the window, it is kept. */
  before(layer: number, page: number, side: Side): void {
    if (this.#records === null || this.#kept.has(keyOf(layer, page, side))) return;
    if (this.#cache.format(layer, page, side) !== this.#windowFormat) return;
    this.#attempt(() => {
      const { format } = this.terms;
      const held = this.#cache.exportSide(layer, page, side);
      // The window may be finer than what is kept, and never is lower.
      const stored = FORMATS[format].rank > FORMATS[held.format].rank ? this.encoded(held, page, side, format) : held;
      if (!this.#keep(keyOf(layer, page, side), stored)) this.#leftOut++;
    });
  }

  /** True if a side of a page has one. */
  has(layer: number, page: number, side: Side): boolean {
    return this.#kept.has(keyOf(layer, page, side));
  }

  /** The original of a side; null where there is none, or it is lost with all others. */
  read(layer: number, page: number, side: Side): StoredSide | null {
    return this.#read(keyOf(layer, page, side));
  }

  /** A lower form of a side that is kept as bytes. */
  encoded(stored: StoredSide, page: number, side: Side, to: FormatName): StoredSide {
    return this.#encoder.encoded(stored, page, side, to);
  }

  /** Keeps the present form of a side beside its original, in the same place. → whether it is kept now */
  keepPresent(layer: number, page: number, side: Side): boolean {
    this.forgetPresent(layer, page, side);
    const key = presentKeyOf(layer, page, side);
    return this.#attempt(() => this.#keep(key, this.#cache.exportSide(layer, page, side))) ?? false;
  }

  /** What keepPresent() kept of a side last; null where that is lost. */
  readPresent(layer: number, page: number, side: Side): StoredSide | null {
    return this.#read(presentKeyOf(layer, page, side));
  }

  /** What keepPresent() kept is the form of a side no more. */
  forgetPresent(layer: number, page: number, side: Side): void {
    const key = presentKeyOf(layer, page, side);
    const kept = this.#kept.get(key);
    if (kept !== undefined) this.#drop(key, kept);
  }

  /** Pages behind the first `pages` are gone. */
  cut(pages: number): void {
    for (const [key, kept] of this.#kept) if (pageOfKey(key) >= pages) this.#drop(key, kept);
  }

  /** A page is about to be freed: nobody will want what it was. */
  drop(layer: number, page: number): void {
    for (const side of SIDES)
      for (const key of [keyOf(layer, page, side), presentKeyOf(layer, page, side)]) {
        const kept = this.#kept.get(key);
        if (kept !== undefined) this.#drop(key, kept);
      }
  }

  /** `sidesPromoted`: that came back for answers. */
  report(sidesPromoted = 0): OriginalsReport {
    const { place, bytesMax } = this.terms;
    return {
      place: this.#records === null ? 'none' : place,
      sides: [...this.#kept.keys()].filter((key) => !isPresent(key)).length,
      bytes: this.#records?.bytes ?? 0,
      bytesMax,
      sidesLeftOut: this.#leftOut,
      sidesPromoted,
      lost: this.#lost?.code ?? null,
    };
  }

  close(): void {
    this.#kept.clear();
    this.#records?.close();
    this.#records = null;
    this.#encoder.close();
  }

  #keep(key: string, { format, bytes }: StoredSide): boolean {
    assert(!this.#kept.has(key), `an original is kept twice: ${key}`);
    const place = this.#records?.put(bytes) ?? null;
    if (place === null) return false;
    this.#kept.set(key, { format, place });
    return true;
  }

  #read(key: string): StoredSide | null {
    const kept = this.#kept.get(key);
    if (kept === undefined) return null;
    return this.#attempt(() => ({ format: kept.format, bytes: this.#records!.get(kept.place) })) ?? null;
  }

  #drop(key: string, { place }: Kept): void {
    this.#kept.delete(key);
    this.#records?.drop(place);
  }

  /** Does what needs the records. An error of theirs is the end of all originals, and of nothing else. */
  #attempt<Result>(work: () => Result): Result | undefined {
    try {
      return work();
    } catch (error) {
      if (!(error instanceof KvError)) throw error;
      this.#lose(error);
      return undefined;
    }
  }

  #lose(error: KvError): void {
    if (this.#lost !== null) return;
    this.#lost = error;
    this.close();
    this.#onLost(error);
  }
}

const keyOf = (layer: number, page: number, side: Side): string => `${layer} ${page} ${side}`;
const presentKeyOf = (layer: number, page: number, side: Side): string => `${keyOf(layer, page, side)} present`;
const isPresent = (key: string): boolean => key.endsWith(' present');
const pageOfKey = (key: string): number => Number(key.split(' ')[1]);
