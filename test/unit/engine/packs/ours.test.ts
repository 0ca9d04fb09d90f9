// The packs of ours: do they keep what their manifests say, in a thread of their own as hosts try it; are they what
// their sources become; does fuel leave their bytes as they were; and does block6 lose what its page says?
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { testPack } from '../../../../engine/packs/contract.ts';
import { PackInstance } from '../../../../engine/packs/instance.ts';
import { instrumentModule } from '../../../../engine/packs/instrument.ts';
import { PackKernel } from '../../../../engine/packs/kernel.ts';
import { machine, type PackExports } from '../../../../engine/packs/machine.ts';
import { type CodecManifest, type PackManifest, readManifest } from '../../../../engine/packs/manifest.ts';
import { drawn } from '../../../../engine/packs/vectors.ts';
import type { KvError } from '../../../../native/index.ts';
import { refusal } from '../../../refusal.ts';

const root = join(import.meta.dirname, '../../../..');
const NAMES = ['block6', 'rope'] as const;
const moduleOf = (name: string): Uint8Array => readFileSync(join(root, 'packs', name, `${name}.wasm`));
const manifestOf = (name: string): PackManifest =>
  readManifest(JSON.parse(readFileSync(join(root, 'packs', name, 'manifest.json'), 'utf8')), name);
const LIMITS = { fuelPerToken: 2000 };

const hasCompiler =
  spawnSync('clang-19', ['--version']).status === 0 && spawnSync('wasm-ld-19', ['--version']).status === 0;

describe.each(NAMES)('%s', (name) => {
  it('keeps its contract', async () => {
    const report = await testPack(instrumentModule(moduleOf(name)), manifestOf(name));
    expect(report.problems).toEqual([]);
    expect(report.kept).toBe(true);
    expect(report.calls).toBeGreaterThan(300);
  });

  it('has a manifest of these sources', () => {
    const sources = ['pack.h', `${name}/${name}.c`].map((file) => readFileSync(join(root, 'packs', file)));
    const digest = createHash('sha256').update(Buffer.concat(sources)).digest('hex');
    expect(manifestOf(name).source.sha256, 'npm run golden -- packs').toBe(digest);
  });

  it('does not keep the contract of a vector that is another one', async () => {
    const { vectors, ...rest } = manifestOf(name);
    const changed = { ...vectors[0]!, seed: 77 };
    const report = await testPack(instrumentModule(moduleOf(name)), { ...rest, vectors: [changed] } as PackManifest);
    expect(report.problems.map(({ check }) => check)).toEqual(['vector']);
  });

  it('is late where no time is given', async () => {
    const report = await testPack(instrumentModule(moduleOf(name)), manifestOf(name), { deadlineMs: 0 });
    expect(report.problems.map(({ check }) => check)).toEqual(['deadline']);
  });
});

it.skipIf(!hasCompiler)('two builds in two folders are what is committed (needs clang-19)', () => {
  const { status, stdout, stderr } = spawnSync(process.execPath, ['scripts/build-packs.mjs', '--twice'], {
    cwd: root,
    encoding: 'utf8',
  });
  expect(`${stdout}${stderr}`).toMatch(/block6\.wasm.*\n.*rope\.wasm/);
  expect(status, stderr).toBe(0);
});

describe('fuel in ours', () => {
  /** Calls on plain exports. → what lies in memory then */
  function called(bytes: Uint8Array, run: (exports: PackExports, base: number) => void): Buffer {
    const { exports } = new machine.Instance(new machine.Module(bytes), {});
    while (exports.memory.buffer.byteLength < 2 * 65_536) exports.memory.grow(1);
    if (exports.fuel !== undefined) exports.fuel.value = 2 ** 31 - 1;
    const base = (exports.__heap_base.value >>> 0) + 4096;
    new Float32Array(exports.memory.buffer, base, 128 * 64).set(drawn(9, 128 * 64));
    run(exports, base);
    return Buffer.from(exports.memory.buffer.slice(0, 2 * 65_536));
  }

  it('leaves all that they compute as it was', () => {
    const block6 = (exports: PackExports, base: number): void => {
      const call = (name: string, ...given: readonly number[]): void => {
        expect((exports[name] as (...given: readonly number[]) => number)(...given)).toBe(0);
      };
      const [page, out] = [base + 32_768, base + 49_152];
      call('pack_encode', base, page, 128, 64);
      call('pack_dots', page, base, out, 128, 64, 4);
      call('pack_mix', page, base, out + 4096, 128, 64, 4);
      call('pack_decode', page, base, 128, 64);
    };
    const rope = (exports: PackExports, base: number): void => {
      const apply = exports['pack_apply'] as (...given: readonly number[]) => number;
      expect(apply(base, base + 4096, 16, 64, 50)).toBe(0);
    };
    for (const [name, run] of [
      ['block6', block6],
      ['rope', rope],
    ] as const) {
      const plain = moduleOf(name);
      // Memory of modules with fuel is larger from the start, and the same below.
      const [without, withFuel] = [called(plain, run), called(instrumentModule(plain), run)];
      expect(withFuel.equals(without)).toBe(true);
    }
  });
});

