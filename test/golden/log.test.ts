// Are the bytes of a log still the bytes? Reads the segments in log-v1/, log-v2/ and log-v3/ with a second reader,
// written here from the tables in witness/README.md and docs/log-format.md with nothing of witness/, and asks the room
// to agree with it: entries, head, tree, verification, replay. A changed format gets a new version and a new folder; these must open for ever.
import { createDecipheriv, createHash, hkdfSync } from 'node:crypto';
import { readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { crc32, gunzipSync } from 'node:zlib';
import { expect, it } from 'vitest';
import { type DecisionBody, readLog, replaySession, verifyLog } from '../../witness/index.ts';
import { scratchFolders } from '../unit/witness/folder.ts';

const dir = join(import.meta.dirname, 'log-v1');
const dir2 = join(import.meta.dirname, 'log-v2');
const dir3 = join(import.meta.dirname, 'log-v3');
const folder = scratchFolders();
const sha256 = (...parts: Uint8Array[]): Buffer => createHash('sha256').update(Buffer.concat(parts)).digest();

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

/** CRC-32C bit by bit, as RFC 3720 defines it. */
function crc32c(bytes: Uint8Array): number {
  let crc = 0xffffffff;
  for (const byte of bytes) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (crc & 1 ? 0x82f63b78 : 0);
  }
  return ~crc >>> 0;
}

/** Merkle tree hash of RFC 6962, section 2.1, as it is written there. */
function treeHash(leaves: readonly Uint8Array[]): Buffer {
  if (leaves.length === 0) return sha256();
  if (leaves.length === 1) return sha256(Buffer.of(0), leaves[0]!);
  let half = 1;
  while (half * 2 < leaves.length) half *= 2;
  return sha256(Buffer.of(1), treeHash(leaves.slice(0, half)), treeHash(leaves.slice(half)));
}

function readByTheTable2(
  dir: string,
  version: number,
  keyId: string,
): { entries: unknown[]; head: string; root: string; id: string } {
  const payloads: Buffer[] = [];
  let head: Buffer = Buffer.alloc(32);
  let id = '';
  for (const [number, name] of readdirSync(dir).filter((name) => name.endsWith('.wal')).sort().entries()) {
    const bytes = readFileSync(join(dir, name));
    const count = (at: number): number => Number(bytes.readBigUInt64LE(at));
    const length = bytes.readUInt32LE(12);
    expect(bytes.toString('latin1', 0, 8)).toBe('PALIMLOG');
    expect([bytes.readUInt32LE(8), count(32), count(40), count(96)]).toEqual([version, number, payloads.length, 0]);
    id = bytes.toString('hex', 16, 32);
    expect(bytes.subarray(48, 80).equals(head)).toBe(true);
    expect(bytes.toString('hex', 88, 96)).toBe(keyId);
    expect(count(104)).toBe(payloads.length);
    const frontier: Buffer[] = [];
    for (let from = 0, size = 2 ** 31; size >= 1; size /= 2) {
      if (Math.floor(payloads.length / size) % 2 === 0) continue;
      frontier.push(treeHash(payloads.slice(from, from + size)));
      from += size;
    }
    expect(length).toBe(112 + 32 * frontier.length + 4);
    expect(bytes.subarray(112, length - 4).equals(Buffer.concat(frontier))).toBe(true);
    expect(bytes.readUInt32LE(length - 4)).toBe(crc32c(bytes.subarray(0, length - 4)));
    head = sha256(Buffer.of(2), bytes.subarray(0, length - 4));
    for (let at = length; at < bytes.length; ) {
      const payload = bytes.subarray(at + 8, at + 8 + bytes.readUInt32LE(at));
      expect(bytes.readUInt32LE(at + 4)).toBe(crc32c(Buffer.concat([bytes.subarray(at, at + 4), payload])));
      head = sha256(Buffer.of(3), head, sha256(Buffer.of(0), payload));
      expect(head.equals(bytes.subarray(at + 8 + payload.length, at + 40 + payload.length))).toBe(true);
      if (payloads.length === 0) expect(count(80)).toBe(JSON.parse(payload.toString()).timeMs);
      payloads.push(payload);
      at += 40 + payload.length;
    }
  }
  const entries = payloads.map((payload) => JSON.parse(payload.toString('utf8')));
  return { entries, head: head.toString('hex'), root: treeHash(payloads).toString('hex'), id };
}

