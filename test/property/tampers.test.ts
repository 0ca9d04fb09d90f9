// Thousands of changes to a log by somebody who can write everything but the checkpoint: every byte of a small log, and
// from a seed entries deleted, inserted, moved, cut off, written anew with right hashes, other logs in its place. All
// of them are found against the checkpoint, by verify, before anything is believed. Whoever changes the checkpoint
// instead is found by its signature.

import { generateKeyPairSync } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { KvError } from '../../native/index.ts';
import { Batch, type ChainEnd } from '../../witness/batch.ts';
import {
  type Checkpoint,
  openWitnessLog,
  parseCheckpoint,
  readCheckpoints,
  signLog,
  verifierOf,
  verifyAgainst,
  verifyLog,
} from '../../witness/index.ts';
import { decodeHeader, type SegmentHeader } from '../../witness/segment.ts';
import { Frontier } from '../../witness/tree.ts';
import { mulberry32 } from '../random.ts';
import { seedFrom, volume } from '../tier.ts';
import { scratchFolders } from '../unit/witness/folder.ts';
import { SimulatedDisk } from '../unit/witness/simulated-disk.ts';

const folder = scratchFolders();
const SEED = seedFrom(1_234);
const ROUNDS = volume('log tampers');
const { privateKey } = generateKeyPairSync('ed25519');
const keys = [verifierOf(privateKey)];

type Files = Map<string, Buffer>;

/** A log as somebody sees it who knows how it is made: headers and payloads of its segments. */
type Loose = { header: SegmentHeader; payloads: string[] }[];

interface Anchored {
  readonly files: Files;
  readonly loose: Loose;
  readonly checkpoint: Checkpoint;
}

async function makeLog(count: number, random: () => number): Promise<Anchored> {
  const disk = new SimulatedDisk();
  const dir = folder();
  const log = await openWitnessLog({ dir, files: disk, segmentBytesMax: 1200, clock: () => 1_700_000_000_000 });
  for (let n = 0; n < count; n++) log.append(`s${n % 3}`, 'note', { n, value: Math.floor(random() * 1e9) });
  await log.close();
  const names = [...disk.files.keys()].sort();
  const files = new Map(names.map((name) => [name, disk.files.get(name)!.cached] as const));
  const [note] = signLog('/', privateKey, disk) as [string];
  return { files, loose: [...files.values()].map(apart), checkpoint: parseCheckpoint(note, keys, 'anchor') };
}

function apart(bytes: Buffer): Loose[number] {
  const payloads: string[] = [];
  for (let at = bytes.readUInt32LE(12); at < bytes.length; ) {
    const length = bytes.readUInt32LE(at);
    payloads.push(bytes.toString('utf8', at + 8, at + 8 + length));
    at += 40 + length;
  }
  return { header: decodeHeader(bytes) as SegmentHeader, payloads };
}

/** Segments with right checksums, hashes, trees and numbers, whatever the payloads are. */
function together(loose: Loose): Files {
  const files: Files = new Map();
  let end: ChainEnd = { nextSeq: 0, headHash: new Uint8Array(32), tree: new Frontier() };
  for (const [number, { header, payloads }] of loose.entries()) {
    const { leaves, peaks } = end.tree;
    const own = { ...header, number, firstSeq: end.nextSeq, previousHash: end.headHash, leaves, peaks };
    const batch = new Batch(number, 0, end, own);
    for (const payload of payloads) batch.add(end.nextSeq, payload);
    end = batch.finish();
    files.set(`${String(number).padStart(8, '0')}.wal`, Buffer.from(batch.bytes));
  }
  return files;
}

