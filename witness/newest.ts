/**
 * Reads a log from its end: the newest entries first, as lists want them. A chain can only be checked forwards, so
 * segments are taken from the last one on, one, two, four … at a time, and each stretch is read front to back. Times
 * never fall within a series, so segments that are too young are passed over, and too old ones end the search.
 */
import { nodeFiles } from './files.ts';
import { readSeries, type SeriesPart, timeAt } from './read.ts';
import { SegmentFile } from './scan.ts';
import { listSeries, seriesDir } from './series.ts';
import type { Entry } from './types.ts';
import { listSegments } from './walk.ts';

/** What is wanted of entries, newest first. */
export interface NewestPart<T> extends Pick<SeriesPart, 'session' | 'kinds' | 'files' | 'onUnopened' | 'onSenseless'> {
  /** What an entry gives; null: nothing. */
  readonly pick: (entry: Entry) => T | null;
  /** True for an entry before which nothing more can be wanted of its series. */
  readonly isFirst?: (entry: Entry) => boolean;
  /** Most results. */
  readonly limit: number;
  /** Nothing before this time is wanted. */
  readonly fromMs?: number | undefined;
  /** Nothing after this time is wanted. */
  readonly toMs?: number | undefined;
}

/** The newest results of all series, newest first: of equal times the higher seq. Throws what `readLog` throws. */
export function newestOf<T extends { readonly seq: number; readonly timeMs: number }>(
  dir: string,
  part: NewestPart<T>,
): T[] {
  const { files = nodeFiles, limit } = part;
  let found: T[] = [];
  for (const series of listSeries(files, dir)) {
    // What is older than all that was found already is not looked for in other series.
    const oldestMs = found.length < limit ? part.fromMs : Math.max(part.fromMs ?? 0, found[limit - 1]!.timeMs);
    const own = newestIn(dir, series, { ...part, fromMs: oldestMs });
    found = [...found, ...own].sort((a, b) => b.timeMs - a.timeMs || b.seq - a.seq).slice(0, limit);
  }
  return found;
}

/** The newest results of one series, newest first. */
function newestIn<T>(dir: string, series: number, part: NewestPart<T>): T[] {
  const { pick, isFirst, limit, fromMs, toMs, files = nodeFiles, ...read } = part;
  const starts = segmentStarts(dir, series, files);
  let end = toMs === undefined ? starts.length : youngestEnd(starts, (seq) => (timeAt(dir, seq, files) ?? 0) <= toMs);
  const found: T[] = [];
  for (let size = 1; end > 0 && found.length < limit; size *= 2) {
    const begin = Math.max(0, end - size);
    const to = starts[end] ?? Number.POSITIVE_INFINITY;
    const wanted = limit - found.length;
    let stretch: T[] = [];
    let isOver = false;
    for (const entry of readSeries(dir, series, { ...read, from: starts[begin]!, to, files })) {
      isOver ||= isFirst?.(entry) ?? false;
      const result = pick(entry);
      if (result !== null) stretch.push(result);
      if (stretch.length >= 2 * wanted) stretch = stretch.slice(-wanted);
    }
    found.push(...stretch.slice(-wanted).reverse());
    if (isOver || (fromMs !== undefined && (timeAt(dir, starts[begin]!, files) ?? 0) < fromMs)) break;
    end = begin;
  }
  return found;
}

/** How many of these there are that begin early enough, which the first ones do; at least one, if there is any. */
function youngestEnd(starts: readonly number[], isEarly: (seq: number) => boolean): number {
  let [least, most] = [Math.min(1, starts.length), starts.length];
  while (least < most) {
    const middle = Math.ceil((least + most) / 2);
    if (isEarly(starts[middle - 1]!)) least = middle;
    else most = middle - 1;
  }
  return least;
}

/** Seq of the first entry of each segment of a series, as far as their headers are there. */
function segmentStarts(dir: string, series: number, files: typeof nodeFiles): number[] {
  const folder = seriesDir(dir, series);
  return listSegments(files, folder).flatMap((number) => {
    const segment = new SegmentFile(files, folder, number);
    try {
      const header = segment.header();
      return typeof header === 'string' ? [] : [header.firstSeq];
    } finally {
      segment.close();
    }
  });
}
