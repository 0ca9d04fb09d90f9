/**
 * Where evidence stands: stretches of series of logs. Whoever joins what several machines learned compares them, so that
 * the same sessions are not counted twice.
 */
import type { LogRange } from '../policy/index.ts';

/** Seqs that each writer of a log has for himself. */
const WRITER_SEQS = 2 ** 32;

export const writerOf = (seq: number): number => Math.floor(seq / WRITER_SEQS);

/** For each writer of a log, all that he wrote up to his last entry among `seqs`. */
export function rangesOf(logId: string, seqs: Iterable<number>): LogRange[] {
  const last = new Map<number, number>();
  for (const seq of seqs) last.set(writerOf(seq), Math.max(seq, last.get(writerOf(seq)) ?? 0));
  return joinRanges([...last].map(([writer, to]) => ({ logId, from: writer * WRITER_SEQS, to })));
}

/** Ascending, with those that overlap or touch made one. */
export function joinRanges(ranges: readonly LogRange[]): LogRange[] {
  const joined: LogRange[] = [];
  for (const { logId, from, to } of [...ranges].sort(compareRanges)) {
    const last = joined.at(-1);
    // The first entry of a writer touches the last possible one of the writer before, but belongs to another series.
    const isNext =
      last?.logId === logId && (from <= last.to || (from === last.to + 1 && writerOf(from) === writerOf(last.to)));
    if (last !== undefined && isNext) joined[joined.length - 1] = { ...last, to: Math.max(last.to, to) };
    else joined.push({ logId, from, to });
  }
  return joined;
}

export const compareRanges = (a: LogRange, b: LogRange): number =>
  a.logId < b.logId ? -1 : a.logId > b.logId ? 1 : a.from - b.from || a.to - b.to;

/** Whether all that stands in `inner` stands in `outer` too. */
export function covers(outer: readonly LogRange[], inner: readonly LogRange[]): boolean {
  const wide = joinRanges(outer);
  return inner.every((one) =>
    wide.some(({ logId, from, to }) => logId === one.logId && from <= one.from && one.to <= to),
  );
}

/** Whether any entry stands in both. */
export const overlap = (a: readonly LogRange[], b: readonly LogRange[]): boolean =>
  a.some((one) => b.some(({ logId, from, to }) => logId === one.logId && from <= one.to && one.from <= to));
