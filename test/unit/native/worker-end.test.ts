/**
 * The process survives a worker thread that ends in the middle of the binding's work, as often as it happens: real
 * processes, each of which starts a worker that attends, moves, tries and forks without pause, and ends it from outside
 * (`terminate()`) or ends itself (`process.exit()`).
 */
import { spawn } from 'node:child_process';
import { describe, expect, it } from 'vitest';
import { nativeInfo } from '../../../native/index.ts';
import { rounds } from '../../tier.ts';

const REPETITIONS = rounds(12);

const worker = `
  const { Pool, Cache } = require(process.argv[2]);
  const rows = new Float32Array(300 * 64).fill(0.25);
  const q = new Float32Array(300 * 128).fill(0.5);
  let kept = [];
  for (let i = 0; ; i++) {
    const [pool, cache] = [new Pool(), new Cache()];
    pool.open(40000000);
    cache.open(pool, Int32Array.of(1, 2, 1, 64, 1, 2, 0), 0.125, new Int32Array(1), new Float32Array(0));
    cache.append(0, rows, rows);
    for (let j = 0; j < 5; j++) {
      cache.attend(0, q, new Float32Array(q.length), undefined, undefined, true);
      const fork = new Cache();
      fork.openFork(cache);
      cache.startMove(0, j % 2, 2, 2);
      fork.startTrial(0, 1 - j % 2, Uint8Array.of(0, 2, 1, 3, 2, 4));
      kept.push(fork);
      if (j % 2 === 0) cache.finishMoves(true, new Float64Array(3));
    }
    kept.push(pool, cache);
    if (kept.length > 40) kept = [];
    if (i === 2) require('node:worker_threads').parentPort.postMessage('at work');
  }`;

const parent = `
  const { Worker } = require('node:worker_threads');
  const [file, how, delayMs] = process.argv.slice(1);
  const worker = new Worker(${JSON.stringify(worker)}, { eval: true, argv: [file] });
  worker.on('error', (error) => { console.error(error); process.exit(9); });
  worker.on('message', () => setTimeout(() => (how === 'exit' ? process.exit(0) : worker.terminate()), Number(delayMs)));`;

function ends(how: string, delayMs: number): Promise<string> {
  const child = spawn(process.execPath, ['-e', parent, nativeInfo().file, how, String(delayMs)], {
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  let said = '';
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    said += text;
  });
  return new Promise((resolve) => child.on('close', (code, signal) => resolve(`${code ?? signal} ${said}`.trim())));
}

describe.skipIf(nativeInfo().binding === 'wasm')('a worker that ends at work (needs an addon)', () => {
  it.each(['terminate', 'exit'])(
    'by %s leaves a process that ends as it should',
    async (how) => {
      for (let i = 0; i < REPETITIONS; i++) expect(await ends(how, (i * 7) % 40)).toBe('0');
    },
    120_000,
  );
});
