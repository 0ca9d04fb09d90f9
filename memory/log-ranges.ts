/**
 * Where evidence stands: stretches of series of logs. Whoever joins what several machines learned compares them, so
 * that the same sessions are not counted twice.
 */
import { firstSeqOf, seriesOf } from '../native/index.ts';
import type { LogRange } from '../policy/index.ts';

/** For each writer of a log, all that he wrote up to his last entry among `seqs`. */
export function rangesOf(logId: string, seqs: Iterable<number>): LogRange[] {
  const last = new Map<number, number>();
  for (const seq of seqs) last.set(seriesOf(seq), Math.max(seq, last.get(seriesOf(seq)) ?? 0));
  return joinRanges([...last].map(([writer, to]) => ({ logId, from: firstSeqOf(writer), to })));
}

/** Ascending, with those that overlap or touch made one. */
export function joinRanges(ranges: readonly LogRange[]): LogRange[] {
  const joined: LogRange[] = [];
  for (const { logId, from, to } of [...ranges].sort(compareRanges)) {
    const last = joined.at(-1);
    // The first entry of a writer touches the last possible one of the writer before, but belongs to another series.
    const isNext =
      last?.logId === logId && (from <= last.to || (from === last.to + 1 && seriesOf(from) === seriesOf(last.to)));
    if (last !== undefined && isNext) joined[joined.length - 1] = { ...last, to: Math.max(last.to, to) };
    else joined.push({ logId, from, to });
  }
  return joined;
}

export const compareRanges = (a: LogRange, b: LogRange): number =>
  a.logId < b.logId ? -1 : a.logId > b.logId ? 1 : a.from - b.from || a.to - b.to;

/** True if all that stands in `inner` stands in `outer` too. */
export function covers(outer: readonly LogRange[], inner: readonly LogRange[]): boolean {
  const wide = joinRanges(outer);
  return inner.every((one) =>
    wide.some(({ logId, from, to }) => logId === one.logId && from <= one.from && one.to <= to),
  );
}

/** True if any entry stands in both. */
export const overlap = (a: readonly LogRange[], b: readonly LogRange[]): boolean =>
  a.some((one) => b.some(({ logId, from, to }) => logId === one.logId && from <= one.to && one.from <= to));
