/** Opening a log for writing: options, the lock, the repair of a torn tail, and a first segment where there is none. */
import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { assert, KvError, syncFolder, writeSynced } from '../native/index.ts';
import { NO_HASH } from './chain.ts';
import { type LogFiles, nodeFiles } from './files.ts';
import { lockWriter, type WriterLock } from './lock.ts';
import { type Recovered, recoverLog } from './recover.ts';
import { encodeHeader, LOG_ID_BYTES, type SegmentHeader, segmentHash, segmentName } from './segment.ts';
import { NO_SESSION, type WitnessLog, type WitnessOptions } from './types.ts';
import { LogWriter, type Settings, type Tip } from './writer.ts';

const SEGMENT_BYTES_MAX = 16 * 1024 * 1024;
const BUFFER_BYTES_MAX = 8 * 1024 * 1024;
const COMMIT_INTERVAL_MS = 50;
const BLOCK_MS_MAX = 30_000;
const RETRY_MS = 20;
/**
 * Opens the log in `dir` for writing, creating it when missing; repairs a torn tail and records that it did.
 * Throws 'locked' (another writer), 'bad-log' (damaged: nothing is appended to a log that does not verify at its end),
 * 'bad-argument', 'io'.
 */
export async function openWitnessLog(options: WitnessOptions): Promise<WitnessLog> {
  const settings = checkOptions(options);
  const { files, dir } = settings;
  let lock: WriterLock | null = null;
  try {
    files.mkdirSync(dir);
    lock = lockWriter(dir);
    const recovered = recoverLog(files, dir);
    const writer = new LogWriter(
      settings,
      lock,
      recovered.end === null ? createLog(files, dir) : continueLog(recovered),
    );
    if (recovered.droppedBytes > 0) {
      writer.append(NO_SESSION, 'recovered', { droppedBytes: recovered.droppedBytes, segment: recovered.segment });
      try {
        await writer.flush();
      } catch (error) {
        await writer.close();
        throw error;
      }
    }
    return writer;
  } catch (error) {
    lock?.release();
    throw error instanceof KvError ? error : refusedBy(error, `the log in ${dir} cannot be opened`);
  }
}

function checkOptions(options: WitnessOptions): Settings {
  const settings: Settings = {
    dir: options.dir,
    mode: options.mode ?? 'block',
    clock: options.clock ?? Date.now,
    segmentBytesMax: options.segmentBytesMax ?? SEGMENT_BYTES_MAX,
    commitIntervalMs: options.commitIntervalMs ?? COMMIT_INTERVAL_MS,
    bufferBytesMax: options.bufferBytesMax ?? BUFFER_BYTES_MAX,
    blockMsMax: options.blockMsMax ?? BLOCK_MS_MAX,
    retryMs: options.retryMs ?? RETRY_MS,
    files: options.files ?? nodeFiles,
  };
  if (typeof settings.dir !== 'string' || settings.dir === '')
    throw new KvError('bad-argument', 'the log needs a folder', { values: { dir: settings.dir } });
  if (!['block', 'halt', 'drop'].includes(settings.mode)) {
    throw new KvError('bad-argument', `'${settings.mode}' is not a failure mode`, {
      values: { mode: settings.mode },
      hint: 'use block, halt or drop',
    });
  }
  for (const name of ['segmentBytesMax', 'commitIntervalMs', 'bufferBytesMax', 'blockMsMax', 'retryMs'] as const) {
    const value = settings[name];
    if (!Number.isFinite(value) || value < 0)
      throw new KvError('bad-argument', `${name} must be a number of 0 or more`, { values: { [name]: value } });
  }
  return settings;
}

function createLog(files: LogFiles, dir: string): Tip {
  const header: SegmentHeader = {
    logId: randomBytes(LOG_ID_BYTES).toString('hex'),
    number: 0,
    firstSeq: 0,
    previousHash: NO_HASH,
  };
  const bytes = encodeHeader(header);
  writeSynced(join(dir, segmentName(0)), bytes, 'wx', files);
  syncFolder(dir, files);
  return {
    id: header.logId,
    segment: 0,
    offset: bytes.length,
    nextSeq: 0,
    headHash: segmentHash(header),
    bytes: bytes.length,
  };
}

function continueLog({ end, bytes }: Recovered): Tip {
  assert(end !== null && end.logId !== null, 'a recovered log has an id');
  return {
    id: end.logId,
    segment: end.segment,
    offset: end.offset,
    nextSeq: end.nextSeq,
    headHash: end.headHash,
    bytes,
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
