// Formats that stand here to be compared with: the product describes them, so that logs that name them can be read, and
// computes none. Policies choose none of them, and sessions, caches and stored pages that name one are told how to have
// it. What a build that computes them does: test/formats/yardsticks.test.ts.
import { describe, expect, it } from 'vitest';
import { openCache } from '../../../engine/index.ts';
import {
  FORMAT_NAMES,
  FORMATS,
  isServed,
  isYardstick,
  KvError,
  LOWEST_FORMATS,
  openKvCache,
  openPool,
  parsePair,
  SERVED_FORMATS,
  TRIAL_CANDIDATES,
} from '../../../native/index.ts';

const SHAPE = { layers: 1, queryHeads: 2, kvHeads: 1, headDim: 64 };
const REFUSED = {
  code: 'unsupported',
  message: 'turbo4 is a yardstick, which this build does not compute',
  hint: expect.stringMatching(/palimpsest-lab.*npm run evaluate .*--yardsticks.*native\/yardsticks\/register\.ts/),
};

it('are named by nothing that policies choose from', () => {
  const yardsticks = FORMAT_NAMES.filter(isYardstick);
  expect(yardsticks).toContain('turbo4');
  for (const name of yardsticks) {
    expect(TRIAL_CANDIDATES).not.toContain(name);
    expect(Object.values(LOWEST_FORMATS)).not.toContain(name);
    expect(FORMATS[name].window).toBe(false);
  }
});

describe.skipIf(isServed('turbo4'))('in the product (this build computes them)', () => {
  it('are not among what it computes', () => {
    expect(SERVED_FORMATS).toEqual(FORMAT_NAMES.filter((name) => !isYardstick(name)));
    expect(SERVED_FORMATS).toEqual(expect.arrayContaining(['kivi4', 'kivi2', 'band3', 'band2', 'rot4', 'trellis4']));
  });

  it('are refused where a cache type names one, with how to have it', () => {
    expect(() => parsePair('rot4:turbo4')).toThrow(expect.objectContaining(REFUSED));
  });

  it.each([
    ['fixed', 'turbo4:turbo2'],
    ['fixed', { k: 'turbo4', v: 'rot4' }],
    ['table', ['rot4', 'turbo4']],
  ] as const)('are refused where a session of %s names one as %j', async (policy, cacheTypes) => {
    const opened = openCache({ ...SHAPE, policy, cacheTypes });
    await expect(opened).rejects.toThrow(KvError);
    await expect(opened).rejects.toMatchObject(REFUSED);
  });

  it('are refused where a page is to move to one', () => {
    const pool = openPool(2 ** 24);
    const cache = openKvCache({ shape: SHAPE, pool });
    const rows = new Float32Array(2 * 128 * 64);
    cache.append(0, rows, rows);
    expect(() => cache.transcode(0, 0, 'k', 'turbo4')).toThrow(expect.objectContaining(REFUSED));
    expect(() => cache.startMove(0, 0, 'k', 'turbo4')).toThrow(expect.objectContaining(REFUSED));
    expect(() => cache.trial(0, 0, [{ side: 'k', format: 'turbo4' }])).toThrow(expect.objectContaining(REFUSED));
    pool.close();
  });
});