const renumbered = (loose: Loose): Loose => {
  let seq = 0;
  return loose.map(({ header, payloads }) => ({
    header,
    payloads: payloads.map((payload) => payload.replace(/^\{"seq":\d+/, () => `{"seq":${seq++}`)),
  }));
};

function diskOf(files: Files): SimulatedDisk {
  const disk = new SimulatedDisk();
  for (const [name, bytes] of files)
    disk.files.set(name, { cached: bytes, durable: bytes, dirty: [], isNameDurable: true });
  return disk;
}

/** What verify says against the checkpoint; 'sound' is what no changed log may get. */
function judge(files: Files, checkpoints: readonly Checkpoint[]): string {
  try {
    const report = verifyAgainst('/', checkpoints, diskOf(files));
    return report.ok ? 'sound' : (report.problem?.what ?? '');
  } catch (error) {
    if (error instanceof KvError) return `${error.code}: ${error.message}`;
    throw error;
  }
}

const pick = (random: () => number, count: number): number => Math.floor(random() * count);
const copyOf = (loose: Loose): Loose => loose.map(({ header, payloads }) => ({ header, payloads: [...payloads] }));
/** A random payload: the list that it is in, and its place there. */
function someEntry(loose: Loose, random: () => number): [string[], number] {
  const { payloads } = loose[pick(random, loose.length)] as Loose[number];
  return [payloads, pick(random, payloads.length)];
}
/** One digit of a number in it becomes another: a payload of the same length that still makes sense. */
const otherDigit = (payload: string, random: () => number): string =>
  payload.replace(
    /"value":(\d)/,
    (_, digit: string) => `"value":${((Number(digit) - 1 + 1 + pick(random, 8)) % 9) + 1}`,
  );

/** Changes by somebody who computes everything anew, and so finds a log that is sound in itself. */
const FORGERIES: Readonly<Record<string, (loose: Loose, random: () => number, other: Anchored) => Loose>> = {
  'an entry rewritten in its length': (loose, random) => {
    const [payloads, at] = someEntry(loose, random);
    payloads[at] = otherDigit(payloads[at] as string, random);
    return loose;
  },
  'a suffix rewritten in its length': (loose, random) => {
    const from = pick(random, loose.length);
    for (const { payloads } of loose.slice(from))
      for (const [at, payload] of payloads.entries()) payloads[at] = otherDigit(payload, random);
    return loose;
  },
  'an entry deleted': (loose, random) => {
    const [payloads, at] = someEntry(loose, random);
    payloads.splice(at, 1);
    return renumbered(loose);
  },
  'an entry inserted': (loose, random) => {
    const [payloads, at] = someEntry(loose, random);
    const [others, from] = someEntry(loose, random);
    payloads.splice(at, 0, otherDigit(others[from] as string, random));
    return renumbered(loose);
  },
  'an entry repeated at the end, another deleted': (loose, random) => {
    const [payloads, at] = someEntry(loose, random);
    const [gone] = payloads.splice(at, 1);
    loose.at(-1)!.payloads.push(gone as string);
    return renumbered(loose);
  },
  'two entries exchanged': (loose, random) => {
    const [a, i] = someEntry(loose, random);
    const [b, j] = someEntry(loose, random);
    [a[i], b[j]] = [b[j] as string, a[i] as string];
    return renumbered(loose);
  },
  'the end cut off': (loose, random) => {
    const keep = pick(random, loose.length) + 1;
    const kept = loose.slice(0, keep);
    const last = kept.at(-1)!.payloads;
    last.length = pick(random, last.length + (keep < loose.length ? 1 : 0));
    return kept;
  },
  'the end cut off, and others in its place': (loose, random) => {
    const last = loose.at(-1)!.payloads;
    const count = 1 + pick(random, last.length);
    const [payloads, at] = someEntry(loose, random);
    last.splice(last.length - count, count, ...Array.from({ length: count }, () => payloads[at] as string));
    return renumbered(loose);
  },
  'segments cut elsewhere, an entry rewritten': (loose, random) => {
    const [payloads, at] = someEntry(loose, random);
    payloads[at] = otherDigit(payloads[at] as string, random);
    const moved = loose[0]!.payloads.pop();
    if (moved !== undefined) loose[1]!.payloads.unshift(moved);
    return loose;
  },
  'the entries of another log under this id': (loose, _random, other) =>
    other.loose.map(({ payloads }) => ({ header: loose[0]!.header, payloads })),
};

/** Changes to bytes and files, by somebody who computes nothing. */
const DAMAGES: Readonly<Record<string, (files: Files, random: () => number, other: Anchored) => void>> = {
  'some bytes changed': (files, random) => {
    const [name, bytes] = [...files][pick(random, files.size)] as [string, Buffer];
    const changed = Buffer.from(bytes);
    for (let n = 1 + pick(random, 8); n > 0; n--) changed[pick(random, bytes.length)]! ^= 1 + pick(random, 255);
    files.set(name, changed);
  },
  'bytes deleted': (files, random) => {
    const [name, bytes] = [...files][pick(random, files.size)] as [string, Buffer];
    const at = pick(random, bytes.length - 1);
    files.set(name, Buffer.concat([bytes.subarray(0, at), bytes.subarray(at + 1 + pick(random, 200))]));
  },
  'bytes inserted': (files, random) => {
    const [name, bytes] = [...files][pick(random, files.size)] as [string, Buffer];
    const at = pick(random, bytes.length);
    const more = Buffer.from(Array.from({ length: 1 + pick(random, 200) }, () => pick(random, 256)));
    files.set(name, Buffer.concat([bytes.subarray(0, at), more, bytes.subarray(at)]));
  },
  'a file cut': (files, random) => {
    const [name, bytes] = [...files][pick(random, files.size)] as [string, Buffer];
    files.set(name, bytes.subarray(0, pick(random, bytes.length)));
  },
  'a file deleted': (files, random) => {
    files.delete([...files.keys()][pick(random, files.size)] as string);
  },
  'all files deleted': (files) => {
    files.clear();
  },
  'two files exchanged': (files, random) => {
    const names = [...files.keys()];
    const first = pick(random, names.length - 1);
    const [a, b] = [names[first] as string, names[first + 1 + pick(random, names.length - first - 1)] as string];
    const bytes = files.get(a) as Buffer;
    files.set(a, files.get(b) as Buffer);
    files.set(b, bytes);
  },
  'a file of another log': (files, random, other) => {
    const name = [...files.keys()][pick(random, files.size)] as string;
    files.set(name, other.files.get(name) ?? [...other.files.values()][0]!);
  },
  'another log': (files, _random, other) => {
    files.clear();
    for (const [name, bytes] of other.files) files.set(name, bytes);
  },
};

const isSame = (a: Files, b: Files): boolean =>
  a.size === b.size && [...a].every(([name, bytes]) => b.get(name)?.equals(bytes));

describe(`${ROUNDS} changes to a log, seed ${SEED}`, () => {
  it('are all found against a checkpoint: every byte of a small log', async () => {
    const { files, checkpoint } = await makeLog(8, mulberry32(SEED));
    expect(judge(files, [checkpoint])).toBe('sound');
    const random = mulberry32(SEED);
    let tried = 0;
    for (const [name, bytes] of files) {
      for (let at = 0; at < bytes.length; at++, tried++) {
        const changed = Buffer.from(bytes);
        changed[at]! ^= 1 + pick(random, 255);
        const said = judge(new Map(files).set(name, changed), [checkpoint]);
        if (said === 'sound') throw new Error(`byte ${at} of ${name} can be changed`);
      }
    }
    expect(tried).toBeGreaterThan(1000);
  });

  it('are all found against a checkpoint: whatever the seed says', async () => {
    const random = mulberry32(SEED);
    const kinds = [...Object.keys(FORGERIES), ...Object.keys(DAMAGES)];
    const found = new Map<string, number>();
    let soundInItself = 0;
    for (let round = 0; round < ROUNDS; ) {
      // A new log now and then, so that the places of entries and segments vary.
      const log = await makeLog(12 + pick(random, 12), random);
      const other = await makeLog(12 + pick(random, 12), random);
      expect(judge(together(log.loose), [log.checkpoint])).toBe('sound');
      for (let n = 0; n < 500 && round < ROUNDS; n++) {
        const kind = kinds[pick(random, kinds.length)] as string;
        const forgery = FORGERIES[kind];
        let files = new Map(log.files);
        if (forgery === undefined) DAMAGES[kind]!(files, random, other);
        else files = together(forgery(copyOf(log.loose), random, other));
        // Two equal entries exchanged are no change, and nothing was cut off where nothing was.
        if (isSame(files, log.files)) continue;
        const told = `round ${round}: ${kind}`;
        expect(judge(files, [log.checkpoint]), told).not.toBe('sound');
        if (forgery !== undefined && round % Math.ceil(ROUNDS / 200) === 0 && verifyLog('/', diskOf(files)).ok)
          soundInItself++;
        found.set(kind, (found.get(kind) ?? 0) + 1);
        round++;
      }
    }
    expect([...found.keys()].sort()).toEqual(kinds.sort());
    expect(Math.min(...found.values())).toBeGreaterThan(0.02 * ROUNDS);
    // Without the checkpoint the forgeries pass: it is what finds them.
    expect(soundInItself).toBeGreaterThan(50);
  });

  it('are all found by the signature where the checkpoint is changed, and by its origin where it is of another log', async () => {
    const random = mulberry32(SEED);
    const log = await makeLog(12, random);
    const other = await makeLog(12, random);
    const { note } = log.checkpoint;
    const bytes = Buffer.from(note);
    for (let at = 0; at < bytes.length; at++) {
      const changed = Buffer.from(bytes);
      changed[at]! ^= 1 + pick(random, 127);
      const path = join(folder(), 'anchor.txt');
      writeFileSync(path, changed);
      let said = 'nothing';
      try {
        // A checkpoint that is cut off counts for nothing: then there is none.
        said = readCheckpoints(path, keys).length === 0 ? 'none' : 'taken';
      } catch (error) {
        said = (error as KvError).code;
      }
      expect(['bad-signature', 'none'], `byte ${at}`).toContain(said);
    }
    expect(judge(log.files, [other.checkpoint])).toMatch(/^this is log [0-9a-f]+, and log [0-9a-f]+ was signed/);
    expect(judge(log.files, [log.checkpoint, other.checkpoint])).toMatch(/was signed/);
    const stranger = [verifierOf(generateKeyPairSync('ed25519').privateKey)];
    expect(() => parseCheckpoint(note, stranger, 'anchor')).toThrowError(/signed by none of the trusted keys/);
    expect(parseCheckpoint(note, [...stranger, ...keys], 'anchor').size).toBe(12);
  });
});
