/**
 * Compares the memory of the process with the bytes that the pool counts, in a simulation of three caches on one pool
 * (memory-simulation.ts), which runs in its own process.
 */
import { execFileSync } from 'node:child_process';
import { openSync, readSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { heldBytesMost, KvError } from '../../native/index.ts';

export interface MemoryRow {
  readonly step: number;
  readonly caches: number;
  readonly countedBytes: number;
  readonly reservedBytes: number;
  readonly residentBytes: number;
  /** The memory of the process before the first step, after it had done everything once. */
  readonly baseBytes: number;
}

/** By how many bytes a row is over the limit; negative if it is below. */
export const overshoot = (row: MemoryRow): number =>
  row.residentBytes - row.baseBytes - heldBytesMost(row.countedBytes);

/** The bytes of a page of memory, in which /proc counts. */
const SYSTEM_PAGE = 4096;
const text = Buffer.alloc(128);
let statm: number | undefined;

/** The bytes of memory that this process has, as Linux counts them. */
export function residentBytes(): number {
  statm ??= openSync('/proc/self/statm', 'r');
  const length = readSync(statm, text, 0, text.length, 0);
  return SYSTEM_PAGE * Number(text.toString('latin1', 0, length).split(' ')[1]);
}

/**
 * Runs the simulation and returns its rows. JavaScript's heap for new objects is kept small, because it is not what is
 * measured.
 */
export function memoryRows({ seed, steps, every }: { seed: number; steps: number; every: number }): MemoryRow[] {
  const program = fileURLToPath(new URL('./memory-simulation.ts', import.meta.url));
  const flags = ['--expose-gc', '--max-semi-space-size=1', '--import', 'tsx'];
  const lines = execFileSync(process.execPath, [...flags, program, ...[seed, steps, every].map(String)], {
    encoding: 'utf8',
    maxBuffer: 2 ** 28,
  });
  return lines
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as MemoryRow);
}

const SEED = 20261122;
const STEPS = 100_000;
const EVERY = 1000;
const mb = (bytes: number): string => (bytes / 2 ** 20).toFixed(1).padStart(7);

/** `npm run bench -- memory`: prints the rows, and writes them to the file `json`. */
export function memory(say: (line: string) => void, json: string | null): void {
  if (process.platform !== 'linux') {
    throw new KvError('unsupported', 'the memory of a process is read from /proc, which only Linux has', {
      values: { platform: process.platform },
    });
  }
  say(`memory: ${STEPS} random steps of three caches on one pool, seed ${SEED}; MB, the worst of every ${EVERY} steps`);
  say('    step  caches  counted  reserved  resident growth  of the limit');
  const rows = memoryRows({ seed: SEED, steps: STEPS, every: EVERY });
  for (const row of rows) {
    const growth = row.residentBytes - row.baseBytes;
    const share = `${((100 * growth) / heldBytesMost(row.countedBytes)).toFixed(0)}%`;
    say(
      `${String(row.step).padStart(8)}  ${String(row.caches).padStart(6)}  ${mb(row.countedBytes)}   ${mb(row.reservedBytes)}          ${mb(growth)}  ${share.padStart(12)}`,
    );
  }
  if (json !== null) writeFileSync(json, `${JSON.stringify(rows, null, 1)}\n`);
}
