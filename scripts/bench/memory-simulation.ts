/**
 * A simulation of three caches of different shapes on one pool, and of their forks. At random they append, attend, move
 * pages between formats, fork, close and open again. After every step it looks at the bytes that the pool counts, those
 * that it holds, and the memory of the process.
 *
 *   node --expose-gc memory-simulation.ts SEED STEPS EVERY
 *
 * It writes a line of JSON for the worst of every EVERY steps, then one after everything has been demoted and one after
 * everything has been closed. It is a program of its own, because nothing else in the process may use memory.
 */

import { seeded } from '../../engine/evaluate/recall.ts';
import {
  FORMAT_NAMES,
  type KvCache,
  KvError,
  openKvCache,
  openPool,
  PAGE_TOKENS,
  type PagePool,
  SERVED_FORMATS,
  SIDES,
} from '../../native/index.ts';
import { type MemoryRow, overshoot, residentBytes } from './memory.ts';

const SHAPES = [
  { layers: 6, queryHeads: 9, kvHeads: 3, headDim: 64 },
  { layers: 4, queryHeads: 16, kvHeads: 8, headDim: 128 },
  { layers: 5, queryHeads: 4, kvHeads: 4, headDim: 80 },
];
const MOST_BYTES = 96 * 2 ** 20;
const MOST_CACHES = 6;
const WARM_STEPS = 4000;

class Simulation {
  readonly pool: PagePool = openPool(MOST_BYTES);
  readonly #random: () => number;
  readonly #noise: Float32Array;
  readonly #out = new Float32Array(32 * 16 * 128);
  readonly #caches: { cache: KvCache; shape: number }[] = [];
  /** True if the caches tend to grow, to shrink or to stay as they are at present. */
  #appetite = 0.6;

  constructor(seed: number, noise: Float32Array) {
    this.#random = seeded(seed);
    this.#noise = noise;
    for (let shape = 0; shape < SHAPES.length; shape++) this.#open(shape);
  }

  get caches(): number {
    return this.#caches.length;
  }

  #whole(below: number): number {
    return Math.floor(this.#random() * below);
  }

  #open(shape: number): void {
    const windowFormat = this.#random() < 0.7 ? 'q8' : 'f16';
    const own = this.#random() < 0.3 ? { budgetBytes: MOST_BYTES / 3 } : {};
    this.#caches.push({ cache: openKvCache({ shape: SHAPES[shape]!, pool: this.pool, windowFormat, ...own }), shape });
  }

  /** Returns other rows at every call. */
  #rows(count: number): Float32Array {
    const from = this.#whole(this.#noise.length - count);
    return this.#noise.subarray(from, from + count);
  }

  step(): void {
    if (this.#random() < 0.002) this.#appetite = this.#random();
    const one = this.#caches[this.#whole(this.#caches.length)]!;
    for (const { cache } of this.#caches) if (cache.movesUnderWay > 0) cache.finishMoves(true);
    try {
      this.#change(one);
    } catch (error) {
      if (!(error instanceof KvError) || !['budget-exceeded', 'budget-too-small', 'unsupported'].includes(error.code))
        throw error;
    }
  }

  #change(one: { cache: KvCache; shape: number }): void {
    const { cache, shape } = one;
    const { layers, kvHeads, headDim, queryHeads } = cache.shape;
    const layer = this.#whole(layers);
    const kind = this.#random();
    if (kind < this.#appetite) {
      const count = (1 + this.#whole(PAGE_TOKENS)) * kvHeads * headDim;
      cache.append(layer, this.#rows(count), this.#rows(count));
    } else if (kind < 0.97) {
      this.#move(cache, layer);
    } else if (kind < 0.985) {
      const tokens = Math.min(cache.length(layer), 16);
      const count = tokens * queryHeads * headDim;
      if (tokens > 0) cache.attend(layer, this.#rows(count), this.#out.subarray(0, count));
    } else if (kind < 0.995) {
      if (this.#caches.length < MOST_CACHES) this.#caches.push({ cache: cache.fork(), shape });
    } else if (kind < 0.998 || this.pool.usedBytes > MOST_BYTES / 2) {
      this.#caches.splice(this.#caches.indexOf(one), 1);
      cache.close();
      if (!this.#caches.some((left) => left.shape === shape)) this.#open(shape);
    }
  }

  #move(cache: KvCache, layer: number): void {
    const { pages, kFormat, vFormat } = cache.table(layer);
    if (pages === 0) return;
    const page = this.#whole(pages);
    const side = SIDES[this.#whole(2)]!;
    const from = (side === 'k' ? kFormat : vFormat)[page]!;
    const lower = SERVED_FORMATS.filter((name) => FORMAT_NAMES.indexOf(name) > from);
    const to = lower[this.#whole(2)] ?? SERVED_FORMATS.at(-1)!;
    if (this.#random() < 0.8) {
      cache.transcode(layer, page, side, to);
      return;
    }
    cache.startMove(layer, page, side, to);
  }

  /** Demotes every page to the lowest format, in random order. */
  demoteAll(): void {
    const last = SERVED_FORMATS.at(-1)!;
    // Of all before the first: a page that forks share may be on its way in any of them.
    for (const { cache } of this.#caches) cache.finishMoves(true);
    for (const { cache } of this.#caches) {
      const sides: (() => void)[] = [];
      for (let layer = 0; layer < cache.shape.layers; layer++) {
        for (let page = 0; page < cache.table(layer).pages; page++) {
          for (const side of SIDES) sides.push(() => cache.transcode(layer, page, side, last));
        }
      }
      while (sides.length > 0) sides.splice(this.#whole(sides.length), 1)[0]!();
    }
  }

  close(): void {
    for (const { cache } of this.#caches) cache.close();
    this.#caches.length = 0;
  }
}

function simulate(seed: number, steps: number, every: number, tell: (row: MemoryRow) => void): void {
  const random = seeded(seed);
  const noise = Float32Array.from({ length: 2 ** 20 }, () => 4 * random() - 2);
  const collect = (globalThis as { gc?: () => void }).gc ?? (() => {});

  const warm = new Simulation(seed + 1, noise);
  for (let i = 0; i < WARM_STEPS; i++) warm.step();
  warm.close();
  warm.pool.close();
  collect();
  const baseBytes = residentBytes();

  const simulation = new Simulation(seed, noise);
  const { pool } = simulation;
  const look = (step: number): MemoryRow => ({
    step,
    caches: simulation.caches,
    countedBytes: pool.usedBytes,
    reservedBytes: pool.reservedBytes,
    residentBytes: residentBytes(),
    baseBytes,
  });
  let worst: MemoryRow | undefined;
  for (let step = 1; step <= steps; step++) {
    simulation.step();
    const row = look(step);
    if (worst === undefined || overshoot(row) > overshoot(worst)) worst = row;
    if (step % every !== 0 && step !== steps) continue;
    tell(worst);
    worst = undefined;
  }
  simulation.demoteAll();
  tell(look(steps + 1));
  simulation.close();
  tell(look(steps + 2));
  pool.close();
}

const [seed = 1, steps = 1000, every = 100] = process.argv.slice(2).map(Number);
simulate(seed, steps, every, (row) => console.log(JSON.stringify(row)));
