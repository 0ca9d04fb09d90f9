/** Measures one decode query over a long history in every format, next to f16 and to the read stream. */
import { type Arena, openArena } from './arena.ts';
import { type Bench, rowOf, thousands, wholePages } from './bench.ts';
import { attentionError } from './error.ts';
import { sideBySide } from './measure.ts';
import { openPeers, type Peers, peerRows } from './peers/attention.ts';
import type { BenchRow } from './rows.ts';
import { gaussians, groupOf, OTHER_SHAPES, PAIRS, pairName, SHAPES, type Shape, shapeName } from './shapes.ts';
import { terminalTable } from './table.ts';

const FULL_TOKENS = [1, 2, 4, 8, 16, 32, 64, 128, 256].map((k) => k * 1024);
/** The goals are for 64K tokens and more. The peers are measured at 16K. */
const TOKENS = [16384, 65536];
/** A peer's cache with more tokens than this takes too much time and memory to make. */
const PEER_TOKENS_MAX = 32768;

export async function attention(bench: Bench): Promise<void> {
  const { settings } = bench;
  const shapes = settings.shapes ?? (settings.full ? [...SHAPES, ...OTHER_SHAPES] : SHAPES);
  for (const shape of shapes) {
    // By default, the wide heads are measured only at the lengths that the goals are for.
    const tokens =
      settings.tokens ??
      (settings.full ? FULL_TOKENS : shape.headDim === 64 || settings.peers ? TOKENS : TOKENS.slice(-1));
    for (const count of wholePages(tokens)) {
      for (const threads of settings.threads) await attentionAt(bench, shape, count, threads);
    }
  }
}

/** Measures one shape, context and number of threads. Returns the rows, which it also prints and records. */
export async function attentionAt(bench: Bench, shape: Shape, tokens: number, threads: number): Promise<BenchRow[]> {
  const { settings, stream, random } = bench;
  const arenas: Arena[] = [];
  let peers: Peers = { subjects: [], close: async () => {} };
  try {
    for (const pair of settings.formats ?? PAIRS)
      arenas.push(openArena({ shape, pair, tokens, threads, random, arenaBytes: settings.arenaBytes }));
    const q = gaussians(shape.queryHeads * shape.headDim, random);
    const out = new Float32Array(q.length);
    if (settings.peers && tokens <= PEER_TOKENS_MAX) peers = await openPeers(bench, shape, tokens, threads);
    const ours = arenas.map(({ cache, layers }) => ({
      run: () => {
        for (let layer = 0; layer < layers; layer++) cache.attend(layer, q, out, { observe: false });
      },
    }));
    const theirs = peers.subjects.flatMap(({ whole, without }) => [whole, without]);
    const timing = await sideBySide([...ours, ...theirs], { stream, threads, rounds: settings.rounds });
    const ns = arenas.map(({ layers }, i) => (timing.seconds[i]! * 1e9) / layers / tokens / shape.kvHeads);
    const f16 = arenas.findIndex(({ pair }) => pairName(pair) === 'f16');
    const rows = arenas.map(({ cache, pair, bytesPerToken }, i): BenchRow => {
      cache.attend(0, q, out, { observe: false });
      const gbPerSecond = bytesPerToken / ns[i]!;
      return rowOf(bench, shape, {
        bench: 'attention',
        tokens,
        threads,
        format: pairName(pair),
        nsPerToken: ns[i]!,
        gbPerSecond,
        shareOfStream: gbPerSecond / timing.streamGbPerSecond,
        ratioToF16: f16 < 0 ? null : ns[f16]! / ns[i]!,
        error: attentionError(cache, 0, q, out),
      });
    });
    const reference = arenas.findIndex(({ pair }) => pairName(pair) === 'rot4:rot4');
    rows.push(
      ...peerRows(bench, shape, {
        subjects: peers.subjects,
        tokens,
        threads,
        seconds: timing.seconds.slice(ours.length),
        streamGbPerSecond: timing.streamGbPerSecond,
        oursNs: reference < 0 ? null : ns[reference]!,
      }),
    );
    bench.say(
      `\nattention ${shapeName(shape)} (g = ${groupOf(shape)}), ${thousands(tokens)} tokens, ${threads} ${threads === 1 ? 'thread' : 'threads'}, read stream ${timing.streamGbPerSecond.toFixed(1)} GB/s`,
    );
    for (const line of terminalTable(rows)) bench.say(`  ${line}`);
    for (const row of rows) bench.add(row);
    return rows;
  } finally {
    await peers.close();
    for (const arena of arenas) arena.close();
  }
}
