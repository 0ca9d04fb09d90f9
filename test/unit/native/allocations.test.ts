/**
 * What happens when memory runs out: every operation of a cache with its first, second, third … allocation failing,
 * once or with all that follow. Each must answer that there is no memory, leave the cache as it was with its bytes
 * counted right, and succeed as ever when it is asked again. The cache under test is built with allocations that fail
 * on demand (native/test_allocations.cc).
 */
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { Distributions, logisticShares } from '../../../engine/session/park/rans.ts';
import * as held from '../../../native/hold.ts';
import { encodeLatent, FORMATS, KvError, LATENT_NAMES, type LatentName, SINK_TOKENS } from '../../../native/index.ts';
import { LATENT_CANDIDATES_FROM, STATUS_NO_MEMORY } from '../../../native/layout.ts';
import type { BatchHandle, Binary, CacheHandle, PoolHandle, PredictorHandle } from '../../../native/load.ts';
import { importPages } from '../../../native/predicted.ts';
import { isForeign } from '../../../native/sliding.ts';
import { exportPage, importPage } from '../../../native/stored.ts';
import type { PageRecord, PageTable } from '../../../native/types.ts';
import { must } from '../../must.ts';
import { BINDING } from '../../native/binding.ts';
import { normals, uniform } from '../../native/dense.ts';
import { FOLDERS } from '../../native/kernels-binding.ts';
import { IS_SHORT, isShare, TIER } from '../../tier.ts';

const file = join(import.meta.dirname, '../../../native/build', FOLDERS[BINDING ?? 'built'], 'cache_test.node');

interface Failing extends Binary {
  /**
   * `first` allocations succeed, the next fails, and unless `once` all behind it; −1: none fails. → those that failed
   * since the last call
   */
  failAllocations(first: number, once: boolean): number;
}

const SHAPE = { layers: 2, queryHeads: 4, kvHeads: 2, headDim: 64 };
const [ROW, QUERY, WIDTH] = [128, 256, 64];
const NO_MEMORY = 'the system has no memory left';
const random = uniform(20261122);
const noise = normals(random, 800 * QUERY);
const rows = (from: number, tokens: number, width = ROW) => noise.subarray(from * width, (from + tokens) * width);
const weights = { width: WIDTH, wk: normals(random, ROW * WIDTH, 0.1), wv: normals(random, ROW * WIDTH, 0.1) };
const latentOf = (page: number) =>
  encodeLatent('xq8', rows(page * 100, 128, WIDTH), WIDTH, page === 0 ? SINK_TOKENS : 0);

/** Three candidates of a trial each: parts and formats. */
const CANDIDATES = Uint8Array.of(0, FORMATS.rot4.id, 1, FORMATS.rot2.id, 2, FORMATS.rot3.id);
const LATENTS = Uint8Array.from(LATENT_NAMES.flatMap((_, i) => [2, LATENT_CANDIDATES_FROM + i]));

const shares = logisticShares(1);
/** What a predicted page takes whose residuals are coded and all 0. */
const zeros = (() => {
  const coded = new Distributions(shares).encode(new Int8Array(2 * 128 * ROW), new Uint8Array(2 * ROW));
  const head = Buffer.alloc(6);
  for (const at of [2, 4]) head.writeUInt16LE(ROW, at);
  return Buffer.concat([head, coded]);
})();

/** Refuses what a call answers other than 0. */
function well(status: number): void {
  if (status === STATUS_NO_MEMORY) throw new KvError('budget-exceeded', NO_MEMORY);
  must(status === 0, () => `the call answered ${status}`);
}

const open = (binary: Binary, pool: PoolHandle, threads = 2): CacheHandle => {
  const cache = new binary.Cache();
  well(openInto(cache, pool, threads));
  return cache;
};
/** The open format of the cases that follow. */
let openFormat: number = FORMATS.f16.id;
const openInto = (cache: CacheHandle, pool: PoolHandle, threads = 2): number => {
  const { layers, queryHeads, kvHeads, headDim } = SHAPE;
  const numbers = Int32Array.of(layers, queryHeads, kvHeads, headDim, FORMATS.q8.id, threads, openFormat);
  return cache.open(pool, numbers, 0.125, new Int32Array(layers), new Float32Array(0));
};

