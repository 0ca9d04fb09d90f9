// Are the bytes of a log still the bytes? Reads the segments in log-v1/ with a second reader, written here from the table in
// witness/README.md with nothing of witness/, and asks the room to agree with it: entries, head, verification, replay.
// A changed format gets a new version and a new folder; this one must open for ever.
import { createHash } from 'node:crypto';
import { readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { crc32, gunzipSync } from 'node:zlib';
import { expect, it } from 'vitest';
import { readLog, replaySession, verifyLog } from '../../witness/index.ts';
import { scratchFolders } from '../unit/witness/folder.ts';

const dir = join(import.meta.dirname, 'log-v1');
const folder = scratchFolders();

function readByTheTable(): { entries: unknown[]; head: string; id: string } {
  const entries: { seq: number }[] = [];
  let head = Buffer.alloc(32);
  let id = '';
  for (const [number, name] of readdirSync(dir).sort().entries()) {
    const bytes = readFileSync(join(dir, name));
    expect(name).toBe(`${String(number).padStart(8, '0')}.wal`);
    expect(bytes.toString('latin1', 0, 8)).toBe('PALIMLOG');
    expect([bytes.readUInt32LE(8), bytes.readUInt32LE(12)]).toEqual([1, 0]);
    id = bytes.toString('hex', 16, 32);
    expect([bytes.readBigUInt64LE(32), bytes.readBigUInt64LE(40)]).toEqual([BigInt(number), BigInt(entries.length)]);
    expect(bytes.subarray(48, 80).equals(head)).toBe(true);
    expect(bytes.readUInt32LE(80)).toBe(crc32(bytes.subarray(0, 80)));
    head = createHash('sha256').update(Buffer.of(0)).update(bytes.subarray(0, 80)).digest();
    for (let at = 84; at < bytes.length; ) {
      const length = bytes.readUInt32LE(at);
      const payload = bytes.subarray(at + 8, at + 8 + length);
      expect(bytes.readUInt32LE(at + 4)).toBe(crc32(Buffer.concat([bytes.subarray(at, at + 4), payload])));
      const seq = Buffer.alloc(8);
      seq.writeBigUInt64LE(BigInt(entries.length));
      head = createHash('sha256').update(Buffer.of(1)).update(head).update(seq).update(payload).digest();
      expect(head.equals(bytes.subarray(at + 8 + length, at + 40 + length))).toBe(true);
      entries.push(JSON.parse(payload.toString('utf8')));
      at += 40 + length;
    }
  }
  return { entries, head: head.toString('hex'), id };
}

it('are still the bytes', () => {
  const { entries, head, id } = readByTheTable();
  expect(head).toBe('4fbd94c9f8b1199b9d1773b8ae02275b71f20690853700385c4e934f25a03cfb');
  expect(entries.length).toBe(14);
  const sums = { logId: id, segments: 2, entries: 14, headHash: head, problem: null, tornBytes: 0 };
  expect(verifyLog(dir)).toEqual({ ok: true, ...sums, series: [{ series: 0, ...sums }], foreign: [] });
  expect([...readLog(dir)]).toEqual(entries);
  expect(entries.at(-1)).toMatchObject({ body: { text: 'ü \u2028 \ud83d\ude00 "quoted"\n', numbers: [0, -1.5, 1e21, 5e-324, 0.1] } });
});

it('of a session that version 2 of the price policy decided are decided again by that version', () => {
  const copy = folder();
  writeFileSync(join(copy, '00000000.wal'), gunzipSync(readFileSync(join(import.meta.dirname, 'price-2.wal.gz'))));
  expect(verifyLog(copy)).toMatchObject({ ok: true });
  const entries = [...readLog(copy)].filter(({ session }) => session !== '');
  expect(replaySession(entries)).toMatchObject({ policy: 'price@2', equal: true, complete: true, decisions: 41 });
});
