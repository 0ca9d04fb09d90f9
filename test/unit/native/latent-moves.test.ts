/**
 * Pages that become the latent kept beside them, or a lower one: which bytes that frees, what attention and decode()
 * find afterwards, the codes of a demotion beside the reference on every instruction set, latents that are dropped or
 * stay when a page is restored, forks, budgets, refusals.
 */
import { afterAll, describe, expect, it } from 'vitest';
import {
  decodeLatent,
  encodeLatent,
  type KvCache,
  LATENT_NAMES,
  type LatentName,
  latentBytes,
  nativeInfo,
  openKvCache,
  openPool,
  pageBytes,
  reference,
  setIsa,
} from '../../../native/index.ts';
import { history, normals, sameBits, uniform } from '../../native/dense.ts';
import { AWKWARD, awkwardRows } from '../../native/rows.ts';
import { codeOf } from '../../refusal.ts';

const shape = { layers: 1, queryHeads: 4, kvHeads: 2, headDim: 64 };
const ROW = 128;
const WIDTH = 96;
const Q8 = 2 * pageBytes('q8', 2, 64);
const BYTES = Object.fromEntries(LATENT_NAMES.map((name) => [name, latentBytes(name, WIDTH)])) as Record<
  LatentName,
  number
>;
const { available, isa: best } = nativeInfo();
afterAll(() => setIsa(best));

const matrix = (seed: number): Float32Array => normals(uniform(seed), ROW * WIDTH, 0.1);
const rowsOf = (page: number): Float32Array => normals(uniform(100 + page), 128 * WIDTH);
const latentOf = (page: number, name: LatentName, x = rowsOf(page)): Uint8Array =>
  encodeLatent(name, x, WIDTH, page === 0 ? 4 : 0);

/** Three sealed pages, of which the first two have a latent beside them. */
function filled(name: LatentName, budgetBytes?: number): KvCache {
  const cache = openKvCache({ shape, pool: openPool(2 ** 30), ...(budgetBytes === undefined ? {} : { budgetBytes }) });
  const random = uniform(7);
  cache.setLatentWeights(0, { width: WIDTH, wk: matrix(1), wv: matrix(2) });
  cache.append(0, normals(random, 400 * ROW), normals(random, 400 * ROW));
  for (const page of [0, 1]) cache.keepLatent(0, page, name, latentOf(page, name));
  return cache;
}

const attended = (cache: KvCache): Float32Array => {
  const q = normals(uniform(9), 4 * 256);
  const out = new Float32Array(q.length);
  cache.attend(0, q, out, { observe: false });
  return out;
};
const counted = (cache: KvCache): number => {
  expect(cache.auditBytes()).toBe(cache.usedBytes);
  expect(cache.memory().totalBytes).toBe(cache.usedBytes);
  return cache.usedBytes;
};
const formsOf = (cache: KvCache, page: number): readonly unknown[] => {
  const { kind, kFormat, vFormat, latent } = cache.table(0);
  return [kind[page], kFormat[page], vFormat[page], LATENT_NAMES[latent[page]! - 1]];
};
/** Does it, and says by how many bytes usedBytes fell, which must be what it answered. */
function freed(cache: KvCache, work: () => number): number {
  const before = counted(cache);
  const said = work();
  expect(before - counted(cache)).toBe(said);
  return said;
}

