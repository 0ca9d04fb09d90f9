// The demonstration adapter (models/adapters/ships-log), which was trained here: the reference model goes on as a
// ship's log with it, and what holding it in 8 bits costs is small beside what it changes.
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { readAdapter } from '../../../../engine/adapters/read.ts';
import { adaptedDense } from '../../../../engine/transformer/adapted-dense.ts';
import { createLoopBackend } from '../../../../engine/transformer/dense-loops.ts';
import { Rotary } from '../../../../engine/transformer/rotary.ts';
import { Runtime } from '../../../../engine/transformer/runtime/runtime.ts';
import type { AdapterMatrix, DenseBackend } from '../../../../engine/transformer/types.ts';
import { logitsAt, plainAttention } from '../../../model/forward.ts';
import { MODEL } from '../on-reference.ts';

const PATH = join(MODEL, '..', 'adapters', 'ships-log');
const LOG =
  'It was a bright cold day.\nDay 14. Wind west, fresh. Saw a low green island at noon. The cook is better. All well.\n' +
  'Day 15. Wind south, light.';

let runtime: Runtime;
let dense: DenseBackend;
beforeAll(async () => {
  runtime = await Runtime.open({ model: MODEL, threads: 1, adapters: true });
  dense = await createLoopBackend(runtime.model, { precision: 'exact', threads: 1 });
});
afterAll(async () => {
  await dense?.close();
  await runtime?.close();
});

/** Log probabilities after every token, of rows that have what `matrices` adds. */
async function distributions(matrices: readonly AdapterMatrix[]): Promise<Float64Array[]> {
  const { model } = runtime;
  const tokens = model.tokenizer.encode(LOG);
  const attention = plainAttention(model.config);
  const adapter = dense.addAdapter!(matrices);
  const adapted = adaptedDense(dense, matrices.length === 0 ? [] : [{ adapter, scale: 1 }]);
  const rotary = new Rotary(model.config, tokens.length);
  const found = await logitsAt(adapted, model.config, rotary, attention, tokens, 64, [...tokens.keys()]);
  attention.close();
  dense.dropAdapter!(adapter);
  return found.map((logits) => {
    const most = Math.max(...logits);
    const sum = Math.log(logits.reduce((total, logit) => total + Math.exp(logit - most), 0));
    return Float64Array.from(logits, (logit) => logit - most - sum);
  });
}

/** The mean divergence of q from p, in nats. */
const divergence = (p: readonly Float64Array[], q: readonly Float64Array[]): number =>
  p.reduce((sum, row, at) => sum + row.reduce((part, log, i) => part + Math.exp(log) * (log - q[at]![i]!), 0), 0) /
  p.length;

/** In 8 bits, with a scale for those of a group. */
function rounded(values: Float32Array, groupOf: (at: number) => number): Float32Array {
  const most = new Map<number, number>();
  for (const [at, value] of values.entries())
    most.set(groupOf(at), Math.max(most.get(groupOf(at)) ?? 0, Math.abs(value)));
  return values.map((value, at) => {
    const scale = most.get(groupOf(at))! / 127;
    return scale === 0 ? 0 : Math.round(value / scale) * scale;
  });
}

/** As the kernels hold it: A with a scale for 32 numbers of a row, B with one for each of its columns. */
function held({ rank, a, b, ...rest }: AdapterMatrix): AdapterMatrix {
  const inputs = a.length / rank;
  const block = (at: number): number => Math.floor(at / inputs) * inputs + Math.floor((at % inputs) / 32);
  return { ...rest, rank, a: rounded(a, block), b: rounded(b, (at) => at % rank) };
}

test('a text goes on as a log, and 8 bits cost at most a hundredth of what it changes', async () => {
  const { added } = readAdapter(PATH, runtime.model);
  const [base, full, small] = [
    await distributions([]),
    await distributions(added),
    await distributions(added.map(held)),
  ];
  const changed = divergence(base, full);
  expect(changed).toBeGreaterThan(1);
  expect(divergence(full, small) / changed).toBeLessThan(0.01);
  const ids = runtime.model.tokenizer.encode(LOG);
  const logLikelihood = (rows: readonly Float64Array[]): number =>
    rows.slice(10, -1).reduce((sum, row, at) => sum + row[ids[at + 11]!]!, 0) / (rows.length - 11);
  expect(logLikelihood(full)).toBeGreaterThan(-1.5);
  expect(logLikelihood(base)).toBeLessThan(-3);
});
