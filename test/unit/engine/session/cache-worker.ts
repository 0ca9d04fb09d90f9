/** Runs a cache in a worker thread on random numbers and says what came of it. */
import { parentPort, workerData } from 'node:worker_threads';
import { openCache } from '../../../../engine/index.ts';
import { normals, uniform } from '../../../native/dense.ts';

const { stateDir, shape } = workerData as {
  stateDir: string;
  shape: { layers: number; queryHeads: number; kvHeads: number; headDim: number };
};
const cache = await openCache({
  ...shape,
  kvBudget: 700_000,
  tokensExpected: 800,
  openFormat: 'f16',
  windowTokens: 128,
  stateDir,
});
const random = uniform(10);
let sum = 0;
for (let i = 0; i < 8; i++) {
  for (let layer = 0; layer < shape.layers; layer++) {
    const row = 100 * shape.kvHeads * shape.headDim;
    const [k, v, q] = [
      normals(random, row),
      normals(random, row),
      normals(random, 100 * shape.queryHeads * shape.headDim),
    ];
    cache.append(layer, k, v);
    sum += cache.attention(layer, q).reduce((a, b) => a + b, 0);
  }
}
const quality = cache.qualityMetrics();
await cache.close();
parentPort!.postMessage({ sum, quality });
