/** Child of index.test.ts: adds to the index in argv[2] and saves, printing the count after each save, until killed. */
import { openHnswIndex } from '../../memory/index.ts';
import { clustered } from './index-data.ts';

const index = await openHnswIndex<{ name: string }>({ dim: 4, dir: process.argv[2]!, origin: 'log-a' });
for (let label = index.count; ; ) {
  for (const vector of clustered(20, 4, 5, label)) await index.add(label, vector, { name: `p${label++}` });
  await index.save();
  process.stdout.write(`${index.count}\n`);
}