describe('block6', () => {
  const module = instrumentModule(moduleOf('block6'));

  it('loses 2.2% of normal rows, and never more than its bound', () => {
    const codec = PackInstance.open(module, LIMITS);
    const x = drawn(3, 128 * 128);
    const decoded = codec.decode(codec.encode(x, 128, 128), 128, 128);
    let [lost, norm] = [0, 0];
    for (const [i, value] of x.entries()) {
      lost += (value - decoded[i]!) ** 2;
      norm += value ** 2;
    }
    expect(Math.sqrt(lost / norm)).toBeLessThan(0.022);
    // The worst block: its largest number, and others that lie between two codes.
    const worst = new Float32Array(32).fill(0.5 / 31).fill(1, 0, 1);
    const back = codec.decode(codec.encode(worst, 1, 32), 1, 32);
    const share = Math.hypot(...worst.map((value, i) => value - back[i]!)) / Math.hypot(...worst);
    expect(share).toBeGreaterThan(0.08);
    expect(share).toBeLessThan((manifestOf('block6') as CodecManifest).formats[0]!.errorMost);
  });

  it('has the bytes that its page says, in the order that it says', () => {
    const codec = PackInstance.open(module, LIMITS);
    const x = Float32Array.from({ length: 32 }, (_, i) => (i - 31) * 2);
    const page = codec.encode(x, 1, 32);
    expect(page.length).toBe(26);
    // 62 / 31 = 2, whose bfloat16 is 0x4000.
    expect([...page.subarray(0, 2)]).toEqual([0x00, 0x40]);
    const codes = [...x].map((value) => value / 2 + 32);
    const low = codes.slice(0, 16).map((code, i) => (code & 15) | ((codes[16 + i]! & 15) << 4));
    const high = Array.from({ length: 8 }, (_, i) =>
      [0, 8, 16, 24].reduce((bits, from, place) => bits | ((codes[from + i]! >> 4) << (2 * place)), 0),
    );
    expect([...page.subarray(2)]).toEqual([...low, ...high]);
    expect(codec.decode(page, 1, 32)).toEqual(x);
  });

  it('refuses heads that have no whole blocks', () => {
    const codec = PackInstance.open(module, LIMITS);
    expect(refusal(() => codec.encode(new Float32Array(80), 1, 80)).values['fault']).toBe('status');
  });

  it('answers for any page without a trap: with numbers, or because its scales are none', () => {
    const ends = { numbers: 0, none: 0 };
    for (let seed = 0; seed < 200; seed++) {
      const codec = PackInstance.open(module, LIMITS);
      const page = Uint8Array.from(drawn(seed, 52), (x) => (x * 1000) & 0xff);
      try {
        expect(codec.decode(page, 1, 64).every(Number.isFinite)).toBe(true);
        ends.numbers++;
      } catch (error) {
        expect((error as KvError).values['fault']).toBe('not finite');
        ends.none++;
      }
    }
    expect(ends.numbers).toBeGreaterThan(100);
    expect(ends.none).toBeGreaterThan(0);
  });
});

it('rope turns a part of a row and leaves the rest, and x is as it was where it refuses', () => {
  const kernel = PackKernel.open(instrumentModule(moduleOf('rope')), LIMITS);
  const x = Float32Array.of(1, 2, 3, 4, 5, 6);
  kernel.apply(x, Float32Array.of(0, 1, 1, 0), 1, 6, 4);
  expect([...x]).toEqual([-3, 2, 1, 4, 5, 6]);
  expect(refusal(() => kernel.apply(x, new Float32Array(3), 1, 6, 3)).values['fault']).toBe('status');
  expect([...x]).toEqual([-3, 2, 1, 4, 5, 6]);
});
