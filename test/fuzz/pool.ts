/**
 * Many caches on one pool: shapes, threads and formats of their own, forks, budgets of the pool and of caches that
 * refuse this and that, moves and trials in the background, latents, closes in any order. Beside each lives a twin in a
 * pool of its own, without budgets, that does the same at once: the two must hold and answer the same bits and count
 * the same bytes, whatever the neighbours do.
 */
import { FORMATS, PAGE_TOKENS } from '../../native/format.ts';
import { latentBytes } from '../../native/latent.ts';
import {
  KEPT_ROWS_OPERATIONS,
  LATENT_CANDIDATES_FROM,
  LATENT_NAMES,
  LATENT_OPERATIONS,
  ORIGINAL_OPERATIONS,
  SINK_TOKENS,
} from '../../native/layout.ts';
import type { Binary, CacheHandle, PoolHandle } from '../../native/load.ts';
import { PAGE_KINDS } from '../../native/types.ts';
import { gaussian } from '../native/rows.ts';
import { type Case, type Cases, type Numbers, one, type Random, succeed, whole } from './case.ts';

const [BAD_ARGUMENT, BAD_SHAPE, BAD_VALUE, UNSUPPORTED, BUDGET_EXCEEDED, BUDGET_TOO_SMALL] = [1, 2, 3, 4, 5, 6];
const FOREIGN = PAGE_KINDS.indexOf('foreign');
const GONE = [PAGE_KINDS.indexOf('freed'), PAGE_KINDS.indexOf('evicted'), FOREIGN];
const TOKENS_MAX = 700;
const LATENT_WIDTH = 64;
const NOISE = 120_000;

interface Move {
  readonly layer: number;
  readonly page: number;
  readonly part: number;
  readonly to: number;
}

const same = (a: Numbers, b: Numbers): boolean =>
  Buffer.from(a.buffer, a.byteOffset, a.byteLength).equals(Buffer.from(b.buffer, b.byteOffset, b.byteLength));

function expectSame(what: string, mine: Numbers, alone: Numbers): void {
  if (!same(mine, alone)) throw new Error(`${what}: a cache on a shared pool differs from its twin`);
}

/** A cache and its twin. */
class Pair {
  readonly moves: Move[] = [];
  /** What each trial that was started must answer. */
  readonly trials: Float64Array[] = [];
  readonly mine: CacheHandle;
  readonly alone: CacheHandle;
  readonly shape: readonly number[];

  constructor(mine: CacheHandle, alone: CacheHandle, shape: readonly number[]) {
    this.mine = mine;
    this.alone = alone;
    this.shape = shape;
  }

  get layers(): number {
    return this.shape[0]!;
  }
  get row(): number {
    return this.shape[2]! * this.shape[3]!;
  }
  get queryRow(): number {
    return this.shape[1]! * this.shape[3]!;
  }

  /** [tokens, sealed pages] */
  count(layer: number, cache = this.mine): readonly [number, number] {
    const out = new Float64Array(2);
    succeed(cache.length(layer, out), 'length');
    return [out[0]!, out[1]!];
  }

  hasLatent(layer: number, page: number): boolean {
    const [, pages] = this.count(layer);
    const columns = [0, 1, 2, 3].map(() => new Uint8Array(pages)) as [Uint8Array, Uint8Array, Uint8Array, Uint8Array];
    succeed(this.mine.table(layer, ...columns, new Float64Array(pages + 1), new Float64Array(1)), 'table');
    return columns[3][page] !== 0;
  }

  /** Does the same to the twin where it was done, and nothing where it was refused. → whether it was done */
  both(what: string, work: (cache: CacheHandle) => number, refusals: readonly number[] = []): boolean {
    const status = work(this.mine);
    if ([UNSUPPORTED, BUDGET_EXCEEDED, ...refusals].includes(status)) return false;
    succeed(status, what);
    succeed(work(this.alone), `${what} alone`);
    return true;
  }

  /** As `both`, with an array of `length` numbers that is written. */
  compared(
    what: string,
    length: number,
    work: (cache: CacheHandle, out: Float64Array) => number,
    refusals: readonly number[] = [],
  ): void {
    const [mine, alone] = [new Float64Array(length), new Float64Array(length)];
    if (this.both(what, (cache) => work(cache, cache === this.mine ? mine : alone), refusals))
      expectSame(what, mine, alone);
  }

