/** The contract of test/suite/index.ts over both vector indexes, and what only the one with files can promise. */

import { spawn } from 'node:child_process';
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import {
  createExactIndex,
  inspectIndex,
  openHnswIndex,
  openOrRebuildHnswIndex,
  readVectorIndexManifest,
  type VectorIndex,
} from '../../memory/index.ts';
import { KvError } from '../../native/index.ts';
import { seeded } from '../random.ts';
import { entry, refusal, type Thing, vectorIndexSuite } from './index.ts';
import { clustered } from './index-data.ts';

const root = mkdtempSync(join(tmpdir(), 'palimpsest-index-'));
afterAll(() => rmSync(root, { recursive: true, force: true }));
let folders = 0;
const fresh = (): string => join(root, String(folders++));

vectorIndexSuite('exact scan', async (dim, fields) => createExactIndex(dim, fields));
vectorIndexSuite('hnsw', async (dim, fields) => openHnswIndex({ dim, fields, dir: null, exactBelow: 0 }));
vectorIndexSuite('hnsw with its scan of small indexes', async (dim, fields) =>
  openHnswIndex({ dim, fields, dir: null }),
);

const DIM = 4;
const vectors = clustered(300, DIM, 5, 99);
async function saved(dir: string, count = 300): Promise<void> {
  const index = await openHnswIndex<Thing>({ dim: DIM, dir, origin: 'log-a' });
  await index.add(vectors.slice(0, count).map((vector, seq) => entry(seq, vector)));
  await index.save();
  await index.close();
}

