/**
 * `npm run bench -- adapters` measures what adapters of all matrices add to a step: the matrices of a model with one
 * adapter of several ranks, and four rows with none, with one, and with four different ones. Weights and factors are
 * random, in the sizes of SmolLM2 and of the reference model; attention is left out, so shares of a whole step are
 * smaller. All ways of a shape take turns; with one thread it is processor time. Then what it takes to have an adapter
 * at hand when a session is opened, of 1,000 that a state folder has under names and 16 that may stay in memory, asked
 * for by Zipf's law; by the clock. And then what four whole sessions lose that have an adapter each.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Adapters } from '../../engine/adapters/adapters.ts';
import { adapterWith } from '../../engine/adapters/read.ts';
import { AdapterRegistry } from '../../engine/adapters/registry.ts';
import { seeded } from '../../engine/evaluate/recall.ts';
import { expectedShapes } from '../../engine/transformer/config.ts';
import { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import {
  DENSE_SLOTS,
  type DenseHalf,
  type DenseMix,
  type DenseShape,
  type Isa,
  nativeInfo,
  setIsa,
} from '../../native/index.ts';
import { adapterSessionsRow } from './adapter-sessions.ts';
import { filled, pass, SMOLLM2 } from './dense.ts';
import { typical } from './measure.ts';
import { smallModel } from './small-model.ts';
import { columns, fixed } from './table.ts';

const RANKS = [8, 16, 64];
/** Of the adapters that four rows have. */
const RANK = 16;

const REFERENCE: DenseShape = {
  ...{ layers: 6, hiddenSize: 256, intermediateSize: 704, queryHeads: 4, kvHeads: 2, headDim: 64 },
  ...{ vocabSize: 4096, normEpsilon: 1e-5 },
};
const SHAPES = { smollm2: SMOLLM2, reference: REFERENCE } as const;

export interface AdapterRow {
  readonly isa: Isa;
  readonly threads: number;
  readonly shape: string;
  /** Rows, and the adapters that they have. */
  readonly way: string;
  /** All layers and the output matrix. */
  readonly ms: number;
  /** Of the time that the same rows take without adapters. */
  readonly ratio: number;
}

/** Adds an adapter of all matrices. → its bytes */
function add(half: DenseHalf, adapter: number, rank: number): number {
  const random = seeded(adapter + 1);
  const values = (count: number): Float32Array => Float32Array.from({ length: count }, () => (random() - 0.5) / 8);
  const before = half.bytes;
  for (let layer = 0; layer < half.shape.layers; layer++)
    for (const slot of DENSE_SLOTS) {
      const [outputs, inputs] = half.sizes(layer, slot);
      half.setAdapter(adapter, layer, slot, rank, values(rank * inputs), values(outputs * rank));
    }
  return half.bytes - before;
}

/** Of each row the adapter of this number; null: it has none. */
function mixOf(adapters: readonly (number | null)[]): DenseMix | undefined {
  const parts = adapters.flatMap((adapter, row) => (adapter === null ? [] : [[row, 1, adapter] as const]));
  if (parts.length === 0) return undefined;
  return { parts: Int32Array.from(parts.flat()), scales: new Float32Array(parts.length).fill(0.5) };
}

interface Way {
  readonly name: string;
  readonly rows: number;
  readonly mix: DenseMix | undefined;
}

export function adapterRows(shape: keyof typeof SHAPES, threads: number, rounds: number): AdapterRow[] {
  const half = filled(SHAPES[shape], threads);
  const ways: Way[] = [{ name: '1 row', rows: 1, mix: undefined }];
  for (const [adapter, rank] of RANKS.entries()) {
    const bytes = add(half, adapter, rank);
    const name = `1 row, rank ${rank} (${(bytes / 2 ** 20).toFixed(2)} MiB)`;
    ways.push({ name, rows: 1, mix: mixOf([adapter]) });
  }
  for (let i = 0; i < 4; i++) add(half, RANKS.length + i, RANK);
  const four = (name: string, adapters: readonly (number | null)[]): void =>
    void ways.push({ name: `4 rows, ${name}`, rows: 4, mix: mixOf(adapters) });
  const own = [0, 1, 2, 3].map((i) => RANKS.length + i);
  four('none', [null, null, null, null]);
  four(
    `one adapter of rank ${RANK}`,
    own.map(() => own[0]!),
  );
  four(`four adapters of rank ${RANK}`, own);
  const random = seeded(9);
  const times = ways.map(() => [] as number[]);
  for (let round = -1; round < rounds; round++)
    for (const [at, { rows, mix }] of ways.entries()) {
      const [layers, logits] = pass(half, rows, threads, random, mix);
      // Code is compiled, and memory touched, in the first round.
      if (round >= 0) times[at]!.push(layers + logits);
    }
  half.close();
  const ms = times.map((seconds) => 1000 * typical(seconds));
  const baseOf = (rows: number): number => ms[ways.findIndex((way) => way.rows === rows)]!;
  return ways.map(({ name, rows }, at) => ({
    ...{ isa: nativeInfo().isa, threads, shape, way: name, ms: ms[at]! },
    ratio: ms[at]! / baseOf(rows),
  }));
}

