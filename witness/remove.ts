/** Removing the oldest segments of a series: an entry of the log says so first, then the files go, oldest first. */
import { join } from 'node:path';
import { KvError, syncFolder } from '../native/index.ts';
import type { LogFiles } from './files.ts';
import { badLog, SegmentFile } from './scan.ts';
import { segmentName } from './segment.ts';
import type { RetentionBody } from './types.ts';
import { listSegments } from './walk.ts';

/**
 * What removing all segments before `firstSegment` means; null where there are none. `current` is the one that is being
 * written. Throws 'bad-argument' where the new first segment would not say what the chain and the tree before it were,
 * 'bad-log' where its header is damaged.
 */
export function planRemoval(
  files: LogFiles,
  dir: string,
  firstSegment: number,
  current: number,
): { readonly body: RetentionBody; readonly numbers: readonly number[] } | null {
  if (!Number.isSafeInteger(firstSegment) || firstSegment < 0 || firstSegment > current)
    throw new KvError('bad-argument', `segments before ${firstSegment} cannot be removed`, {
      values: { firstSegment, current },
      hint: `give a number of at most ${current}, the segment that is being written`,
    });
  const numbers = listSegments(files, dir).filter((number) => number < firstSegment);
  if (numbers.length === 0) return null;
  const { header } = headOf(files, dir, firstSegment);
  if (typeof header === 'string') throw badLog(segmentName(firstSegment), 0, null, header);
  if (header.version === 1)
    throw new KvError(
      'bad-argument',
      `${segmentName(firstSegment)} is of format 1, which can only follow all before it`,
      {
        values: { firstSegment },
        hint: 'keep the last segment of format 1, or give a later one',
      },
    );
  const bytes = numbers.reduce((sum, number) => sum + headOf(files, dir, number).size, 0);
  return { numbers, body: { firstSegment, firstSeq: header.firstSeq, segments: numbers.length, bytes } };
}

/** Unlinks these segments in order, so that whatever a crash leaves is a series without gaps. */
export function removeFiles(files: LogFiles, dir: string, numbers: readonly number[]): void {
  for (const number of numbers) {
    files.unlinkSync(join(dir, segmentName(number)));
    // The next may only go when this one is gone for good: a power cut keeps some names and loses others.
    syncFolder(dir, files);
  }
}

function headOf(
  files: LogFiles,
  dir: string,
  number: number,
): { size: number; header: ReturnType<SegmentFile['header']> } {
  const segment = new SegmentFile(files, dir, number);
  try {
    return { size: segment.size, header: segment.header() };
  } finally {
    segment.close();
  }
}
