/** Signing what a log is now: one checkpoint for each series that has entries. */
import type { KeyObject } from 'node:crypto';
import { join } from 'node:path';
import { readPrivateKey } from '../memory/index.ts';
import { KvError } from '../native/index.ts';
import { signCheckpoint } from './checkpoint.ts';
import { parseEnvelope } from './entry.ts';
import { type LogFiles, nodeFiles } from './files.ts';
import { segmentName } from './segment.ts';
import { listSeries, seriesDir } from './series.ts';
import { type LogEnd, listSegments, type WalkOptions, walkLog } from './walk.ts';

/**
 * Signed checkpoints of all series of the log in `dir`, as it stands: of each, the last segment is read, synced and
 * signed, and a tail that a crash left is not. Somebody may be writing meanwhile. `keyPath`: file of the private key.
 * Throws 'not-found' when there is no entry, 'bad-signature' for what is no private key, 'bad-log', 'io'.
 */
export function signLog(dir: string, keyPath: string): string[];
/** @internal */
export function signLog(dir: string, key: KeyObject, files?: LogFiles): string[];
export function signLog(dir: string, pathOrKey: string | KeyObject, files: LogFiles = nodeFiles): string[] {
  const key = typeof pathOrKey === 'string' ? readPrivateKey(pathOrKey) : pathOrKey;
  const notes: string[] = [];
  for (const series of listSeries(files, dir)) {
    const folder = seriesDir(dir, series);
    if (series > 0 && listSegments(files, folder).length === 0) continue;
    const { end, last } = endOf(files, folder);
    if (end.logId === null || end.tree === null || last === null) continue;
    sync(files, join(folder, segmentName(end.segment)));
    const rootHash = Buffer.from(end.tree.root()).toString('hex');
    notes.push(signCheckpoint({ logId: end.logId, series, size: end.tree.leaves, rootHash, ...last }, key));
  }
  if (notes.length === 0)
    throw new KvError('not-found', `the log in ${dir} has no entry that could be signed`, { values: { dir } });
  return notes;
}

interface Walked {
  readonly end: LogEnd;
  /** Head and time of the last entry that was met. */
  readonly last: { readonly headHash: string; readonly timeMs: number } | null;
}

function endOf(files: LogFiles, folder: string): Walked {
  const walked = walk(files, folder, { fromSeq: Number.POSITIVE_INFINITY, withTree: true });
  if (walked.last !== null && walked.end.tree !== null) return walked;
  // The last segment is of format 1, or has no entry yet.
  return walk(files, folder, { withTree: true });
}

function walk(files: LogFiles, folder: string, options: WalkOptions): Walked {
  const walked = walkLog(files, folder, options);
  let last: Walked['last'] = null;
  for (let step = walked.next(); ; step = walked.next()) {
    if (step.done === true) return { end: step.value, last };
    const { hash, payload } = step.value;
    last = { headHash: Buffer.from(hash).toString('hex'), timeMs: parseEnvelope(payload).timeMs };
  }
}

/** What is signed must survive a power cut, or the log would seem to have lost its end. */
function sync(files: LogFiles, path: string): void {
  const fd = files.openSync(path, 'r');
  try {
    files.fsyncSync(fd);
  } finally {
    files.closeSync(fd);
  }
}
