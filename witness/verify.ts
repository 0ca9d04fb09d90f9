/**
 * Is the log what was written? Every byte of every segment counts: magic, version, reserved bytes, ids, CRCs, lengths,
 * seqs without gaps, the hash chain through all segments, and the one canonical spelling of every entry.
 */
import { KvError } from '../native/index.ts';
import { NO_HASH } from './chain.ts';
import { isCanonical, parsePayload } from './entry.ts';
import { type LogFiles, nodeFiles } from './files.ts';
import { badLog } from './scan.ts';
import type { VerifyReport } from './types.ts';
import { listSegments, walkLog } from './walk.ts';

/**
 * Never throws for damage: the report holds the first problem. Throws 'not-found' when there is no log in `dir`, 'io' when it cannot be read.
 * A cut exactly between two entries at the end is not visible from the log alone; it needs a head kept elsewhere.
 */
export function verifyLog(dir: string, files: LogFiles = nodeFiles): VerifyReport {
  let entries = 0;
  let logId: string | null = null;
  let headHash: Uint8Array = NO_HASH;
  try {
    const walk = walkLog(files, dir);
    for (let step = walk.next(); ; step = walk.next()) {
      if (step.done) {
        const { segments, tornBytes } = step.value;
        return {
          ok: true,
          logId: step.value.logId,
          segments,
          entries,
          headHash: Buffer.from(step.value.headHash).toString('hex'),
          problem: null,
          tornBytes,
        };
      }
      const { segment, offset, seq, payload } = step.value;
      const entry = parseHere(segment, offset, seq, payload);
      if (entry.seq !== seq) throw badLog(segment, offset, seq, `the entry says it is ${entry.seq}`);
      if (!isCanonical(payload, entry)) throw badLog(segment, offset, seq, 'the entry is not spelled canonically');
      entries++;
      ({ logId, hash: headHash } = step.value);
    }
  } catch (error) {
    if (!(error instanceof KvError) || error.code !== 'bad-log') throw error;
    const { segment, offset, seq } = error.values;
    return {
      ok: false,
      logId,
      segments: listSegments(files, dir).length,
      entries,
      headHash: Buffer.from(headHash).toString('hex'),
      problem: {
        segment: String(segment),
        offset: Number(offset),
        seq: typeof seq === 'number' ? seq : null,
        what: error.message,
      },
      tornBytes: 0,
    };
  }
}

function parseHere(segment: string, offset: number, seq: number, payload: Uint8Array): ReturnType<typeof parsePayload> {
  try {
    return parsePayload(payload);
  } catch (error) {
    throw badLog(segment, offset, seq, (error as Error).message);
  }
}
