/** Child of index.test.ts: adds to the index in argv[2] and saves, printing the count after each save, until killed. */
import { openHnswIndex } from '../../memory/index.ts';
import { clustered } from './index-data.ts';

const index = await openHnswIndex({ dim: 4, dir: process.argv[2]!, origin: 'log-a' });
for (let seq = await index.count(); ; seq += 20) {
  const vectors = clustered(20, 4, 5, seq);
  await index.add(vectors.map((vector, i) => ({ id: { log: 'a', seq: seq + i }, vector, payload: {} })));
  await index.save();
  process.stdout.write(`${await index.count()}\n`);
}
