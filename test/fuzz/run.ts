/**
 * The same bytes to every instruction set of every build that runs here: results must be equal to the bit where
 * kernels.h says so, and within a derived bound where it does not. Ends at the first difference, with the seed that
 * shows it again.
 */

import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { servesYardsticks } from '../../native/formats/registry.ts';
import type { Binary } from '../../native/load.ts';
import { ISA_NAMES } from '../../native/types.ts';
import { openWasm } from '../../native/wasm.ts';
import { BINDING } from '../native/binding.ts';
import { FOLDERS, type KernelsBinding } from '../native/kernels-binding.ts';
import { seeded } from '../random.ts';
import { ATTENTION_CASES } from './attention.ts';
import type { Case, Cases, Machine, Numbers, Random } from './case.ts';
import { DENSE_CASES } from './dense.ts';
import { KERNEL_CASES } from './kernels.ts';
import { LATENT_CASES } from './latents.ts';
import { POOL_CASES } from './pool.ts';

export const CASES: Cases = { ...KERNEL_CASES, ...ATTENTION_CASES, ...LATENT_CASES, ...DENSE_CASES, ...POOL_CASES };

export interface Difference {
  readonly name: string;
  readonly shape: string;
  readonly first: string;
  readonly other: string;
  readonly what: string;
  readonly seed: number;
}

export interface FuzzOptions {
  readonly seed: number;
  readonly rounds?: number;
  readonly seconds?: number;
  /** Only this case. */
  readonly only?: string | undefined;
  /**
   * A fault put into the last machine on purpose, to see whether it is found: 'answer' changes one element of one
   * result by as little as may not be, 'input' gives that machine one number that the others did not get.
   */
  readonly plant?: 'answer' | 'input' | undefined;
}

const root = join(import.meta.dirname, '../..');
const isFresh = (script: string): boolean =>
  spawnSync(process.execPath, [join(root, script), '--check'], { cwd: root }).status === 0;

/**
 * Every (build, instruction set) that runs here; the addon's scalar code comes first and is what the others are held
 * to.
 */
export function machines(): Machine[] {
  const build = join(root, 'native/build');
  const require = createRequire(import.meta.url);
  const of = (kernels: KernelsBinding, binary: Binary, label: string): Machine[] =>
    kernels.isas().map((isa) => ({ name: `${label}${ISA_NAMES[isa]}`, kernels, binary, isa }));
  const folder = join(build, FOLDERS[BINDING === undefined || BINDING === 'wasm' ? 'built' : BINDING]);
  const found = of(
    require(join(folder, 'kernels_test.node')) as KernelsBinding,
    require(join(folder, 'palimpsest.node')) as Binary,
    '',
  );
  if (servesYardsticks()) return found; // WebAssembly does not know them
  const [kernels, binary] = ['kernels_test', 'palimpsest'].map((name) => join(build, 'wasm', `${name}.wasm`));
  // What was built from other sources may differ, and be right.
  if (!existsSync(kernels!) || !existsSync(binary!) || !isFresh('scripts/build-wasm.mjs')) return found;
  return [...found, ...of(openWasm(kernels!) as KernelsBinding, openWasm(binary!) as Binary, 'wasm ')];
}

/** → what differs first, or null. NaN equals NaN; zeros of both signs differ. */
function difference(
  expected: readonly Numbers[],
  actual: readonly Numbers[],
  bounds: readonly (Float64Array | undefined)[],
): string | null {
  if (expected.length !== actual.length) return `${expected.length} and ${actual.length} results`;
  for (let part = 0; part < expected.length; part++) {
    const [a, b] = [expected[part]!, actual[part]!];
    if (a.length !== b.length) return `result ${part} has ${a.length} and ${b.length} elements`;
    if (Buffer.from(a.buffer, a.byteOffset, a.byteLength).equals(Buffer.from(b.buffer, b.byteOffset, b.byteLength)))
      continue;
    const bound = bounds[part];
    for (let i = 0; i < a.length; i++) {
      if (Object.is(a[i], b[i])) continue;
      if (bound === undefined || !(Math.abs(a[i]! - b[i]!) <= bound[i]!))
        return `result ${part}, element ${i} of ${a.length}: ${a[i]} and ${b[i]}`;
    }
  }
  return null;
}

/** Changes one element of one result: its last bit, or a little more than its bound. */
function spoil(results: readonly Numbers[], bounds: readonly (Float64Array | undefined)[], random: Random): void {
  const parts = results.map((_, part) => part).filter((part) => results[part]!.length > 0);
  if (parts.length === 0) return;
  const part = parts[Math.floor(random() * parts.length)]!;
  const result = results[part]!;
  const at = Math.floor(random() * result.length);
  const bound = bounds[part]?.[at];
  if (bound !== undefined) {
    result[at] = result[at]! + 2 * bound + 2 ** -20 * Math.abs(result[at]!) + 2 ** -126;
    return;
  }
  new Uint8Array(result.buffer, result.byteOffset, result.byteLength)[at * result.BYTES_PER_ELEMENT]! ^= 1;
}

/** The same case, but one of its random numbers is another. */
function misled(choose: (random: Random) => Case, seed: number): Case {
  let draws = 0;
  const random = seeded(seed);
  choose(() => {
    draws++;
    return random();
  });
  // Past its first half there are the elements of arrays, before that shapes as well.
  const at = Math.floor(draws * (0.5 + 0.5 * seeded(seed + 1)()));
  const again = seeded(seed);
  let draw = 0;
  return choose(() => {
    const number = again();
    return draw++ === at ? (number + 0.37) % 1 : number;
  });
}

/** Runs rounds, each the next case with the next seed, until time, rounds or agreement end. */
export function fuzz(
  options: FuzzOptions,
  all: readonly Machine[] = machines(),
): { rounds: number; found: Difference | null } {
  const { seed, only, plant } = options;
  const names = only === undefined ? Object.keys(CASES) : [only];
  const [first, ...others] = all;
  const end = performance.now() + (options.seconds ?? Number.POSITIVE_INFINITY) * 1000;
  const rounds = options.rounds ?? Number.POSITIVE_INFINITY;
  let round = 0;
  for (; round < rounds && performance.now() < end; round++) {
    const name = names[round % names.length]!;
    const choose = CASES[name]!;
    const chosen = choose(seeded(seed + round));
    const run = (one: Case, machine: Machine): Numbers[] => {
      try {
        return one.run(machine);
      } catch (cause) {
        throw new Error(`${name} on ${machine.name}; again: --only ${name} --seed ${seed + round}`, { cause });
      }
    };
    const expected = run(chosen, first!);
    const bounds = chosen.bounds?.(expected) ?? [];
    for (const other of others) {
      const isPlanted = plant !== undefined && other === others.at(-1);
      const actual = run(isPlanted && plant === 'input' ? misled(choose, seed + round) : chosen, other);
      if (isPlanted && plant === 'answer') spoil(actual, bounds, seeded(seed + round + 2));
      const what = difference(expected, actual, bounds);
      if (what === null) continue;
      const found = { name, shape: chosen.shape, first: first!.name, other: other.name, what, seed: seed + round };
      return { rounds: round + 1, found };
    }
  }
  return { rounds: round, found: null };
}
