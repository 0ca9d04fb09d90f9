// hnswlib-node does not survive the end of a thread that is inside it: the process aborted. A thread that somebody may
// end at any time has the exact index over the same files instead. Threads and processes of their own, from the build.
import { spawn } from 'node:child_process';
import { readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { Worker } from 'node:worker_threads';
import { expect, it } from 'vitest';
import { openVectorIndex } from '../../../memory/open-index.ts';
import { rounds } from '../../tier.ts';
import { scratchFolders } from '../witness/folder.ts';

const folder = scratchFolders();
const root = join(import.meta.dirname, '..', '..', '..');
const built = (path: string): string => JSON.stringify(pathToFileURL(join(root, 'dist', path)).href);
const OPTIONS = `{ dim: 8, dir: workerData, origin: 'a test', exactBelow: 0 }`;
const entry = (seq: number) => ({
  id: { log: 'a', seq },
  vector: Array.from({ length: 8 }, (_, i) => Math.fround(Math.sin(seq * 8 + i))),
  payload: { seq },
});
const ENTRY = `const entry = ${entry.toString()};`;
const OPEN = `
  import { parentPort, workerData } from 'node:worker_threads';
  import { openVectorIndex } from ${built('memory/open-index.js')};
  ${ENTRY}
  const open = (more = {}) => openVectorIndex({ ...${OPTIONS}, ...more }, (index) => index.add([1, 2, 3].map(entry)));`;

/** Runs a module in a thread; → what it posted. */
function inThread(source: string, dir: string): Promise<unknown> {
  const path = join(folder(), 'thread.mjs');
  writeFileSync(path, source);
  const worker = new Worker(path, { workerData: dir });
  return new Promise((resolve, reject) => worker.once('message', resolve).once('error', reject));
}

it('a thread of somebody else finds in the saved files what the main thread finds, and changes nothing', async () => {
  const dir = folder();
  const all = Array.from({ length: 40 }, (_, seq) => entry(seq));
  const { index } = await openVectorIndex<{ seq: number }>({ dim: 8, dir, origin: 'a test' }, (one) => one.add(all));
  expect(index.kind).toBe('hnsw');
  await index.save();
  const files = readdirSync(dir);
  const found = await inThread(
    `${OPEN}
    const { index, rebuilt } = await open();
    await index.add([entry(99)]);
    await index.save();
    const near = await index.search(entry(7).vector, 5);
    parentPort.postMessage({ kind: index.kind, rebuilt, count: await index.count(), near });`,
    dir,
  );
  expect(found).toEqual({ kind: 'exact', rebuilt: null, count: 41, near: await index.search(entry(7).vector, 5) });
  expect(readdirSync(dir)).toEqual(files);
});

it('what such a thread forgets does not stay in the files', async () => {
  const dir = folder();
  const { index } = await openVectorIndex<{ seq: number }>({ dim: 8, dir, origin: 'a test' }, (one) =>
    one.add([entry(1), entry(2)]),
  );
  await index.save();
  const forget = (more: string): Promise<unknown> =>
    inThread(
      `${OPEN}
      const { index } = await open(${more});
      await index.remove({ must: [{ field: 'seq', equals: 1 }] });
      await index.save();
      parentPort.postMessage(await index.count());`,
      dir,
    );
  expect(await forget('{ readOnly: true }')).toBe(1);
  expect(readdirSync(dir)).toHaveLength(3);
  expect(await forget('{}')).toBe(1);
  expect(readdirSync(dir)).toEqual([]);
});

it('files that are damaged are filled again there as well, and it is said why', async () => {
  const dir = folder();
  writeFileSync(join(dir, 'manifest.json'), '{');
  const source = `${OPEN} const { index, rebuilt } = await open(); parentPort.postMessage([await index.count(), rebuilt]);`;
  expect(await inThread(source, dir)).toEqual([3, expect.stringContaining('is not JSON')]);
});

/** Ends a thread at work, or its process, after a while. → how the process ended */
function ended(how: 'terminate' | 'exit', ms: number, work: string): Promise<string> {
  const dir = folder();
  const path = join(dir, 'work.mjs');
  writeFileSync(path, work);
  const parent = `
    import { Worker } from 'node:worker_threads';
    const worker = new Worker(${JSON.stringify(path)}, { workerData: ${JSON.stringify(join(dir, 'state'))} });
    worker.on('error', (error) => { console.error(error); process.exit(9); });
    worker.once('message', () => setTimeout(async () => {
      if (${how === 'terminate'}) await worker.terminate();
      process.exit(7);
    }, ${ms}));`;
  const start = join(dir, 'start.mjs');
  writeFileSync(start, parent);
  const child = spawn(process.execPath, [start], { stdio: ['ignore', 'ignore', 'pipe'] });
  let said = '';
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    said += text;
  });
  return new Promise((resolve) => child.on('close', (code, signal) => resolve(`${code ?? signal} ${said}`.trim())));
}

it.each(['terminate', 'exit'] as const)(
  'a thread that searches without pause is ended by %s, and nothing aborts',
  async (how) => {
    const work = `${OPEN}
    for (let i = 0; ; i++) {
      const { index } = await open();
      await index.add(Array.from({ length: 60 }, (_, seq) => entry(seq)));
      for (let seq = 0; seq < 60; seq++) await index.search(entry(seq).vector, 8);
      await index.save();
      if (i === 2) parentPort.postMessage('at work');
    }`;
    for (let i = 0; i < rounds(6); i++) expect(await ended(how, (i * 7) % 40, work)).toBe('7');
  },
);

it('a thread whose caches keep a log is ended while they open and close, and nothing aborts', async () => {
  const work = `
    import { parentPort, workerData } from 'node:worker_threads';
    import { openCache } from ${built('engine/index.js')};
    const rows = new Float32Array(130 * 64).fill(0.25);
    for (let i = 0; ; i++) {
      const cache = await openCache({ layers: 1, queryHeads: 1, kvHeads: 1, headDim: 64, stateDir: workerData });
      cache.append(0, rows, rows);
      cache.attention(0, rows);
      await cache.close();
      if (i === 1) parentPort.postMessage('at work');
    }`;
  for (let i = 0; i < rounds(3); i++) expect(await ended('terminate', 5 + 11 * i, work)).toBe('7');
});
