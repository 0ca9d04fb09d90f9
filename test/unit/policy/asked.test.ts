// A policy of one's own plans what is unsafe: each such move is refused under the rule that forbids it, by what the
// page is in when its turn comes and not when the plan was made; everything else is for the policy to judge.
import { expect, test } from 'vitest';
import {
  type Decision,
  openPolicy,
  type Policy,
  type PolicySession,
  type Situation,
  UNSAFE,
  unsafeRule,
} from '../../../policy/index.ts';
import { contextOf } from '../../suite/policy-simulation.ts';

type Planned = Pick<Decision, 'page' | 'side' | 'from' | 'to'>;
const because = { threshold: 'mine', measured: 0, bound: 1, unit: '1', origin: 'option', rule: 'mine' } as const;

/** Plans what it is told to, and finds everything good but moves to rot1. */
const careless: Policy = {
  id: 'careless',
  version: 1,
  needsTrials: false,
  open: () => ({
    decide: () => [],
    judge: ({ to }) => ({ accepted: to !== 'rot1', because }),
    summary: () => ({ priceThreshold: 0, predictedKld: 0, layerStates: [], layerEpsilonMax: [], layerKld: [] }),
  }),
};

function opened(): {
  readonly see: (change: Partial<Situation>) => void;
  readonly judge: (...moves: Planned[]) => string[];
} {
  const session: PolicySession = openPolicy(careless, contextOf({ layers: 2 }));
  let index = 0;
  return {
    see: (change) => {
      session.decide({
        ...{ index: index++, tokens: 8 * 128, bytes: 0, sealBytes: 0, budgetBytes: null, kldBudget: null },
        ...{ tokensExpected: null, movesMax: 9, urgent: false, lowMemory: false, stepLatencyMsP95: 0 },
        ...{ stepLatencyBudgetMs: null, trials: [], outcomes: [], ...change },
      });
    },
    judge: (...moves) =>
      moves.map((move) => {
        const more = { epsilonFrom: null, epsilonTo: null, price: null, bytesFreed: 0, retry: false, because };
        const verdict = session.judge({ layer: 1, ...move, ...more }, null);
        return `${verdict.accepted ? 'made' : 'refused'}: ${verdict.because.rule}`;
      }),
  };
}
const seen = (): ReturnType<typeof opened> => {
  const session = opened();
  const latent = { layer: 1, page: 4, side: 'kv', from: 'q8', to: 'xq4' } as const;
  const lower = { layer: 1, page: 5, side: 'v', from: 'q8', to: 'rot2' } as const;
  session.see({ changes: [{ layer: 1, page: 3, side: 'k', from: 'q8', to: 'freed' }, latent, lower] });
  return session;
};
const refused = (id: string): string => `refused: ${unsafeRule(id)}`;

test('what is unsafe is refused under its rule, whatever the policy thinks of it', () => {
  const cases: readonly [string, Planned][] = [
    ['freed', { page: 3, side: 'k', from: 'q8', to: 'rot4' }],
    ['promotion', { page: 0, side: 'k', from: 'rot4', to: 'q8' }],
    ['re-encode', { page: 0, side: 'v', from: 'rot4', to: 'rot4' }],
    ['window', { page: 7, side: 'v', from: 'q8', to: 'rot4' }],
    ['eviction', { page: 0, side: 'kv', from: 'q8', to: 'freed' }],
    ['other-side', { page: 0, side: 'k', from: 'q8', to: 'rot1' }],
    ['latent-of-codes', { page: 0, side: 'v', from: 'q8', to: 'xq4' }],
    ['keys-below-values', { page: 0, side: 'k', from: 'q8', to: 'rot2' }],
    ['held', { page: 4, side: 'v', from: 'q8', to: 'rot4' }],
    ['elsewhere', { page: 5, side: 'v', from: 'q8', to: 'rot4' }],
  ];
  // Latents that are held back are in a test of their own (latent-guard.test.ts).
  expect(cases.map(([id]) => id)).toEqual(UNSAFE.map(({ id }) => id).filter((id) => id !== 'stays'));
  for (const [id, move] of cases) expect(seen().judge(move), id).toEqual([refused(id)]);
});

test('what is not is judged by the policy', () => {
  const moves = [
    { page: 6, side: 'v', from: 'q8', to: 'rot4' },
    { page: 0, side: 'v', from: 'q8', to: 'rot1' },
  ] as const;
  expect(seen().judge(...moves)).toEqual(['made: mine', 'refused: mine']);
});

