/**
 * `npm run bench -- packs` measures what kernel packs cost: the calls of the packs of ours, as their compiler made
 * them, with fuel, and as a session makes them, with copies, guards and checks of what comes back; beside native code
 * that does the same. Then how long a module runs that does not end, and what it takes to try a contract. Pages of 128
 * tokens and 128 channels, which stay in the caches of the processor; products for 4 queries.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { seeded } from '../../engine/evaluate/recall.ts';
import { tryContract } from '../../engine/packs/contract-cases.ts';
import { compileModule, PackInstance } from '../../engine/packs/instance.ts';
import { instrumentModule, unsigned } from '../../engine/packs/instrument.ts';
import { PackKernel } from '../../engine/packs/kernel.ts';
import { machine, type PackExports } from '../../engine/packs/machine.ts';
import { readManifest } from '../../engine/packs/manifest.ts';
import { drawn } from '../../engine/packs/vectors.ts';
import { type KvError, rope } from '../../native/index.ts';
import { openArena } from './arena.ts';
import { collector, median, now, typical } from './measure.ts';
import { columns, fixed, percent } from './table.ts';

const [TOKENS, DIM, QUERIES] = [128, 128, 4];
/** Calls of a pass, so that a pass takes some milliseconds. */
const CALLS = 1000;
const GOALS = { fuelMedian: 0.1, fuelWorst: 0.3, runawayMs: 10 } as const;

export interface PackRow {
  readonly call: string;
  /** Nanoseconds of a token: without fuel, with it, and as sessions call it. */
  readonly plain: number;
  readonly fueled: number;
  readonly called: number;
  /** Native code that does the same or nearly: decoding q8, and rope; null: there is none that is asked alone. */
  readonly native: number | null;
}

type Call = (...given: readonly number[]) => number;

interface Subject {
  readonly call: string;
  readonly plain: () => void;
  readonly fueled: () => void;
  readonly called: () => void;
  readonly native: (() => void) | null;
}

/** An instance of a module without the host's care. */
function opened(bytes: Uint8Array): PackExports {
  const { exports } = new machine.Instance(new machine.Module(bytes), {});
  while (exports.memory.buffer.byteLength < 2 ** 20) exports.memory.grow(1);
  return exports;
}

/** A call on what lies in the memory of an instance. */
function bare(exports: PackExports, name: string, given: readonly number[]): () => void {
  const call = exports[name] as Call;
  const { fuel } = exports;
  return () => {
    if (fuel !== undefined) fuel.value = 2 ** 30;
    call(...given);
  };
}

function subjectsOf(module: (name: string) => Uint8Array, decodeNative: () => void): Subject[] {
  const x = drawn(1, TOKENS * DIM);
  const [plain, limits] = [module('block6'), { fuelPerToken: 2000 }];
  const codec = PackInstance.open(instrumentModule(plain), limits);
  const page = codec.encode(x, TOKENS, DIM);
  const [q, w] = [drawn(2, QUERIES * DIM), drawn(3, QUERIES * TOKENS)];
  const [decoded, dots, mixed] = [x.slice(), new Float32Array(QUERIES * TOKENS), new Float32Array(QUERIES * DIM)];
  const places = (exports: PackExports): { readonly x: number; readonly page: number; readonly more: number } => {
    const base = Math.ceil((exports.__heap_base.value >>> 0) / 64) * 64;
    const at = { x: base, page: base + x.byteLength + 64, more: base + x.byteLength + 65_536 };
    new Float32Array(exports.memory.buffer, at.x, x.length).set(x);
    new Uint8Array(exports.memory.buffer, at.page, page.length).set(page);
    new Float32Array(exports.memory.buffer, at.more, q.length).set(q);
    return at;
  };
  const [without, withFuel] = [opened(plain), opened(instrumentModule(plain))];
  const both = (
    name: string,
    given: (at: ReturnType<typeof places>) => number[],
  ): Pick<Subject, 'plain' | 'fueled'> => ({
    plain: bare(without, name, given(places(without))),
    fueled: bare(withFuel, name, given(places(withFuel))),
  });
  return [
    {
      call: 'encode',
      ...both('pack_encode', (at) => [at.x, at.page, TOKENS, DIM]),
      called: () => void codec.encode(x, TOKENS, DIM),
      native: null,
    },
    {
      call: 'decode',
      ...both('pack_decode', (at) => [at.page, at.x, TOKENS, DIM]),
      called: () => void codec.decode(page, TOKENS, DIM, decoded),
      native: decodeNative,
    },
    {
      call: `dots, ${QUERIES} queries`,
      ...both('pack_dots', (at) => [at.page, at.more, at.more + 8192, TOKENS, DIM, QUERIES]),
      called: () => codec.dots(page, q, dots, TOKENS, DIM, QUERIES),
      native: null,
    },
    {
      call: `mix, ${QUERIES} queries`,
      ...both('pack_mix', (at) => [at.page, at.more, at.more + 8192, TOKENS, DIM, QUERIES]),
      called: () => codec.mix(page, w, mixed.fill(0), TOKENS, DIM, QUERIES),
      native: null,
    },
    ropeSubject(module('rope')),
  ];
}

