// hnswlib-node is compiled when it is installed, and a machine without a compiler has none. Importing it fails here as
// it would there; the index must then be the exact one, filled from the log, and find what it holds.
import { expect, test, vi } from 'vitest';
import { KvError } from '../../../native/index.ts';

vi.mock('hnswlib-node', () => {
  throw new Error('Could not locate the bindings file');
});

const { openVectorIndex } = await import('../../../memory/open-index.ts');

test('without its library the vector index looks at every vector', async () => {
  const { index, rebuilt } = await openVectorIndex<{ name: string }>(
    { dim: 2, dir: null, origin: 'a test' },
    async (empty) => {
      await empty.add([
        { id: { log: 'a', seq: 1 }, vector: [0, 0], payload: { name: 'origin' } },
        { id: { log: 'a', seq: 2 }, vector: [3, 4], payload: { name: 'far' } },
      ]);
    },
  );
  expect(index.kind).toBe('exact');
  expect(rebuilt).toContain('hnswlib-node');
  expect(await index.search([3, 3], 1)).toMatchObject([
    { id: { log: 'a', seq: 2 }, payload: { name: 'far' }, distance: 1 },
  ]);
});

test('what the log says is wrong is not hidden by that', async () => {
  const broken = openVectorIndex({ dim: 2, dir: null, origin: 'a test' }, () => {
    throw new KvError('bad-log', 'the log is torn');
  });
  await expect(broken).rejects.toThrow(/the log is torn/);
});
