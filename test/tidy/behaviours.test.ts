// The table of what clients need (docs/lab/clients.md) names tests that are there.
import { basename } from 'node:path';
import { expect, it } from 'vitest';
import { read, walk } from './files.ts';

const ROW = /\| `([\w-]+)`: (.+) \|$/;

it('names tests that are there', () => {
  const tests = walk('test/unit').filter((path) => path.endsWith('.test.ts'));
  const rows = read('docs/lab/clients.md')
    .split('\n')
    .flatMap((line) => {
      const [, file, title] = ROW.exec(line) ?? [];
      return file === undefined ? [] : [{ file, title: title! }];
    });
  expect(rows.length).toBeGreaterThan(25);
  const missing = rows.filter(({ file, title }) => {
    const path = tests.find((one) => basename(one) === `${file}.test.ts`);
    return path === undefined || !read(path).includes(title);
  });
  expect(missing).toEqual([]);
});
