/**
 * `npm run bench -- log`: how fast a writer takes entries in group commit, how long a call of `append` keeps the
 * caller, how long a commit takes, how much memory it needs, and how fast a log is read and verified, beside what
 * SHA-256 of the same bytes takes in one call. The entries are decisions as a session makes them, plain and sealed. The
 * disk is that of the folder for temporary files. Figures of processor time hold also where others use the machine.
 */
import { createHash } from 'node:crypto';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { loadavg, tmpdir } from 'node:os';
import { join } from 'node:path';
import { seeded } from '../../engine/evaluate/recall.ts';
import type { Because } from '../../policy/index.ts';
import { nodeFiles } from '../../witness/files.ts';
import { type DecisionBody, openWitnessLog, readLog, verifyLog } from '../../witness/index.ts';
import { machine } from './machine.ts';
import { residentBytes } from './memory.ts';

const ENTRIES = 100_000;
/** So many that what V8 remembers of numbers it has printed does not help. */
const BODIES = 50_000;
const COMMITS = 200;
/** Entries between two turns of the event loop: those of one busy step of a large model. */
const BURST = 64;
const SESSION = '0199a1b2-c3d4-7e5f-8091-a2b3c4d5e6f7';

/**
 * Decisions of a price policy under a budget, with numbers of as many digits as real ones have, and in objects as
 * policies make them.
 */
function decisions(count: number): DecisionBody[] {
  const random = seeded(7);
  const because = (rule: string): Because => ({
    threshold: 'price',
    measured: random() * 1e-9,
    bound: 2.3841857910156e-9,
    unit: 'KLD/byte',
    origin: 'learned',
    rule,
  });
  return Array.from({ length: count }, (_, n) => ({
    situation: n >> 4,
    order: n & 15,
    decision: {
      layer: n % 30,
      page: n >> 6,
      side: n % 2 === 0 ? 'k' : 'v',
      from: 'q8',
      to: 'rot4',
      epsilonFrom: random() * 1e-3,
      epsilonTo: random() * 1e-2,
      price: random() * 1e-9,
      bytesFreed: 12416,
      retry: n % 7 === 0,
      because: because('price'),
    },
    epsilonNow: n % 3 === 0 ? random() * 1e-2 : null,
    verdict: { accepted: n % 5 > 0, because: because('retried') },
    bytesBefore: 4_000_000_000 - n * 12416,
    bytesAfter: 4_000_000_000 - (n + 1) * 12416,
    tokens: 128 * (n >> 4),
  }));
}

export interface LogRow {
  readonly isEncrypted: boolean;
  readonly entries: number;
  readonly bytesPerEntry: number;
  readonly entriesPerSecond: number;
  readonly appendMbPerSecond: number;
  /** Processor time of all threads together, the kernel's part of writing and syncing included. */
  readonly processorUsPerEntry: number;
  readonly appendP50Us: number;
  readonly appendP99Us: number;
  readonly appendMaxMs: number;
  /** From the end of a burst until it is synced. */
  readonly commitP50Ms: number;
  readonly commitP99Ms: number;
  readonly residentGrowthMb: number;
  readonly readMbPerSecond: number;
  readonly verifyMbPerSecond: number;
  /** By one thread. */
  readonly verifyAloneMbPerSecond: number;
  readonly verifyProcessorMbPerSecond: number;
}

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));
const processorMs = (): number => {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1000;
};
const at = (sorted: Float64Array, share: number): number => sorted[Math.floor(share * (sorted.length - 1))]!;