it('of format 2 are still the bytes', () => {
  const { entries, head, root, id } = readByTheTable2(dir2, 2, '0123456789abcdef');
  expect(head).toBe('d4d32e1c4a8ecd2f417b88c30fd5ec8e9bab5d7ff03f1339238e61267735e513');
  expect(entries).toEqual(readByTheTable().entries);
  const sums = { logId: id, segments: 3, entries: 14, headHash: head, unopened: 0, problem: null, tornBytes: 0 };
  expect(verifyLog(dir2)).toEqual({ ok: true, ...sums, series: [{ series: 0, rootHash: root, removedEntries: 0, ...sums }], foreign: [] });
  expect([...readLog(dir2)]).toEqual(entries);
});

/** What a packed body says, by the table in docs/log-format.md, and with the lists that stand there. */
function unpacked(bytes: Buffer): unknown {
  const page = readFileSync(join(import.meta.dirname, '..', '..', 'docs', 'log-format.md'), 'utf8');
  const lines = (what: string): string[][] =>
    new RegExp(`<!-- packed ${what}: .*? -->([^]*?)<!-- end -->`)
      .exec(page)![1]!
      .trim()
      .split('\n')
      .map((line) => line.trim().split(' '));
  const [texts, shapes, numbers]: [string[], string[][], number[]] = [lines('texts').flat(), lines('shapes'), []];
  let at = 1;
  const take = (count: number): Buffer => bytes.subarray(at, (at += count));
  const count = (): number => {
    const byte = take(1)[0]!;
    return byte < 0x80 ? byte : byte - 0x80 + 0x80 * count();
  };
  const object = (keys: string[]): unknown => Object.fromEntries(keys.map((key) => [key, value()]));
  const known = <T>(item: T, among: T[]): T => {
    among.push(item);
    return item;
  };
  const value = (): unknown => {
    const byte = take(1)[0]!;
    if (byte < 0x40) return byte;
    if (byte >= 0x80) return texts[byte - 0x80];
    if (byte >= 0x60) return object(shapes[byte - 0x60]!);
    const ways: Record<number, () => unknown> = {
      0x40: () => null,
      0x41: () => false,
      0x42: () => true,
      0x43: count,
      0x44: () => -1 - count(),
      0x45: () => known(take(4).readFloatLE(), numbers),
      0x46: () => known(take(8).readDoubleLE(), numbers),
      0x47: () => numbers[count()],
      0x48: () => known(take(count()).toString(), texts),
      0x49: () => texts[count()],
      0x4a: () => Array.from({ length: count() }, value),
      0x4b: () => object(known(Array.from({ length: count() }, value) as string[], shapes)),
      0x4c: () => object(shapes[count()]!),
    };
    return ways[byte]!();
  };
  return value();
}

/** The bodies of a session as docs/log-format.md says they are opened, each after its commitment. */
function opened(entries: readonly unknown[]): unknown[] {
  const [name] = readdirSync(join(dir3, 'keys'));
  const key = Buffer.from((JSON.parse(readFileSync(join(dir3, 'keys', name!), 'utf8')) as { key: string }).key, 'base64');
  return (entries as { seq: number; kind: string; session: string; body: { committed: string } }[]).map((entry) => {
    if (entry.session === '') return entry;
    const bytes = Buffer.from(entry.body.committed, 'base64');
    const [nonce, commitment, end] = [bytes.subarray(0, 12), bytes.subarray(12, 44), bytes.length - 16];
    const decipher = createDecipheriv('aes-256-gcm', key, nonce).setAAD(Buffer.from(`${entry.seq} ${entry.kind} ${entry.session}`));
    const plain = Buffer.concat([decipher.update(bytes.subarray(44, end)), decipher.setAuthTag(bytes.subarray(end)).final()]);
    const salt = Buffer.from(hkdfSync('sha256', key, '', Buffer.concat([Buffer.from('palimpsest salt'), nonce]), 32));
    expect(sha256(Buffer.of(4), salt, plain).equals(commitment)).toBe(true);
    return { ...entry, body: plain[0] === 1 ? unpacked(plain) : JSON.parse(plain.toString('utf8')) };
  });
}

