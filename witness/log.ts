/** Opening a log for writing: options, the lock, the repair of a torn tail, and a first segment where there is none. */
import { randomBytes } from 'node:crypto';
import { dirname, join, resolve } from 'node:path';
import { assert, KvError, syncFolder, writeSynced } from '../native/index.ts';
import { Anchor } from './anchor.ts';
import { NO_HASH } from './chain.ts';
import { type LogFiles, nodeFiles } from './files.ts';
import { checkMasterKey, SessionKeys } from './keys.ts';
import { lockWriter, type WriterLock } from './lock.ts';
import { MaskedLog, maskOf } from './mask.ts';
import { type Recovered, recoverLog } from './recover.ts';
import { badLog, SEGMENT_FILE_BYTES_MAX } from './scan.ts';
import {
  encodeHeader,
  FORMAT_VERSION,
  KEY_ID_BYTES,
  LOG_ID_BYTES,
  NO_KEY,
  type SegmentHeader,
  segmentHash,
  segmentName,
} from './segment.ts';
import { firstSeqOf, SERIES_ENTRIES, SERIES_MAX, seriesDir, seriesName } from './series.ts';
import { Frontier } from './tree.ts';
import { NO_SESSION, type WitnessLog, type WitnessOptions } from './types.ts';
import { listSegments, logIdOf } from './walk.ts';
import { LogWriter, type Settings, type Tip } from './writer.ts';

const SEGMENT_BYTES_MAX = 16 * 1024 * 1024;
const SEGMENT_MS_MAX = 24 * 3600 * 1000;
const BUFFER_BYTES_MAX = 8 * 1024 * 1024;
const COMMIT_INTERVAL_MS = 50;
const BLOCK_MS_MAX = 30_000;
const RETRY_MS = 20;
/** A series with room for no more entries than this is closed, and a new one is begun. */
const SPARE_ENTRIES = 2 ** 28;
const MEASURES = [
  'segmentBytesMax',
  'segmentMsMax',
  'commitIntervalMs',
  'bufferBytesMax',
  'blockMsMax',
  'retryMs',
] as const;
const KEY_ID = /^[0-9a-f]{16}$/;
/** Another writer may be making the first segment, which takes it milliseconds. */
const LOG_ID_WAIT_MS = 2000;
const LOG_ID_PAUSE_MS = 5;

/**
 * Opens a log for writing, creating it when missing: continues the first series in `dir` that no other writer holds, or
 * begins a new one. Repairs a torn tail and records that it did. Throws 'bad-log' (damaged: nothing is appended to a
 * series that does not verify at its end), 'bad-argument', 'io'.
 */
export async function openWitnessLog(options: WitnessOptions): Promise<WitnessLog> {
  const settings = checkOptions(options);
  const mask = maskOf(options.rules ?? []);
  try {
    if (settings.keys !== null) checkMasterKey(settings.dir, settings.files);
    for (let series = options.series ?? 0; series <= (options.series ?? SERIES_MAX - 1); series++) {
      const folder = seriesDir(settings.dir, series);
      settings.files.mkdirSync(folder);
      const lock = lockIfFree(folder);
      if (lock === null) continue;
      try {
        const writer = await openSeries(settings, series, lock);
        if (writer !== null) return mask === null ? writer : new MaskedLog(writer, mask);
        lock.release();
      } catch (error) {
        lock.release();
        throw error;
      }
    }
  } catch (error) {
    throw error instanceof KvError ? error : refusedBy(error, `the log in ${settings.dir} cannot be opened`);
  }
  if (options.series !== undefined)
    throw new KvError(
      'locked',
      `${options.series === 0 ? 'the first series' : seriesName(options.series)} of the log in ${settings.dir} is being written or full`,
      {
        values: { dir: settings.dir, series: options.series },
        hint: 'wait for its writer, or end it',
      },
    );
  throw new KvError('locked', `all ${SERIES_MAX} series of the log in ${settings.dir} are being written or full`, {
    values: { dir: settings.dir, series: SERIES_MAX },
  });
}

function lockIfFree(folder: string): WriterLock | null {
  try {
    return lockWriter(folder);
  } catch (error) {
    if (error instanceof KvError && error.code === 'locked') return null;
    throw error;
  }
}

/** null: the series is full. */
async function openSeries(settings: Settings, series: number, lock: WriterLock): Promise<WitnessLog | null> {
  const { files, dir } = settings;
  const folder = seriesDir(dir, series);
  const recovered = recoverLog(files, folder);
  const logId = series === 0 ? null : await waitForLogId(files, dir);
  if (logId !== null && recovered.end !== null && recovered.end.logId !== logId)
    throw badLog(seriesName(series), 16, null, `it belongs to log ${recovered.end.logId}, the folder to ${logId}`);
  const tip =
    recovered.end === null ? createSeries(settings, folder, series, logId) : continueSeries(recovered, series);
  if (tip.nextSeq - firstSeqOf(series) > SERIES_ENTRIES - SPARE_ENTRIES) return null;
  const writer = new LogWriter(settings, folder, lock, tip);
  const { onNews } = settings;
  settings.anchor?.tell((kind, isAway) => {
    onNews({ what: 'anchor', place: kind, isAway });
    writer.append(NO_SESSION, 'note', { what: 'anchor', kind, isAway });
  });
  if (lock.isTakenOver) onNews({ what: 'taken-over' });
  if (recovered.droppedBytes > 0) {
    onNews({ what: 'repaired', droppedBytes: recovered.droppedBytes });
    writer.append(NO_SESSION, 'recovered', { droppedBytes: recovered.droppedBytes, segment: recovered.segment });
    try {
      await writer.flush();
    } catch (error) {
      await writer.close();
      throw error;
    }
  }
  return writer;
}