function ropeSubject(plain: Uint8Array): Subject {
  const x = drawn(4, TOKENS * DIM);
  const angles = (turn: (angle: number) => number): Float32Array =>
    Float32Array.from({ length: (TOKENS * DIM) / 2 }, (_, i) => turn(i / 100));
  const [cosines, sines] = [angles(Math.cos), angles(Math.sin)];
  const half = DIM / 2;
  const parameters = Float32Array.from({ length: TOKENS * DIM }, (_, i) => {
    const [t, c] = [Math.floor(i / DIM), i % DIM];
    return c < half ? cosines[t * half + c]! : sines[t * half + c - half]!;
  });
  const kernel = PackKernel.open(instrumentModule(plain), { fuelPerToken: 2000 });
  const filled = (exports: PackExports): (() => void) => {
    const base = Math.ceil((exports.__heap_base.value >>> 0) / 64) * 64;
    new Float32Array(exports.memory.buffer, base, x.length).set(x);
    new Float32Array(exports.memory.buffer, base + x.byteLength, x.length).set(parameters);
    return bare(exports, 'pack_apply', [base, base + x.byteLength, TOKENS, DIM, DIM]);
  };
  const [turned, native] = [x.slice(), x.slice()];
  return {
    call: 'rope',
    plain: filled(opened(plain)),
    fueled: filled(opened(instrumentModule(plain))),
    called: () => kernel.apply(turned, parameters, TOKENS, DIM, DIM),
    native: () => rope(native, TOKENS, 1, DIM, DIM, cosines, sines, false),
  };
}

/** Seconds of a pass of each, in turns. The first rounds do not count: code is compiled in them. */
function timed(works: readonly (() => void)[], rounds: number): number[] {
  const collect = collector();
  const seconds: number[][] = works.map(() => []);
  for (let round = -2; round < rounds; round++) {
    collect();
    for (let i = 0; i < works.length; i++) {
      const index = (i + round + 2) % works.length;
      const start = now(1);
      for (let call = 0; call < CALLS; call++) works[index]!();
      if (round >= 0) seconds[index]!.push(now(1) - start);
    }
  }
  return seconds.map(typical);
}

export function packRows(module: (name: string) => Uint8Array, rounds: number): PackRow[] {
  const shape = { queryHeads: 1, kvHeads: 1, headDim: DIM };
  const arena = openArena({
    ...{ shape, pair: { k: 'q8', v: 'q8' }, tokens: 2 * TOKENS, threads: 1, random: seeded(1), arenaBytes: 1 },
  });
  const rows = new Float32Array(TOKENS * DIM);
  const found = subjectsOf(module, () => arena.cache.decode(0, 0, 'k', rows)).map(
    ({ call, plain, fueled, called, native }) => {
      const works = [plain, fueled, called, ...(native === null ? [] : [native])];
      const ns = timed(works, rounds).map((seconds) => (seconds / CALLS / TOKENS) * 1e9);
      return { call, plain: ns[0]!, fueled: ns[1]!, called: ns[2]!, native: ns[3] ?? null };
    },
  );
  arena.close();
  return found;
}

/** An element-wise kernel that never ends: pack_abi answers 1, pack_apply is a loop. */
function endless(): Uint8Array {
  const section = (id: number, ...bytes: readonly number[]): number[] => [id, ...unsigned(bytes.length), ...bytes];
  const text = (name: string): number[] => [name.length, ...Buffer.from(name)];
  const five = [0x7f, 0x7f, 0x7f, 0x7f, 0x7f];
  const exported = [
    ...[...text('pack_abi'), 0, 0, ...text('pack_apply'), 0, 1],
    ...[...text('memory'), 2, 0, ...text('__heap_base'), 3, 0],
  ];
  return Uint8Array.from([
    ...[0x00, 0x61, 0x73, 0x6d, 1, 0, 0, 0],
    ...section(1, 2, 0x60, 0, 1, 0x7f, 0x60, 5, ...five, 1, 0x7f),
    ...section(3, 2, 0, 1),
    ...section(5, 1, 1, 1, 16),
    ...section(6, 1, 0x7f, 0, 0x41, 0, 0x0b),
    ...section(7, 4, ...exported),
    ...section(10, 2, 4, 0, 0x41, 1, 0x0b, 8, 0, 0x03, 0x40, 0x0c, 0, 0x0b, 0x00, 0x0b),
  ]);
}