it('of format 3 are still the bytes, and every entry is committed to its body', () => {
  const { entries, head, root, id } = readByTheTable2(dir3, 3, '0000000000000000');
  expect(head).toBe('51414b00faffb69f7b5d61961b0a31de52db1dc463727ebe3a6467ecc1c6b0a3');
  const plain = opened(entries);
  expect(plain).toEqual(readByTheTable().entries);
  const sums = { logId: id, segments: 4, entries: 14, headHash: head, unopened: 0, problem: null, tornBytes: 0 };
  expect(verifyLog(dir3)).toEqual({ ok: true, ...sums, series: [{ series: 0, rootHash: root, removedEntries: 0, ...sums }], foreign: [] });
  expect([...readLog(dir3)]).toEqual(plain);
});

it('are still the bytes', () => {
  const { entries, head, id } = readByTheTable();
  expect(head).toBe('4fbd94c9f8b1199b9d1773b8ae02275b71f20690853700385c4e934f25a03cfb');
  expect(entries.length).toBe(14);
  const sums = { logId: id, segments: 2, entries: 14, headHash: head, unopened: 0, problem: null, tornBytes: 0 };
  expect(verifyLog(dir)).toEqual({ ok: true, ...sums, series: [{ series: 0, rootHash: expect.any(String), removedEntries: 0, ...sums }], foreign: [] });
  expect([...readLog(dir)]).toEqual(entries);
  expect(entries.at(-1)).toMatchObject({ body: { text: 'ü \u2028 \ud83d\ude00 "quoted"\n', numbers: [0, -1.5, 1e21, 5e-324, 0.1] } });
});

it.each([
  [2, 41],
  [3, 160],
  [4, 419],
])('of a session that version %i of the price policy decided are decided again by that version', (version, decisions) => {
  const copy = folder();
  const stored = readFileSync(join(import.meta.dirname, `price-${version}.wal.gz`));
  writeFileSync(join(copy, '00000000.wal'), gunzipSync(stored));
  expect(verifyLog(copy)).toMatchObject({ ok: true });
  const entries = [...readLog(copy)].filter(({ session }) => session !== '');
  expect(replaySession(entries)).toMatchObject({ policy: `price@${version}`, equal: true, complete: true, decisions });
});

it('of sessions in formats that the product only describes are verified, read and decided again without a build that computes them', () => {
  const turbo = join(import.meta.dirname, 'log-turbo');
  expect(verifyLog(turbo)).toMatchObject({ ok: true, unopened: 0 });
  const entries = [...readLog(turbo)];
  const sessions = [...new Set(entries.map(({ session }) => session))].filter((session) => session !== '');
  const [fixed, price] = sessions.map((session) => entries.filter((entry) => entry.session === session));
  const moves = fixed!.flatMap(({ kind, body }) => (kind === 'decision' ? [(body as DecisionBody).decision.to] : []));
  expect(new Set(moves)).toEqual(new Set(['turbo4', 'turbo2']));
  expect(JSON.stringify(price)).toContain('turbo2');
  expect(replaySession(fixed!)).toMatchObject({ policy: 'fixed@1', equal: true, complete: true, decisions: moves.length });
  expect(replaySession(price!)).toMatchObject({ policy: 'price@3', equal: true, complete: true, decisions: 11 });
});
