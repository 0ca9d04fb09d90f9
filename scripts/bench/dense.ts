/**
 * `npm run bench -- dense` measures what the matrices of a model cost for a number of rows in one pass over the
 * weights: rows of a prompt, of a draft or of many sessions. Attention is left out. With one thread it is processor
 * time.
 */
import { writeFileSync } from 'node:fs';
import { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { type Isa, nativeInfo } from '../../native/index.ts';
import { now, typical } from './measure.ts';
import { smallModel } from './small-model.ts';
import { columns, fixed } from './table.ts';

const ROWS = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 32, 64, 128];

export interface DenseRow {
  readonly isa: Isa;
  readonly model: string;
  readonly threads: number;
  readonly rows: number;
  /** All layers. */
  readonly ms: number;
  readonly msPerRow: number;
  /** The output matrix, for all rows. */
  readonly logitsMs: number;
}

/** Every round computes each number of rows once, so that the machine treats them alike. */
export async function denseRows(
  { dense, model, threads }: Runtime,
  { rounds, counts = ROWS }: { readonly rounds: number; readonly counts?: readonly number[] },
): Promise<DenseRow[]> {
  const { layers, queryHeads, headDim, hiddenSize, vocabSize } = model.config;
  const times = counts.map(() => ({ layers: [] as number[], logits: [] as number[] }));
  for (let round = -1; round < rounds; round++) {
    for (const [i, rows] of counts.entries()) {
      const ids = Int32Array.from({ length: rows }, (_, row) => (300 + 31 * row) % vocabSize);
      const attention = new Float32Array(rows * queryHeads * headDim);
      const start = now(threads);
      let input = await dense.first(dense.embed(ids), rows);
      for (let layer = 0; layer < layers - 1; layer++) input = await dense.next(layer, attention, input.x, rows);
      const last = await dense.last(attention, input.x, rows);
      const middle = now(threads);
      await dense.logits(last.subarray(0, rows * hiddenSize), rows);
      // Code is compiled in the first round.
      if (round < 0) continue;
      times[i]!.layers.push((middle - start) * 1000);
      times[i]!.logits.push((now(threads) - middle) * 1000);
    }
  }
  return counts.map((rows, i) => {
    const ms = typical(times[i]!.layers);
    return {
      ...{ isa: nativeInfo().isa, model: model.name, threads, rows },
      ...{ ms, msPerRow: ms / rows, logitsMs: typical(times[i]!.logits) },
    };
  });
}

export async function dense(
  say: (line: string) => void,
  settings: {
    readonly rounds: number;
    readonly threads: number;
    readonly isas: readonly Isa[] | null;
    readonly json: string | null;
  },
): Promise<void> {
  const { threads, isas } = settings;
  const runtime = await Runtime.open({ ...smallModel(say), threads, ...(isas === null ? {} : { isa: isas[0]! }) });
  const rows = await denseRows(runtime, settings);
  say(`the matrices of ${runtime.model.name}, ${nativeInfo().isa}, threads: ${threads}`);
  await runtime.close();
  const table = rows.map(({ rows: count, ms, msPerRow, logitsMs }) => [
    String(count),
    fixed(ms, 2),
    fixed(msPerRow, 3),
    fixed(logitsMs, 2),
  ]);
  for (const line of columns(['rows', 'layers, ms', 'a row', 'output matrix, ms'], table)) say(`  ${line}`);
  if (settings.json !== null) writeFileSync(settings.json, `${JSON.stringify(rows, null, 1)}\n`);
}
