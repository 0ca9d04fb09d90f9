/**
 * Who reads which text from its beginning just now, and who waits for pages of it: a text with which several sessions
 * begin at once is read once. Whoever waits does so for one that reads the same pages and is taken before it in the
 * line of those that read (by priority, and with as much weight), so that it has them no later than it would have read
 * them; and only as long as that one reads.
 */
import type { Session } from './session.ts';

/** The beginning of a session that has none yet. */
export interface Text {
  readonly session: Session;
  readonly ids: readonly number[];
  /** Of its full pages. */
  readonly digests: readonly string[];
}

interface Waiting {
  readonly text: Text;
  /** For whom it waits, until that one has so many pages. */
  reader: Session;
  pages: number;
  readonly end: (foundTokens: number) => void;
}

interface Parts {
  /** Takes pages that others hold for a session which reads the rest. → tokens */
  readonly begin: (text: Text) => number;
  /** Pages of a text that others hold now for a session. */
  readonly foundPages: (text: Text) => number;
}

export class Readings {
  readonly #parts: Parts;
  readonly #reading = new Map<Session, Text>();
  /** Those that came first are first. */
  readonly #waiting = new Map<Session, Waiting>();

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  /** How many wait for pages that others read. */
  get waiting(): number {
    return this.#waiting.size;
  }

  /**
   * A session begins: with pages that others hold, once nobody reads more of its text for it. From then on it reads
   * the rest, until `ended`. → tokens that it begins with
   */
  begin(text: Text, signal: AbortSignal | undefined): Promise<number> | number {
    const ahead = this.#ahead(text);
    if (ahead === null) return this.#reads(text);
    return new Promise((resolve) => {
      const abort = (): void => this.drop(text.session);
      const end = (foundTokens: number): void => {
        signal?.removeEventListener('abort', abort);
        resolve(foundTokens);
      };
      this.#waiting.set(text.session, { text, ...ahead, end });
      signal?.addEventListener('abort', abort, { once: true });
      if (signal?.aborted === true) abort();
    });
  }

  #reads(text: Text): number {
    const foundTokens = this.#parts.begin(text);
    this.#reading.set(text.session, text);
    return foundTokens;
  }

  /** Who reads most of a text for a session, and how many of its pages; null: nobody more than others hold now. */
  #ahead(text: Text): Pick<Waiting, 'reader' | 'pages'> | null {
    let most: Pick<Waiting, 'reader' | 'pages'> | null = null;
    for (const { session: reader, digests } of this.#reading.values()) {
      const pages = alike(digests, text.digests);
      if (pages <= (most?.pages ?? 0) || pages <= sealedBy(reader) || !readsFor(reader, text.session)) continue;
      most = { reader, pages };
    }
    return most !== null && most.pages > this.#parts.foundPages(text) ? most : null;
  }

  /** A pass is over: pages may have been sealed for which others wait. */
  stepped(): void {
    if (this.#waiting.size > 0) this.#settle(({ reader, pages }) => sealedBy(reader) >= pages);
  }

  /**
   * A session reads its text no further, or waits for something else: whoever waits for it begins with what it has, or
   * waits for another one.
   */
  ended(session: Session): void {
    if (this.#reading.delete(session)) this.#settle(({ reader }) => reader === session);
  }

  /** A session waits no longer, since its call is aborted or it is closed. */
  drop(session: Session): void {
    const waiting = this.#waiting.get(session);
    this.#waiting.delete(session);
    waiting?.end(0);
  }

  #settle(isDue: (waiting: Waiting) => boolean): void {
    for (const waiting of [...this.#waiting.values()].filter(isDue)) {
      const { text, end } = waiting;
      const ahead = this.#ahead(text);
      if (ahead !== null) Object.assign(waiting, ahead);
      else {
        this.#waiting.delete(text.session);
        end(this.#reads(text));
      }
    }
  }
}

/** Pages that a session has in all layers. */
const sealedBy = ({ governed: { kv, shape } }: Session): number => kv.table(shape.layers - 1).pages;

/** True if one session is taken no later than another one, and the other can hold pages together with it. */
function readsFor(reader: Session, other: Session): boolean {
  const { sharedTerms, formats } = other.governed;
  const { governed, client, isClosed } = reader;
  if (reader === other || isClosed || governed.hasFailed) return false;
  if (client.priority > other.client.priority || client.weight < other.client.weight) return false;
  const { window, open } = governed.formats;
  return (
    sharedTerms !== null && governed.sharedTerms === sharedTerms && window === formats.window && open === formats.open
  );
}

/** Pages that two texts have in common, from the first on. */
function alike(a: readonly string[], b: readonly string[]): number {
  let pages = 0;
  while (pages < a.length && pages < b.length && a[pages] === b[pages]) pages++;
  return pages;
}
