// Changes to a finished log, from a seed: `verifyLog` finds every one of them, or it is what a crash could have left at
// the very end, and then all entries before it are still there. The one change that a log alone cannot show is named
// below.

import { describe, expect, it } from 'vitest';
import { KvError } from '../../native/index.ts';
import { openWitnessLog, readLog, verifyLog } from '../../witness/index.ts';
import { mulberry32 } from '../random.ts';
import { scratchFolders } from '../unit/witness/folder.ts';
import { SimulatedDisk } from '../unit/witness/simulated-disk.ts';

/** Milliseconds that this process has computed since; a busy machine does not add to them. */
function cpuMs(start: NodeJS.CpuUsage): number {
  const { user, system } = process.cpuUsage(start);
  return (user + system) / 1000;
}

const folder = scratchFolders();
/** Bytes of the header of a segment, as it says itself. */
const headerBytes = (bytes: Buffer): number => bytes.readUInt32LE(12);
const ENTRY_EXTRA_BYTES = 40;

type Files = Map<string, Buffer>;

async function makeLog(count: number, segmentBytesMax: number, random: () => number): Promise<Files> {
  const disk = new SimulatedDisk();
  const log = await openWitnessLog({ dir: folder(), files: disk, segmentBytesMax, clock: () => 1_700_000_000_000 });
  for (let n = 0; n < count; n++)
    log.append(`s${n % 3}`, 'note', { n, value: random(), text: 'abc '.repeat(Math.floor(random() * 30)) });
  await log.close();
  return new Map([...disk.files].map(([name, file]) => [name, file.cached]));
}

function diskOf(files: Files): SimulatedDisk {
  const disk = new SimulatedDisk();
  for (const [name, bytes] of files)
    disk.files.set(name, { cached: Buffer.from(bytes), durable: Buffer.from(bytes), dirty: [], isNameDurable: true });
  return disk;
}

/** Offsets of the entries of one segment, and its end. */
function bounds(bytes: Buffer): number[] {
  const offsets = [headerBytes(bytes)];
  for (let at = headerBytes(bytes); at < bytes.length; offsets.push(at))
    at += bytes.readUInt32LE(at) + ENTRY_EXTRA_BYTES;
  return offsets;
}

const splice = (bytes: Buffer, at: number, remove: number, insert: Buffer = Buffer.alloc(0)): Buffer =>
  Buffer.concat([bytes.subarray(0, at), insert, bytes.subarray(at + remove)]);

type Mutation = (files: Files, random: () => number, foreign: Files) => void;

const pick = (random: () => number, count: number): number => Math.floor(random() * count);

function pickFile(files: Files, random: () => number): [string, Buffer] {
  const names = [...files.keys()].sort();
  const name = names[pick(random, names.length)] as string;
  return [name, files.get(name) as Buffer];
}

/** Two different entries of one segment, as [offset, length], in order. */
function twoEntries(bytes: Buffer, random: () => number): [[number, number], [number, number]] {
  const offsets = bounds(bytes);
  const first = pick(random, offsets.length - 2);
  const second = first + 1 + pick(random, offsets.length - 2 - first);
  const part = (index: number): [number, number] => [
    offsets[index] as number,
    (offsets[index + 1] as number) - (offsets[index] as number),
  ];
  return [part(first), part(second)];
}