describe('files of the hnsw index', () => {
  // Tries saving, loading, growing and saving again: the same answers, and one generation of files on disk.
  test('what is saved comes back', async () => {
    const dir = fresh();
    await saved(dir);
    const index = await openHnswIndex<Thing>({ dim: DIM, dir, origin: 'log-a', exactBelow: 0 });
    expect(await index.count()).toBe(300);
    for (let i = 0; i < 300; i += 7) {
      const { id, payload } = entry(i, []);
      expect((await index.search(vectors[i]!, 1))[0]).toEqual({ id, distance: 0, payload });
    }
    for (let i = 300; i < 600; i++) await index.add([entry(i, [i, i, i, i], { name: `late ${i}` })]);
    await index.save();
    expect(readdirSync(dir).sort()).toEqual(['manifest.json', 'payloads.2.jsonl', 'vectors.2.hnsw']);
    const again = await openHnswIndex<Thing>({ dim: DIM, dir, origin: 'log-a' });
    expect(await again.count()).toBe(600);
    expect((await again.search([450, 450, 450, 450], 1))[0]!.payload.name).toBe('late 450');
  });

  test('an empty index can be saved and loaded', async () => {
    const dir = fresh();
    await saved(dir, 0);
    const index = await openHnswIndex<Thing>({ dim: DIM, dir, origin: 'log-a' });
    expect(await index.count()).toBe(0);
    await index.add([entry(1, [1, 2, 3, 4])]);
    expect(await index.search([1, 2, 3, 4], 1)).toHaveLength(1);
  });

  // Tries another dim and another origin: the library would load the first and answer garbage.
  test('another dim or origin is refused', async () => {
    const dir = fresh();
    await saved(dir, 20);
    expect((await refusal(() => openHnswIndex({ dim: DIM + 1, dir, origin: 'log-a' }))).code).toBe('bad-index');
    const error = await refusal(() => openHnswIndex<Thing>({ dim: DIM, dir, origin: 'log-b' }));
    expect(error.code).toBe('bad-index');
    expect(error.hint).toContain('reindex');
  });

  // Flips every byte of the manifest and a seeded sample of the two data files, one at a time.
  test('every flipped byte is refused', async () => {
    const dir = fresh();
    await saved(dir, 60);
    const seed = 4711;
    const next = seeded(seed);
    let tried = 0;
    for (const name of readdirSync(dir)) {
      const path = join(dir, name);
      const good = readFileSync(path);
      const every = name === 'manifest.json';
      const positions = every ? [...good.keys()] : Array.from({ length: 60 }, () => Math.floor(next() * good.length));
      for (const position of positions) {
        const bad = Buffer.from(good);
        bad[position] = bad[position]! ^ (1 << Math.floor(next() * 8));
        writeFileSync(path, bad);
        const error = await refusal(() => openHnswIndex<Thing>({ dim: DIM, dir, origin: 'log-a' }));
        expect(error.code, `${name} byte ${position}, seed ${seed}`).toBe('bad-index');
        tried += 1;
      }
      writeFileSync(path, good);
    }
    expect(tried).toBeGreaterThan(500);
    expect(await (await openHnswIndex<Thing>({ dim: DIM, dir, origin: 'log-a' })).count()).toBe(60);
    expect(inspectIndex(dir)).toMatchObject({ dim: DIM, count: 60, origin: 'log-a', space: 'l2' });
    expect(() => inspectIndex(fresh())).toThrow(expect.objectContaining({ code: 'not-found' }));
    writeFileSync(join(dir, 'vectors.1.hnsw'), 'nonsense');
    expect(() => inspectIndex(dir)).toThrow(expect.objectContaining({ code: 'bad-index' }));
    // A manifest of something else differs in every field; one line says so.
    writeFileSync(join(dir, 'manifest.json'), '{"name":"other","dimension":3,"metric":"cosine"}');
    expect(() => inspectIndex(dir)).toThrow(
      expect.objectContaining({ code: 'bad-index', message: expect.stringMatching(/^[^\n]{20,250}$/) }),
    );
  });

  // Rewrites the manifest with correct digests over a damaged vector file, as someone who knows the format could:
  // the library would follow the links out of its memory; the structure check must stop or the load be harmless.
  test('a damaged vector file with a matching digest is refused or harmless', async () => {
    const { createHash } = await import('node:crypto');
    const sha256 = (x: string | Uint8Array): string => createHash('sha256').update(x).digest('hex');
    const dir = fresh();
    await saved(dir, 60);
    const good = readFileSync(join(dir, 'vectors.1.hnsw'));
    const manifest = readVectorIndexManifest(dir)!;
    const seed = 12;
    const next = seeded(seed);
    let refused = 0;
    for (let i = 0; i < 300; i++) {
      const bad = Buffer.from(good);
      // The first third hits the header, the rest anything.
      const position = Math.floor(next() * (i < 100 ? 96 : good.length));
      bad[position] = Math.floor(next() * 256);
      const bytes = i % 10 === 9 ? bad.subarray(0, Math.floor(next() * bad.length)) : bad;
      writeFileSync(join(dir, 'vectors.1.hnsw'), bytes);
      const body = { ...manifest, vectors: { ...manifest.vectors, bytes: bytes.length, sha256: sha256(bytes) } };
      writeFileSync(join(dir, 'manifest.json'), `${JSON.stringify({ body, sha256: sha256(JSON.stringify(body)) })}\n`);
      try {
        const index = await openHnswIndex<Thing>({ dim: DIM, dir, origin: 'log-a', exactBelow: 0 });
        const found = await index.search(vectors[0]!, 3);
        expect(found.every((n) => Number.isFinite(n.distance))).toBe(true);
      } catch (error) {
        expect(error, `mutation ${i}, seed ${seed}`).toBeInstanceOf(KvError);
        expect((error as KvError).code).toBe('bad-index');
        refused += 1;
      }
    }
    expect(refused).toBeGreaterThan(60);
  });

  // Tries the way back: damaged files, missing files, no files; the rebuild runs, says why, and its result is saved.
  test('openOrRebuild builds again and says why', async () => {
    const dir = fresh();
    const rebuild = (index: VectorIndex<Thing>): Promise<void> =>
      index.add(vectors.slice(0, 50).map((vector, seq) => entry(seq, vector)));
    const open = () => openOrRebuildHnswIndex<Thing>({ dim: DIM, dir, origin: 'log-a' }, rebuild);
    expect((await open()).rebuilt).toContain('no saved');
    expect((await open()).rebuilt).toBeNull();
    writeFileSync(join(dir, 'vectors.1.hnsw'), 'nonsense');
    const opened = await open();
    expect(opened.rebuilt).toContain('vectors.1.hnsw');
    expect(await opened.index.count()).toBe(50);
    expect((await open()).rebuilt).toBeNull();
    rmSync(join(dir, 'payloads.2.jsonl'));
    expect((await open()).rebuilt).toContain('payloads.2.jsonl');
  });

  // Kills a process that saves again and again; whatever the moment, a whole generation of acknowledged size opens.
  test('a kill during save leaves a whole index', async () => {
    const dir = fresh();
    await saved(dir, 100);
    const seed = 31;
    const next = seeded(seed);
    const script = join(import.meta.dirname, 'save-forever.ts');
    for (let round = 0; round < 5; round++) {
      const child = spawn(process.execPath, ['--import', 'tsx', script, dir], { stdio: ['ignore', 'pipe', 'inherit'] });
      let acknowledged = 0;
      await new Promise<void>((resolve, reject) => {
        child.on('error', reject);
        child.on('exit', () => resolve());
        child.stdout.on('data', (chunk: Buffer) => {
          const last = chunk.toString().trim().split('\n').at(-1)!;
          if (acknowledged === 0) setTimeout(() => child.kill('SIGKILL'), 20 + Math.floor(next() * 60));
          acknowledged = Number(last);
        });
      });
      expect(acknowledged, 'the child saved at least once').toBeGreaterThan(100);
      const copy = fresh();
      cpSync(dir, copy, { recursive: true });
      const index = await openHnswIndex<Thing>({ dim: DIM, dir: copy, origin: 'log-a' });
      expect(await index.count(), `round ${round}, seed ${seed}`).toBeGreaterThanOrEqual(acknowledged);
      await index.save();
      expect(readdirSync(copy)).toHaveLength(3);
    }
  });
});
