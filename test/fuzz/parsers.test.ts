// Damaged files for every parser, a few hundred each from a fixed seed, and files as they broke other loaders, each by
// its name: all of them end in a KvError or in an answer, in bounded time and memory, and nothing is written. `npm run
// fuzz -- parsers [NAME]` goes on for as long as asked.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { checkHnswFile } from '../../memory/hnsw-file.ts';
import { KvError } from '../../native/index.ts';
import { type Broken, CORPUS, SMALL } from './corpus.ts';
import { judge } from './judge.ts';
import { fuzzParser, PARSERS, writeFiles } from './parsers.ts';

const SEED = 7001;
const ROUNDS = 150;
const dir = mkdtempSync(join(tmpdir(), 'palimpsest-corpus-'));
afterAll(() => rmSync(dir, { recursive: true, force: true }));

test.each(Object.keys(PARSERS))(`%s: ${ROUNDS} damaged files (seed ${SEED})`, async (name) => {
  const { found, refused } = await fuzzParser(name, { seed: SEED, rounds: ROUNDS });
  expect(found).toBeNull();
  // Damage that is never noticed would mean that nothing is checked.
  expect(refused).toBeGreaterThan(ROUNDS / 4);
});

test('a parser that throws something else, takes too long, holds too much or writes is found', async () => {
  const of = (read: (dir: string) => unknown) =>
    judge({ files: async () => ({}), damage: {}, read, millisecondsMax: 50 }, dir);
  expect(await of(() => 1)).toBeNull();
  expect(
    await of(() => {
      throw new KvError('bad-file', 'x');
    }),
  ).toMatchObject({ code: 'bad-file' });
  await expect(
    of(() => {
      throw new RangeError('x');
    }),
  ).rejects.toThrow(RangeError);
  await expect(
    of(() => {
      throw new KvError('no-such' as 'io', 'x');
    }),
  ).rejects.toThrow('no-such is no code');
  await expect(
    of(() => {
      for (const start = process.cpuUsage(); process.cpuUsage(start).user < 100_000; );
    }),
  ).rejects.toThrow(/took/);
  // Far more than the bound, because what earlier tests have left is collected meanwhile.
  const kept: Buffer[] = [];
  await expect(of(() => kept.push(Buffer.alloc(256 * 2 ** 20)))).rejects.toThrow(/MiB/);
  await expect(of((folder) => writeFiles(folder, { x: Buffer.of(1) }))).rejects.toThrow(/wrote/);
});

async function refusalOf({ parser, file, make }: Broken): Promise<string> {
  const files = await PARSERS[parser]!.files();
  const own = mkdtempSync(join(dir, 'entry-'));
  writeFiles(own, { ...files, [file]: make(files[file]!) });
  const refusal = await judge(PARSERS[parser]!, own);
  expect(refusal).toBeInstanceOf(KvError);
  return refusal!.message.replaceAll(own, '');
}

describe('a file that broke another loader is refused', () => {
  test.each(CORPUS.map((entry) => [`${entry.parser}: ${entry.name}`, entry] as const))('%s', async (_, entry) => {
    const message = await refusalOf(entry);
    // It says what is wrong, in one line that a person can read, and not what is wrong with every small file.
    expect(message).toMatch(/^[^\p{Cc}]{20,600}$/u);
    expect(message).not.toMatch(/checksum|damaged in/);
    for (const small of SMALL) expect(message).not.toBe(await refusalOf(small));
  });

  // nmslib/hnswlib issue 673 and its relatives: the library writes out of bounds on any of these, so it never sees the
  // file.
  test('vector indexes of hnswlib', async () => {
    const files = await PARSERS['hnsw']!.files();
    const name = Object.keys(files).find(
      (one) => files[one]!.length > 1000 && !one.endsWith('.json') && !one.endsWith('l'),
    );
    const sound = files[name!]!;
    const at = (place: number): number => Number(sound.readBigUInt64LE(place));
    const shape = { dim: 4, m: at(56), count: at(16), efConstruction: at(88), capacityMax: at(8) };
    expect(checkHnswFile(sound, shape)).toHaveLength(20);
    const elementBytes = at(24);
    const changes: [string, (bytes: Buffer) => unknown][] = [
      ['room for fewer than there are', (bytes) => bytes.writeBigUInt64LE(1n, 8)],
      ['room for 2^60', (bytes) => bytes.writeBigUInt64LE(2n ** 60n, 8)],
      ['elements of another size', (bytes) => bytes.writeBigUInt64LE(BigInt(elementBytes + 8), 24)],
      ['a level of 2^31 - 1', (bytes) => bytes.writeInt32LE(2 ** 31 - 1, 48)],
      ['a level below none', (bytes) => bytes.writeInt32LE(-2, 48)],
      ['an entry point behind the last', (bytes) => bytes.writeUInt32LE(20, 52)],
      ['more links than there is room for', (bytes) => bytes.writeUInt16LE(65535, 96)],
      ['a link to an element behind the last', (bytes) => bytes.writeUInt32LE(1 << 30, 100)],
      ['upper links of 2^32 - 1 bytes', (bytes) => bytes.writeUInt32LE(2 ** 32 - 1, 96 + 20 * elementBytes)],
    ];
    for (const [what, change] of changes) {
      const bytes = Buffer.from(sound);
      change(bytes);
      expect(() => checkHnswFile(bytes, shape), what).toThrow(KvError);
    }
    expect(() => checkHnswFile(sound.subarray(0, -1), shape)).toThrow(KvError);
    expect(() => checkHnswFile(Buffer.concat([sound, Buffer.of(0)]), shape)).toThrow(KvError);
  });
});