/** A pool with the cache under test, and a neighbour that has a trial and a move under way. */
class Case {
  readonly pool: PoolHandle;
  readonly cache: CacheHandle;
  readonly neighbour: CacheHandle;
  /** Opened by the operation, if it opens one. */
  readonly other: CacheHandle;
  length = 0;
  /** A page that was exported. */
  bytes: Uint8Array = new Uint8Array();
  records: PageRecord[] = [];
  readonly packed: PredictorHandle;
  readonly together: BatchHandle;

  constructor(binary: Binary) {
    this.packed = new binary.Predictor();
    this.together = new binary.Batch();
    this.pool = new binary.Pool();
    well(this.pool.open(2 ** 28));
    this.neighbour = open(binary, this.pool, 1);
    well(this.neighbour.append(0, rows(7, 200), rows(9, 200)));
    well(this.neighbour.attend(0, rows(3, 40, QUERY), new Float32Array(40 * QUERY), undefined, undefined, true));
    this.cache = open(binary, this.pool);
    this.other = new binary.Cache();
  }

  /** Most operations are of one layer, and the second stays empty. */
  append(tokens: number, layers: readonly number[] = [0]): this {
    for (const layer of layers)
      well(this.cache.append(layer, rows(this.length, tokens), rows(this.length + 5, tokens)));
    this.length += tokens;
    return this;
  }

  attend(tokens: number): this {
    const out = new Float32Array(tokens * QUERY);
    well(this.cache.attend(0, rows(11, tokens, QUERY), out, undefined, undefined, true));
    return this;
  }

  foreign(page: number): this {
    well(this.cache.holdForeign(0, page, new Uint8Array(1000).fill(7), new Float64Array(1)));
    return this;
  }

  again(page: number): this {
    well(this.cache.restoreForeign(0, page, FORMATS.rot4.id, rows(1, 128), rows(2, 128), new Float64Array(1)));
    return this;
  }

  attendBeside(tokens: number): this {
    const [out, lse] = [new Float32Array(tokens * QUERY), new Float32Array(tokens * (QUERY / 64))];
    const q = rows(11, tokens, QUERY);
    well(this.cache.attend(0, q, out, undefined, undefined, true, lse, rows(3, tokens, QUERY)));
    return this;
  }

  /** The tokens of both caches in one call. */
  batch(mine: number, others: number): BatchHandle {
    well(this.together.clear());
    well(this.together.add(this.cache, mine));
    well(this.together.add(this.other, others));
    return this.together;
  }

  appendTogether(mine: number, others: number): this {
    const k = rows(this.length, mine + others);
    well(this.batch(mine, others).append(0, k, k, new Float64Array(1)));
    this.length += mine;
    return this;
  }

  attendTogether(mine: number, others: number): this {
    const q = rows(11, mine + others, QUERY);
    const out = new Float32Array(q.length);
    well(this.batch(mine, others).attend(0, q, out, undefined, undefined, true, new Float64Array(1)));
    return this;
  }

  latents(): this {
    held.setLatentWeights(this.cache, SHAPE, 0, weights);
    return this;
  }

  keep(page: number): this {
    return this.latent('keep', page, 'xq8', latentOf(page));
  }

  hold(page: number): this {
    return this.latent('hold', page, 'xq8', latentOf(page));
  }

  /** Restores in the format of that id, or does with a latent what hold.ts calls so. */
  latent(
    operation: Parameters<typeof held.latentCall>[1],
    page: number,
    format: LatentName | number,
    last?: Uint8Array | boolean,
  ): this {
    const id = typeof format === 'number' ? format : LATENT_NAMES.indexOf(format);
    held.latentCall(this.cache, operation, 0, page, id, new Float64Array(1), last);
    return this;
  }

  transcode(page: number, part: number, format: keyof typeof FORMATS): this {
    well(this.cache.transcode(0, page, part, FORMATS[format].id, new Float64Array(1)));
    return this;
  }

  startMove(page: number): this {
    well(this.cache.startMove(0, page, 2, FORMATS.rot4.id));
    return this;
  }

  finishMoves(moves: number): this {
    const out = new Float64Array(1 + 2 * moves);
    well(this.cache.finishMoves(true, out));
    expect(out[0]).toBe(moves);
    return this;
  }

