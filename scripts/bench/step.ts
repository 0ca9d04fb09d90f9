/**
 * Measures whole decode steps after a long history, with embedding, matrices, attention and logits: SmolLM2 at 4K and
 * 8K tokens, and at 32K a model of random weights (8 layers, hidden size 1024, 16 query and 4 KV heads), next to
 * llama.cpp with the same file, history and threads. The history consists of random rows, because its content does not
 * change the time of a step. With `--model random-llama-1b-q4_k_m` only what deciding costs in a session of that size.
 */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { Governed } from '../../engine/cache/governed.ts';
import { runStep } from '../../engine/cache/pass.ts';
import type { Stepper } from '../../engine/cache/stepper.ts';
import { termsOf } from '../../engine/cache/terms.ts';
import { defaultCacheDir } from '../../engine/transformer/cache-dir.ts';
import { fetchedPath } from '../../engine/transformer/fetch.ts';
import { Rotary } from '../../engine/transformer/rotary.ts';
import { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { defaultThresholds } from '../../policy/index.ts';
import { fillLayer, pageRows } from './arena.ts';
import { type Bench, rowOf, type Settings, thousands, wholePages } from './bench.ts';
import { type Subject, sideBySide } from './measure.ts';
import { LLAMA_MISSING, LLAMA_TYPES, LlamaPeer, llamaBytesPerToken, llamaIsInstalled } from './peers/llama.ts';
import { LLAMA_1B, randomModel, smallLlama } from './peers/random-model.ts';
import type { BenchRow } from './rows.ts';
import { session } from './session.ts';
import { type Pair, pairName, pairs, parseShape, type Shape, shapeName } from './shapes.ts';
import { columns, figure, fixed } from './table.ts';

const PAIRS = pairs('f16,rot4:rot4,rot4:rot2,rot2:rot2');
const DEPTHS = [0, 1024, 4096, 8192];
const RANDOM_SHAPE = parseShape('16/4x64');
const RANDOM_DEPTHS = [0, 32768];

interface Stepping extends Subject {
  readonly format: string;
  readonly peer: string | null;
  readonly depth: number;
  close(): void | Promise<void>;
}

export async function step(bench: Bench): Promise<void> {
  const { settings } = bench;
  const cacheDir = defaultCacheDir();
  // Of a large model the session alone: what deciding costs there.
  if (settings.model === LLAMA_1B.name) return session(bench, randomModel(LLAMA_1B, join(cacheDir, 'bench')));
  const named = fetchedPath('smollm2-135m', cacheDir);
  const model = settings.model === 'smollm2-135m' ? named : settings.model;
  const isHere = model === 'reference' || existsSync(model);
  if (isHere) {
    for (const threads of settings.threads) await stepsOf(bench, model, depths(settings, DEPTHS), threads);
  } else bench.say(`\nstep: ${settings.model} is not here; npm run fetch:model fetches it`);
  const random = randomModel(smallLlama(RANDOM_SHAPE), join(cacheDir, 'models'));
  for (const threads of settings.threads) await stepsOf(bench, random, depths(settings, RANDOM_DEPTHS), threads);
  if (isHere) await session(bench);
}

/** Lengths of history in whole pages; 0 means no history. */
function depths({ tokens }: Settings, otherwise: readonly number[]): readonly number[] {
  wholePages((tokens ?? []).filter((count) => count > 0));
  return tokens ?? otherwise;
}

async function stepsOf(bench: Bench, model: string, depths: readonly number[], threads: number): Promise<void> {
  const { settings, stream, root } = bench;
  const runtime = await Runtime.open({ model, threads });
  const subjects: Stepping[] = [];
  let llama: LlamaPeer | null = null;
  try {
    const most = runtime.model.config.contextLength;
    for (const depth of depths.filter((tokens) => tokens <= most)) {
      for (const pair of settings.formats ?? PAIRS) {
        // Without a history, formats make no difference.
        if (depth > 0 || pair.k === 'f16') subjects.push(ourSteps(bench, runtime, pair, depth, threads));
      }
    }
    if (settings.peers && !llamaIsInstalled(root)) bench.say(LLAMA_MISSING);
    else if (settings.peers) {
      llama = new LlamaPeer(root);
      for (const depth of depths) {
        for (const format of LLAMA_TYPES) {
          if (depth === 0 && format !== 'f16') continue;
          const context = await llama.open(model, format, depth, { threads });
          subjects.push({ format, peer: 'llama.cpp', depth, run: () => context.step(), close: () => context.close() });
        }
      }
    }
    const { seconds, streamGbPerSecond } = await sideBySide(subjects, { stream, threads, rounds: settings.rounds });
    const rows = stepRows(bench, runtime.shape, { subjects, seconds, threads });
    for (const row of rows) bench.add(row);
    tell(bench, `${runtime.model.name}, ${runtime.shape.layers} layers of ${shapeName(runtime.shape)}`, rows);
    for (const row of attentionOfPeers(bench, runtime.shape, { rows, streamGbPerSecond })) bench.add(row);
  } finally {
    for (const subject of subjects) await subject.close();
    await llama?.close();
    await runtime.close();
  }
}

function ourSteps({ random }: Bench, runtime: Runtime, pair: Pair, depth: number, threads: number): Stepping {
  const { shape } = runtime;
  const exact = pair.k === 'f16' || pair.v === 'f16';
  const cache = Governed.open({
    shape,
    terms: termsOf(shape, { exact }, defaultThresholds(shape.layers)),
    native: { threads },
    sketches: [],
    log: null,
    opened: { model: { name: 'bench', digest: '', architecture: 'bench' }, requested: {}, effective: {} },
  });
  const rows = pageRows({ shape, random });
  if (depth > 0) {
    for (let layer = 0; layer < shape.layers; layer++) fillLayer(cache.kv, layer, { pair, tokens: depth }, rows);
    // The token that sealed the last page is there as well.
    cache.filled(depth + 1);
  }
  const rotary = new Rotary(runtime.model.config, depth + 1024);
  let hidden: Float32Array = new Float32Array(0);
  const stepper: Stepper = {
    runtime,
    governed: cache,
    rotary,
    times: { denseMs: 0, attentionMs: 0 },
    holds: (_, rows) => {
      hidden = rows;
    },
  };
  return {
    format: pairName(pair),
    peer: null,
    depth,
    run: async () => {
      await runStep(stepper, Int32Array.of(301));
      const logits = await runtime.dense.logits(hidden, 1);
      if (!Number.isFinite(logits[0]!)) throw new Error('the logits of a step are not finite');
    },
    close: () => cache.close(),
  };
}

function stepRows(
  bench: Bench,
  shape: Shape,
  { subjects, seconds, threads }: { subjects: readonly Stepping[]; seconds: readonly number[]; threads: number },
): BenchRow[] {
  const ours = (depth: number, format: string): number | undefined =>
    seconds[subjects.findIndex((one) => one.peer === null && one.depth === depth && one.format === format)];
  return subjects.map(({ format, peer, depth }, i) => {
    const f16 = ours(depth, 'f16');
    const best = depth === 0 ? f16 : ours(depth, 'rot4:rot4');
    return rowOf(bench, shape, {
      bench: 'step',
      tokens: depth,
      threads,
      format,
      nsPerToken: seconds[i]! * 1e9,
      ratioToF16: peer !== null || f16 === undefined ? null : f16 / seconds[i]!,
      peer,
      peerRatio: peer === null || best === undefined ? null : seconds[i]! / best,
    });
  });
}

function tell(bench: Bench, what: string, rows: readonly BenchRow[]): void {
  const threads = rows[0]?.threads ?? 1;
  bench.say(`\nstep of ${what}, ${threads} ${threads === 1 ? 'thread' : 'threads'}`);
  const lines = rows.map(({ tokens, format, peer, nsPerToken, ratioToF16, peerRatio }) => [
    `${thousands(tokens)} tokens, ${peer === null ? '' : `${peer} `}${format}`,
    figure(nsPerToken / 1e6),
    figure(1e9 / nsPerToken),
    fixed(ratioToF16, 2, '×'),
    fixed(peerRatio, 1, '×'),
  ]);
  for (const line of columns(['', 'ms', 'tokens/s', 'vs f16', 'rot4:rot4 is faster'], lines)) bench.say(`  ${line}`);
}

/**
 * How much longer a peer's step takes with a history than without, per token of the history and KV head, over all
 * layers.
 */
function attentionOfPeers(
  bench: Bench,
  shape: Shape & { readonly layers: number },
  { rows, streamGbPerSecond }: { rows: readonly BenchRow[]; streamGbPerSecond: number },
): BenchRow[] {
  const bare = rows.find((row) => row.peer !== null && row.tokens === 0);
  if (bare === undefined) return [];
  return rows.flatMap((row) => {
    const type = LLAMA_TYPES.find((name) => name === row.format);
    const nsPerToken = (row.nsPerToken - bare.nsPerToken) / shape.layers / shape.kvHeads / row.tokens;
    if (row.peer === null || type === undefined || !(nsPerToken > 0)) return [];
    const gbPerSecond = llamaBytesPerToken(type, shape) / nsPerToken;
    return rowOf(bench, shape, {
      bench: 'attention',
      tokens: row.tokens,
      threads: row.threads,
      format: row.format,
      nsPerToken,
      gbPerSecond,
      shareOfStream: gbPerSecond / streamGbPerSecond,
      peer: `${row.peer}, of a step`,
    });
  });
}
