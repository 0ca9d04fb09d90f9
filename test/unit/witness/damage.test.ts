// Damage that only somebody makes who knows the format: headers and entries whose checksums and hashes are right and
// which say what no writer says. Each is found at its place, with the binary and without it, and a proof is never made
// from it.
import { generateKeyPairSync } from 'node:crypto';
import { mkdirSync, readdirSync, readFileSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { crc32 } from 'node:zlib';
import { afterEach, describe, expect, it, test } from 'vitest';
import { useEntriesBinary } from '../../../native/entries.ts';
import { Batch, type ChainEnd } from '../../../witness/batch.ts';
import { signCheckpoint } from '../../../witness/checkpoint.ts';
import { crc32c } from '../../../witness/crc32c.ts';
import { parseEnvelope } from '../../../witness/entry.ts';
import { nodeFiles } from '../../../witness/files.ts';
import {
  openWitnessLog,
  parseCheckpoint,
  proveEntry,
  readLog,
  signLog,
  verifierOf,
  verifyAgainst,
  verifyLog,
} from '../../../witness/index.ts';
import { readEnvelopes } from '../../../witness/read.ts';
import {
  decodeHeader,
  encodeHeader,
  FORMAT_VERSION,
  NO_KEY,
  type SegmentHeader,
  segmentName,
  segmentNumbers,
} from '../../../witness/segment.ts';
import { Frontier } from '../../../witness/tree.ts';
import { fill, scratchFolders } from './folder.ts';

const folder = scratchFolders();
const LOG_ID = 'f'.repeat(32);
afterEach(() => useEntriesBinary(true));

const payload = (seq: number, body = '{"n":1}', kind = 'note'): string =>
  `{"seq":${seq},"timeMs":1000,"session":"s","kind":"${kind}","body":${body}}`;

/**
 * Writes segments with these payloads, from number `first` on; `change` may say something else in a header than what
 * follows.
 */
function forge(
  segments: readonly (readonly string[])[],
  change: (header: SegmentHeader, number: number) => SegmentHeader = (header) => header,
  first = 0,
): string {
  const dir = folder();
  let end: ChainEnd = { nextSeq: 0, headHash: new Uint8Array(32), tree: new Frontier() };
  for (const [index, payloads] of segments.entries()) {
    const number = first + index;
    const { leaves, peaks } = end.tree;
    const header: SegmentHeader = {
      ...{ version: FORMAT_VERSION, logId: LOG_ID, number, firstSeq: end.nextSeq, previousHash: end.headHash },
      ...{ beganMs: 0, keyId: NO_KEY, firstSegment: 0, leaves, peaks },
    };
    const batch = new Batch(number, 0, end, change(header, number));
    for (const text of payloads) batch.add(end.nextSeq, text);
    end = batch.finish();
    writeFileSync(join(dir, segmentName(number)), batch.bytes);
  }
  return dir;
}

describe.each([true, false])('with the binary: %s', (isUsed) => {
  const problem = (dir: string): unknown => {
    useEntriesBinary(isUsed);
    return verifyLog(dir).problem;
  };

  it('what is forged here without damage is sound', () => {
    expect(problem(forge([[payload(0), payload(1)], [payload(2)]]))).toBeNull();
  });

  it.each<[string, string, string]>([
    ['says another seq', payload(7), 'the entry says it is 7'],
    ['says a seq that is none', payload(-1), 'lacks seq'],
    ['is spelled with a space', payload(1).replace(':1000', ': 1000'), 'not spelled canonically'],
    ['has its keys in another order', payload(1, '{"b":1,"a":2}'), 'not spelled canonically'],
    ['has a number in another spelling', payload(1, '{"n":1.0}'), 'not spelled canonically'],
    ['is nested deeper than any', payload(1, `{"n":${'['.repeat(40)}${']'.repeat(40)}}`), 'not spelled canonically'],
    ['is nested deeper than a stack', payload(1, `{"n":${'['.repeat(2e5)}${']'.repeat(2e5)}}`), 'not spelled can'],
    ['is no JSON', payload(1).slice(0, -1), 'an entry is not JSON'],
    ['is no object', '7', 'an entry is not an object'],
    ['is nothing', 'null', 'an entry is not an object'],
    ['is of a kind that there is not', payload(1, '{}', 'other'), 'lacks seq, timeMs, session, kind or body'],
    ['has no body', payload(1, 'null'), 'lacks seq, timeMs, session, kind or body'],
    ['has a body of text', payload(1, '"text"'), 'lacks seq, timeMs, session, kind or body'],
    ['is of a time before all times', payload(1).replace('1000', '-1'), 'lacks seq'],
    ['is of half a millisecond', payload(1).replace('1000', '0.5'), 'lacks seq'],
    ['is of a time behind all calendars', payload(1).replace('1000', '8640000000000001'), 'lacks seq'],
    ['has a session that is a list', payload(1).replace('"s"', '[]'), 'lacks seq'],
    ['begins with a mark of its byte order', `\ufeff${payload(1)}`, 'an entry is not JSON'],
    ['has a session that is a number', payload(1).replace('"s"', '5'), 'lacks seq'],
    ['has a session of 201 characters', payload(1).replace('"s"', `"${'s'.repeat(201)}"`), 'lacks seq'],
  ])('an entry that %s', (_what, text, said) => {
    const dir = forge([[payload(0), text, payload(2)]]);
    const offset = readFileSync(join(dir, '00000000.wal')).readUInt32LE(12) + payload(0).length + 40;
    expect(problem(dir)).toMatchObject({
      segment: '00000000.wal',
      offset,
      seq: 1,
      what: expect.stringContaining(said),
    });
    // What stands before it is counted.
    expect(verifyLog(dir)).toMatchObject({ ok: false, entries: 1, logId: LOG_ID });
  });

  it('an entry at the edge of what is possible is sound', () => {
    const last = payload(1)
      .replace('1000', '8640000000000000')
      .replace('"s"', `"${'s'.repeat(200)}"`);
    expect(problem(forge([[payload(0), last]]))).toBeNull();
    expect(problem(forge([[payload(0).replace('1000', '0')]]))).toBeNull();
    // JavaScript puts names that are numbers in another order than the log does.
    expect(problem(forge([[payload(0, '{"10":1,"9":2,"a":3}')]]))).toBeNull();
    expect(problem(forge([[payload(0, '{"9":1,"10":2}')]]))).toMatchObject({
      what: expect.stringContaining('not spelled canonically'),
    });
  });

  it.each<[string, number, Partial<SegmentHeader>, number, string]>([
    ['another number', 1, { number: 2 }, 32, 'segment 2 stands where segment 1 must be'],
    ['another log', 1, { logId: 'e'.repeat(32) }, 16, `it belongs to log ${'e'.repeat(32)}`],
    ['another chain', 1, { previousHash: Buffer.alloc(32, 1) }, 48, 'does not continue the hash chain'],
    ['a chain before the first entry', 0, { previousHash: Buffer.alloc(32, 1) }, 48, 'does not continue the hash'],
    [
      'a gap in the seqs',
      1,
      { firstSeq: 3, leaves: 3, peaks: [Buffer.alloc(32), Buffer.alloc(32)] },
      40,
      'its first entry is 3, expected 2',
    ],
    ['more leaves than entries', 1, { leaves: 4 }, 104, 'its tree has 4 leaves, but its first entry is 2'],
    ['another tree', 1, { peaks: [Buffer.alloc(32, 1)] }, 104, 'its tree is not that of the entries before it'],
  ])('a header with %s', (_what, at, said, offset, what) => {
    const dir = forge([[payload(0), payload(1)], [payload(2)]], (header, number) =>
      number === at ? { ...header, ...said } : header,
    );
    expect(problem(dir)).toMatchObject({ segment: segmentName(at), offset, what: expect.stringContaining(what) });
  });

  it('a header with a first entry before that of the segment before it', () => {
    const dir = forge([[payload(0), payload(1)], [payload(2)], [payload(3)]], (header, number) =>
      number === 2 ? { ...header, firstSeq: 1, leaves: 1, peaks: [Buffer.alloc(32)] } : header,
    );
    expect(problem(dir)).toMatchObject({ offset: 40, what: expect.stringContaining('stands before that of') });
  });

  // A note may contain the words of an entry that says what was removed: they remove nothing.
  it('a note that speaks of retention lets no segment be missing', () => {
    const said = '{"bytes":1,"firstSegment":5,"firstSeq":0,"kind":"retention","segments":5}';
    const from = 5;
    const fake = forge([[payload(0, said)]], (header) => header, from);
    expect(problem(fake)).toMatchObject({ what: expect.stringContaining('no entry says that it was removed') });
    const told = '{"bytes":1,"firstSegment":5,"firstSeq":0,"segments":5}';
    const sound = forge(
      [[payload(0, said), payload(1, told, 'retention').replace('"s"', '""')]],
      (header) => header,
      from,
    );
    expect(problem(sound)).toBeNull();
    const less = told.replace('"firstSegment":5', '"firstSegment":4');
    const short = forge([[payload(0), payload(1, less, 'retention').replace('"s"', '""')]], (header) => header, from);
    expect(problem(short)).toMatchObject({ what: expect.stringContaining('no entry says that it was removed') });
  });
});

describe('a header', () => {
  const good: SegmentHeader = {
    ...{ version: 2, logId: LOG_ID, number: 3, firstSeq: 5, previousHash: Buffer.alloc(32, 9), beganMs: 1000 },
    ...{ keyId: 'a1b2c3d4e5f60718', firstSegment: 2, leaves: 5, peaks: [Buffer.alloc(32, 1), Buffer.alloc(32, 2)] },
  };
  const put = (bytes: Buffer, write: (bytes: Buffer) => unknown): Buffer => {
    write(bytes);
    return bytes;
  };
  const withCrc = (bytes: Buffer): Buffer => {
    bytes.writeUInt32LE(crc32c(bytes.subarray(0, -4)), bytes.length - 4);
    return bytes;
  };

  it('reads as it was written, in both formats, also with more behind it', () => {
    expect(decodeHeader(encodeHeader(good))).toEqual(good);
    expect(decodeHeader(Buffer.concat([encodeHeader(good), Buffer.alloc(100, 1)]))).toEqual(good);
    const old = { ...good, version: 1, beganMs: 0, keyId: NO_KEY, firstSegment: 0, leaves: 0, peaks: [] } as const;
    expect(decodeHeader(encodeHeader(old))).toEqual(old);
    const leaves = 2 ** 32 - 1;
    const full = { ...good, leaves, peaks: Array.from({ length: 32 }, (_, n) => Buffer.alloc(32, n)) };
    expect(decodeHeader(encodeHeader(full))).toEqual(full);
  });

  it.each<[string, (bytes: Buffer) => Buffer, string]>([
    ['that is too short for any', (bytes) => bytes.subarray(0, 83), 'has 83 bytes, at least 84'],
    ['of another kind of file', (bytes) => put(bytes, (b) => b.write('PALIMLOC')), 'not a segment of a witness log'],
    ['of a later version', (bytes) => put(bytes, (b) => b.writeUInt32LE(4, 8)), 'format version 4 is unknown'],
    ['of version 0', (bytes) => put(bytes, (b) => b.writeUInt32LE(0, 8)), 'format version 0 is unknown'],
    [
      'that says it is shorter than any',
      (bytes) => put(bytes, (b) => b.writeUInt32LE(83, 12)),
      'says it has 83 bytes, 84 to',
    ],
    [
      'that says it is longer than the file',
      (bytes) => put(bytes, (b) => b.writeUInt32LE(181, 12)),
      'it has 181 bytes, 84 to 180',
    ],
    [
      'that says it is longer than any',
      (bytes) => {
        bytes = Buffer.concat([bytes, Buffer.alloc(2000)]);
        bytes.writeUInt32LE(1141, 12);
        return bytes;
      },
      'it has 1141 bytes, 84 to 1140',
    ],
    [
      'that was changed',
      (bytes) => put(bytes, (b) => b.writeUInt8(b[50]! ^ 1, 50)),
      'the checksum of the header is wrong',
    ],
    [
      'with a count beyond all counts',
      (bytes) => withCrc(put(bytes, (b) => b.writeBigUInt64LE(2n ** 53n, 88 + 8))),
      'a count in the header is out of range',
    ],
    [
      'with a number beyond all counts',
      (bytes) => withCrc(put(bytes, (b) => b.writeBigUInt64LE(2n ** 63n, 32))),
      'a count in the header is out of range',
    ],
    [
      'with another number of roots than of leaves',
      (bytes) => withCrc(put(bytes, (b) => b.writeBigUInt64LE(4n, 104))),
      'has 180 bytes, over 4 leaves it has 148',
    ],
  ])('%s is refused', (_what, change, said) => {
    expect(encodeHeader(good).length).toBe(180);
    expect(decodeHeader(change(encodeHeader(good)))).toContain(said);
  });

  it('of format 1 is refused where something stands there, and its checksum is right', () => {
    const bytes = encodeHeader({ ...good, version: 1, leaves: 0, peaks: [] });
    bytes.writeUInt32LE(84, 12);
    bytes.writeUInt32LE(crc32(bytes.subarray(0, 80)), 80);
    expect(decodeHeader(bytes)).toBe('the reserved bytes of the header are not zero');
  });

  it('of format 1 has zeros where format 2 says its length', () => {
    const bytes = encodeHeader({ ...good, version: 1, leaves: 0, peaks: [] });
    expect(bytes.readUInt32LE(12)).toBe(0);
    const v1 = readFileSync(join(import.meta.dirname, '../../golden/log-v1/00000000.wal'));
    expect(decodeHeader(v1)).toMatchObject({ version: 1, number: 0, firstSeq: 0, leaves: 0 });
  });
});

describe('names of segments', () => {
  it('are eight digits or more, spelled one way', () => {
    expect([0, 7, 99999999, 100000000].map(segmentName)).toEqual([
      '00000000.wal',
      '00000007.wal',
      '99999999.wal',
      '100000000.wal',
    ]);
    const names = ['00000010.wal', '00000002.wal', '123456789.wal', '000000003.wal', '1.wal', 'x00000004.wal'];
    expect(segmentNumbers([...names, '00000005.wal.torn', '00000006xwal', 'keys'])).toEqual([2, 10, 123456789]);
  });
});

test('an entry of bytes that are no UTF-8 is none', () => {
  const bytes = Buffer.from(payload(0, '{"a":"x"}'));
  expect(parseEnvelope(bytes)).toMatchObject({ seq: 0, body: { a: 'x' } });
  bytes[bytes.indexOf('x')] = 0xff;
  expect(() => parseEnvelope(bytes)).toThrowError(expect.objectContaining({ code: 'bad-log' }));
});

describe('what a crash leaves', () => {
  // Readers that do not compute the tree know less of a header that was cut short, and take the same beginnings for
  // torn.
  it('of a next header is passed over by every reader, and what is no beginning of it by none', () => {
    const dir = forge([[payload(0), payload(1)], [payload(2)]]);
    const path = join(dir, '00000001.wal');
    const bytes = readFileSync(path).subarray(0, readFileSync(path).readUInt32LE(12));
    for (let length = 0; length < bytes.length; length += 7) {
      writeFileSync(path, bytes.subarray(0, length));
      expect([...readLog(dir)].length, `${length} bytes`).toBe(2);
      expect(verifyLog(dir), `${length} bytes`).toMatchObject({ ok: true, entries: 2, tornBytes: length });
      if (length < 48) continue;
      const other = Buffer.from(bytes.subarray(0, length));
      other[47]! ^= 1;
      writeFileSync(path, other);
      expect(() => [...readLog(dir)], `${length} bytes`).toThrowError(expect.objectContaining({ code: 'bad-log' }));
      expect(verifyLog(dir).problem, `${length} bytes`).toMatchObject({ segment: '00000001.wal', offset: 0 });
    }
  });

  it('of a next header may be a beginning and zeros that were allotted and not written, and no more of them', () => {
    const dir = forge([[payload(0), payload(1)], [payload(2)]]);
    const path = join(dir, '00000001.wal');
    const bytes = readFileSync(path).subarray(0, readFileSync(path).readUInt32LE(12));
    for (let length = 0; length < bytes.length; length += 7) {
      const torn = Buffer.alloc(bytes.length);
      bytes.copy(torn, 0, 0, length);
      writeFileSync(path, torn);
      expect(verifyLog(dir), `${length} bytes`).toMatchObject({ ok: true, entries: 2, tornBytes: bytes.length });
      expect([...readLog(dir)].length, `${length} bytes`).toBe(2);
      writeFileSync(path, Buffer.concat([torn, Buffer.alloc(1)]));
      expect(verifyLog(dir).problem, `${length} bytes`).toMatchObject({ segment: '00000001.wal', offset: 0 });
      torn[bytes.length - 1] = 1;
      writeFileSync(path, torn);
      expect(verifyLog(dir).problem, `${length} bytes`).toMatchObject({ segment: '00000001.wal', offset: 0 });
    }
  });

  it('of the hash of the last entry is passed over where the rest was not written, and refused where it is wrong', () => {
    const dir = forge([[payload(0), payload(1)]]);
    const path = join(dir, '00000000.wal');
    const whole = readFileSync(path);
    const hashAt = whole.length - 32;
    for (const behind of [0, 5]) {
      for (let written = 0; written < 32; written++) {
        const torn = Buffer.concat([whole, Buffer.alloc(behind)]).fill(0, hashAt + written);
        writeFileSync(path, torn);
        expect([...readLog(dir)].length, `${written} bytes`).toBe(1);
        expect(verifyLog(dir), `${written} bytes`).toMatchObject({ ok: true, entries: 1 });
        if (behind > 0) {
          writeFileSync(path, Buffer.concat([torn, Buffer.of(1)]));
          expect(verifyLog(dir).problem, `${written} bytes, and something behind`).toMatchObject({ seq: 1 });
        }
        if (written === 0) continue;
        torn[hashAt + written - 1] = whole[hashAt + written - 1] === 1 ? 2 : 1;
        writeFileSync(path, torn);
        // Sixteen zeros at its end are a sector that was lost, whatever stands before them.
        expect(verifyLog(dir).ok, `${written} bytes and ${behind}`).toBe(written <= 16 + behind);
      }
    }
  });

  it('of the very first header is no entry and no log', () => {
    const dir = forge([[payload(0)]]);
    const path = join(dir, '00000000.wal');
    writeFileSync(path, readFileSync(path).subarray(0, 50));
    expect(verifyLog(dir)).toMatchObject({ ok: true, logId: null, entries: 0, tornBytes: 50 });
    expect([...readLog(dir)]).toEqual([]);
  });

  it('of another series before its first segment is a series without entries', () => {
    const dir = forge([[payload(0)]]);
    mkdirSync(join(dir, 'writer-0001'));
    expect(verifyLog(dir)).toMatchObject({ ok: true, entries: 1, series: [{ entries: 1 }, { series: 1, entries: 0 }] });
    expect([...readLog(dir)].length).toBe(1);
    expect([...readEnvelopes(dir)].length).toBe(1);
  });
});

describe('files that are none', () => {
  it('are not read beyond the size that a segment may have', () => {
    const dir = forge([[payload(0)]]);
    truncateSync(join(dir, '00000000.wal'), 256 * 1024 * 1024 + 1);
    const before = openFiles();
    expect(verifyLog(dir).problem).toMatchObject({ offset: 0, what: expect.stringContaining('at most 268435456') });
    expect(openFiles()).toBe(before);
  });

  it('with the number of a segment and nothing in them make no log of a folder', () => {
    const dir = folder();
    writeFileSync(join(dir, '00000005.wal'), 'something else');
    expect(() => verifyLog(dir)).toThrowError(expect.objectContaining({ code: 'not-found' }));
    const log = forge([[payload(0)]]);
    writeFileSync(join(log, '00000007.wal'), 'something else');
    expect(verifyLog(log)).toMatchObject({ ok: true, segments: 1, foreign: [{ file: '00000007.wal', bytes: 14 }] });
  });

  it('that become shorter while they are read are read to where they end', () => {
    const dir = forge([[payload(0), payload(1)]]);
    const size = readFileSync(join(dir, '00000000.wal')).length;
    const files = {
      ...nodeFiles,
      sizeSync: (fd: number) => nodeFiles.sizeSync(fd) + (nodeFiles.sizeSync(fd) === size ? 300 : 0),
    };
    expect(verifyLog(dir, files)).toMatchObject({ problem: null, entries: 2 });
  });

  it('among the keys say nothing about the log, and are told as what they are', async () => {
    const dir = folder();
    const log = await openWitnessLog({ dir, encrypt: true });
    await fill(log, 2);
    await log.close();
    const [name] = readdirSync(join(dir, 'keys')) as [string];
    writeFileSync(join(dir, 'keys', name), 'x'.repeat(1 << 20));
    expect(() => verifyLog(dir)).toThrowError(expect.objectContaining({ code: 'bad-file' }));
  });
});

const openFiles = (): number => {
  const fd = nodeFiles.openSync('/dev/null', 'r');
  nodeFiles.closeSync(fd);
  return fd;
};

describe('against checkpoints', () => {
  const { privateKey } = generateKeyPairSync('ed25519');
  const signed = (dir: string) =>
    signLog(dir, privateKey).map((note) => parseCheckpoint(note, [verifierOf(privateKey)], 'anchor'));

  it('that of an empty log is met by every log that grew from it', async () => {
    const dir = folder();
    const log = await openWitnessLog({ dir });
    await fill(log, 3);
    await log.close();
    const said = { logId: log.id, series: 0, size: 0, rootHash: '0'.repeat(64), headHash: '0'.repeat(64), timeMs: 0 };
    const note = signCheckpoint(said, privateKey);
    const empty = [parseCheckpoint(note, [verifierOf(privateKey)], 'anchor')];
    expect(verifyAgainst(dir, empty)).toMatchObject({
      ok: true,
      anchor: { checkpoints: 1, removed: 0, unanchoredEntries: 3 },
    });
  });

  it('a proof over more than a thousand entries holds, and none is made of another log or a cut one', async () => {
    const dir = forge([Array.from({ length: 1100 }, (_, seq) => payload(seq))]);
    const [checkpoint] = signed(dir);
    expect(proveEntry(dir, 1099, [checkpoint!])).toMatchObject({
      leafIndex: 1099,
      treeSize: 1100,
      entry: payload(1099),
    });
    const bad = (what: string, code = 'bad-log') =>
      expect.objectContaining({ code, message: expect.stringContaining(what) });
    const other = forge([Array.from({ length: 1100 }, (_, seq) => payload(seq, '{"n":2}'))]);
    expect(() => proveEntry(other, 5, [checkpoint!])).toThrowError(bad('are not those that were signed'));
    const foreign = forge([Array.from({ length: 1100 }, (_, seq) => payload(seq))], (header) => ({
      ...header,
      logId: 'e'.repeat(32),
    }));
    expect(() => proveEntry(foreign, 5, [checkpoint!])).toThrowError(bad('are not those that were signed'));
    const cut = forge([Array.from({ length: 900 }, (_, seq) => payload(seq))]);
    for (const seq of [5, 1000])
      expect(() => proveEntry(cut, seq, [checkpoint!])).toThrowError(
        bad('fewer than the 1100 entries that were signed'),
      );
    expect(() => proveEntry(dir, 1100, [checkpoint!])).toThrowError(
      bad('no checkpoint covers entry 1100', 'not-found'),
    );
    expect([...readLog(cut)].length).toBe(900);
  });
});