  export(page: number): this {
    this.bytes = exportPage(this.cache, SHAPE, 0, page, this.table(this.cache, 0));
    return this;
  }

  exportSide(page: number): this {
    const about = new Float64Array(2);
    well(this.cache.exportSide(0, page, 1, about));
    this.bytes = new Uint8Array(about[1]!);
    well(this.cache.exportSide(0, page, 1, about, this.bytes));
    return this;
  }

  exchangeSide(page: number): this {
    well(this.cache.exchangeSide(0, page, 1, FORMATS.q8.id, this.bytes, new Float64Array(1)));
    return this;
  }

  import(position: number): this {
    importPage(this.other, SHAPE, 0, position, this.bytes);
    return this;
  }

  /** Two layers whose pages are predicted as ones. */
  predictor(): this {
    const made = this.packed;
    well(made.close());
    well(made.open(SHAPE.kvHeads, SHAPE.headDim, shares));
    const bytes = (length: number) => new Uint8Array(length);
    const side = (contraction: number) =>
      [
        new Int8Array(ROW * contraction),
        new Float32Array(ROW),
        new Float32Array(ROW).fill(1),
        bytes(ROW).fill(1),
        bytes(ROW),
      ] as const;
    const ends = [new Float32Array(2 * ROW), new Float32Array(2 * ROW).fill(9)] as const;
    for (const below of [0, 2 * ROW]) well(made.addLayer(...side(ROW + below), ...side(2 * ROW + below), ...ends));
    return this;
  }

  /** Exports two pages of both layers, and predicts the second layer of the first and the first layer of the second. */
  park(): this {
    const sinks = new Uint8Array(4 * SINK_TOKENS * ROW);
    return this.#parked(
      [0, 1].flatMap((page) =>
        [0, 1].map((layer) =>
          layer === page
            ? exportPage(this.cache, SHAPE, layer, page, this.table(this.cache, layer))
            : Buffer.concat([page === 0 ? sinks : sinks.subarray(0, 0), zeros]),
        ),
      ),
      (i) => i === 0 || i === 3,
    );
  }

  /** Exports the same, none of them predicted. */
  parkStored(): this {
    const stored = (page: number) =>
      [0, 1].map((layer) => exportPage(this.cache, SHAPE, layer, page, this.table(this.cache, layer)));
    return this.#parked([...stored(0), ...stored(1)], () => true);
  }

  #parked(parts: readonly Uint8Array[], isStored: (i: number) => boolean): this {
    this.bytes = Buffer.concat(parts);
    let at = 0;
    this.records = parts.map(({ length }, i) => {
      at += length;
      return { at: at - length, length, formats: isStored(i) ? null : { k: 'rot4', v: 'q8' } };
    });
    return this.predictor();
  }

  importPages(): this {
    const rotary = { cos: rows(0, 128, 64), sin: rows(9, 128, 64), rotaryDim: 64, interleaved: false };
    const predicted = { predictor: { handle: this.packed }, rotary };
    importPages(this.other, SHAPE, { bytes: this.bytes, records: this.records, predicted });
    return this;
  }

  openOther(tokens = 0): this {
    well(openInto(this.other, this.pool));
    if (tokens > 0) well(this.other.append(0, rows(0, tokens), rows(0, tokens)));
    return this;
  }

  startTrial(cache = this.cache, candidates = CANDIDATES): this {
    well(cache.startTrial(0, 0, candidates));
    return this;
  }

  finishTrials(trials: number, cache = this.cache): Float64Array {
    const out = new Float64Array(1 + 3 * trials);
    well(cache.finishTrials(true, out));
    expect(out[0]).toBe(trials);
    return out;
  }

  table(cache: CacheHandle, layer: number): PageTable {
    const count = new Float64Array(2);
    well(cache.length(layer, count));
    const pages = count[1]!;
    const [kind, kFormat, vFormat, latent] = [0, 1, 2, 3].map(() => new Uint8Array(pages)) as never[];
    const mass = new Float64Array(pages + 1);
    well(cache.table(layer, kind!, kFormat!, vFormat!, latent!, mass, count.subarray(1)));
    return { pages, kind: kind!, kFormat: kFormat!, vFormat: vFormat!, latent: latent!, mass, sinkMass: count[1]! };
  }

  /** Everything that can be seen of the cache and of the other one, if that is open. */
  seen(): unknown {
    const isOpen = this.other.length(0, new Float64Array(2)) === 0;
    return [this.cache, ...(isOpen ? [this.other] : [])].map((cache) => this.#seen(cache));
  }

  #seen(cache: CacheHandle): unknown {
    const [account, pool, length] = [new Float64Array(6), new Float64Array(6), new Float64Array(2)];
    well(cache.account(account, true));
    expect(account[4]).toBe(account[1]);
    well(this.pool.numbers(pool, true));
    expect(pool[5]).toBe(pool[1]);
    const layers = [0, 1].map((layer) => {
      well(cache.length(layer, length));
      const [tokens, pages] = length as unknown as [number, number];
      const decoded = createHash('sha1');
      const table = this.table(cache, layer);
      for (let page = 0; page <= pages; page++) {
        const foreign = page < pages && isForeign(table, page) ? new Uint8Array(1000) : null;
        if (foreign !== null) {
          well(cache.foreignBytes(layer, page, new Float64Array(1), foreign));
          decoded.update(foreign);
        }
        for (const side of foreign === null ? [0, 1] : []) {
          const out = new Float32Array(Math.min(128, tokens - page * 128) * ROW);
          well(cache.decode(layer, page, side, out));
          decoded.update(out);
        }
      }
      return [tokens, table, decoded.digest('hex')];
    });
    return { used: account[1], of: pool[1], room: account[3], layers };
  }

  /** What a trial of the first page says, where there is one that can be tried. */
  tried(): unknown {
    const errors = new Float64Array(1);
    const status = this.cache.trial(0, 0, Uint8Array.of(2, FORMATS.rot2.id), errors);
    return [status, Buffer.from(errors.buffer).toString('hex')];
  }

  /** That the cache goes on, and its neighbour. */
  goOn(): unknown {
    this.append(140).attend(140).transcode(0, 1, 'rot2');
    const out = new Float32Array(QUERY);
    well(this.cache.attend(0, rows(1, 1, QUERY), out, undefined, undefined, true));
    const beside = this.finishTrials(1, this.startTrial(this.neighbour).neighbour);
    return [Buffer.from(out.buffer).toString('hex'), beside, this.tried(), this.seen()];
  }

  close(): void {
    for (const cache of [this.cache, this.other, this.neighbour]) cache.close();
    const pool = new Float64Array(6);
    well(this.pool.numbers(pool, true));
    expect([pool[1], pool[5]]).toEqual([0, 0]);
    this.pool.close();
  }
}