describe('a page with a latent beside it', () => {
  it.each(LATENT_NAMES)('becomes %s as if it had been held as that from the start', (name) => {
    const [cache, held] = [filled(name), filled(name)];
    for (const page of [0, 1]) {
      expect(freed(cache, () => cache.toLatent(0, page, name))).toBe(Q8);
      held.dropLatent(0, page);
      expect(held.holdLatent(0, page, name, latentOf(page, name))).toBe(Q8 - BYTES[name]);
      expect(formsOf(cache, page)).toEqual([1, 255, 255, name]);
    }
    expect(cache.usedBytes).toBe(held.usedBytes);
    expect(sameBits(attended(cache), attended(held))).toBe(true);
    for (const side of ['k', 'v'] as const)
      expect(sameBits(history(cache, 0, side), history(held, 0, side))).toBe(true);
    for (const page of [0, 1]) expect(sameBits(cache.exportPage(0, page), held.exportPage(0, page))).toBe(true);
    expect(cache.toLatent(0, 1, name)).toBe(0); // it is that
  });

  it.each(LATENT_NAMES)('has a number that says whether %s is what it was', (name) => {
    const cache = filled(name);
    const digests = cache.sideDigests(0);
    expect(new Set([...digests.filter((_, at) => at % 3 === 2)]).size).toBe(3);
    for (const page of [0, 1]) {
      cache.toLatent(0, page, name);
      expect([...cache.sideDigests(0, page)]).toEqual([Number.NaN, Number.NaN, digests[3 * page + 2]]);
    }
    expect(digests[8]).toBeNaN();
    const again = filled(name);
    again.dropLatent(0, 1);
    again.keepLatent(0, 1, name, latentOf(0, name));
    expect(again.sideDigests(0)).toEqual(digests.map((digest, at) => (at === 5 ? again.sideDigests(0)[5]! : digest)));
    expect(again.sideDigests(0)[5]).not.toBe(digests[5]);
    again.dropLatent(0, 1);
    again.keepLatent(0, 1, name, latentOf(1, name));
    expect(again.sideDigests(0)).toEqual(digests);
  });

  it('goes down through every latent, each time for the bytes between them', () => {
    const cache = filled('xq8');
    const outputs = new Set<string>();
    for (const page of [0, 1]) {
      expect(freed(cache, () => cache.toLatent(0, page, 'xq8'))).toBe(Q8);
      expect(freed(cache, () => cache.toLatent(0, page, 'xq4'))).toBe(BYTES.xq8 - BYTES.xq4);
      // What is recomputed of a page that was attended before must not be that of the latent before.
      outputs.add(String(attended(cache)));
      expect(freed(cache, () => cache.toLatent(0, page, 'xq3'))).toBe(BYTES.xq4 - BYTES.xq3);
      outputs.add(String(attended(cache)));
      expect(formsOf(cache, page)).toEqual([1, 255, 255, 'xq3']);
    }
    expect(outputs.size).toBe(4);
    // At once it is the same: xq4 of what xq8 decodes to, then the codes of that.
    const direct = filled('xq8');
    expect(freed(direct, () => direct.toLatent(0, 1, 'xq4'))).toBe(Q8 + BYTES.xq8 - BYTES.xq4);
    const again = encodeLatent('xq4', decodeLatent('xq8', latentOf(1, 'xq8'), WIDTH), WIDTH);
    expect(sameBits(direct.exportPage(0, 1).slice(128, -4), again)).toBe(true);
    expect(freed(direct, () => direct.toLatent(0, 1, 'xq3'))).toBe(BYTES.xq4 - BYTES.xq3);
    expect(sameBits(direct.exportPage(0, 1), cache.exportPage(0, 1))).toBe(true);
  });

  it.each(Object.keys(AWKWARD))('goes from xq4 to xq3 by its codes as the reference does: %s', (row) => {
    const x = awkwardRows(row, WIDTH, 5).map((value) => Math.max(-60000, Math.min(60000, value)));
    const fine = reference.encodeLatent('xq4', x, WIDTH);
    const expected = reference.latentPage(reference.demoteLatent(fine));
    for (const isa of available) {
      setIsa(isa);
      const cache = filled('xq4');
      // Weights of zeros recompute zeros, whatever the rows are.
      cache.dropLatent(0, 0);
      cache.dropLatent(0, 1);
      cache.setLatentWeights(0, { width: WIDTH, wk: matrix(1).fill(0), wv: matrix(2).fill(0) });
      cache.keepLatent(0, 1, 'xq4', reference.latentPage(fine));
      cache.toLatent(0, 1, 'xq3');
      expect(sameBits(cache.exportPage(0, 1).slice(128, -4), expected), isa).toBe(true);
    }
    setIsa(best);
  });

  it('loses the latent alone', () => {
    const cache = filled('xq4');
    const before = attended(cache);
    expect(freed(cache, () => cache.dropLatent(0, 1))).toBe(BYTES.xq4);
    expect(formsOf(cache, 1).at(-1)).toBeUndefined();
    expect(sameBits(attended(cache), before)).toBe(true);
    expect(codeOf(() => cache.dropLatent(0, 1))).toBe('unsupported');
    expect(codeOf(() => cache.toLatent(0, 1, 'xq4'))).toBe('unsupported');
  });

  it.each(['trial', 'startTrial'] as const)('is the first that %s sees, with no candidates and with one', (how) => {
    for (const names of [[], ['xq3']] as const) {
      const cache = filled('xq4');
      const q = normals(uniform(9), 40 * 256);
      cache.attend(0, q, new Float32Array(q.length));
      cache.toLatent(0, 1, 'xq4');
      cache[how](
        0,
        1,
        names.map((format) => ({ side: 'kv', format })),
      );
      for (const errors of cache.finishTrials(true)) expect(errors.every((error) => error > 0)).toBe(true);
      cache.close();
    }
  });

  it('is restored with the latent beside it or without, as asked', () => {
    const cache = filled('xq4');
    const rot2 = 2 * pageBytes('rot2', 2, 64);
    cache.transcode(0, 1, 'kv', 'rot2');
    expect(freed(cache, () => cache.restore(0, 1, 'q8', { keepLatent: false }))).toBe(rot2 + BYTES.xq4 - Q8);
    expect(formsOf(cache, 1).at(-1)).toBeUndefined();
    cache.toLatent(0, 0, 'xq4');
    expect(freed(cache, () => cache.restore(0, 0, 'q8', { keepLatent: true }))).toBe(-Q8);
    const q8 = cache.decode(0, 0, 'k');
    expect(formsOf(cache, 0)).toEqual([0, 1, 1, 'xq4']);
    // It goes and comes again, to the bit.
    expect(cache.toLatent(0, 0, 'xq4')).toBe(Q8);
    expect(freed(cache, () => cache.restore(0, 0, 'q8'))).toBe(BYTES.xq4 - Q8);
    expect(sameBits(cache.decode(0, 0, 'k'), q8)).toBe(true);
    expect(codeOf(() => cache.restore(0, 0, 'q8'))).toBe('unsupported');
  });

  it('keeps a side that has the format asked for: it is nearer to what it was than the latent', () => {
    const cache = filled('xq3');
    const [k, v] = [cache.decode(0, 1, 'k'), cache.decode(0, 1, 'v')];
    cache.transcode(0, 1, 'k', 'rot2');
    expect(freed(cache, () => cache.restore(0, 1, 'q8', { keepLatent: true }))).toBe(pageBytes('rot2', 2, 64) - Q8 / 2);
    expect(sameBits(cache.decode(0, 1, 'v'), v)).toBe(true);
    expect(sameBits(cache.decode(0, 1, 'k'), k)).toBe(false);
    // Where both have it, the latent alone goes.
    expect(freed(cache, () => cache.restore(0, 0, 'q8', { keepLatent: false }))).toBe(BYTES.xq3);
  });

  it('changes for its forks too, takes its originals with it, and is freed once', () => {
    const cache = filled('xq4');
    cache.keepOriginal(0, 1, 'k');
    cache.transcode(0, 1, 'k', 'rot2');
    const fork = cache.fork();
    const used = cache.usedBytes;
    expect(fork.toLatent(0, 1, 'xq3')).toBe(Q8 / 2 + pageBytes('rot2', 2, 64) + Q8 / 2 + BYTES.xq4 - BYTES.xq3);
    expect(cache.usedBytes).toBe(used - (Q8 + pageBytes('rot2', 2, 64) + BYTES.xq4 - BYTES.xq3));
    expect(formsOf(cache, 1)).toEqual([1, 255, 255, 'xq3']);
    expect(cache.originalFormat(0, 1, 'k')).toBeNull();
    expect(sameBits(attended(cache), attended(fork))).toBe(true);
    cache.close();
    expect(fork.auditBytes()).toBe(fork.usedBytes);
    expect(formsOf(fork, 0)).toEqual([0, 1, 1, 'xq4']);
  });

  it('needs no room to become a latent, and nothing changes where there is none', () => {
    const cache = filled('xq8');
    cache.setBudget(cache.usedBytes);
    expect(cache.toLatent(0, 1, 'xq4')).toBe(Q8 + BYTES.xq8 - BYTES.xq4);
    cache.setBudget(cache.usedBytes);
    expect(cache.toLatent(0, 1, 'xq3')).toBe(BYTES.xq4 - BYTES.xq3);
    cache.setBudget(cache.usedBytes + Q8 - 64);
    const before = counted(cache);
    const keepLatent = true;
    expect(codeOf(() => cache.restore(0, 1, 'q8', { keepLatent }))).toBe('budget-exceeded');
    expect([counted(cache), formsOf(cache, 1)]).toEqual([before, [1, 255, 255, 'xq3']]);
    expect(cache.restore(0, 1, 'q8')).toBe(BYTES.xq3 - Q8);
  });
});

