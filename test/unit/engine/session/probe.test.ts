// A probe on the reference model: what it predicts for changed pages is what a session with these pages really puts
// out, to the last bit; equal bytes give exactly 0; and the session that it copies notices nothing.

import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { addDivergence, emptySums, NO_TARGET } from '../../../../engine/session/divergence.ts';
import type { ProbeMove } from '../../../../engine/session/probe.ts';
import { Session } from '../../../../engine/session/session.ts';
import { outputSketches } from '../../../../engine/transformer/runtime/output-sketch.ts';
import { Runtime } from '../../../../engine/transformer/runtime/runtime.ts';
import { DENSE_SLOTS, type DenseSlot, movablePages } from '../../../../native/index.ts';
import { createPolicy, defaultThresholds } from '../../../../policy/index.ts';
import { refused } from '../../../refusal.ts';
import { ids, MODEL } from '../on-reference.ts';

const LAYERS = [0, 1, 2, 3, 4, 5];
const HISTORY = 700;
const LATER = 200;
let runtime: Runtime;

beforeAll(async () => {
  runtime = await Runtime.open({ model: MODEL, threads: 1, dense: 'exact' });
});
afterAll(() => runtime.close());

const open = (openFormat: 'f16' | 'q8' = 'f16'): Session =>
  Session.open(runtime, {
    openFormat,
    policy: createPolicy('none', {}),
    tokensExpected: 1200,
    compareTokens: LATER,
    log: null,
    thresholds: defaultThresholds(LAYERS.length),
  });

const pages = (tokens: number): number[] => Array.from({ length: movablePages(tokens) }, (_, page) => page);
const mean = (values: readonly number[]): number => values.reduce((sum, value) => sum + value, 0) / values.length;

/**
 * The same tokens in a session in which the pages have really moved in between, compared with one in which they have
 * not.
 */
async function really(moves: readonly ProbeMove[]): Promise<number[]> {
  const rows: Float32Array[] = [];
  for (const made of [[], moves]) {
    const session = open();
    await session.read(ids(HISTORY));
    for (const { layer, side, format, pages } of made)
      for (const page of pages) session.cache.transcode(layer, page, side, format);
    await session.read(ids(LATER, 2));
    rows.push(session.hiddenRows());
    session.close();
  }
  const sums = emptySums();
  const targets = new Int32Array(LATER).fill(NO_TARGET);
  await addDivergence(sums, runtime.dense, rows[0]!, rows[1]!, targets, runtime.model.config.hiddenSize);
  return sums.klds;
}