/** Writes `entries` entries to a new log in `dir`, and reads and verifies it. */
export async function logRow(dir: string, entries: number, isEncrypted: boolean): Promise<LogRow> {
  const bodies = decisions(Math.min(entries, BODIES));
  const warm = await openWitnessLog({ dir: join(dir, 'warm'), encrypt: isEncrypted });
  for (let n = 0; n < Math.min(entries, 20_000); n++) warm.append(SESSION, 'decision', bodies[n % bodies.length]!);
  await warm.close();
  const log = await openWitnessLog({ dir: join(dir, 'log'), encrypt: isEncrypted });
  const us = new Float64Array(entries);
  const before = residentBytes();
  let resident = before;
  const start = performance.now();
  const startMs = processorMs();
  for (let n = 0; n < entries; n++) {
    const from = performance.now();
    log.append(SESSION, 'decision', bodies[n % bodies.length]!);
    us[n] = 1000 * (performance.now() - from);
    if (n % BURST === BURST - 1) await turn();
    if (n % 10_000 === 0) resident = Math.max(resident, residentBytes());
  }
  await log.flush();
  const seconds = (performance.now() - start) / 1000;
  const processorUs = 1000 * (processorMs() - startMs);
  const { bytes } = log;
  const commits = new Float64Array(COMMITS);
  for (let n = 0; n < COMMITS; n++) {
    for (let m = 0; m < BURST; m++) log.append(SESSION, 'decision', bodies[(n * BURST + m) % bodies.length]!);
    const from = performance.now();
    await log.flush();
    commits[n] = performance.now() - from;
  }
  const allBytes = log.bytes;
  await log.close();
  const timed = (work: () => void): { wall: number; processor: number } => {
    const from = performance.now();
    const fromMs = processorMs();
    work();
    return {
      wall: allBytes / 1e3 / (performance.now() - from),
      processor: allBytes / 1e3 / (processorMs() - fromMs),
    };
  };
  us.sort();
  commits.sort();
  const read = timed(() => {
    for (const _ of readLog(join(dir, 'log')));
  });
  const verify = (threads?: number): void => {
    if (!verifyLog(join(dir, 'log'), nodeFiles, threads).ok) throw new Error('the log is not sound');
  };
  const alone = timed(() => verify(1));
  const verified = timed(() => verify());
  return {
    isEncrypted,
    entries,
    bytesPerEntry: bytes / entries,
    entriesPerSecond: entries / seconds,
    appendMbPerSecond: bytes / 1e6 / seconds,
    processorUsPerEntry: processorUs / entries,
    appendP50Us: at(us, 0.5),
    appendP99Us: at(us, 0.99),
    appendMaxMs: us.at(-1)! / 1000,
    commitP50Ms: at(commits, 0.5),
    commitP99Ms: at(commits, 0.99),
    residentGrowthMb: (resident - before) / 2 ** 20,
    readMbPerSecond: read.wall,
    verifyMbPerSecond: verified.wall,
    verifyAloneMbPerSecond: alone.wall,
    verifyProcessorMbPerSecond: verified.processor,
  };
}

/** MB/s of one thread that hashes 64 MiB in one call; the best of five. */
function sha256MbPerSecond(): number {
  const bytes = Buffer.alloc(64 << 20, 7);
  const rates = Array.from({ length: 5 }, () => {
    const from = performance.now();
    createHash('sha256').update(bytes).digest();
    return bytes.length / 1e3 / (performance.now() - from);
  });
  return Math.max(...rates);
}

/** Prints what `logRow` measures, and writes it to the file `json`. */
export async function log(say: (line: string) => void, json: string | null): Promise<void> {
  const about = machine();
  const sha256 = sha256MbPerSecond();
  say(
    `${about.cpu}, ${about.cores} cores, node ${about.node}, commit ${about.commit}; load ${loadavg()[0]!.toFixed(1)}; SHA-256 in one call ${sha256.toFixed(0)} MB/s`,
  );
  const rows: LogRow[] = [];
  for (const isEncrypted of [false, true]) {
    const dir = mkdtempSync(join(tmpdir(), 'palimpsest-bench-'));
    try {
      const row = await logRow(dir, ENTRIES, isEncrypted);
      rows.push(row);
      sayRow(say, row);
    } finally {
      rmSync(dir, { recursive: true });
    }
  }
  if (json !== null)
    writeFileSync(json, `${JSON.stringify({ machine: about, sha256MbPerSecond: sha256, rows }, null, 1)}\n`);
}

function sayRow(say: (line: string) => void, row: LogRow): void {
  say(
    `log${row.isEncrypted ? ', encrypted' : ''}: ${row.entries} decisions of ${row.bytesPerEntry.toFixed(0)} bytes, ${BURST} at a time`,
  );
  say(
    `  append   ${Math.round(row.entriesPerSecond)} entries/s, ${row.appendMbPerSecond.toFixed(0)} MB/s until all are synced (goal: 200000 entries/s); ${row.processorUsPerEntry.toFixed(2)} µs of processor time for each, which is ${Math.round(1e6 / row.processorUsPerEntry)} in a second of it`,
  );
  say(
    `  one call p50 ${row.appendP50Us.toFixed(2)} µs, p99 ${row.appendP99Us.toFixed(2)} µs (goal: under 20 µs), longest ${row.appendMaxMs.toFixed(1)} ms`,
  );
  say(`  commit   of ${BURST} entries p50 ${row.commitP50Ms.toFixed(1)} ms, p99 ${row.commitP99Ms.toFixed(1)} ms`);
  say(`  memory   ${row.residentGrowthMb.toFixed(0)} MB more than before`);
  say(`  read     ${row.readMbPerSecond.toFixed(0)} MB/s`);
  say(
    `  verify   ${row.verifyMbPerSecond.toFixed(0)} MB/s (goal: 500 MB/s), by one thread ${row.verifyAloneMbPerSecond.toFixed(0)} MB/s, ${row.verifyProcessorMbPerSecond.toFixed(0)} MB in a second of processor time`,
  );
}