/** What stands before, the operation, and what to do behind it so that the case can go on. */
const OPERATIONS: Record<string, [(it: Case) => void, (it: Case) => unknown, ((it: Case) => void)?]> = {
  'opening a cache': [() => {}, (it) => well(openInto(it.other, it.pool, 4))],
  'the first row': [() => {}, (it) => well(it.cache.append(0, rows(0, 1), rows(0, 1)))],
  'a row that the open page has no room for': [
    (it) => it.append(16),
    (it) => well(it.cache.append(0, rows(0, 1), rows(0, 1))),
  ],
  'pages that are sealed': [(it) => it.append(100), (it) => well(it.cache.append(0, rows(0, 400), rows(0, 400)))],
  attention: [(it) => it.append(300), (it) => it.attend(200)],
  'attention on shared threads': [(it) => it.append(300), (it) => it.attend(300)],
  'attention over latents': [(it) => it.append(300).latents().hold(1), (it) => it.attend(3)],
  'rows of two caches': [(it) => it.append(16).openOther(15), (it) => it.appendTogether(1, 2)],
  'pages of two caches': [(it) => it.append(100).openOther(120), (it) => it.appendTogether(200, 30)],
  'attention of two caches': [(it) => it.append(300).openOther(250), (it) => it.attendTogether(200, 3)],
  'attention of two caches over latents': [
    (it) => it.append(300).latents().hold(1).openOther(40),
    (it) => it.attendTogether(3, 40),
  ],
  'attention beside what the caller has': [(it) => it.append(300).foreign(1), (it) => it.attendBeside(3)],
  'a page as bytes of the caller': [
    (it) => it.append(300).attend(200).startTrial(),
    (it) => it.foreign(0),
    (it) => {
      it.finishTrials(1);
      it.again(0);
    },
  ],
  'a page of the caller again': [(it) => it.append(300).foreign(0), (it) => it.again(0)],
  'a trial of given rows': [
    (it) => it.append(300).attend(200),
    (it) => well(it.cache.trialForeign(0, 0, rows(0, 128), undefined, new Float64Array(1))),
  ],
  decoding: [
    (it) => it.append(300).latents().hold(1),
    (it) => well(it.cache.decode(0, 1, 0, new Float32Array(128 * ROW))),
  ],
  're-encoding keys': [(it) => it.append(300), (it) => it.transcode(0, 0, 'rot4')],
  're-encoding both sides': [(it) => it.append(300).transcode(1, 2, 'rot4'), (it) => it.transcode(1, 2, 'rot2')],
  'starting a move': [(it) => it.append(300), (it) => it.startMove(0), (it) => it.finishMoves(1)],
  'starting a second move': [(it) => it.append(400).startMove(1), (it) => it.startMove(0), (it) => it.finishMoves(2)],
  'finishing moves': [(it) => it.append(400).startMove(1).startMove(0), (it) => it.finishMoves(2)],
  'a trial': [
    (it) => it.append(300).attend(200),
    (it) => well(it.cache.trial(0, 0, Uint8Array.of(2, FORMATS.rot2.id), new Float64Array(1))),
  ],
  'starting a trial': [(it) => it.append(300).attend(200), (it) => it.startTrial(), (it) => it.finishTrials(1)],
  'finishing trials': [(it) => it.append(300).attend(200).startTrial().startTrial(), (it) => it.finishTrials(2)],
  'a fork of a short cache': [(it) => it.append(20, [0, 1]), (it) => well(it.other.openFork(it.cache))],
  'a fork of a long one': [(it) => it.append(300, [0, 1]).attend(200), (it) => well(it.other.openFork(it.cache))],
  'beginning with pages of another one': [
    (it) => it.append(300, [0, 1]).attend(200).startTrial().openOther(),
    (it) => well(it.other.adopt(it.cache, 2)),
    (it) => [it.finishTrials(1), it.transcode(0, 2, 'rot2')],
  ],
  'a sketch': [(it) => it.append(300).attend(200), (it) => well(it.cache.setSketch(0, rows(0, 32, QUERY)))],
  'weights of latents': [(it) => it.append(300), (it) => it.latents()],
  'a rotary table': [
    (it) => it.append(300),
    (it) =>
      held.setRotary(it.cache, SHAPE, {
        cos: rows(0, 100, 32),
        sin: rows(9, 100, 32),
        rotaryDim: 64,
        interleaved: false,
      }),
  ],
  'keeping a latent': [(it) => it.append(300).latents(), (it) => it.keep(0)],
  'holding a latent': [
    (it) => it.append(300).attend(200).latents().startTrial(),
    (it) => it.hold(0),
    (it) => {
      it.finishTrials(1);
      it.latent('restore', 0, FORMATS.q8.id);
    },
  ],
  'holding a page as the latent beside it': [
    (it) => it.append(300).attend(200).latents().keep(0).startTrial().startTrial(it.cache, LATENTS),
    (it) => it.latent('move', 0, 'xq8'),
    (it) => it.latent('restore', 0, FORMATS.q8.id).finishTrials(2),
  ],
  'a lower latent of a page': [
    (it) => it.append(300).latents().keep(0),
    (it) => it.latent('move', 0, 'xq4'),
    (it) => it.latent('restore', 0, FORMATS.q8.id),
  ],
  'the lowest latent of a held page': [
    (it) => it.append(300).latents().hold(0).latent('move', 0, 'xq4'),
    (it) => it.latent('move', 0, 'xq3'),
    (it) => it.latent('restore', 0, FORMATS.q8.id),
  ],
  'a trial of latents': [
    (it) => it.append(300).attend(200).latents().keep(0),
    (it) => well(it.cache.trial(0, 0, LATENTS, new Float64Array(3))),
  ],
  'starting a trial of latents': [
    (it) => it.append(300).attend(200).latents().keep(0),
    (it) => it.startTrial(it.cache, LATENTS),
    (it) => it.finishTrials(1),
  ],
  'restoring a held page': [(it) => it.append(300).latents().hold(0), (it) => it.latent('restore', 0, FORMATS.q8.id)],
  'restoring a page whose latent is kept': [
    (it) => it.append(300).latents().keep(0).transcode(0, 2, 'rot2'),
    (it) => it.latent('restore', 0, FORMATS.f16.id),
  ],
  'restoring a held page and keeping its latent': [
    (it) => it.append(300).latents().hold(0),
    (it) => it.latent('restore', 0, FORMATS.q8.id, true),
  ],
  'exporting a page': [
    (it) => it.append(300).latents().keep(0),
    (it) => exportPage(it.cache, SHAPE, 0, 0, it.table(it.cache, 0)),
  ],
  'exchanging a side': [
    (it) => it.append(300).attend(200).exportSide(1).startTrial(),
    (it) => it.exchangeSide(0),
    (it) => it.finishTrials(1),
  ],
  'importing a first page': [(it) => it.append(300).export(0).openOther(), (it) => it.import(0)],
  'importing a first page of the caller': [
    (it) => it.append(300).foreign(0).export(0).openOther(),
    (it) => it.import(0),
    (it) => it.again(0),
  ],
  'importing all pages, two of the caller': [
    (it) => it.append(300, [0, 1]).foreign(0).foreign(1).parkStored().openOther(),
    (it) => it.importPages(),
    (it) => it.again(0),
  ],
  'importing a page behind a full one': [(it) => it.append(300).export(1).openOther(128), (it) => it.import(128)],
  'packing a predictor': [(it) => it.append(300), (it) => it.predictor()],
  'importing all pages': [(it) => it.append(300, [0, 1]).park().openOther(), (it) => it.importPages()],
  'taking rows back': [
    (it) => it.append(300, [0, 1]).attend(20),
    (it) => {
      well(it.cache.truncate(290));
      it.length = 290;
    },
  ],
};

