/**
 * Several writers share one log folder. Each has a series of segments of its own, with its own lock and its own hash
 * chain: the first lies in the folder itself, where it always lay, the others in `writer-0001`, `writer-0002` … below
 * it. A writer takes the first series that nobody holds, so a folder has no more of them than there ever were writers
 * at one time.
 *
 * All series carry the id of the log. Seqs of series n count from n · 2^32, so a seq names one entry of the whole log,
 * and the header of a series, which holds its first seq, says which series it is.
 */
import { join } from 'node:path';
import { firstSeqOf, KvError, SERIES_ENTRIES, seriesOf, show } from '../native/index.ts';
import type { LogFiles } from './files.ts';

export { firstSeqOf, SERIES_ENTRIES, seriesOf };

/** Far more writers than a machine can have, and seqs stay below 2^53. */
export const SERIES_MAX = 10_000;

/** Folder of a log in which those who remove segments find each other (`removals.ts`). */
export const REMOVALS_NAME = 'removals';

const SERIES_NAME = /^writer-(\d{4})$/;

export const seriesName = (series: number): string => `writer-${String(series).padStart(4, '0')}`;

export const seriesDir = (logDir: string, series: number): string =>
  series === 0 ? logDir : join(logDir, seriesName(series));

/** Numbers of the series there may be, ascending; 0 always. Throws 'not-found' for what is no folder, 'io'. */
export function listSeries(files: LogFiles, logDir: string): number[] {
  const found = [0];
  for (const name of listFolder(files, logDir)) {
    const number = Number(SERIES_NAME.exec(name)?.[1] ?? 0);
    if (number > 0) found.push(number);
  }
  return found.sort((a, b) => a - b);
}

/** Names in a folder. Throws 'not-found' for what is no folder, 'io'. */
export function listFolder(files: LogFiles, dir: string): string[] {
  try {
    return files.listSync(dir);
  } catch (cause) {
    const { code } = cause as NodeJS.ErrnoException;
    if (code === 'ENOENT' || code === 'ENOTDIR') throw noLog(dir);
    throw new KvError('io', `${dir} cannot be read: ${code}`, { values: { dir, code }, cause });
  }
}

export const noLog = (dir: string): KvError =>
  new KvError('not-found', `there is no witness log in ${dir}`, {
    values: { dir },
    hint: 'run something first, or name the right state folder',
  });

/** How a person reads and types the id of an entry: '17', and '2:17' in the series of a second or later writer. */
export const entryId = (seq: number): string =>
  seq < SERIES_ENTRIES ? String(seq) : `${seriesOf(seq)}:${seq % SERIES_ENTRIES}`;

/** Throws 'bad-argument' for what no entry has. */
export function checkSeq(seq: number): void {
  if (!Number.isSafeInteger(seq) || seq < 0)
    throw new KvError('bad-argument', `'${show(seq)}' is not the id of an entry`, {
      values: { seq: show(seq) },
      hint: 'ids are the seq numbers that `audit list` shows',
    });
}

/** The seq that was typed, as `entryId` prints it or as the plain number. Throws 'bad-argument'. */
export function parseEntryId(typed: string): number {
  const [, series = '0', entry = ''] = /^(?:(\d{1,4}):)?(\d{1,16})$/.exec(typed) ?? [];
  const seq = firstSeqOf(Number(series)) + Number(entry);
  if (entry === '' || !Number.isSafeInteger(seq) || (typed.includes(':') && Number(entry) >= SERIES_ENTRIES)) {
    throw new KvError('bad-argument', `'${typed}' is not the id of an entry`, {
      values: { id: typed },
      hint: 'ids are what the first column of audit list shows, such as 17 or 2:17',
    });
  }
  return seq;
}
