// Which build of the native cache is under test, and what the WebAssembly one does where it differs from an addon: its
// memory has an end. A module with a small memory is filled to that end again and again; each time the call that does
// not fit must answer as when a system has no memory left, what was there before must still work, and closing must give
// everything back.
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { nativeInfo, useBinding } from '../../../native/index.ts';
import type { Binary } from '../../../native/load.ts';
import { openWasm } from '../../../native/wasm.ts';
import { BINDING } from '../../native/binding.ts';
import { availableIsas, loadKernels } from '../../native/kernels-binding.ts';

const WASM = join(import.meta.dirname, '../../../native/build/wasm/palimpsest.wasm');

describe('the binding under test', () => {
  it('is the one that was asked for, and says so', () => {
    const { binding, file, isa, available } = nativeInfo();
    expect(binding).toBe(BINDING ?? 'built');
    expect(existsSync(file)).toBe(true);
    expect(available).toContain(isa);
    // The single kernels of the other tests come from the same build.
    expect(
      availableIsas(loadKernels())
        .map(([name]) => name)
        .sort(),
    ).toEqual([...available].sort());
    expect(available.includes('wasm-simd128')).toBe(binding === 'wasm');
  });

  it('stays the one that was loaded first', () => {
    nativeInfo();
    expect(() => useBinding('mmx' as 'wasm')).toThrow(/unknown binding 'mmx'/);
    const other = nativeInfo().binding === 'wasm' ? 'built' : 'wasm';
    expect(() => useBinding(other)).toThrow(/keeps it/);
  });
});

describe.skipIf(!existsSync(WASM))('a WebAssembly memory of 16 MiB (needs npm run build:wasm)', () => {
  const NO_MEMORY = 8;
  const shape = Int32Array.of(2, 4, 2, 64, 1, 1, 0);
  const rows = (tokens: number): Float32Array => new Float32Array(tokens * 2 * 64).fill(0.25);

  /**
   * Appends until memory ends, few tokens at once: what a call is given needs room as well, and where it finds that
   * depends on what was there before. → tokens of layer 0
   */
  function fill(binary: Binary): number {
    const pool = new binary.Pool();
    expect(pool.open(2 ** 40)).toBe(0);
    const cache = new binary.Cache();
    expect(cache.open(pool, shape, 0.125, new Int32Array(2), new Float32Array(0))).toBe(0);
    let status = 0;
    let calls = 0;
    for (; status === 0; calls++) {
      expect(calls).toBeLessThan(1000);
      status = cache.append(0, rows(64), rows(64));
    }
    expect(status).toBe(NO_MEMORY);
    const count = new Float64Array(2);
    expect(cache.length(0, count)).toBe(0);
    expect(count[0]).toBe((calls - 1) * 64);
    // A demotion takes new bytes before it gives old ones back, and may find none; then the page stays what it was.
    const freed = new Float64Array(1);
    expect([0, NO_MEMORY]).toContain(cache.transcode(0, 1, 0, 2, freed));
    expect(pool.close()).toBe(0);
    expect(cache.close()).toBe(0);
    return count[0]!;
  }

  it('ends with a status, and everything is given back on close, eight times over', () => {
    const binary = openWasm(WASM, 16 << 20) as Binary;
    const first = fill(binary);
    expect(first).toBeGreaterThan(20_000);
    for (let round = 0; round < 8; round++) expect(fill(binary)).toBeGreaterThan(first * 0.9);
  });

  it('refuses one array that is larger than all of it, and goes on', () => {
    const binary = openWasm(WASM, 16 << 20) as Binary;
    expect(binary.toHalf(new Float32Array(8 << 20), new Uint16Array(8 << 20))).toBe(NO_MEMORY);
    const out = new Uint16Array(2);
    expect(binary.toHalf(Float32Array.of(1, -2), out)).toBe(0);
    expect([...out]).toEqual([0x3c00, 0xc000]);
  });
});