describe('wrong calls', () => {
  it('end in one KvError and change nothing', () => {
    const cache = filled('xq4');
    const used = cache.usedBytes;
    const bad: readonly (readonly [string, () => unknown])[] = [
      ['bad-argument', () => cache.toLatent(1, 0, 'xq4')],
      ['bad-argument', () => cache.toLatent(0, 3, 'xq4')],
      ['bad-argument', () => cache.toLatent(0, -1, 'xq4')],
      ['bad-argument', () => cache.toLatent(0, 0.5, 'xq4')],
      ['unsupported', () => cache.toLatent(0, 0, 'rot4' as LatentName)],
      ['unsupported', () => cache.toLatent(0, 0, undefined as unknown as LatentName)],
      ['unsupported', () => cache.toLatent(0, 0, 'xq8')], // better than what it has
      ['unsupported', () => cache.toLatent(0, 2, 'xq4')], // it has none
      ['unsupported', () => cache.dropLatent(0, 2)],
      ['bad-argument', () => cache.dropLatent(0, 3)],
      ['bad-argument', () => cache.restore(0, 0, 'q8', { keepLatent: 1 as unknown as boolean })],
      ['bad-argument', () => cache.restore(0, 0, 'q8', null as never)],
      ['unsupported', () => cache.trial(0, 2, [{ side: 'kv', format: 'xq4' }])],
      ['unsupported', () => cache.trial(0, 0, [{ side: 'kv', format: 'xq8' }])],
      ['bad-argument', () => cache.trial(0, 0, [{ side: 'v' as 'kv', format: 'xq4' }])],
      ['unsupported', () => cache.startTrial(0, 2, [{ side: 'kv', format: 'xq3' }])],
    ];
    for (const [code, work] of bad) expect([code, codeOf(work)]).toEqual([code, code]);
    cache.startMove(0, 1, 'v', 'rot4');
    expect(codeOf(() => cache.toLatent(0, 1, 'xq4'))).toBe('unsupported');
    cache.dropLatent(0, 1); // beside a move it may go
    cache.finishMoves(true);
    cache.toLatent(0, 0, 'xq4');
    expect(codeOf(() => cache.dropLatent(0, 0))).toBe('unsupported'); // nothing would be left
    expect(codeOf(() => cache.trial(0, 0, [{ side: 'k', format: 'rot4' }]))).toBe('unsupported');
    expect(cache.usedBytes).toBe(used - BYTES.xq4 - Q8 - pageBytes('q8', 2, 64) + pageBytes('rot4', 2, 64));
    cache.close();
    expect(codeOf(() => cache.toLatent(0, 0, 'xq4'))).toBe('closed');
    expect(codeOf(() => cache.dropLatent(0, 0))).toBe('closed');
  });

  it('a latent whose keys are beyond f16 is no form of its page, and its trial is NaN', () => {
    const cache = filled('xq4');
    for (const page of [0, 1]) cache.dropLatent(0, page);
    cache.setLatentWeights(0, { width: WIDTH, wk: matrix(1).fill(60000), wv: matrix(2) });
    cache.keepLatent(0, 1, 'xq4', latentOf(1, 'xq4', rowsOf(1).map(Math.abs)));
    const q = normals(uniform(3), 20 * 256);
    cache.attend(0, q, new Float32Array(q.length));
    const [latent, plain] = cache.trial(0, 1, [
      { side: 'kv', format: 'xq3' },
      { side: 'kv', format: 'rot4' },
    ]);
    expect([latent, plain! > 0]).toEqual([Number.NaN, true]);
    const used = cache.usedBytes;
    for (const name of ['xq4', 'xq3'] as const) expect(codeOf(() => cache.toLatent(0, 1, name))).toBe('bad-value');
    expect([counted(cache), formsOf(cache, 1)]).toEqual([used, [0, 1, 1, 'xq4']]);
  });
});