/** Milliseconds until a module that never ends is stopped, with the fuel of a page for which so much is promised. */
function runawayMs(fuelPerToken: number, rounds: number): number {
  const module = compileModule(instrumentModule(endless()));
  const x = new Float32Array(TOKENS * DIM);
  const took = Array.from({ length: rounds + 1 }, () => {
    const kernel = PackKernel.open(module, { fuelPerToken });
    const start = performance.now();
    try {
      kernel.apply(x, x, TOKENS, DIM, DIM);
    } catch (error) {
      if ((error as KvError).values['fault'] === 'fuel') return performance.now() - start;
    }
    throw new Error('a loop without end has ended');
  });
  return median(took.slice(1));
}

/** Processor time of a piece of work in milliseconds, typically. */
function cpuMs(work: () => void, rounds: number): number {
  const took = Array.from({ length: rounds + 1 }, () => {
    const start = now(1);
    work();
    return (now(1) - start) * 1000;
  });
  return typical(took.slice(1));
}

export interface PackCosts {
  readonly rows: readonly PackRow[];
  /** By the clock, with the fuel that block6 is given, and with ten times as much. */
  readonly runawayMs: readonly [number, number];
  readonly instrumentMs: number;
  readonly openMs: number;
  readonly contractMs: number;
}

export function packCosts(root: string, rounds: number): PackCosts {
  const module = (name: string): Uint8Array => readFileSync(join(root, 'packs', name, `${name}.wasm`));
  const manifest = readManifest(
    JSON.parse(readFileSync(join(root, 'packs/block6/manifest.json'), 'utf8')) as unknown,
    'block6',
  );
  if (manifest.kind !== 'codec') throw new Error('block6 is a codec');
  const [limits] = manifest.formats;
  const plain = module('block6');
  const instrumented = instrumentModule(plain);
  const compiled = compileModule(instrumented);
  const { fuelPerToken } = limits!;
  return {
    rows: packRows(module, rounds),
    runawayMs: [runawayMs(fuelPerToken, rounds), runawayMs(10 * fuelPerToken, rounds)],
    instrumentMs: cpuMs(() => void instrumentModule(plain), rounds),
    openMs: cpuMs(() => PackInstance.open(compiled, limits!).close(), rounds),
    contractMs: cpuMs(() => void tryContract(instrumented, manifest, [1, 2, 3, 4]), rounds),
  };
}

export async function packs(
  say: (line: string) => void,
  { root, rounds, json }: { readonly root: string; readonly rounds: number; readonly json: string | null },
): Promise<void> {
  const costs = packCosts(root, rounds);
  say(`nanoseconds of a token: ${TOKENS} tokens, ${DIM} channels, in cache; native: q8 decoded, rope`);
  const head = ['call', 'as compiled', 'with fuel', 'fuel costs', 'in a session', "the host's share", 'native'];
  const table = costs.rows.map(({ call, plain, fueled, called, native }) => [
    ...[call, fixed(plain, 1), fixed(fueled, 1), percent(fueled / plain - 1)],
    ...[fixed(called, 1), percent(1 - fueled / called), fixed(native, 1)],
  ]);
  for (const line of columns(head, table)) say(`  ${line}`);
  const fuel = costs.rows.map(({ plain, fueled }) => fueled / plain - 1);
  const { fuelMedian, fuelWorst, runawayMs: most } = GOALS;
  say(`fuel: ${percent(median(fuel))} in the median (goal ${percent(fuelMedian)}), ${percent(Math.max(...fuel))} at`);
  say(`  worst (goal ${percent(fuelWorst)})`);
  const [once, ten] = costs.runawayMs;
  say(`a loop without end is stopped after ${once.toFixed(2)} ms with the fuel of block6, ${ten.toFixed(2)} ms with`);
  say(`  ten times as much (goal ${most} ms)`);
  say(`processor time: fuel put in ${costs.instrumentMs.toFixed(2)} ms, an instance opened ${costs.openMs.toFixed(2)}`);
  say(`  ms, the contract of block6 tried ${costs.contractMs.toFixed(0)} ms`);
  if (json !== null) writeFileSync(json, `${JSON.stringify(costs, null, 1)}\n`);
}