describe('a probe', () => {
  // An open page that is part full, full, and of one row; tokens behind it that seal none, one and two pages.
  it.each([
    [HISTORY, 30, 'f16'],
    [640, 200, 'f16'],
    [641, 300, 'f16'],
    [HISTORY, 30, 'q8'],
    [640, 200, 'q8'],
    [641, 300, 'q8'],
  ] as const)(
    'of %i tokens finds no divergence in the next %i where no byte differs, with open pages in %s',
    async (history, later, openFormat) => {
      const session = open(openFormat);
      await session.read(ids(history));
      const probe = session.probe(LAYERS);
      await session.read(ids(later, 2));
      for (const layer of LAYERS) {
        const same: ProbeMove = { layer, side: 'k', format: 'q8', pages: pages(history) };
        expect(await probe.divergence([same])).toEqual(Array(later).fill(0));
      }
      probe.close();
      session.close();
    },
  );

  it('gives for every token what a session with the changed pages gives', async () => {
    const session = open();
    await session.read(ids(HISTORY));
    const probe = session.probe([1, 4]);
    await session.read(ids(LATER, 2));
    const low: ProbeMove = { layer: 1, side: 'k', format: 'rot2', pages: pages(HISTORY) };
    const high: ProbeMove = { layer: 4, side: 'v', format: 'rot3', pages: [0, 2] };
    const found = new Map<string, number[]>();
    for (const moves of [[low], [high], [low, high]]) {
      const klds = await probe.divergence(moves);
      expect(klds).toEqual(await really(moves));
      expect(mean(klds)).toBeGreaterThan(0);
      found.set(moves.map(({ layer }) => layer).join(), klds);
    }
    // A second time the same: no run leaves anything behind.
    expect(await probe.divergence([low, high])).toEqual(found.get('1,4'));
    probe.close();
    session.close();
  });

  // Our own dense half, of which a matrix after the other rounds its activations to 8 bits.
  it('computes the same tokens again by another dense half, from any layer, and nothing where it is as it was', async () => {
    const native = await Runtime.open({ model: MODEL, threads: 1 });
    const { dense } = native;
    const opened = (): Session =>
      Session.open(native, {
        ...{ policy: 'none', tokensExpected: 400, compareTokens: 150 },
        ...{ log: null, thresholds: defaultThresholds(LAYERS.length) },
      });
    const session = opened();
    const probe = session.probe(LAYERS);
    await session.read(ids(150, 2));
    const expectNear = (klds: readonly number[], expected: readonly number[], what: string): void => {
      expect(klds).toHaveLength(expected.length);
      // Float64 sums over the vocabulary, of logits that are told apart in float32.
      for (const [token, kld] of klds.entries()) expect(Math.abs(kld - expected[token]!), what).toBeLessThan(1e-9);
    };
    for (const layer of [...LAYERS, 6]) expect(await probe.recomputed(layer)).toEqual(Array(150).fill(0));
    for (const [layer, slot] of [
      ...([0, 1, 5].flatMap((at) => DENSE_SLOTS.map((name) => [at, name])) as [number, DenseSlot][]),
      [6, 'q'] as const,
    ]) {
      dense.setPlanes!(layer, slot, 1);
      const klds = await probe.recomputed(layer);
      const other = opened();
      await other.read(ids(150, 2));
      const found = emptySums();
      const targets = new Int32Array(150).fill(NO_TARGET);
      if (layer < 6) {
        dense.setPlanes!(layer, slot, 2);
        const { hiddenSize } = native.model.config;
        await addDivergence(found, dense, session.hiddenRows(), other.hiddenRows(), targets, hiddenSize);
        expectNear(klds, found.klds, `${layer}.${slot}`);
      } else expect(other.hiddenRows()).toEqual(session.hiddenRows());
      expect(mean(klds), `${layer}.${slot}`).toBeGreaterThan(1e-9);
      other.close();
    }
    dense.setPlanes!(6, 'q', 2);
    expect(await probe.recomputed(3)).toEqual(Array(150).fill(0));
    expect((await refused(probe.recomputed(8))).code).toBe('bad-argument');
    probe.close();
    session.close();
    await native.close();
  });

  it('tells the errors of the tokens beside their divergence, and what rounding alone does', async () => {
    const session = open();
    await session.read(ids(HISTORY));
    const probe = session.probe([1, 3]);
    const later = 40;
    await session.read(ids(later, 2));
    const sketches = outputSketches(runtime);
    const of = (layer: number, ...moves: ProbeMove[]) => ({ layer, moves, sketch: sketches[layer]! });
    const low: ProbeMove = { layer: 1, side: 'v', format: 'rot2', pages: pages(HISTORY) };
    const high: ProbeMove = { layer: 3, side: 'k', format: 'rot2', pages: [0, 2] };
    const [coarse, same, fine, above, rounding] = await probe.effects([
      of(1, low),
      of(1, { ...low, format: 'q8' }),
      of(1, { ...low, format: 'rot3' }),
      of(3, high),
      of(1),
    ]);
    // Beside each other they put out what they do one by one, but for rounding.
    for (const [effect, move] of [
      [coarse, low],
      [above, high],
    ] as const) {
      const alone = await probe.divergence([move]);
      expect(effect!.klds).toHaveLength(later);
      expect(mean(effect!.klds) / mean(alone)).toBeCloseTo(1, 1);
    }
    expect(same!.epsilon2).toEqual(Array(later).fill(0));
    expect(mean(same!.klds)).toBeLessThan(1e-9);
    expect(mean(fine!.epsilon2)).toBeLessThan(mean(coarse!.epsilon2) / 2);
    expect(mean(rounding!.klds)).toBeGreaterThan(0);
    expect(mean(rounding!.klds)).toBeLessThan(mean(fine!.klds) / 10);
    // Trials measure the same of each page with sixteen of these tokens.
    session.cache.setOutputSketch(1, sketches[1]!);
    const trials = low.pages.map((page) => session.cache.trial(1, page, [low])[0]! ** 2);
    const ratio = mean(coarse!.epsilon2) / trials.reduce((sum, one) => sum + one, 0);
    expect(ratio).toBeGreaterThan(0.2);
    expect(ratio).toBeLessThan(5);
    expect((await refused(probe.effects([of(2, { ...low, layer: 2 })]))).code).toBe('bad-argument');
    await session.read(ids(10, 3));
    expect((await refused(probe.effects([of(1, low)]))).code).toBe('bad-argument');
    probe.close();
    session.close();
  });

  it('leaves bytes, pages and output of the session as they are, and keeps nothing once it is closed', async () => {
    const [plain, probed] = [open(), open()];
    for (const session of [plain, probed]) await session.read(ids(HISTORY));
    const probe = probed.probe(LAYERS);
    expect(probed.pool.usedBytes).toBe(plain.pool.usedBytes);
    await probed.read(ids(100, 2));
    const move: ProbeMove = { layer: 0, side: 'k', format: 'rot2', pages: pages(HISTORY) };
    expect(await probe.divergence([move])).toHaveLength(100);
    probe.close();
    probe.close();
    await probed.read(ids(100, 3));
    await plain.read(ids(100, 2));
    await plain.read(ids(100, 3));
    expect(probed.hiddenRows()).toEqual(plain.hiddenRows());
    expect(probed.cache.format(0, 0, 'k')).toBe('q8');
    expect(probed.pool.auditBytes()).toBe(plain.pool.auditBytes());
    for (const session of [plain, probed]) session.close();
  });

  it('refuses layers that are not there, moves below those it begins at, and to run over nothing', async () => {
    const session = open();
    await session.read(ids(HISTORY));
    for (const layers of [[], [6], [-1], [0.5]])
      expect(() => session.probe(layers), String(layers)).toThrow(/probe begins at layers/);
    const probe = session.probe([3]);
    const move: ProbeMove = { layer: 3, side: 'v', format: 'rot2', pages: [0] };
    expect((await refused(probe.divergence([move]))).code).toBe('bad-argument');
    await session.read(ids(10, 2));
    expect(await probe.divergence([move])).toHaveLength(10);
    expect((await refused(probe.divergence([{ ...move, layer: 2 }]))).code).toBe('bad-argument');
    expect((await refused(probe.divergence([]))).code).toBe('bad-argument');
    expect((await refused(probe.divergence([{ ...move, pages: [99] }]))).code).toBe('bad-argument');
    probe.close();
    session.close();
  });
});