const MUTATIONS: Readonly<Record<string, Mutation>> = {
  'flip a bit': (files, random) => {
    const [name, bytes] = pickFile(files, random);
    const changed = Buffer.from(bytes);
    const at = pick(random, bytes.length);
    changed[at] = (changed[at] as number) ^ (1 << pick(random, 8));
    files.set(name, changed);
  },
  'overwrite some bytes': (files, random) => {
    const [name, bytes] = pickFile(files, random);
    const at = pick(random, bytes.length);
    const noise = Buffer.from(Array.from({ length: 1 + pick(random, 64) }, () => 1 + pick(random, 255)));
    files.set(name, splice(bytes, at, Math.min(noise.length, bytes.length - at), noise));
  },
  'insert bytes': (files, random) => {
    const [name, bytes] = pickFile(files, random);
    files.set(
      name,
      splice(
        bytes,
        pick(random, bytes.length),
        0,
        Buffer.from(Array.from({ length: 1 + pick(random, 99) }, () => pick(random, 256))),
      ),
    );
  },
  'remove bytes': (files, random) => {
    const [name, bytes] = pickFile(files, random);
    files.set(name, splice(bytes, pick(random, bytes.length - 100), 1 + pick(random, 99)));
  },
  'append bytes': (files, random) => {
    const [name, bytes] = pickFile(files, random);
    files.set(
      name,
      Buffer.concat([bytes, Buffer.from(Array.from({ length: 1 + pick(random, 99) }, () => pick(random, 256)))]),
    );
  },
  'cut a file': (files, random) => {
    const [name, bytes] = pickFile(files, random);
    files.set(name, bytes.subarray(0, pick(random, bytes.length)));
  },
  'write an enormous length': (files, random) => {
    const [name, bytes] = pickFile(files, random);
    const changed = Buffer.from(bytes);
    const offsets = bounds(bytes);
    changed.writeUInt32LE(0xffffffff - pick(random, 1000), offsets[pick(random, offsets.length - 1)] as number);
    files.set(name, changed);
  },
  'remove an entry': (files, random) => {
    const [name, bytes] = pickFile(files, random);
    const [[at, length]] = twoEntries(bytes, random);
    files.set(name, splice(bytes, at, length));
  },
  'repeat an entry': (files, random) => {
    const [name, bytes] = pickFile(files, random);
    const [[at, length], [other]] = twoEntries(bytes, random);
    files.set(name, splice(bytes, other, 0, bytes.subarray(at, at + length)));
  },
  'swap two entries': (files, random) => {
    const [name, bytes] = pickFile(files, random);
    const [[a, lengthA], [b, lengthB]] = twoEntries(bytes, random);
    const [first, second] = [bytes.subarray(a, a + lengthA), bytes.subarray(b, b + lengthB)];
    files.set(name, splice(splice(bytes, b, lengthB, first), a, lengthA, second));
  },
  'take an entry of another log': (files, random, foreign) => {
    const [name, bytes] = pickFile(files, random);
    const other = foreign.get(name) as Buffer;
    const [[at, length]] = twoEntries(bytes, random);
    const [[from, size]] = twoEntries(other, random);
    files.set(name, splice(bytes, at, length, other.subarray(from, from + size)));
  },
  'take a segment of another log': (files, random, foreign) => {
    const [name] = pickFile(files, random);
    files.set(name, foreign.get(name) as Buffer);
  },
  'swap two segments': (files, random) => {
    const names = [...files.keys()].sort();
    const first = pick(random, names.length - 1);
    const [a, b] = [names[first] as string, names[first + 1 + pick(random, names.length - 1 - first)] as string];
    const bytes = files.get(a) as Buffer;
    files.set(a, files.get(b) as Buffer);
    files.set(b, bytes);
  },
  'remove a segment before the last': (files, random) => {
    const names = [...files.keys()].sort();
    files.delete(names[pick(random, names.length - 1)] as string);
  },
  'zero a stretch': (files, random) => {
    const [name, bytes] = pickFile(files, random);
    const at = pick(random, bytes.length - 1);
    files.set(name, Buffer.from(bytes).fill(0, at, Math.min(bytes.length, at + 1 + pick(random, 1500))));
  },
};

/** A cut between entries at the very end: the log that is left is a log. Only a head kept elsewhere shows it. */
function isCutBetweenEntries(before: Files, after: Files): boolean {
  const last = [...before.keys()].sort().at(-1) as string;
  const others = [...before].every(([name, bytes]) => name === last || after.get(name)?.equals(bytes));
  const [was, is] = [before.get(last) as Buffer, after.get(last) ?? Buffer.alloc(0)];
  return (
    others &&
    is.length <= was.length &&
    was.subarray(0, is.length).equals(is) &&
    (bounds(was).includes(is.length) || is.length === 0)
  );
}