test('the other side counts as it is when the turn of a move comes', () => {
  const [values, keys] = [
    { page: 0, side: 'v', from: 'q8', to: 'rot2' },
    { page: 0, side: 'k', from: 'q8', to: 'rot2' },
  ] as const;
  const judgedBad = { ...values, to: 'rot1' } as const;
  expect(seen().judge(values, keys)).toEqual(['made: mine', 'made: mine']);
  expect(seen().judge(keys, values)).toEqual([refused('keys-below-values'), 'made: mine']);
  expect(seen().judge(judgedBad, keys), 'a move that the policy refuses').toEqual([
    'refused: mine',
    refused('keys-below-values'),
  ]);
  expect(seen().judge(values, { ...keys, page: 1 }), 'another page').toEqual([
    'made: mine',
    refused('keys-below-values'),
  ]);
});

test('reports, changes of others and pages that are read anew are taken in', () => {
  const keys = { page: 2, side: 'k', from: 'q8', to: 'rot2' } as const;
  const place = { layer: 1, page: 2, side: 'v' } as const;
  const told = opened();
  told.see({ trials: [{ ...place, from: 'rot2', epsilon: {} }] });
  expect(told.judge(keys)).toEqual(['made: mine']);
  const changed = seen();
  changed.see({ changes: [{ ...place, from: 'q8', to: 'rot2' }] });
  expect(changed.judge(keys)).toEqual(['made: mine']);
  changed.see({ changes: [{ ...place, from: 'rot2', to: 'q8' }] });
  expect(changed.judge({ ...keys, from: 'rot3' })).toEqual([refused('keys-below-values')]);
  told.see({ tokens: 200 });
  told.see({});
  expect(told.judge(keys), 'the page was taken back and is another one').toEqual([refused('keys-below-values')]);
});

test('both sides of a page that was made again of its latent are in the form that it was made again in', () => {
  const session = seen();
  session.see({ changes: [{ layer: 1, page: 4, side: 'kv', from: 'xq4', to: 'rot3' }] });
  const [values, keys] = [
    { page: 4, side: 'v', from: 'rot3', to: 'rot2' },
    { page: 4, side: 'k', from: 'rot3', to: 'rot2' },
  ] as const;
  expect(session.judge({ ...values, from: 'q8' }, { ...keys, from: 'q8', to: 'rot4' })).toEqual([
    refused('elsewhere'),
    refused('elsewhere'),
  ]);
  expect(session.judge({ page: 4, side: 'kv', from: 'q8', to: 'xq4' })).toEqual([refused('latent-of-codes')]);
  expect(session.judge(keys, values)).toEqual(['made: mine', 'made: mine']);
});

test('a freed page moves again when its tokens were read again', () => {
  const move = { page: 3, side: 'v', from: 'q8', to: 'rot4' } as const;
  const session = seen();
  expect(session.judge(move, { ...move, page: 2 })).toEqual([refused('freed'), 'made: mine']);
  session.see({ tokens: 2 * 128 });
  session.see({});
  expect(session.judge(move)).toEqual(['made: mine']);
});

test('an original that was just measured may be put back, where its side is worth more than the other', () => {
  const back = { page: 0, side: 'v', from: 'rot2', to: 'q8' } as const;
  const canary = { layer: 1, page: 0, side: 'v', from: 'q8', to: 'rot2' } as const;
  const canaries = [{ ...canary, epsilonPromised: 0.1, epsilonNow: 0.5, age: 600 }];
  const session = seen();
  session.judge({ page: 0, side: 'v', from: 'q8', to: 'rot2' });
  expect(session.judge(back)).toEqual([refused('promotion')]);
  session.see({ canaries });
  session.see({ canaries: canaries.map((one) => ({ ...one, rows: 4 })) });
  expect(session.judge(back), 'rows are no side').toEqual([refused('promotion')]);
  session.see({ canaries });
  expect(session.judge({ ...back, page: 1 }), 'another page').toEqual([refused('promotion')]);
  expect(session.judge(back)).toEqual(['made: mine']);
  const coarse = seen();
  coarse.judge({ page: 0, side: 'v', from: 'q8', to: 'rot2' }, { page: 0, side: 'k', from: 'q8', to: 'rot2' });
  coarse.see({ canaries });
  expect(coarse.judge(back)).toEqual([refused('keys-below-values')]);
});