const REGISTERED = 1000;
const RESIDENT = 16;
const REQUESTS = 3000;
const ZIPF = 0.9;

export interface ResidencyRow {
  readonly registered: number;
  readonly resident: number;
  /** Of the requests, those whose adapter was in memory. */
  readonly hits: number;
  readonly medianMs: number;
  readonly p99Ms: number;
}

/** Adapters of rank 4 on the matrices of attention of the reference model. */
export async function residencyRow(): Promise<ResidencyRow> {
  const dir = mkdtempSync(join(tmpdir(), 'palimpsest-adapters-'));
  const runtime = await Runtime.open({ model: 'reference', threads: 1, adapters: true });
  try {
    const registry = new AdapterRegistry(dir);
    const random = seeded(3);
    const shapes = expectedShapes(runtime.model.config);
    for (let i = 0; i < REGISTERED; i++) {
      const added = Array.from({ length: runtime.model.config.layers }, (_, layer) => layer).flatMap((layer) =>
        (['q', 'k', 'v', 'o'] as const).map((slot) => {
          const [outputs = 0, inputs = 0] = shapes.get(`${layer}.${slot}`)!;
          const values = (count: number): Float32Array => Float32Array.from({ length: count }, () => random() - 0.5);
          return { layer, slot, rank: 4, a: values(4 * inputs), b: values(4 * outputs) };
        }),
      );
      registry.add(`adapter ${i}`, adapterWith('PEFT', added), runtime.model);
    }
    const one = new Adapters(runtime, registry);
    one.set([{ name: 'adapter 0' }]);
    const { bytes } = one.list()[0]!;
    const adapters = new Adapters(runtime, registry, RESIDENT * bytes);
    const shares = Array.from({ length: REGISTERED }, (_, i) => (i + 1) ** -ZIPF);
    const total = shares.reduce((sum, share) => sum + share, 0);
    const times: number[] = [];
    let hits = 0;
    for (let request = 0; request < REQUESTS; request++) {
      let at = random() * total;
      const name = `adapter ${shares.findIndex((share) => (at -= share) < 0)}`;
      const before = runtime.dense.bytes;
      const start = performance.now();
      const set = adapters.set([{ name }]);
      set.hold(set);
      times.push(performance.now() - start);
      if (runtime.dense.bytes === before) hits++;
      set.leave(set);
    }
    times.sort((a, b) => a - b);
    return {
      ...{ registered: REGISTERED, resident: RESIDENT, hits: hits / REQUESTS },
      ...{ medianMs: times[REQUESTS / 2]!, p99Ms: times[Math.floor(0.99 * REQUESTS)]! },
    };
  } finally {
    await runtime.close();
    rmSync(dir, { recursive: true });
  }
}

export async function adapters(
  say: (line: string) => void,
  settings: {
    readonly rounds: number;
    readonly threads: number;
    readonly isas: readonly Isa[] | null;
    readonly json: string | null;
  },
): Promise<void> {
  const rows = (settings.isas ?? [nativeInfo().isa]).flatMap((isa) => {
    setIsa(isa);
    return (Object.keys(SHAPES) as (keyof typeof SHAPES)[]).flatMap((shape) =>
      adapterRows(shape, settings.threads, settings.rounds),
    );
  });
  const table = rows.map(({ isa, shape, way, ms, ratio }) => [isa, shape, way, fixed(ms, 3), fixed(ratio, 3)]);
  for (const line of columns(['set', 'model', 'rows', 'ms', 'of none'], table)) say(`  ${line}`);
  const residency = await residencyRow();
  const { registered, resident, hits, medianMs, p99Ms } = residency;
  say(
    `${registered} registered, ${resident} resident: ${fixed(100 * hits, 1)}% were there; until a session has one ` +
      `${fixed(medianMs, 2)} ms, p99 ${fixed(p99Ms, 2)} ms`,
  );
  const { threads, rounds } = settings;
  const plan = { sessions: 4, rank: RANK, depth: 128, tokens: 48, rounds };
  const sessions = await adapterSessionsRow({ ...smallModel(say), threads }, plan);
  say(
    `four sessions of ${sessions.model} behind ${sessions.depth} tokens: ${fixed(sessions.tokensPerSecond, 1)} tokens/s, ` +
      `with an adapter of rank ${RANK} each ${fixed(sessions.adaptedTokensPerSecond, 1)}, ${fixed(sessions.ratio, 3)} of it`,
  );
  if (settings.json !== null)
    writeFileSync(settings.json, `${JSON.stringify({ rows, residency, sessions }, null, 1)}\n`);
}
