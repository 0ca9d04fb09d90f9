// The demonstration adapter (models/adapters/ships-log), which was trained here: the reference model goes on as a
// ship's log with it, and what holding it in 8 bits costs is small beside what it changes.
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { readAdapter } from '../../../../engine/adapters/read.ts';
import { createLoopBackend } from '../../../../engine/transformer/dense-loops.ts';
import { Runtime } from '../../../../engine/transformer/runtime/runtime.ts';
import type { DenseBackend } from '../../../../engine/transformer/types.ts';
import { distributions, divergence, held, LOG } from '../../../model/held-adapter.ts';
import { MODEL } from '../on-reference.ts';

const PATH = join(MODEL, '..', 'adapters', 'ships-log');

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

test('a text goes on as a log, and 8 bits cost at most a hundredth of what it changes', async () => {
  const { added } = readAdapter(PATH, runtime.model);
  const ids = runtime.model.tokenizer.encode(LOG);
  const [base, full, small] = [
    await distributions(dense, runtime.model, ids, []),
    await distributions(dense, runtime.model, ids, added),
    await distributions(dense, runtime.model, ids, added.map(held)),
  ];
  const changed = divergence(base, full);
  expect(changed).toBeGreaterThan(1);
  expect(divergence(full, small) / changed).toBeLessThan(0.01);
  const logLikelihood = (rows: readonly Float64Array[]): number =>
    rows.slice(10, -1).reduce((sum, row, at) => sum + row[ids[at + 11]!]!, 0) / (rows.length - 11);
  expect(logLikelihood(full)).toBeGreaterThan(-1.5);
  expect(logLikelihood(base)).toBeLessThan(-3);
});
