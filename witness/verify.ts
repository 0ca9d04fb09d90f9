/**
 * Is the log what was written? Every byte of every segment counts: magic, version, reserved bytes, ids, CRCs, lengths,
 * seqs without gaps, the hash chain through all segments, and the one canonical spelling of every entry.
 */
import { KvError } from '../native/index.ts';
import { HASH_BYTES } from './chain.ts';
import { isCanonical, parsePayload } from './entry.ts';
import { type LogFiles, nodeFiles } from './files.ts';
import { badLog } from './scan.ts';
import type { VerifyReport } from './types.ts';
import { walkLog } from './walk.ts';

/**
 * Never throws for damage: the report holds the first problem. Throws 'not-found' when there is no log in `dir`, 'io' when it cannot be read.
 * A cut exactly between two entries at the end is not visible from the log alone; it needs a head kept elsewhere.
 */
export function verifyLog(dir: string, files: LogFiles = nodeFiles): VerifyReport {
  let entries = 0;
  try {
    const walk = walkLog(files, dir);
    for (let step = walk.next(); ; step = walk.next()) {
      if (step.done) {
        const { logId, segments, headHash, tornBytes } = step.value;
        return {
          ok: true,
          logId,
          segments,
          entries,
          headHash: Buffer.from(headHash).toString('hex'),
          problem: null,
          tornBytes,
        };
      }
      const { segment, offset, seq, payload } = step.value;
      const entry = parseHere(segment, offset, seq, payload);
      if (entry.seq !== seq) throw badLog(segment, offset, seq, `the entry says it is ${entry.seq}`);
      if (!isCanonical(payload, entry)) throw badLog(segment, offset, seq, 'the entry is not spelled canonically');
      entries++;
    }
  } catch (error) {
    if (!(error instanceof KvError) || error.code !== 'bad-log') throw error;
    const { segment, offset, seq } = error.values;
    return {
      ok: false,
      logId: null,
      segments: 0,
      entries,
      headHash: Buffer.alloc(HASH_BYTES).toString('hex'),
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
