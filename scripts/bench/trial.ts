/**
 * Measures what a trial costs: the kept queries over one page, in the formats that sessions try and in those that these
 * took the place of.
 */
import { PAGE_TOKENS, SIDES, SKETCH_ROWS, TRIAL_QUERIES } from '../../native/index.ts';
import { type Arena, layersInTurn, openArena } from './arena.ts';
import { type Bench, rowOf } from './bench.ts';
import { sideBySide } from './measure.ts';
import { gaussians, SHAPES, type Shape, shapeName } from './shapes.ts';
import { TRIALS, type Tried } from './shipped.ts';
import { columns, figure } from './table.ts';

const PAGES = 32;
/** Pages of a layer, the newest, that keep codes of what they were tried in (native/cache/trial.h). */
const KEPT_PAGES = 9;
const GOAL_US = 100;

/** The formats before, then those of keys and of values: q8>trellis3:trellis2. */
export const trialName = ({ from, candidates }: Tried): string =>
  `${from}>${SIDES.map((side) =>
    candidates
      .filter((one) => one.side === side)
      .map(({ format }) => format)
      .join(','),
  ).join(':')}`;

export async function trial(bench: Bench): Promise<void> {
  const { settings } = bench;
  for (const shape of settings.shapes ?? (settings.full ? SHAPES : SHAPES.slice(0, 2))) {
    for (const threads of settings.threads) await trialAt(bench, shape, threads);
  }
}

export async function trialAt(bench: Bench, shape: Shape, threads: number): Promise<void> {
  const { settings, stream, random } = bench;
  const arenas = new Map<string, Arena>();
  try {
    for (const from of new Set(TRIALS.map((one) => one.from))) {
      const pair = { k: from, v: from };
      const arena = openArena({
        shape,
        pair,
        tokens: (PAGES + KEPT_PAGES) * PAGE_TOKENS,
        threads,
        random,
        arenaBytes: settings.arenaBytes,
      });
      arenas.set(from, arena);
      observe(arena, shape, random);
    }
    const subjects = TRIALS.flatMap((tried) => {
      const { cache, layers } = arenas.get(tried.from)!;
      const { candidates } = tried;
      const next = layersInTurn(layers);
      const times = (what: string, first: number, pages: number) => ({
        what,
        pages,
        run: () => {
          const layer = next();
          for (let page = first; page < first + pages; page++) cache.trial(layer, page, candidates);
        },
      });
      const name = trialName(tried);
      // Tried once more, the newest pages have the codes of the second lowest candidates.
      return [times(name, 0, PAGES), times(`${name}, again`, PAGES, KEPT_PAGES)];
    });
    const { seconds } = await sideBySide(subjects, { stream, threads, rounds: settings.rounds });
    bench.say(
      `\ntrial ${shapeName(shape)}, both sides of one page, ${TRIAL_QUERIES} queries, ${threads} ${threads === 1 ? 'thread' : 'threads'} (goal: ${GOAL_US} µs)`,
    );
    const lines = subjects.map(({ what, pages }, i) => {
      const us = (seconds[i]! * 1e6) / pages;
      const nsPerToken = (us * 1000) / PAGE_TOKENS / shape.kvHeads;
      bench.add(rowOf(bench, shape, { bench: 'trial', tokens: PAGE_TOKENS, threads, format: what, nsPerToken }));
      return [what, figure(us), figure(nsPerToken)];
    });
    for (const line of columns(['from>to', 'µs/page', 'ns/token'], lines)) bench.say(`  ${line}`);
  } finally {
    for (const arena of arenas.values()) arena.close();
  }
}

/** Gives every layer a sketch and a page of queries, as in a session. */
function observe({ cache, layers }: Arena, shape: Shape, random: () => number): void {
  const width = shape.queryHeads * shape.headDim;
  const row = shape.kvHeads * shape.headDim;
  const rest = gaussians((PAGE_TOKENS - 1) * row, random);
  const q = gaussians(PAGE_TOKENS * width, random);
  const out = new Float32Array(q.length);
  const sketch = gaussians(SKETCH_ROWS * width, random);
  const xNorms = new Float32Array(PAGE_TOKENS).fill(Math.sqrt(width));
  for (let layer = 0; layer < layers; layer++) {
    cache.append(layer, rest, rest);
    cache.setOutputSketch(layer, sketch);
    cache.attend(layer, q, out, { xNorms });
  }
}
