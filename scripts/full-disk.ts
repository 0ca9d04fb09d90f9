/**
 * `npm run sim -- full-disk`: the log on a real file system that is full (a small tmpfs; needs the right to mount one). First every mode with entries
 * as fast as they come: made = logged + dropped, or the command fails. Then decode steps of `openCache` with ten times the entries that they
 * make themselves, in mode drop, in turns on a full and on a roomy file system: what happens to their p99 is printed, and is no check.
 */
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, statfsSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { openCache, type PolicyCache } from '../engine/index.ts';
import { KvError } from '../native/index.ts';
import { type FailureMode, openWitnessLog, readLog, verifyLog, type WitnessLog } from '../witness/index.ts';

const ENTRIES = 20_000;
const SHAPE = { layers: 6, queryHeads: 8, kvHeads: 4, headDim: 64 };
const PROMPT_TOKENS = 1024;
const ROUNDS = 21;
const STEPS = 200;
/** A step of the reference model within 25% of f16 makes two entries as a rule; ten times that. */
const LOAD = 20;

const root = mkdtempSync(join(tmpdir(), 'palimpsest-full-'));
const mounted: string[] = [];

function mount(name: string, bytes: number): string {
  const dir = join(root, name);
  mkdirSync(dir);
  const { status, stderr } = spawnSync('mount', ['-t', 'tmpfs', '-o', `size=${bytes}`, 'tmpfs', dir], {
    encoding: 'utf8',
  });
  if (status !== 0) throw new KvError('unsupported', `a tmpfs cannot be mounted here: ${stderr.trim()}`);
  mounted.push(dir);
  return dir;
}

/** Entries as fast as they come, until as many were made or the log refused. */
async function account(mode: FailureMode): Promise<void> {
  const dir = join(mount(mode, 1 << 20), 'log');
  const log = await openWitnessLog({ dir, mode, blockMsMax: 500, bufferBytesMax: 1 << 16 });
  let [made, refused] = [0, 0];
  for (; made < ENTRIES && refused === 0; made++) {
    try {
      log.append('s', 'note', { n: made, pad: 'x'.repeat(200) });
    } catch (error) {
      if (!(error instanceof KvError) || error.code !== 'log-unwritable') throw error;
      refused++;
    }
    if (made % 100 === 0) await new Promise((resolve) => setImmediate(resolve));
  }
  await log.close().catch(() => undefined);
  const logged = [...readLog(dir, { session: 's' })].length;
  const { droppedCount } = log;
  // The entry in whose middle the log gave up was made and dropped; one that is refused at once was not made.
  const isExact = logged + droppedCount === made || logged + droppedCount === made - refused;
  console.log(`${mode}: ${made} made, ${logged} logged, ${droppedCount} dropped${isExact ? '' : ': NOT EQUAL'}`);
  if (!isExact || !verifyLog(dir).ok) process.exitCode = 1;
}

interface Side {
  readonly name: string;
  readonly cache: PolicyCache;
  readonly log: WitnessLog;
  readonly p50: number[];
  readonly p99: number[];
}

async function openSide(name: string, room: number): Promise<Side> {
  const dir = mount(name, 256 << 20);
  const { bavail, bsize } = statfsSync(dir);
  if (room > 0) writeFileSync(join(dir, 'ballast'), Buffer.alloc(bavail * bsize - room));
  const more = { stateDir: join(dir, 'state'), onLogFailure: 'drop', kvBudget: '25%', tokensExpected: 8192 } as const;
  const cache = await openCache({ ...SHAPE, ...more });
  return { name, cache, log: await openWitnessLog({ dir: join(dir, 'load'), mode: 'drop' }), p50: [], p99: [] };
}

const rows = (tokens: number, heads: number): Float32Array =>
  Float32Array.from({ length: tokens * heads * SHAPE.headDim }, () => Math.random() - 0.5);

function step({ cache, log }: Side, tokens: number, load: number): void {
  for (let layer = 0; layer < SHAPE.layers; layer++) {
    cache.append(layer, rows(tokens, SHAPE.kvHeads), rows(tokens, SHAPE.kvHeads));
    cache.attention(layer, rows(tokens, SHAPE.queryHeads));
  }
  for (let n = 0; n < load; n++) log.append('s', 'note', { n, pad: 'x'.repeat(400) });
}

async function compare(): Promise<void> {
  const sides = [await openSide('roomy', 0), await openSide('full', 1 << 18)] as const;
  for (const side of sides) step(side, PROMPT_TOKENS, 0);
  for (let round = 0; round < ROUNDS; round++) {
    for (const side of round % 2 === 0 ? sides : [...sides].reverse()) {
      const times: number[] = [];
      for (let at = 0; at < STEPS; at++) {
        const start = performance.now();
        step(side, 1, LOAD);
        times.push(performance.now() - start);
        await new Promise((resolve) => setImmediate(resolve));
      }
      times.sort((a, b) => a - b);
      // The first round fills the disk.
      if (round === 0) continue;
      side.p50.push(times[STEPS >> 1]!);
      side.p99.push(times[Math.floor(STEPS * 0.99)]!);
    }
  }
  const middle = (numbers: readonly number[]): number => [...numbers].sort((a, b) => a - b)[numbers.length >> 1]!;
  for (const { name, log, cache, p50, p99 } of sides) {
    console.log(
      `${name}: p50 ${middle(p50).toFixed(3)} ms, p99 ${middle(p99).toFixed(3)} ms, ${log.droppedCount} dropped of ${LOAD * STEPS * ROUNDS}`,
    );
    await log.close();
    await cache.close();
  }
  const [roomy, full] = sides;
  const moved = middle(full.p99.map((ms, round) => ms / roomy.p99[round]! - 1));
  console.log(`p99 on the full one: ${(100 * moved).toFixed(1)}% (median of ${ROUNDS - 1} rounds)`);
}

try {
  for (const mode of ['block', 'halt', 'drop'] as const) await account(mode);
  await compare();
} finally {
  for (const dir of mounted) execFileSync('umount', [dir]);
  rmSync(root, { recursive: true, force: true });
}