describe('changes to a log', () => {
  const rounds = 16;
  it.each(Object.entries(MUTATIONS))(`are found: %s`, async (label, mutate) => {
    const seed = 4711;
    const random = mulberry32(seed);
    const original = await makeLog(60, 3000, random);
    const foreign = await makeLog(60, 3000, random);
    const entries = [...readLog('/', { files: diskOf(original) })];
    expect([...original.keys()].length).toBeGreaterThan(2);
    for (let round = 0; round < rounds; round++) {
      const told = `seed ${seed}, round ${round}, ${label}`;
      const files = new Map(original);
      mutate(files, random, foreign);
      const isChanged = [...original].some(([name, bytes]) => !files.get(name)?.equals(bytes));
      if (!isChanged || isCutBetweenEntries(original, files)) continue;
      const memory = process.memoryUsage();
      const start = process.cpuUsage();
      const report = verifyLog('/', diskOf(files));
      const [tookMs, now] = [cpuMs(start), process.memoryUsage()];
      expect(tookMs, told).toBeLessThan(1000);
      expect(now.heapUsed + now.arrayBuffers - memory.heapUsed - memory.arrayBuffers, told).toBeLessThan(
        64 * 1024 * 1024,
      );
      if (!report.ok) {
        expect(report.problem?.what, told).toMatch(/^\d{8}\.wal at byte \d+/);
        expect(report.logId === null, told).toBe(report.entries === 0);
        continue;
      }
      expect(report.tornBytes, told).toBeGreaterThan(0);
      const disk = diskOf(files);
      expect([...readLog('/', { files: disk })], told).toEqual(entries.slice(0, report.entries));
      const log = await openWitnessLog({ dir: folder(), files: disk });
      await log.close();
      expect(verifyLog('/', disk), told).toMatchObject({ ok: true, tornBytes: 0, entries: report.entries + 1 });
    }
  });

  // Small enough to try every bit: none may pass, and none may be taken for a crash, for a crash only leaves things
  // out. Where the last byte of the last hash becomes zero it is what a crash leaves; ids of logs are random, and with
  // them the bytes of hashes.
  it('are found: each single bit of a small log', async () => {
    const original = await makeLog(3, 300, mulberry32(1));
    const disk = diskOf(original);
    expect(verifyLog('/', disk)).toMatchObject({ ok: true, tornBytes: 0, entries: 3 });
    let flips = 0;
    for (const file of disk.files.values()) {
      for (let at = 0; at < file.cached.length; at++) {
        for (let bit = 0; bit < 8; bit++) {
          file.cached[at] = (file.cached[at] as number) ^ (1 << bit);
          const { ok, tornBytes } = verifyLog('/', disk);
          const isEnd = at === file.cached.length - 1 && file.cached[at] === 0 && tornBytes > 0;
          if (ok && !isEnd) throw new Error(`bit ${bit} of byte ${at} passed`);
          file.cached[at] = (file.cached[at] as number) ^ (1 << bit);
          flips++;
        }
      }
    }
    expect(flips).toBeGreaterThan(4000);
  });

  // Every possible cut of the last segment: inside an entry it is a torn tail of that size, between entries a shorter
  // log.
  it('are told from a torn tail: every cut of the last segment', async () => {
    const original = await makeLog(12, 1000, mulberry32(2));
    const last = [...original.keys()].sort().at(-1) as string;
    const bytes = original.get(last) as Buffer;
    const total = verifyLog('/', diskOf(original)).entries;
    const offsets = bounds(bytes);
    for (let length = headerBytes(bytes); length <= bytes.length; length++) {
      const whole = offsets.filter((offset) => offset <= length).at(-1) as number;
      const report = verifyLog('/', diskOf(new Map(original).set(last, bytes.subarray(0, length))));
      expect(report, `cut to ${length} bytes`).toMatchObject({
        ok: true,
        tornBytes: length - whole,
        entries: total - (offsets.length - 1) + offsets.indexOf(whole),
      });
    }
  });

  // A writer never builds on damage: the last segment is checked to its end before anything is appended.
  it('keep a writer out', async () => {
    const original = await makeLog(20, 1 << 20, mulberry32(3));
    const random = mulberry32(99);
    for (let round = 0; round < 30; round++) {
      const files = new Map(original);
      (MUTATIONS['flip a bit'] as Mutation)(files, random, files);
      const refused = await openWitnessLog({ dir: folder(), files: diskOf(files) }).catch((error) => error);
      expect(refused).toBeInstanceOf(KvError);
      expect(refused).toMatchObject({ code: 'bad-log', values: { segment: '00000000.wal' } });
    }
  });

  // Files made to be slow: lengths that reach to the end, thousands of places where an entry could begin, nothing but
  // zeros. Each ends in under a second with an answer, and none makes the reader allocate what a length claims.
  it.each([
    ['an entry could begin everywhere', (bytes: number) => Buffer.from('{"seq":'.repeat(bytes / 7))],
    [
      'every length reaches far',
      (bytes: number) => Buffer.concat(Array.from({ length: bytes / 15 }, () => headOf(1 << 20))),
    ],
    [
      'every length is plausible',
      (bytes: number) => Buffer.concat(Array.from({ length: bytes / 15 }, () => headOf(1000))),
    ],
    ['zeros', (bytes: number) => Buffer.alloc(bytes)],
    ['ones', (bytes: number) => Buffer.alloc(bytes, 255)],
  ] as const)('end quickly: %s', async (_label, content) => {
    const [name, bytes] = [...(await makeLog(1, 1 << 20, mulberry32(4)))][0] as [string, Buffer];
    for (const size of [64 * 1024, 4 * 1024 * 1024]) {
      const disk = diskOf(new Map([[name, Buffer.concat([bytes, content(size)])]]));
      const memory = process.memoryUsage();
      const start = process.cpuUsage();
      const report = verifyLog('/', disk);
      expect(cpuMs(start)).toBeLessThan(1000);
      expect(process.memoryUsage().arrayBuffers - memory.arrayBuffers).toBeLessThan(64 * 1024 * 1024);
      expect(report.entries).toBe(1);
      expect(report.ok).toBe(report.tornBytes > 0);
    }
  });
});

function headOf(length: number): Buffer {
  const bytes = Buffer.alloc(15);
  bytes.writeUInt32LE(length, 0);
  bytes.write('{"seq":', 8);
  return bytes;
}
