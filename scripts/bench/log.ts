/**
 * `npm run bench -- log`: how fast a writer takes entries in group commit, how long a call of `append` keeps the caller, how much memory it
 * needs, and how fast a log is verified. The entries are decisions as a session makes them. The disk is that of the folder for temporary files.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { seeded } from '../../engine/evaluate/recall.ts';
import type { Because } from '../../policy/index.ts';
import { type DecisionBody, openWitnessLog, readLog, verifyLog } from '../../witness/index.ts';
import { residentBytes } from './memory.ts';

const ENTRIES = 400_000;
/** Entries between two turns of the event loop: those of one busy step of a large model. */
const BURST = 64;
const SESSION = '0199a1b2-c3d4-7e5f-8091-a2b3c4d5e6f7';

/** Decisions of a price policy under a budget, with numbers of as many digits as real ones have. */
function decisions(count: number): DecisionBody[] {
  const random = seeded(7);
  const because = (rule: string): Because => ({
    ...{ threshold: 'price', measured: random() * 1e-9, bound: 2.3841857910156e-9 },
    ...{ unit: 'KLD/byte', origin: 'learned', rule },
  });
  return Array.from({ length: count }, (_, n) => ({
    situation: n >> 4,
    order: n & 15,
    decision: {
      ...{ layer: n % 30, page: n >> 6, side: n % 2 === 0 ? 'k' : 'v', from: 'q8', to: 'rot4' },
      ...{ epsilonFrom: random() * 1e-3, epsilonTo: random() * 1e-2, price: random() * 1e-9, bytesFreed: 12416 },
      ...{ retry: n % 7 === 0, because: because('price') },
    },
    epsilonNow: n % 3 === 0 ? random() * 1e-2 : null,
    verdict: { accepted: n % 5 > 0, because: because('retried') },
    bytesBefore: 40_000_000 - n * 12416,
    bytesAfter: 40_000_000 - (n + 1) * 12416,
    tokens: 128 * (n >> 4),
  }));
}

export interface LogRow {
  readonly entries: number;
  readonly bytesPerEntry: number;
  readonly entriesPerSecond: number;
  readonly appendMbPerSecond: number;
  readonly appendP50Us: number;
  readonly appendP99Us: number;
  readonly appendMaxMs: number;
  readonly residentGrowthMb: number;
  readonly readMbPerSecond: number;
  readonly verifyMbPerSecond: number;
}

/** Writes `entries` entries to a new log in `dir`, and reads and verifies it. */
export async function logRow(dir: string, entries: number): Promise<LogRow> {
  const bodies = decisions(1000);
  const warm = await openWitnessLog({ dir: join(dir, 'warm') });
  for (let n = 0; n < Math.min(entries, 20_000); n++) warm.append(SESSION, 'decision', bodies[n % bodies.length]!);
  await warm.close();
  const log = await openWitnessLog({ dir: join(dir, 'log') });
  const us = new Float64Array(entries);
  const before = residentBytes();
  let resident = before;
  const start = performance.now();
  for (let n = 0; n < entries; n++) {
    const at = performance.now();
    log.append(SESSION, 'decision', bodies[n % bodies.length]!);
    us[n] = 1000 * (performance.now() - at);
    if (n % BURST === BURST - 1) await new Promise((resolve) => setImmediate(resolve));
    if (n % 10_000 === 0) resident = Math.max(resident, residentBytes());
  }
  await log.flush();
  const seconds = (performance.now() - start) / 1000;
  const { bytes } = log;
  await log.close();
  const timed = (work: () => void): number => {
    const from = performance.now();
    work();
    return bytes / 1e3 / (performance.now() - from);
  };
  us.sort();
  return {
    entries,
    bytesPerEntry: bytes / entries,
    entriesPerSecond: entries / seconds,
    appendMbPerSecond: bytes / 1e6 / seconds,
    appendP50Us: us[Math.floor(entries / 2)]!,
    appendP99Us: us[Math.floor(entries * 0.99)]!,
    appendMaxMs: us.at(-1)! / 1000,
    residentGrowthMb: (resident - before) / 2 ** 20,
    readMbPerSecond: timed(() => {
      for (const _ of readLog(join(dir, 'log')));
    }),
    verifyMbPerSecond: timed(() => {
      if (!verifyLog(join(dir, 'log')).ok) throw new Error('the log is not sound');
    }),
  };
}

/** Prints what `logRow` measures, and writes it to the file `json`. */
export async function log(say: (line: string) => void, json: string | null): Promise<void> {
  const dir = mkdtempSync(join(tmpdir(), 'palimpsest-bench-'));
  try {
    const row = await logRow(dir, ENTRIES);
    say(`log: ${ENTRIES} decisions of ${row.bytesPerEntry.toFixed(0)} bytes, ${BURST} at a time`);
    say(
      `  append   ${Math.round(row.entriesPerSecond)} entries/s, ${row.appendMbPerSecond.toFixed(0)} MB/s until all are synced (goal: 200000 entries/s)`,
    );
    say(
      `  one call p50 ${row.appendP50Us.toFixed(2)} µs, p99 ${row.appendP99Us.toFixed(2)} µs (goal: under 20 µs), longest ${row.appendMaxMs.toFixed(1)} ms`,
    );
    say(`  memory   ${row.residentGrowthMb.toFixed(0)} MB more than before`);
    say(`  read     ${row.readMbPerSecond.toFixed(0)} MB/s`);
    say(`  verify   ${row.verifyMbPerSecond.toFixed(0)} MB/s (goal: 500 MB/s)`);
    if (json !== null) writeFileSync(json, `${JSON.stringify(row, null, 1)}\n`);
  } finally {
    rmSync(dir, { recursive: true });
  }
}
