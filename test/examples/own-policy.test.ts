// A policy of one's own, as a program would write it: values of every page that has left the window go to 4 bits.
// openCache takes it, the log names it, and replay decides the same again when it is given the policy; without it
// replay says what it lacks.
import { expect, it } from 'vitest';
import { type Decision, openCache, type Policy } from '../../engine/index.ts';
import { logDir } from '../../engine/state/folder.ts';
import { type Entry, explain, readLog, replaySession } from '../../witness/index.ts';
import { normals, uniform } from '../native/dense.ts';
import { scratchFolders } from '../unit/witness/folder.ts';

const folder = scratchFolders();

const valuesFirst: Policy = {
  id: 'values-first',
  version: 1,
  needsTrials: false,
  open: ({ pageBytes }) => ({
    decide: ({ trials }) =>
      trials
        .filter(({ side }) => side === 'v')
        .map(({ layer, page, side, from }): Decision => {
          const because = {
            threshold: 'values',
            measured: 8,
            bound: 4,
            unit: 'bits',
            origin: 'option',
            rule: 'values',
          } as const;
          const bytesFreed = (pageBytes[from] ?? 0) - pageBytes.rot4;
          const unknown = { epsilonFrom: null, epsilonTo: null, price: null };
          return { layer, page, side, from, to: 'rot4', ...unknown, bytesFreed, retry: false, because };
        }),
    judge: ({ because }) => ({ accepted: true, because }),
    summary: () => ({ priceThreshold: 0, predictedKld: 0, layerStates: [], layerEpsilonMax: [], layerKld: [] }),
  }),
};

it('a policy of your own moves pages, and its log replays', async () => {
  const dir = folder();
  const shape = { layers: 2, queryHeads: 2, kvHeads: 1, headDim: 64 };
  const cache = await openCache({ ...shape, policy: valuesFirst, stateDir: dir });
  const random = uniform(41);
  for (let i = 0; i < 6; i++) {
    for (let layer = 0; layer < shape.layers; layer++) {
      cache.append(layer, normals(random, 128 * 64), normals(random, 128 * 64));
      cache.attention(layer, normals(random, 128 * 128));
    }
  }
  const { policy, layers } = cache.report();
  expect(policy).toBe('values-first');
  for (const { kPages, vPages } of layers) expect([kPages, vPages]).toEqual([{ q8: 5 }, { rot4: 5 }]);
  await cache.close();
  const entries = [...readLog(logDir(dir), { session: cache.session })];
  expect(replaySession(entries, () => valuesFirst)).toMatchObject({ equal: true, complete: true, decisions: 10 });
  expect(() => replaySession(entries)).toThrow(/unknown policy 'values-first'/);
});

/**
 * Keys of every page are to go to 2 bits, which is unsafe beside values in 8, and values first to 4 bits and then back
 * to 8.
 */
const careless: Policy = {
  ...valuesFirst,
  id: 'careless',
  open: (context) => {
    const session = valuesFirst.open(context);
    let values: readonly Decision[] = [];
    return {
      ...session,
      decide: (situation) => {
        const back = values.map(
          (one): Decision => ({ ...one, from: 'rot4', to: one.from, bytesFreed: -one.bytesFreed }),
        );
        values = session.decide(situation);
        const keys = values.map((one): Decision => ({ ...one, side: 'k', to: 'rot2' }));
        return [...back, ...keys, ...values];
      },
    };
  },
};

it('an unsafe move of it is refused, the log says why, and the session goes on', async () => {
  const dir = folder();
  const cache = await openCache({ layers: 1, queryHeads: 2, kvHeads: 1, headDim: 64, policy: careless, stateDir: dir });
  const random = uniform(42);
  for (let i = 0; i < 5; i++) {
    cache.append(0, normals(random, 128 * 64), normals(random, 128 * 64));
    cache.attention(0, normals(random, 128 * 128));
  }
  const { layers, decisions } = cache.report();
  const { session } = cache;
  await cache.close();
  expect(layers.map(({ kPages, vPages }) => [kPages, vPages])).toEqual([[{ q8: 4 }, { rot4: 4 }]]);
  const entries = [...readLog(logDir(dir), { session })];
  const verdicts = entries
    .filter((entry): entry is Entry<'decision'> => entry.kind === 'decision')
    .map(({ seq, body: { decision, verdict } }) => ({ seq, to: decision.to, rule: verdict.because.rule }));
  const rules = (to: string): Set<string> => new Set(verdicts.filter((one) => one.to === to).map(({ rule }) => rule));
  expect([rules('rot2'), rules('q8'), rules('rot4')]).toEqual([
    new Set(['unsafe-keys-below-values']),
    new Set(['unsafe-promotion']),
    new Set(['values']),
  ]);
  expect(decisions).toBe(verdicts.length);
  const { sentences } = explain(logDir(dir), verdicts.find(({ to }) => to === 'rot2')!.seq);
  expect(sentences.find(({ title }) => title === 'verdict')!.text).toMatch(
    /^Refused under rule 'unsafe-keys-below-values' \(2-bit keys/,
  );
  expect(replaySession(entries, () => careless)).toMatchObject({ equal: true, complete: true, decisions });
});
