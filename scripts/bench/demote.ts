/**
 * Measures what it costs to seal a page, to move it between formats and to decode it, per token and KV head of one
 * side, and how much slower attention is while pages move in the background. The moves are those that sessions make,
 * and those to the formats that were replaced.
 */
import {
  type FormatName,
  type KvCache,
  openKvCache,
  openPool,
  PAGE_TOKENS,
  type PagePool,
  type Side,
} from '../../native/index.ts';
import { ARENA_BYTES, type Arena, layersInTurn, openArena, pageRows } from './arena.ts';
import { type Bench, rowOf } from './bench.ts';
import { type Subject, sideBySide } from './measure.ts';
import { gaussians, SHAPES, type Shape, shapeName } from './shapes.ts';
import { FIRST_LOWER, FORMATS_MOVED, MOVES, type Moved } from './shipped.ts';
import { columns, figure } from './table.ts';

/** The number of pages of a layer. A pass moves all of them. */
const PAGES = 32;
const SIDES: readonly Side[] = ['k', 'v'];

interface Measured extends Subject {
  readonly what: string;
  readonly sides: readonly Side[];
}

/** How many moves are under way while attention is timed: far more than a thread can do in that time. */
const MOVES_WAITING = 1024;
/**
 * Attention uses two threads, as many as a small machine has cores, so that the moves have no core to themselves there.
 */
const BESIDE_THREADS = 2;

/** Codecs run on the caller's thread, so the number of threads is not varied here. */
export async function demote(bench: Bench): Promise<void> {
  const shapes = bench.settings.shapes ?? (bench.settings.full ? SHAPES : SHAPES.slice(0, 3));
  for (const shape of shapes) {
    await demoteAt(bench, shape);
    await besideAt(bench, shape);
  }
}

/**
 * Times decode attention over an arena with and without moves in the background. Another cache moves, so that the arena
 * stays as it is.
 */
export async function besideAt(bench: Bench, shape: Shape): Promise<void> {
  const { settings, stream, random } = bench;
  const options = { shape, pair: { k: 'q8', v: 'q8' }, tokens: PAGES * PAGE_TOKENS, random } as const;
  const arena = openArena({ ...options, threads: BESIDE_THREADS, arenaBytes: settings.arenaBytes });
  try {
    const { cache, layers } = arena;
    const q = gaussians(shape.queryHeads * shape.headDim, random);
    const out = new Float32Array(q.length);
    const run = (): void => {
      for (let layer = 0; layer < layers; layer++) cache.attend(layer, q, out, { observe: false });
    };
    const stored = storedPages(arena);
    const moving = Math.ceil(MOVES_WAITING / 2 / PAGES);
    const pool = openPool(2 ** 40);
    let other: KvCache | undefined;
    let [moved, passes, ranDry] = [0, 0, 0];
    const beside: Subject = {
      prepare: () => {
        other = madeOf(stored, pool, { ...shape, layers: moving });
        for (let i = 0; i < MOVES_WAITING; i++)
          other.startMove(Math.floor(i / 2 / PAGES), Math.floor(i / 2) % PAGES, SIDES[i % 2]!, FIRST_LOWER);
      },
      run,
      finish: () => {
        moved += other!.finishMoves(false).length;
        passes++;
        if (other!.movesUnderWay === 0) ranDry++;
        other!.close();
      },
    };
    const { seconds } = await sideBySide([{ run }, beside], {
      stream,
      threads: BESIDE_THREADS,
      rounds: settings.rounds,
    });
    const [alone, together] = seconds.map((time) => (time * 1e9) / layers / options.tokens / shape.kvHeads) as [
      number,
      number,
    ];
    const row = { bench: 'demote', tokens: options.tokens, threads: BESIDE_THREADS } as const;
    bench.add(rowOf(bench, shape, { ...row, format: 'attend', nsPerToken: alone }));
    bench.add(rowOf(bench, shape, { ...row, format: `attend beside q8>${FIRST_LOWER}`, nsPerToken: together }));
    bench.say(
      `  attention over q8, ${BESIDE_THREADS} threads: ${figure(alone)} ns/token, beside moves to ${FIRST_LOWER} ${figure(together)} (${(together / alone).toFixed(2)}×), ` +
        `${figure(moved / passes)} page sides per pass${ranDry > 0 ? `; ${ranDry} of ${passes} passes ran out of moves` : ''}`,
    );
  } finally {
    arena.close();
  }
}

