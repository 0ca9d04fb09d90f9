/** What it costs to seal a page, to move it from format to format, and to read it back: per token and KV head of one side. */
import {
  type FormatName,
  type KvCache,
  openKvCache,
  openPool,
  PAGE_TOKENS,
  type PagePool,
  type Side,
} from '../../native/index.ts';
import { type Arena, layersInTurn, openArena, pageRows } from './arena.ts';
import { type Bench, rowOf } from './bench.ts';
import { type Subject, sideBySide } from './measure.ts';
import { SHAPES, type Shape, shapeName } from './shapes.ts';
import { columns, figure } from './table.ts';

/** Pages of a layer: a pass moves them all. */
const PAGES = 32;
const SIDES: readonly Side[] = ['k', 'v'];
/** From what a page is in the window and on the ladder, to what it may become. */
const MOVES: Readonly<Record<string, readonly FormatName[]>> = {
  f16: ['q8', 'rot4', 'rot2'],
  q8: ['rot4', 'rot3', 'rot2'],
  rot4: ['rot3', 'rot2'],
  rot3: ['rot2'],
  rot2: [],
};

interface Measured extends Subject {
  readonly what: string;
}

/** Codecs run on the caller's thread, so the number of threads changes nothing here. */
export async function demote(bench: Bench): Promise<void> {
  const shapes = bench.settings.shapes ?? (bench.settings.full ? SHAPES : SHAPES.slice(0, 3));
  for (const shape of shapes) await demoteAt(bench, shape);
}

export async function demoteAt(bench: Bench, shape: Shape): Promise<void> {
  const { settings, stream, random } = bench;
  const arenas: Arena[] = [];
  try {
    for (const from of Object.keys(MOVES) as FormatName[]) {
      const pair = { k: from, v: from };
      const options = { shape, pair, tokens: PAGES * PAGE_TOKENS, threads: 1, random, arenaBytes: settings.arenaBytes };
      arenas.push(openArena(options));
    }
    const subjects = [
      sealing(shape, random),
      ...arenas.flatMap((arena) => MOVES[arena.pair.k]!.map((to) => moving(arena, to))),
      ...arenas.map(reading),
    ];
    const { seconds } = await sideBySide(subjects, { stream, threads: 1, rounds: settings.rounds });
    bench.say(`\ndemote ${shapeName(shape)}, ns per token and KV head of one side (goal for a demotion: under 20)`);
    const lines = subjects.map(({ what }, i) => {
      const nsPerToken = (seconds[i]! * 1e9) / (PAGES * PAGE_TOKENS * SIDES.length * shape.kvHeads);
      bench.add(rowOf(bench, shape, { bench: 'demote', tokens: PAGE_TOKENS, threads: 1, format: what, nsPerToken }));
      const usPerPage = (nsPerToken * PAGE_TOKENS * shape.kvHeads) / 1000;
      return [what, figure(nsPerToken), figure(usPerPage)];
    });
    for (const line of columns(['from>to', 'ns/token', 'µs/page side'], lines)) bench.say(`  ${line}`);
  } finally {
    for (const arena of arenas) arena.close();
  }
}

/** Appending rows and sealing the pages they fill, as a prompt does; the first row of the next page seals the last. */
function sealing(shape: Shape, random: () => number): Measured {
  const rows = pageRows({ shape, random });
  const row = shape.kvHeads * shape.headDim;
  const page = PAGE_TOKENS * row;
  let pool: PagePool;
  let cache: KvCache;
  return {
    what: 'f32>q8',
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

/** Every page of a layer, in a fork that is thrown away: the arena keeps what it has. */
function moving({ cache, pair, layers }: Arena, to: FormatName): Measured {
  const next = layersInTurn(layers);
  let fork = cache;
  return {
    what: `${pair.k}>${to}`,
    prepare: () => {
      fork = cache.fork();
    },
    run: () => {
      const layer = next();
      for (const side of SIDES) for (let page = 0; page < PAGES; page++) fork.transcode(layer, page, side, to);
    },
    finish: () => fork.close(),
  };
}

function reading({ cache, pair, layers }: Arena): Measured {
  const next = layersInTurn(layers);
  return {
    what: `${pair.k}>f32`,
    run: () => {
      const layer = next();
      for (const side of SIDES) for (let page = 0; page < PAGES; page++) cache.decode(layer, page, side);
    },
  };
}