  finishMoves(wait: boolean): void {
    const out = new Float64Array(1 + 2 * this.moves.length);
    succeed(this.mine.finishMoves(wait, out), 'finishMoves');
    for (const [i, { layer, page, part, to }] of this.moves.splice(0, out[0]!).entries()) {
      const [status, freed] = [out[1 + 2 * i]!, out[2 + 2 * i]!];
      if (status === BUDGET_EXCEEDED) continue;
      const alone = new Float64Array(1);
      succeed(this.alone.transcode(layer, page, part, to, alone), 'transcode alone');
      expectSame('freed by a move', Float64Array.of(freed), alone);
    }
  }

  finishTrials(wait: boolean): void {
    const out = new Float64Array(1 + this.trials.reduce((sum, { length }) => sum + length, 0));
    succeed(this.mine.finishTrials(wait, out), 'finishTrials');
    let at = 1;
    for (const errors of this.trials.splice(0, out[0]!)) {
      expectSame('a started trial', out.subarray(at, at + errors.length), errors);
      at += errors.length;
    }
  }

  /** Everything of both that can be seen. → decoded pages and formats */
  compare(): Numbers[] {
    const [mine, alone] = [this.mine, this.alone].map((cache) => this.#seen(cache)) as [Numbers[], Numbers[]];
    for (const [i, part] of mine.entries()) expectSame(`part ${i} of what a cache holds`, part, alone[i]!);
    // Masses depend on the instruction set, what is held does not.
    return mine.filter((part) => !(part instanceof Float64Array));
  }

  #seen(cache: CacheHandle): Numbers[] {
    const account = new Float64Array(6);
    succeed(cache.account(account, true), 'account');
    if (account[1] !== account[4]) throw new Error(`${account[1]} bytes are counted and ${account[4]} are there`);
    const seen: Numbers[] = [account.slice(1, 2)];
    for (let layer = 0; layer < this.layers; layer++) {
      const [tokens, pages] = this.count(layer, cache);
      const columns = [0, 1, 2, 3].map(() => new Uint8Array(pages)) as [Uint8Array, Uint8Array, Uint8Array, Uint8Array];
      const [mass, sinks] = [new Float64Array(pages + 1), new Float64Array(1)];
      succeed(cache.table(layer, ...columns, mass, sinks), 'table');
      seen.push(...columns, mass, sinks);
      for (let page = 0; page <= pages; page++) {
        for (const side of [0, 1]) {
          const rows = new Float32Array(Math.min(PAGE_TOKENS, tokens - page * PAGE_TOKENS) * this.row);
          if (page < pages && GONE.includes(columns[0][page]!)) {
            if (cache.decode(layer, page, side, rows) !== UNSUPPORTED) throw new Error('a freed page was decoded');
            continue;
          }
          succeed(cache.decode(layer, page, side, rows), 'decode');
          seen.push(rows);
        }
        if (page === pages) continue;
        if (columns[0][page] === FOREIGN) {
          const size = new Float64Array(1);
          succeed(cache.foreignBytes(layer, page, size), 'foreignBytes');
          const bytes = new Uint8Array(size[0]!);
          succeed(cache.foreignBytes(layer, page, size, bytes), 'foreignBytes');
          seen.push(bytes);
          continue;
        }
        const about = new Int32Array(2);
        succeed(cache.exportPage(layer, page, about), 'exportPage');
        const bytes = new Uint8Array(about[0]!);
        succeed(cache.exportPage(layer, page, about, bytes), 'exportPage');
        seen.push(bytes);
      }
    }
    return seen;
  }
}

/** One session of everything; `again` gives the same random numbers each time. */
class Session {
  readonly #binary: Binary;
  readonly #random: Random;
  readonly #noise: Float32Array;
  readonly #isPatient: boolean;
  readonly #pool: PoolHandle;
  #pairs: Pair[] = [];

  constructor(binary: Binary, random: Random, noise: Float32Array, isPatient: boolean) {
    this.#binary = binary;
    this.#random = random;
    this.#noise = noise;
    this.#isPatient = isPatient;
    this.#pool = this.#newPool(2 ** 26);
  }