export async function demoteAt(bench: Bench, shape: Shape): Promise<void> {
  const { settings, stream, random } = bench;
  const rings = new Map<FormatName, Ring>();
  try {
    for (const from of FORMATS_MOVED) rings.set(from, openRing(shape, from, random, settings.arenaBytes));
    const subjects = [
      sealing(shape, random),
      ...MOVES.map((move) => moving(rings.get(move.from)!, move)),
      ...[...rings.values()].map(reading),
    ];
    const { seconds } = await sideBySide(subjects, { stream, threads: 1, rounds: settings.rounds });
    bench.say(`\ndemote ${shapeName(shape)}, ns per token and KV head of one side (goal for a demotion: under 20)`);
    const lines = subjects.map(({ what, sides }, i) => {
      const nsPerToken = (seconds[i]! * 1e9) / (PAGES * PAGE_TOKENS * sides.length * shape.kvHeads);
      bench.add(rowOf(bench, shape, { bench: 'demote', tokens: PAGE_TOKENS, threads: 1, format: what, nsPerToken }));
      const usPerPage = (nsPerToken * PAGE_TOKENS * shape.kvHeads) / 1000;
      return [what, figure(nsPerToken), figure(usPerPage)];
    });
    for (const line of columns(['from>to', 'ns/token', 'µs/page side'], lines)) bench.say(`  ${line}`);
  } finally {
    for (const ring of rings.values()) ring.close();
  }
}

/**
 * Appends rows and seals the pages that they fill, as a prompt does. The first row of a page seals the page before it.
 */
function sealing(shape: Shape, random: () => number): Measured {
  const rows = pageRows({ shape, random });
  const row = shape.kvHeads * shape.headDim;
  const page = PAGE_TOKENS * row;
  let pool: PagePool;
  let cache: KvCache;
  return {
    what: 'f32>q8',
    sides: SIDES,
    prepare: () => {
      pool = openPool(2 ** 40);
      cache = openKvCache({ shape: { ...shape, layers: 1 }, pool });
    },
    run: () => {
      for (let at = 0; at < PAGES; at++) {
        const from = (at * page) % rows.k.length;
        cache.append(0, rows.k.subarray(from, from + page), rows.v.subarray(from, from + page));
      }
      cache.append(0, rows.k.subarray(0, row), rows.v.subarray(0, row));
    },
    finish: () => {
      cache.close();
      pool.close();
    },
  };
}

/** Several caches of one layer that are used in turn, so that each is read from memory again when its turn comes. */
interface Ring {
  readonly format: FormatName;
  /** The cache whose turn it is. */
  next(): KvCache;
  /** Replaces that cache by a new one. */
  renew(): void;
  close(): void;
}

/** The stored bytes of the pages of layer 0. */
function storedPages({ cache }: Arena): readonly Uint8Array[] {
  return Array.from({ length: PAGES }, (_, page) => cache.exportPage(0, page));
}

/** A cache whose layers all have these pages. */
function madeOf(pages: readonly Uint8Array[], pool: PagePool, shape: KvCache['shape']): KvCache {
  const cache = openKvCache({ shape, pool });
  for (let layer = 0; layer < shape.layers; layer++) for (const page of pages) cache.importPage(layer, page);
  return cache;
}

/** Opens a ring of as many caches as fill `arenaBytes`, with pages in a format. */
function openRing(given: Shape, format: FormatName, random: () => number, arenaBytes = ARENA_BYTES): Ring {
  const tokens = PAGES * PAGE_TOKENS;
  const arena = openArena({ shape: given, pair: { k: format, v: format }, tokens, threads: 1, random, arenaBytes: 1 });
  const stored = storedPages(arena);
  const shape = { ...arena.cache.shape, layers: 1 };
  const count = Math.max(1, Math.ceil(arenaBytes / (arena.bytesPerToken * tokens * given.kvHeads)));
  arena.close();
  const pool = openPool(2 ** 40);
  const caches = Array.from({ length: count }, () => madeOf(stored, pool, shape));
  const next = layersInTurn(count);
  let at = 0;
  return {
    format,
    next: () => {
      at = next();
      return caches[at]!;
    },
    renew: () => {
      caches[at]!.close();
      caches[at] = madeOf(stored, pool, shape);
    },
    close: () => {
      for (const cache of caches) cache.close();
      pool.close();
    },
  };
}

/** Moves every page of a layer. */
function moving(ring: Ring, { from, to, sides }: Moved): Measured {
  let cache: KvCache | undefined;
  return {
    what: `${from}>${to}`,
    sides,
    prepare: () => {
      cache = ring.next();
    },
    run: () => {
      for (const side of sides) for (let page = 0; page < PAGES; page++) cache!.transcode(0, page, side, to);
    },
    finish: () => ring.renew(),
  };
}

function reading(ring: Ring): Measured {
  let rows: Float32Array | undefined;
  return {
    what: `${ring.format}>f32`,
    sides: SIDES,
    run: () => {
      const cache = ring.next();
      rows ??= new Float32Array(PAGE_TOKENS * cache.shape.kvHeads * cache.shape.headDim);
      for (const side of SIDES) for (let page = 0; page < PAGES; page++) cache.decode(0, page, side, rows);
    },
  };
}
