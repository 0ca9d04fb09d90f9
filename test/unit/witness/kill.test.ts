// SIGKILL at random moments, twenty times on the same log: every seq that the writer had printed as acknowledged is there,
// the chain verifies each time, and the next writer takes over the lock and goes on.
import { spawn } from 'node:child_process';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { Worker } from 'node:worker_threads';
import { expect, it } from 'vitest';
import { lockWriter, openWitnessLog, readLog, verifyLog } from '../../../witness/index.ts';
import { scratchFolders } from './folder.ts';
import { seeded } from './simulated-disk.ts';

const folder = scratchFolders();
const ROUNDS = 20;

/** Starts a writer, kills it `afterMs` after it opened the log. → what it said */
function writeAndKill(dir: string, afterMs: number): Promise<{ opened: number; acknowledged: number }> {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, ['--import', 'tsx', join(import.meta.dirname, 'writer-child.ts'), dir], {
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    let out = '';
    let err = '';
    let isOpen = false;
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      out += text;
      if (!isOpen && out.includes('\n')) {
        isOpen = true;
        setTimeout(() => child.kill('SIGKILL'), afterMs);
      }
    });
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      err += text;
    });
    child.on('error', reject);
    child.on('close', (_code, signal) => {
      if (signal !== 'SIGKILL') reject(new Error(`the writer ended by itself: ${err}`));
      // A line cut by the kill does not count: it was not said.
      const said = (word: string): number[] =>
        out
          .split('\n')
          .slice(0, -1)
          .filter((line) => line.startsWith(word))
          .map((line) => Number(line.slice(5)));
      resolve({ opened: said('open')[0] as number, acknowledged: Math.max(-1, ...said('have')) });
    });
  });
}

it(`keeps every acknowledged entry through ${ROUNDS} kills`, async () => {
  const dir = folder();
  const seed = 20_261;
  const random = seeded(seed);
  let acknowledged = -1;
  for (let round = 0; round < ROUNDS; round++) {
    const told = `seed ${seed}, round ${round}`;
    const said = await writeAndKill(dir, Math.floor(random() * 60));
    expect(said.opened, told).toBeGreaterThanOrEqual(acknowledged);
    acknowledged = Math.max(acknowledged, said.opened, said.acknowledged);
    const report = verifyLog(dir);
    expect(report.problem, told).toBeNull();
    expect(report.entries, told).toBeGreaterThan(acknowledged);
  }
  expect(acknowledged).toBeGreaterThan(ROUNDS);
  const log = await openWitnessLog({ dir });
  await log.close();
  let expected = 0;
  for (const { seq, kind, body } of readLog(dir)) {
    expect(seq).toBe(expected++);
    if (kind !== 'note') continue;
    const { n, double } = body as { n: number; double: number };
    expect(double).toBe(2 * n);
  }
  expect(verifyLog(dir)).toMatchObject({ ok: true, tornBytes: 0, entries: expected });
});

// A worker thread that is terminated leaves the lock of a process that lives on: the next writer of the same process gets it,
// while a worker that still runs keeps it.
it('takes over from a terminated worker of the same process', async () => {
  const dir = folder();
  // A worker has to be told how to read TypeScript.
  const boot =
    "import('tsx/esm/api').then(({ register }) => (register(), import(require('node:worker_threads').workerData)))";
  const worker = new Worker(boot, {
    eval: true,
    argv: [dir],
    workerData: pathToFileURL(join(import.meta.dirname, 'writer-child.ts')).href,
  });
  const acknowledged = await new Promise<number>((resolve, reject) => {
    worker.on('error', reject);
    worker.on('message', (line: string) => {
      if (line.startsWith('have')) resolve(Number(line.slice(5)));
    });
  });
  expect(() => lockWriter(dir)).toThrowError(
    expect.objectContaining({ code: 'locked', values: expect.objectContaining({ pid: process.pid }) }),
  );
  await worker.terminate();
  const log = await openWitnessLog({ dir });
  expect(log.acknowledgedSeq).toBeGreaterThanOrEqual(acknowledged);
  await log.close();
  expect(verifyLog(dir).ok).toBe(true);
});