describe.skipIf(!existsSync(file))('without memory (needs an addon of its own for tests)', () => {
  const binary = existsSync(file) ? (createRequire(import.meta.url)(file) as Failing) : (null as never);
  let failures = 0;

  /**
   * The case after the operation, which is done at once or, when an allocation has failed, again. → what is to be seen
   * when it has gone on
   */
  function run(name: string, first: number, once: boolean): { failed: number; seen: unknown } {
    const [before, operation, behind] = OPERATIONS[name]!;
    const it = new Case(binary);
    before(it);
    const seen = it.seen();
    binary.failAllocations(first, once);
    let error: unknown;
    try {
      operation(it);
    } catch (thrown) {
      error = thrown;
    }
    const failed = binary.failAllocations(-1, false);
    if (error !== undefined) {
      expect([name, first, failed > 0, (error as Error).message]).toEqual([
        name,
        first,
        true,
        expect.stringContaining(NO_MEMORY),
      ]);
      expect(it.seen()).toEqual(seen);
      operation(it);
    }
    behind?.(it);
    const then = it.goOn();
    it.close();
    return { failed, seen: then };
  }

  const WAYS = (['f16', 'q8'] as const).flatMap((open) => [true, false].map((once) => [open, once] as const));
  /** Every operation in every way; where that takes minutes, each in one way, and neighbours in different ones. */
  const cases = Object.keys(OPERATIONS).flatMap((name, place) =>
    WAYS.filter((_, way) => !IS_SHORT || way === place % WAYS.length).map((way) => [name, ...way] as const),
  );
  it.each(cases)(
    '%s, the open page in %s, one failing: %s, changes nothing, and works when there is some',
    (name, open, once) => {
      openFormat = FORMATS[open].id;
      const { seen } = run(name, -1, false);
      for (let first = 0; ; first++) {
        if (!isShare(first, 3)) continue;
        const found = run(name, first, once);
        expect(found.seen).toEqual(seen);
        if (found.failed === 0) break;
        failures += found.failed;
      }
    },
  );

  it('has been tried often', () => {
    expect(failures).toBeGreaterThan(IS_SHORT ? 40 : TIER === 'home' ? 150 : 500);
  });
});
