/** Measures a page of queries over a long history, to see what quantized pages cost a prompt. */
import { PAGE_TOKENS } from '../../native/index.ts';
import { type Arena, layersInTurn, openArena } from './arena.ts';
import { type Bench, rowOf, thousands, wholePages } from './bench.ts';
import { attentionError } from './error.ts';
import { sideBySide } from './measure.ts';
import type { BenchRow } from './rows.ts';
import { gaussians, groupOf, PAIRS, pairName, SHAPES, type Shape, shapeName } from './shapes.ts';
import { terminalTable } from './table.ts';

const TOKENS = [4096, 16384];
/** How many times longer than with f16 a prompt may take. */
const GOAL = 1.3;

export async function prefill(bench: Bench): Promise<void> {
  const { settings } = bench;
  const shapes = settings.shapes ?? (settings.full ? SHAPES : SHAPES.slice(0, 2));
  for (const shape of shapes) {
    for (const tokens of wholePages(settings.tokens ?? TOKENS)) {
      for (const threads of settings.threads) await prefillAt(bench, shape, tokens, threads);
    }
  }
}

/** The queries belong to the rows of the open page, so these are f16 in every case, as they are in a real prompt. */
export async function prefillAt(bench: Bench, shape: Shape, tokens: number, threads: number): Promise<BenchRow[]> {
  const { settings, stream, random } = bench;
  const arenas: Arena[] = [];
  try {
    const row = shape.kvHeads * shape.headDim;
    const rest = gaussians((PAGE_TOKENS - 1) * row, random);
    for (const pair of settings.formats ?? PAIRS) {
      const arena = openArena({ shape, pair, tokens, threads, random, arenaBytes: settings.arenaBytes });
      arenas.push(arena);
      for (let layer = 0; layer < arena.layers; layer++) arena.cache.append(layer, rest, rest);
    }
    const width = shape.queryHeads * shape.headDim;
    const q = gaussians(PAGE_TOKENS * width, random);
    const out = new Float32Array(q.length);
    const timing = await sideBySide(
      arenas.map(({ cache, layers }) => {
        const next = layersInTurn(layers);
        return { run: () => cache.attend(next(), q, out, { observe: false }) };
      }),
      { stream, threads, rounds: settings.rounds },
    );
    const ns = timing.seconds.map((seconds) => (seconds * 1e9) / tokens / shape.kvHeads / PAGE_TOKENS);
    const f16 = arenas.findIndex(({ pair }) => pairName(pair) === 'f16');
    const rows = arenas.map(({ cache, pair }, i): BenchRow => {
      cache.attend(0, q, out, { observe: false });
      return rowOf(bench, shape, {
        bench: 'prefill',
        tokens,
        threads,
        format: pairName(pair),
        nsPerToken: ns[i]!,
        ratioToF16: f16 < 0 ? null : ns[f16]! / ns[i]!,
        error: attentionError(cache, 0, q.subarray(-width), out.subarray(-width)),
      });
    });
    bench.say(
      `\nprefill ${shapeName(shape)} (g = ${groupOf(shape)}), ${PAGE_TOKENS} queries over ${thousands(tokens)} tokens, ${threads} ${threads === 1 ? 'thread' : 'threads'}, ns per query, token and KV head (goal: f16 ${(1 / GOAL).toFixed(2)}× or better)`,
    );
    for (const line of terminalTable(rows)) bench.say(`  ${line}`);
    for (const one of rows) bench.add(one);
    return rows;
  } finally {
    for (const arena of arenas) arena.close();
  }
}