/** Every series carries the id that the first one began with. */
async function waitForLogId(files: LogFiles, dir: string): Promise<string> {
  for (let waitedMs = 0; ; waitedMs += LOG_ID_PAUSE_MS) {
    const logId = listSegments(files, dir).length === 0 ? null : logIdOf(files, dir);
    if (logId !== null) return logId;
    if (waitedMs > LOG_ID_WAIT_MS)
      throw new KvError('locked', `the writer that holds the log in ${dir} does not begin it`, { values: { dir } });
    await new Promise((resolve) => setTimeout(resolve, LOG_ID_PAUSE_MS));
  }
}

function checkOptions(options: WitnessOptions): Settings {
  const { dir, files = nodeFiles } = options;
  if (typeof dir !== 'string' || dir === '')
    throw new KvError('bad-argument', 'the log needs a folder', { values: { dir } });
  const anchor = options.anchor === undefined ? null : new Anchor(options.anchor, dir);
  const settings: Settings = {
    dir: options.dir,
    mode: options.mode ?? 'block',
    clock: options.clock ?? Date.now,
    segmentBytesMax: options.segmentBytesMax ?? SEGMENT_BYTES_MAX,
    segmentMsMax: options.segmentMsMax ?? SEGMENT_MS_MAX,
    onSegment: options.onSegment ?? (() => {}),
    onNews: options.onNews ?? (() => {}),
    keyId: options.keyId ?? anchor?.keyId ?? NO_KEY,
    anchor,
    commitIntervalMs: options.commitIntervalMs ?? COMMIT_INTERVAL_MS,
    bufferBytesMax: options.bufferBytesMax ?? BUFFER_BYTES_MAX,
    blockMsMax: options.blockMsMax ?? BLOCK_MS_MAX,
    retryMs: options.retryMs ?? RETRY_MS,
    files,
    keys: options.encrypt === true ? new SessionKeys(files, options.dir) : null,
  };
  if (!['block', 'halt', 'drop'].includes(settings.mode)) {
    throw new KvError('bad-argument', `'${settings.mode}' is not a failure mode`, {
      values: { mode: settings.mode },
      hint: 'use block, halt or drop',
    });
  }
  if (typeof settings.keyId !== 'string' || !KEY_ID.test(settings.keyId))
    throw new KvError('bad-argument', `'${settings.keyId}' is not the id of a key`, {
      values: { keyId: settings.keyId },
      hint: `give ${2 * KEY_ID_BYTES} hex digits`,
    });
  for (const name of MEASURES) {
    const value = settings[name];
    if (!Number.isFinite(value) || value < 0)
      throw new KvError('bad-argument', `${name} must be a number of 0 or more`, { values: { [name]: value } });
  }
  if (settings.segmentBytesMax > SEGMENT_FILE_BYTES_MAX / 2)
    throw new KvError('bad-argument', `segmentBytesMax can be at most ${SEGMENT_FILE_BYTES_MAX / 2}`, {
      values: { segmentBytesMax: settings.segmentBytesMax },
    });
  return settings;
}

function createSeries(settings: Settings, dir: string, series: number, logId: string | null): Tip {
  const { files, keyId, clock } = settings;
  const header: SegmentHeader = {
    version: FORMAT_VERSION,
    logId: logId ?? randomBytes(LOG_ID_BYTES).toString('hex'),
    number: 0,
    firstSeq: firstSeqOf(series),
    previousHash: NO_HASH,
    beganMs: clock(),
    keyId,
    firstSegment: 0,
    leaves: 0,
    peaks: [],
  };
  const bytes = encodeHeader(header);
  syncFoldersAbove(files, dir);
  writeSynced(join(dir, segmentName(0)), bytes, 'wx', files);
  syncFolder(dir, files);
  return {
    id: header.logId,
    series,
    segment: 0,
    offset: bytes.length,
    beganMs: header.beganMs,
    segmentFirstSeq: header.firstSeq,
    firstSegment: 0,
    nextSeq: header.firstSeq,
    headHash: segmentHash(header),
    tree: new Frontier(),
    bytes: bytes.length,
    lastMs: 0,
  };
}

/**
 * The names of new folders are on disk before the first segment is in them. A writer that dies before it leaves none,
 * so the next one does it again.
 */
function syncFoldersAbove(files: LogFiles, dir: string): void {
  for (
    let [below, folder] = [resolve(dir), dirname(resolve(dir))];
    folder !== below;
    [below, folder] = [folder, dirname(folder)]
  ) {
    try {
      syncFolder(folder, files);
    } catch (error) {
      // What we may not even read was not made by us.
      if (!['EACCES', 'EPERM'].includes((error as NodeJS.ErrnoException).code ?? '')) throw error;
    }
  }
}

function continueSeries({ end, bytes, lastMs, firstSegment }: Recovered, series: number): Tip {
  assert(end !== null && end.logId !== null && end.header !== null, 'a recovered log has an id');
  assert(end.tree !== null, 'a recovered log has a tree');
  return {
    id: end.logId,
    series,
    segment: end.segment,
    offset: end.offset,
    beganMs: end.header.version === FORMAT_VERSION ? end.header.beganMs : null,
    segmentFirstSeq: end.header.firstSeq,
    firstSegment,
    nextSeq: end.nextSeq,
    headHash: end.headHash,
    tree: end.tree,
    bytes,
    lastMs,
  };
}

function refusedBy(cause: unknown, what: string): KvError {
  const { code, message } = cause as NodeJS.ErrnoException;
  return new KvError('io', `${what}: ${message}`, {
    values: { code },
    hint: 'check the path, its permissions and the free space',
    cause,
  });
}
