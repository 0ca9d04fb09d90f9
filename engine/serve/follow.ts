/**
 * Follows a log that somebody writes, in a thread of its own: reads it to its end, again whenever its files have grown,
 * and answers questions about it. Nothing here writes, and a writer is never waited for.
 */
import { readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { KvError } from '../../native/index.ts';
import {
  type DecisionFilter,
  type DecisionRow,
  decisionRow,
  type Entry,
  entryId,
  explain,
  isLocked,
  isLogDir,
  openLogQuery,
  parseEntryId,
  type ReadOptions,
  readLog,
  seriesDir,
  seriesOf,
  sessionMap,
  verifyLog,
} from '../../witness/index.ts';
import type { Page } from './answers.ts';
import { KNOWN_VALUES, unknownValue } from './known-values.ts';
import { LogView } from './log-view.ts';
import type { TopPool, TopRow } from './page/snapshot.ts';
import { TopView } from './top-view.ts';

/** The log is looked at so often. Its writers sync every 50 ms; a person does not notice this much. */
const LOOK_MS = 200;
/** Entries that are taken before questions get their turn. */
const AT_ONCE = 1000;

/** A decision as the stream tells it: `id` says how far the log was told with it. */
export interface ToldDecision {
  readonly id: string;
  readonly row: DecisionRow;
}

/** How far a log was told: the highest seq of each series. A series that is not in it began later. */
class Place {
  readonly #seqs: Map<number, number>;

  constructor(seqs: Iterable<number> = []) {
    this.#seqs = new Map([...seqs].map((seq) => [seriesOf(seq), seq]));
  }

  /** Reads what `id` wrote. Throws 'bad-argument'. */
  static parse(text: string): Place {
    return new Place(text === 'start' ? [] : text.split(',').map(parseEntryId));
  }

  pass(seq: number): void {
    this.#seqs.set(seriesOf(seq), seq);
  }

  holds(seq: number): boolean {
    return seq <= (this.#seqs.get(seriesOf(seq)) ?? -1);
  }

  get seqs(): number[] {
    return [...this.#seqs.values()];
  }

  get id(): string {
    return this.seqs.length === 0 ? 'start' : this.seqs.map(entryId).join(',');
  }

  /** Where reading goes on. */
  get from(): number[] {
    return this.seqs.map((seq) => seq + 1);
  }
}

/** What the thread can be asked. Answers are plain data. */
export class Follower {
  readonly #dir: string;
  readonly #onDecisions: (decisions: readonly ToldDecision[]) => void;
  #view = new LogView();
  #top = new TopView();
  #place = new Place();
  #files: ReadonlyMap<string, SeenFile> = new Map();
  #problem: unknown = null;
  #isWatched = false;
  #closed = false;
  /** Resolves when the log was read to its end once, whatever was found; null: nobody has asked for it yet. */
  #ready: Promise<void> | null = null;

  /** `onDecisions` is told of new decisions while somebody watches. */
  constructor(dir: string, onDecisions: (decisions: readonly ToldDecision[]) => void) {
    this.#dir = dir;
    this.#onDecisions = onDecisions;
  }

  close(): void {
    this.#closed = true;
  }

  async metrics(): Promise<string> {
    return (await this.#now()).metrics();
  }

  async sessions({ limit, cursor }: { limit: number; cursor?: string }): Promise<unknown> {
    return (await this.#now()).sessions(limit, cursor);
  }

  async memory({ limit, cursor }: { limit: number; cursor?: string }): Promise<unknown> {
    return (await this.#now()).memory(limit, cursor);
  }

  async quality({ limit, cursor }: { limit: number; cursor?: string }): Promise<unknown> {
    return (await this.#now()).quality(limit, cursor);
  }

  /** Sessions that are open, and the pools that they share. */
  async top({ nowMs }: { nowMs: number }): Promise<{ readonly sessions: TopRow[]; readonly pools: TopPool[] }> {
    await this.#now();
    const written = new Map<number, boolean>();
    const isWritten = (series: number): boolean => {
      const known = written.get(series) ?? isLocked(seriesDir(this.#dir, series));
      written.set(series, known);
      return known;
    };
    return { sessions: this.#top.rows(nowMs, isWritten), pools: this.#top.pools(isWritten) };
  }

  /** What the pages of a session are in. */
  async map({ session }: { session: string }): Promise<unknown> {
    // Says of a session that is not there, or cannot be opened, what is known of it.
    (await this.#now()).session(session);
    return sessionMap(this.#dir, session);
  }

  async session({ session }: { session: string }): Promise<unknown> {
    return (await this.#now()).session(session);
  }

  async decisions({
    cursor,
    ...filter
  }: DecisionFilter & { readonly limit: number; readonly cursor?: string }): Promise<Page<DecisionRow>> {
    const before = cursor === undefined ? {} : { beforeSeq: parseEntryId(cursor) };
    const query = openLogQuery(this.#dir);
    const rows = await query.decisions({ ...filter, ...before });
    const { reason } = filter;
    if (rows.length === 0 && reason !== undefined && !(KNOWN_VALUES.reason as readonly string[]).includes(reason)) {
      const others = await query.decisions({ reason, limit: 1 });
      if (others.length === 0) throw unknownValue('reason', reason, KNOWN_VALUES.reason);
    }
    return { rows, next: rows.length < filter.limit ? null : entryId(rows.at(-1)!.seq) };
  }

  async explain({ id }: { id: string }): Promise<unknown> {
    // Deciding a session again some times would keep others waiting.
    return explain(this.#dir, parseEntryId(id), { without: false });
  }

  async verify(): Promise<unknown> {
    return { checkedMs: Date.now(), report: verifyLog(this.#dir) };
  }

  /**
   * Decisions behind a place in the log (null: where it is now), `limit` at most, and no further than `onDecisions` was
   * told. With `isLive` this was all, and what follows is told by `onDecisions` alone: nothing is missing between the
   * two, and nothing comes twice.
   */
  async after({ id, limit, session }: { id: string | null; limit: number; session?: string }): Promise<{
    readonly decisions: readonly ToldDecision[];
    readonly id: string;
    readonly isLive: boolean;
  }> {
    await this.#now();
    this.#isWatched = true;
    if (id === null) return { decisions: [], id: this.#place.id, isLive: true };
    const place = Place.parse(id);
    const unknown = place.seqs.find((seq) => !this.#place.holds(seq));
    if (unknown !== undefined)
      throw new KvError('not-found', `the log has no entry ${entryId(unknown)} yet`, { values: { after: id } });
    const decisions: ToldDecision[] = [];
    const options: ReadOptions = {
      from: place.from,
      kinds: ['decision'],
      ...(session === undefined ? {} : { session }),
    };
    for (const entry of readLog(this.#dir, options)) {
      if (!this.#place.holds(entry.seq)) continue;
      place.pass(entry.seq);
      decisions.push({ id: place.id, row: decisionRow(entry as Entry<'decision'>) });
      if (decisions.length === limit) return { decisions, id: place.id, isLive: false };
    }
    return { decisions, id: this.#place.id, isLive: true };
  }

  /** Nobody is told of new decisions any more. */
  async unwatch(): Promise<void> {
    this.#isWatched = false;
  }

  /** The view when the log was read to its end. Throws what reading it threw last. */
  async #now(): Promise<LogView> {
    if (this.#ready === null) {
      this.#ready = this.#look();
      void this.#ready.then(() => this.#follow());
    }
    await this.#ready;
    if (this.#problem !== null) throw this.#problem;
    return this.#view;
  }

  async #follow(): Promise<void> {
    while (!this.#closed) {
      await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
      await this.#look();
    }
  }

  /**
   * Takes what is new. A log that cannot be read is tried again when its files have changed. Another log in the place
   * of the one that was read, an older copy of it too, is read from its beginning.
   */
  async #look(): Promise<void> {
    try {
      const files = filesIn(this.#dir);
      if (isReplaced(this.#files, files)) this.#forget();
      if (isSame(this.#files, files)) return;
      await this.#take();
      this.#files = files;
      this.#problem = null;
    } catch (error) {
      if (!isLogDir(this.#dir)) this.#forget();
      this.#problem = error;
    }
  }

  #forget(): void {
    this.#view = new LogView();
    this.#top = new TopView();
    this.#place = new Place();
    this.#files = new Map();
  }

  async #take(): Promise<void> {
    let decisions: ToldDecision[] = [];
    const tell = (): void => {
      if (this.#isWatched && decisions.length > 0) this.#onDecisions(decisions);
      decisions = [];
    };
    let taken = 0;
    try {
      const onUnopened: ReadOptions['onUnopened'] = (session, why) => {
        this.#view.unopened(session, why);
        this.#top.forget(session);
      };
      for (const entry of readLog(this.#dir, { from: this.#place.from, onUnopened })) {
        this.#place.pass(entry.seq);
        const row = this.#view.add(entry);
        this.#top.add(entry);
        if (row !== null && this.#isWatched) decisions.push({ id: this.#place.id, row });
        if (++taken % AT_ONCE !== 0) continue;
        tell();
        await new Promise((resolve) => setImmediate(resolve));
        if (this.#closed) return;
      }
    } finally {
      tell();
    }
  }
}

interface SeenFile {
  readonly inode: number;
  readonly bytes: number;
}

/** The files of a log. Throws 'not-found' where there is none. */
function filesIn(dir: string): Map<string, SeenFile> {
  if (!isLogDir(dir))
    throw new KvError('not-found', `there is no log in ${dir} any more`, {
      values: { dir },
      hint: 'it is read again as soon as there is one',
    });
  const names = readdirSync(dir, { recursive: true, encoding: 'utf8' });
  return new Map(
    names.map((name) => {
      const { ino = 0, size = 0 } = statSync(join(dir, name), { throwIfNoEntry: false }) ?? {};
      return [name, { inode: ino, bytes: size }];
    }),
  );
}

/** True if nothing was written. */
const isSame = (seen: ReadonlyMap<string, SeenFile>, now: ReadonlyMap<string, SeenFile>): boolean =>
  seen.size === now.size &&
  [...now].every(([name, { inode, bytes }]) => seen.get(name)?.inode === inode && seen.get(name)?.bytes === bytes);

/** True if a segment is not the file that it was: writers add to segments and remove them, and do nothing else. */
const isReplaced = (seen: ReadonlyMap<string, SeenFile>, now: ReadonlyMap<string, SeenFile>): boolean =>
  [...seen].some(([name, { inode, bytes }]) => {
    const file = now.get(name);
    return name.endsWith('.wal') && file !== undefined && (file.inode !== inode || file.bytes < bytes);
  });