  #newPool(bytes: number): PoolHandle {
    const pool = new this.#binary.Pool();
    succeed(pool.open(bytes), 'pool.open');
    return pool;
  }

  #rows(count: number): Float32Array {
    const at = whole(this.#random, 0, NOISE - count);
    return this.#noise.subarray(at, at + count);
  }

  #open(): void {
    const random = this.#random;
    const windowFormat = one(random, [FORMATS.q8.id, FORMATS.q8.id, FORMATS.f16.id]);
    const kvHeads = whole(random, 1, 2);
    const fresh = [whole(random, 1, 2), kvHeads * whole(random, 1, 4), kvHeads, one(random, [64, 80, 128])];
    // Those of one shape may be in one call.
    const sizes = this.#pairs.length > 0 && random() < 0.5 ? one(random, this.#pairs).shape.slice(0, 4) : fresh;
    const [layers, , heads, headDim] = sizes as [number, number, number, number];
    const shape = [...sizes, windowFormat, whole(random, 1, 3), one(random, [FORMATS.f16.id, windowFormat])];
    const windows = Int32Array.from({ length: layers }, () => one(random, [0, 0, 200]));
    const [skip, hasLatents] = [one(random, [0, 0.05]), random() < 0.5];
    const [wk, wv] = [this.#rows(heads * headDim * LATENT_WIDTH), this.#rows(heads * headDim * LATENT_WIDTH)];
    const none = new Float32Array(0);
    const opened = (pool: PoolHandle): CacheHandle => {
      const cache = new this.#binary.Cache();
      succeed(cache.open(pool, Int32Array.from(shape), 0.1, windows, none), 'cache.open');
      succeed(cache.setSkipShare(skip), 'setSkipShare');
      for (let layer = 0; hasLatents && layer < layers; layer++) {
        const set = LATENT_OPERATIONS.weights;
        succeed(cache.latent(set, layer, LATENT_WIDTH, wk, wv, undefined, undefined, undefined, 0), 'weights');
      }
      return cache;
    };
    const lone = this.#newPool(2 ** 40);
    this.#pairs.push(new Pair(opened(this.#pool), opened(lone), shape));
    lone.close();
  }

  #close(pair: Pair): void {
    pair.mine.close();
    pair.alone.close();
    this.#pairs = this.#pairs.filter((other) => other !== pair);
  }

  /** Some caches in one call, and each twin alone. */
  #together(pair: Pair, layer: number): void {
    const random = this.#random;
    const isLike = (other: Pair): boolean => [0, 1, 2, 3].every((at) => other.shape[at] === pair.shape[at]);
    const pairs = this.#pairs.filter((other) => isLike(other) && random() < 0.8);
    const most = Math.floor(NOISE / pair.queryRow / Math.max(1, pairs.length));
    const counts = pairs.map((each) =>
      Math.min(TOKENS_MAX - each.count(layer)[0], one(random, [1, 1, 8, whole(random, 1, most)])),
    );
    if (pairs.length === 0 || counts.some((count) => count <= 0)) return;
    const batch = new this.#binary.Batch();
    for (const [i, { mine }] of pairs.entries()) succeed(batch.add(mine, counts[i]!), 'batch.add');
    const total = counts.reduce((sum, count) => sum + count, 0);
    const [k, v, q] = [this.#rows(total * pair.row), this.#rows(total * pair.row), this.#rows(total * pair.queryRow)];
    const out = new Float32Array(q.length);
    const refused = new Float64Array(1);
    const status = batch.append(layer, k, v, refused);
    if (status === BUDGET_EXCEEDED) return;
    succeed(status, 'batch.append');
    const attends = batch.attend(layer, q, out, undefined, undefined, true, refused);
    if (attends !== UNSUPPORTED) succeed(attends, 'batch.attend');
    let at = 0;
    for (const [i, { alone }] of pairs.entries()) {
      const end = at + counts[i]!;
      const of = (rows: Float32Array, width: number): Float32Array => rows.subarray(at * width, end * width);
      succeed(alone.append(layer, of(k, pair.row), of(v, pair.row)), 'append alone');
      if (attends === 0) {
        const his = new Float32Array(counts[i]! * pair.queryRow);
        succeed(alone.attend(layer, of(q, pair.queryRow), his, undefined, undefined, true), 'attend alone');
        expectSame('attention in company', of(out, pair.queryRow), his);
      }
      at = end;
    }
  }

  #step(): void {
    const random = this.#random;
    const pair = one(random, this.#pairs);
    const layer = whole(random, 0, pair.layers - 1);
    if (random() < 0.15) {
      this.#together(pair, layer);
      return;
    }
    const [tokens, pages] = pair.count(layer);
    const kind = random();
    const wait = this.#isPatient || random() < 0.3;
    if (kind < 0.28) {
      const count = Math.min(TOKENS_MAX - tokens, one(random, [1, whole(random, 1, 40), whole(random, 1, 300), 129]));
      const [k, v] = [this.#rows(count * pair.row), this.#rows(count * pair.row)];
      if (count > 0) pair.both('append', (cache) => cache.append(layer, k, v));
    } else if (kind < 0.45) {
      const count = Math.min(tokens, one(random, [1, 8, whole(random, 1, 100)]));
      const q = this.#rows(count * pair.queryRow);
      const norms = random() < 0.5 ? this.#rows(count).map(Math.abs) : undefined;
      if (count > 0) {
        const [mine, alone] = [new Float32Array(q.length), new Float32Array(q.length)];
        const [lse, beside] = random() < 0.3 ? [this.#rows(count * pair.shape[1]!), this.#rows(q.length)] : [];
        pair.both('attend', (cache) =>
          cache.attend(layer, q, cache === pair.mine ? mine : alone, norms, undefined, true, lse, beside),
        );
        expectSame('attention', mine, alone);
      }
    } else if (kind < 0.8) {
      const [page, part, to] = [whole(random, 0, Math.max(0, pages - 1)), whole(random, 0, 2), whole(random, 0, 4)];
      const what = random();
      if (pages > 0 && pair.hasLatent(layer, page) && what < 0.3) this.#latent(pair, layer, page, to);
      else if (pages > 0 && random() < 0.2) this.#original(pair, layer, page, part % 2);
      else if (pages > 0 && random() < 0.25) this.#keptRows(pair, layer, page, part % 2);
      else if (pages > 0 && random() < 0.15) this.#exchange(pair, layer, page, part % 2);
      else if (pages > 0 && random() < 0.1) pair.compared('freed', 1, (cache, out) => cache.freePage(layer, page, out));
      else if (pages > 0 && random() < 0.05)
        pair.compared('evicted', 1, (cache, out) => cache.evictPage(layer, page, out));
      else if (pages > 0 && random() < 0.06) this.#foreign(pair, layer, page, to);
      else if (pages > 0) this.#change(pair, { layer, page, part, to }, what);
    } else if (kind < 0.88) {
      // Nobody gets the room of a move that is under way, but a budget that is lowered beneath it refuses it in the
      // end.
      const used = random() < 0.3 ? this.#usedBytes() : null;
      if (used !== null) succeed(this.#pool.setBudget(used), 'setBudget');
      pair.finishMoves(wait);
      pair.finishTrials(wait);
      if (used !== null) succeed(this.#pool.setBudget(2 ** 26), 'setBudget');
    } else if (kind < 0.91) {
      const fork = new this.#binary.Cache();
      const alone = new this.#binary.Cache();
      if (this.#pairs.length > 6 || fork.openFork(pair.mine) !== 0) return;
      succeed(alone.openFork(pair.alone), 'openFork alone');
      this.#pairs.push(new Pair(fork, alone, pair.shape));
    } else if (kind < 0.94) {
      this.#close(pair);
      if (this.#pairs.length < 3) this.#open();
    } else if (kind < 0.96) {
      this.#truncate(pair);
    } else {
      this.#budget(pair);
    }
  }

  /** A page as bytes of the caller, these bytes, the page again, or rows in its place tried. */
  #foreign(pair: Pair, layer: number, page: number, to: number): void {
    const random = this.#random;
    const rows = (): Float32Array => this.#rows(PAGE_TOKENS * pair.row);
    const kind = random();
    if (kind < 0.4) {
      const bytes = Uint8Array.from({ length: whole(random, 1, 5000) }, () => whole(random, 0, 255));
      pair.compared('foreign', 1, (cache, out) => cache.holdForeign(layer, page, bytes, out));
    } else if (kind < 0.7) {
      const [k, v] = [rows(), rows()];
      pair.compared('made again', 1, (cache, out) => cache.restoreForeign(layer, page, to, k, v, out));
    } else if (kind < 0.85) {
      pair.compared('bytes', 1, (cache, out) => cache.foreignBytes(layer, page, out));
    } else {
      const k = rows();
      pair.compared('rows tried', 1, (cache, out) => cache.trialForeign(layer, page, k, undefined, out));
    }
  }

  #encoded(page: number, format: number): Uint8Array {
    const bytes = new Uint8Array(latentBytes(LATENT_NAMES[format]!, LATENT_WIDTH));
    const x = this.#rows(PAGE_TOKENS * LATENT_WIDTH);
    succeed(this.#binary.encodeLatent(format, LATENT_WIDTH, bytes, x, page === 0 ? SINK_TOKENS : 0), 'encodeLatent');
    return bytes;
  }

  /** Something with a sealed page; what is not legal is refused. */
  #change(pair: Pair, move: Move, what: number): void {
    const { layer, page, part, to } = move;
    const { hold, keep } = LATENT_OPERATIONS;
    const latent = whole(this.#random, 0, LATENT_NAMES.length - 1);
    if (what < 0.25) {
      pair.compared('transcode', 1, (cache, out) => cache.transcode(layer, page, part, to, out));
    } else if (what < 0.6) {
      const status = pair.mine.startMove(layer, page, part, to);
      if (status === 0) pair.moves.push(move);
      else if (status !== UNSUPPORTED && status !== BUDGET_EXCEEDED) succeed(status, 'startMove');
    } else if (what < 0.7) {
      pair.compared('trial', 1, (cache, out) => cache.trial(layer, page, Uint8Array.of(part, to), out));
      const candidate = Uint8Array.of(2, LATENT_CANDIDATES_FROM + latent);
      pair.compared('a trial of a latent', 1, (cache, out) => cache.trial(layer, page, candidate, out));
    } else if (what < 0.85) {
      const errors = new Float64Array(2);
      const isLatent = pair.hasLatent(layer, page) && this.#random() < 0.5;
      const second = isLatent ? [2, LATENT_CANDIDATES_FROM + latent] : [part, FORMATS.rot2.id];
      const candidates = Uint8Array.of(part, to, ...second);
      if (pair.mine.startTrial(layer, page, candidates) !== 0) return;
      succeed(pair.alone.trial(layer, page, candidates, errors), 'trial alone');
      pair.trials.push(errors);
    } else {
      const operation = what < 0.93 ? hold : keep;
      const bytes = this.#encoded(page, latent);
      pair.compared('a latent', 1, (cache, out) => cache.latent(operation, layer, page, latent, out, bytes));
    }
  }

  /** Something with a page that has a latent. */
  #latent(pair: Pair, layer: number, page: number, to: number): void {
    const { restore, move, drop } = LATENT_OPERATIONS;
    const operation = one(this.#random, [restore, move, drop]);
    const stays = operation === restore ? one(this.#random, [undefined, true, false]) : undefined;
    const format = operation === restore ? to : whole(this.#random, 0, LATENT_NAMES.length - 1);
    pair.compared('a held or kept latent', 1, (cache, out) => cache.latent(operation, layer, page, format, out, stays));
  }

  /**
   * A side as bytes in place of another, of the same cache or of one with other sizes; now and then with a byte that
   * somebody has changed, or in the name of another format.
   */
  #exchange(pair: Pair, layer: number, page: number, side: number): void {
    const random = this.#random;
    const from = random() < 0.8 ? pair : one(random, this.#pairs);
    const [, pages] = from.count(0);
    if (pages === 0) return;
    const about = new Float64Array(2);
    const at = whole(random, 0, pages - 1);
    if (from.mine.exportSide(0, at, side, about) !== 0) return;
    const bytes = new Uint8Array(about[1]!);
    succeed(from.mine.exportSide(0, at, side, about, bytes), 'exportSide');
    if (random() < 0.2) bytes[whole(random, 0, bytes.length - 1)]! ^= whole(random, 1, 255);
    const format = random() < 0.9 ? about[0]! : whole(random, 0, 4);
    const freed = [new Float64Array(1), new Float64Array(1)] as const;
    const work = (cache: CacheHandle): number =>
      cache.exchangeSide(layer, page, side, format, bytes, freed[cache === pair.mine ? 0 : 1]);
    if (pair.both('exchangeSide', work, [BAD_SHAPE, BAD_VALUE])) expectSame('an exchanged side', freed[0], freed[1]);
  }

  /** Something with the kept original of a page side. */
  #original(pair: Pair, layer: number, page: number, side: number): void {
    const { keep, ...others } = ORIGINAL_OPERATIONS;
    const operation = this.#random() < 0.5 ? keep : one(this.#random, Object.values(others));
    pair.compared('an original', 1, (cache, out) => cache.original(operation, layer, page, side, out));
  }

  /** Something with the kept rows of a page side. */
  #keptRows(pair: Pair, layer: number, page: number, side: number): void {
    const random = this.#random;
    const { keep, ...others } = KEPT_ROWS_OPERATIONS;
    const operation = random() < 0.5 ? keep : one(random, Object.values(others));
    const drawn = Array.from({ length: whole(random, 1, 12) }, () => whole(random, 0, 2 * PAGE_TOKENS - 1));
    const places = Uint16Array.from(random() < 0.9 ? [...new Set(drawn)].sort((a, b) => a - b) : drawn);
    pair.compared('kept rows', 1, (cache, out) => cache.keptRows(operation, layer, page, side, places, out), [
      BAD_ARGUMENT,
    ]);
  }

  #usedBytes(): number {
    const numbers = new Float64Array(6);
    succeed(this.#pool.numbers(numbers, true), 'numbers');
    if (numbers[1] !== numbers[5]) throw new Error(`${numbers[1]} bytes are counted and ${numbers[5]} are there`);
    return numbers[1]!;
  }

  #truncate(pair: Pair): void {
    const counts = Array.from({ length: pair.layers }, (_, each) => pair.count(each));
    const least = Math.max(...counts.map(([, pages]) => pages * PAGE_TOKENS));
    const most = Math.min(...counts.map(([tokens]) => tokens));
    if (least > most) return;
    const tokens =
      this.#random() < 0.7
        ? whole(this.#random, least, most)
        : PAGE_TOKENS * whole(this.#random, 0, Math.floor(most / PAGE_TOKENS));
    pair.both('truncate', (cache) => cache.truncate(tokens));
  }

  #budget(pair: Pair): void {
    const random = this.#random;
    const account = new Float64Array(6);
    succeed(pair.mine.account(account, false), 'account');
    const used = this.#usedBytes();
    const more = one(random, [whole(random, 0, 100_000), 2 ** 26, 2 ** 26]);
    const isOwn = random() < 0.5;
    const status = isOwn ? pair.mine.setBudget(account[1]! + more) : this.#pool.setBudget(used + more);
    if (status !== BUDGET_TOO_SMALL) succeed(status, 'setBudget');
  }

  /** → what the caches that are left hold */
  run(steps: number): Numbers[] {
    for (let i = 0; i < 4; i++) this.#open();
    for (let i = 0; i < steps; i++) {
      this.#step();
      this.#usedBytes();
    }
    for (const pair of this.#pairs) {
      pair.finishMoves(true);
      pair.finishTrials(true);
    }
    const held = this.#pairs.flatMap((pair) => pair.compare());
    while (this.#pairs.length > 0) this.#close(one(this.#random, this.#pairs));
    const left = this.#usedBytes();
    if (left !== 0) throw new Error(`${left} bytes are left`);
    this.#pool.close();
    return held;
  }
}

function manyCaches(random: Random): Case {
  const noise = Float32Array.from({ length: NOISE }, () => gaussian(random));
  const seeds = Array.from({ length: 4000 }, random);
  const steps = whole(random, 20, 160);
  // Who does not wait for what is under way does other things next on another machine.
  const isPatient = random() < 0.6;
  return {
    shape: `${steps} steps, ${isPatient ? 'waiting' : 'not waiting'} for what is under way`,
    run({ binary, isa }) {
      succeed(binary.setIsa(isa), 'setIsa');
      let at = 0;
      const held = new Session(binary, () => seeds[at++ % seeds.length]!, noise, isPatient).run(steps);
      return isPatient ? held : [];
    },
  };
}

export const POOL_CASES: Cases = { manyCaches };
