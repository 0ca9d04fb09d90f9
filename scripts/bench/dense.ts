/**
 * `npm run bench -- dense` measures what the matrices of a model cost for a number of rows in one pass over the
 * weights: rows of a prompt, of a draft or of many sessions, each rounded to two planes, 16 bits, and to one. Weights
 * are random, in the sizes and the type of SmolLM2; attention is left out. With one thread it is processor time.
 */
import { writeFileSync } from 'node:fs';
import { seeded } from '../../engine/evaluate/recall.ts';
import {
  DENSE_SLOTS,
  DenseHalf,
  type DenseMix,
  type DenseShape,
  type Isa,
  nativeInfo,
  type Projected,
  setIsa,
} from '../../native/index.ts';
import { weightBlocks } from '../../test/native/weight-blocks.ts';
import { now, typical } from './measure.ts';
import { columns, fixed } from './table.ts';

const ROWS = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 32, 64, 128];
export const SMOLLM2: DenseShape = {
  ...{ layers: 30, hiddenSize: 576, intermediateSize: 1536, queryHeads: 9, kvHeads: 3, headDim: 64 },
  ...{ vocabSize: 49_152, normEpsilon: 1e-5 },
};

export interface DenseRow {
  readonly isa: Isa;
  readonly threads: number;
  readonly planes: 1 | 2;
  readonly rows: number;
  /** All layers. */
  readonly ms: number;
  readonly msPerRow: number;
  /** The output matrix, for all rows. */
  readonly logitsMs: number;
}

/** Layers share the bytes that they are packed from, not what they are packed to. */
export function filled(shape: DenseShape, threads: number): DenseHalf {
  const random = seeded(1);
  const half = new DenseHalf(shape, threads);
  const blocks = new Map<string, Uint8Array>();
  for (let layer = 0; layer <= shape.layers; layer++) {
    for (const slot of layer < shape.layers ? DENSE_SLOTS : (['q'] as const)) {
      const [outputs, inputs] = half.sizes(layer, slot);
      const key = `${outputs} ${inputs}`;
      if (!blocks.has(key)) blocks.set(key, weightBlocks(random, 'Q4_1', outputs * inputs, inputs ** -0.5));
      half.setRows(layer, slot, 'Q4_1', blocks.get(key)!);
    }
    half.setNorm(layer, 'attnNorm', new Float32Array(shape.hiddenSize).fill(1));
    if (layer < shape.layers) half.setNorm(layer, 'mlpNorm', new Float32Array(shape.hiddenSize).fill(1));
  }
  return half;
}

function setPlanes(half: DenseHalf, planes: 1 | 2): void {
  const { layers } = half.shape;
  for (let layer = 0; layer < layers; layer++) for (const slot of DENSE_SLOTS) half.setPlanes(layer, slot, planes);
  half.setPlanes(layers, 'q', planes);
}

/** One pass. → seconds of all layers and of the output matrix */
export function pass(
  half: DenseHalf,
  rows: number,
  threads: number,
  random: () => number,
  mix?: DenseMix,
): readonly [number, number] {
  const { layers, hiddenSize, queryHeads, kvHeads, headDim, vocabSize } = half.shape;
  const values = (width: number) => Float32Array.from({ length: rows * width }, () => random() - 0.5);
  let [x, next] = [values(hiddenSize), new Float32Array(rows * hiddenSize)];
  const attention = values(queryHeads * headDim);
  const [q, k, v] = [queryHeads, kvHeads, kvHeads].map((heads) => new Float32Array(rows * heads * headDim));
  const projected: Projected = { q: q!, k: k!, v: v! };
  const logits = new Float32Array(rows * vocabSize);
  const start = now(threads);
  half.first(x, rows, projected, mix);
  for (let layer = 0; layer < layers - 1; layer++) {
    half.next(layer, attention, x, rows, next, projected, mix);
    [x, next] = [next, x];
  }
  half.last(attention, x, rows, next, mix);
  const middle = now(threads);
  half.logits(next, rows, logits);
  return [middle - start, now(threads) - middle];
}

/** Every round computes each number of rows in both ways, so that the machine treats them alike. */
export function denseRows({
  shape = SMOLLM2,
  threads = 1,
  rounds,
  counts = ROWS,
}: {
  readonly shape?: DenseShape;
  readonly threads?: number;
  readonly rounds: number;
  readonly counts?: readonly number[];
}): DenseRow[] {
  const half = filled(shape, threads);
  const random = seeded(2);
  const cases = ([2, 1] as const).flatMap((planes) => counts.map((rows) => ({ planes, rows })));
  const times = cases.map(() => [[], []] as [number[], number[]]);
  for (let round = -1; round < rounds; round++) {
    for (const [i, { planes, rows }] of cases.entries()) {
      setPlanes(half, planes);
      const seconds = pass(half, rows, threads, random);
      // Code is compiled, and memory touched, in the first round.
      if (round >= 0) for (const at of [0, 1] as const) times[i]![at].push(seconds[at]);
    }
  }
  half.close();
  return cases.map(({ planes, rows }, i) => {
    const [ms, logitsMs] = [1000 * typical(times[i]![0]), 1000 * typical(times[i]![1])];
    return { isa: nativeInfo().isa, threads, planes, rows, ms, msPerRow: ms / rows, logitsMs };
  });
}

export function dense(
  say: (line: string) => void,
  settings: {
    readonly rounds: number;
    readonly threads: number;
    readonly isas: readonly Isa[] | null;
    readonly json: string | null;
  },
): void {
  if (settings.isas !== null) setIsa(settings.isas[0]!);
  const rows = denseRows(settings);
  say(`matrices of the sizes of SmolLM2 in Q4_1, ${nativeInfo().isa}, threads: ${settings.threads}`);
  const table = rows.map(({ planes, rows: count, ms, msPerRow, logitsMs }) => [
    ...[String(planes), String(count), fixed(ms, 2), fixed(msPerRow, 3), fixed(logitsMs, 2)],
  ]);
  for (const line of columns(['planes', 'rows', 'layers, ms', 'a row', 'output matrix, ms'], table)) say(`  ${line}`);
  if (settings.json !== null) writeFileSync(settings.json, `${JSON.stringify(rows, null, 1)}\n`);
}
