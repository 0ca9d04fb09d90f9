// Powers and logarithms that results depend on are our own: a scan of the native sources for those of the C library,
// and the log-sum-exp of rows whose sums are known, over lengths that leave every mantissa.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { openKvCache, openPool } from '../../../native/index.ts';

const native = join(import.meta.dirname, '../../../native');

describe('powers and logarithms', () => {
  test('of the C library, whose last bits differ between machines, are called nowhere in the cache and its kernels', () => {
    const found = ['.', 'cache', 'kernels'].flatMap((folder) =>
      readdirSync(join(native, folder))
        .filter((name) => /\.(cc|h)$/.test(name) && !name.startsWith('test_') && name !== 'stream.cc')
        .flatMap((name) => readFileSync(join(native, folder, name), 'utf8').match(/std::(exp|log|pow)\w*\(/g) ?? []),
    );
    expect(found).toEqual([]);
  });

  test('of our own give the log-sum-exp of equal scores: the logarithm of their number, to the rounding of float32', () => {
    const pool = openPool(2 ** 24);
    const shape = { layers: 1, queryHeads: 1, kvHeads: 1, headDim: 64 };
    for (const threads of [1, 3]) {
      const cache = openKvCache({ shape, pool, threads });
      const lse = new Float32Array(1);
      for (let tokens = 1; tokens <= 400; tokens++) {
        cache.append(0, new Float32Array(64), new Float32Array(64));
        cache.attend(0, new Float32Array(64), new Float32Array(64), { lse });
        // The sum, its logarithm and the division are each rounded once, and the last is below 8.
        expect(Math.abs(lse[0]! - Math.log(tokens)), `${tokens} tokens`).toBeLessThan(4 * 2 ** -22);
      }
      cache.close();
    }
    pool.close();
  });
});
