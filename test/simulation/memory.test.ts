/**
 * The process holds hardly more than is counted, after every one of many random steps of three caches and forks of them
 * on one pool, and when everything has been demoted: asked of the system (/proc), in a program that does nothing else.
 * Print the seed, run it again.
 */
import { execFileSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { memoryRows, overshoot } from '../../scripts/bench/memory.ts';
import { seedFrom, volume } from '../tier.ts';

const SEED = Number(process.env['PALIMPSEST_SIM_SEED'] ?? seedFrom(20261122));
const STEPS = volume('memory steps');

/** Only Linux tells what a process holds in this way, and a sanitizer keeps what is given back. */
const measurable =
  process.platform === 'linux' && !['debug', 'thread', 'wasm'].includes(process.env['PALIMPSEST_BINDING'] ?? '');

describe.skipIf(!measurable)('memory (skipped where /proc is missing, under a sanitizer and in WebAssembly)', () => {
  it(`grows by at most 1.08 of what is counted and 8 MB, over ${STEPS} steps`, () => {
    console.log(`memory simulation, seed ${SEED}`);
    const rows = memoryRows({ seed: SEED, steps: STEPS, every: 1000 });
    expect(rows.length).toBe(STEPS / 1000 + 2);
    for (const row of rows) expect(overshoot(row), JSON.stringify(row)).toBeLessThanOrEqual(0);
    const [demoted, closed] = rows.slice(-2);
    expect(closed!.countedBytes).toBe(0);
    expect(demoted!.countedBytes).toBeGreaterThan(0);
    // It was a simulation: something was counted, and it went up and down.
    const counted = rows.map((row) => row.countedBytes);
    expect(Math.max(...counted)).toBeGreaterThan(30e6);
  });

  it('gives back what 200 MB of pages leave when all of them are demoted, and every page still holds what it held', () => {
    const program = fileURLToPath(new URL('./memory-demote.ts', import.meta.url));
    const out = execFileSync(process.execPath, ['--expose-gc', '--import', 'tsx', program], { encoding: 'utf8' });
    const { before, after, different } = JSON.parse(out);
    expect(before.countedBytes).toBeGreaterThan(200e6);
    for (const row of [before, after]) expect(overshoot(row), JSON.stringify(row)).toBeLessThanOrEqual(0);
    expect(after.countedBytes).toBeLessThan(60e6);
    expect(different).toBe(0);
  });
});
