// Which adapters are proposed follows from sessions with such texts: how near each is, how it ended, and how many are
// of one mind; and the same sessions give the same answer again.
import { describe, expect, test } from 'vitest';
import {
  type AdapterProposal,
  gainOf,
  likelyUse,
  type Precedent,
  precedentWeight,
  proposeAdapters,
  proposeAgain,
} from '../../../policy/index.ts';
import { seeded } from '../../random.ts';

const A = { digest: 'a', scale: 1 };
const B = { digest: 'b', scale: 1 };
let count = 0;
const saw = (adapters: Precedent['adapters'], more: Partial<Precedent> = {}): Precedent => ({
  ...{ session: `s${count}`, seq: count++, distance: 0, reason: 'done', adapters, bits: 4, formats: null },
  ...more,
});
const propose = (...seen: Precedent[]): AdapterProposal => proposeAdapters(seen, 1000);

describe('what is proposed', () => {
  test('what most used, whatever else stands beside it', () => {
    const { adapters, weight, share, because } = propose(saw([A]), saw([B]), saw([A]), saw([A]));
    expect([adapters, weight, share]).toEqual([[A], 3, 0.75]);
    expect(because).toMatchObject({
      threshold: 'proposal.share',
      measured: 0.75,
      bound: 2 / 3,
      rule: 'proposal-alike',
    });
  });

  test('the model by itself, where most used nothing', () => {
    expect(propose(saw([]), saw([]), saw([]), saw([A])).because.rule).toBe('proposal-plain');
  });

  test('nothing where one session says so, two are of two minds, or the text is short', () => {
    for (const [seen, rule] of [
      [[], 'proposal-evidence'],
      [[saw([A])], 'proposal-evidence'],
      [[saw([A]), saw([A]), saw([B]), saw([B])], 'proposal-divided'],
    ] as const)
      expect(propose(...seen)).toMatchObject({ adapters: [], weight: 0, bits: null, because: { rule } });
    expect(proposeAdapters([saw([A]), saw([A])], 255)).toMatchObject({ seen: [], because: { rule: 'proposal-text' } });
  });

  test('another scale or another order is another thing', () => {
    for (const other of [[{ ...A, scale: 0.5 }], [A, B], []])
      expect(propose(saw([A]), saw([A]), saw(other), saw(other)).because.rule).toBe('proposal-divided');
  });

  test('the bits and the formats of those who used it', () => {
    const { bits, formats } = propose(
      saw([A], { bits: 2, formats: 'trellis3:trellis2' }),
      saw([A], { bits: 4, formats: 'q8:q8', reason: 'aborted' }),
      saw([B], { bits: 16, formats: 'f16:f16', distance: 0.045 }),
    );
    expect(bits).toBeCloseTo((2 + 4 * 0.5) / 1.5, 12);
    expect(formats).toBe('trellis3:trellis2');
  });
});

describe('what a session counts', () => {
  test('less the farther it is, half where it was aborted, and nothing where it failed or is far away', () => {
    expect(precedentWeight(saw([A]))).toBe(1);
    expect(precedentWeight(saw([A], { distance: 0.125 ** 2 }))).toBeCloseTo(Math.exp(-0.5), 12);
    expect(precedentWeight(saw([A], { reason: 'aborted' }))).toBe(0.5);
    for (const none of [{ reason: 'error' }, { reason: 'constructor' }, { distance: 0.1 }])
      expect(precedentWeight(saw([A], none))).toBe(0);
  });

  test('shares of use are of what all count, and none where little is known', () => {
    expect([...likelyUse([saw([A, B]), saw([A]), saw([]), saw([])])]).toEqual([
      ['a', 0.5],
      ['b', 0.25],
    ]);
    expect(likelyUse([saw([A])]).size).toBe(0);
  });
});

test('what is expected to be used is gained less by letting it go', () => {
  const thing = { id: 'x', idleMs: 1000, bytes: 1000, restoreMs: 10 };
  expect(gainOf({ ...thing, likelyUse: 0.75 })).toBe(gainOf(thing) / 4);
});

test('a thousand of them are decided again from what they rest on', () => {
  const random = seeded(7);
  const rules = new Set<string>();
  for (let n = 0; n < 1000; n++) {
    const seen = Array.from({ length: Math.floor(random() * 8) }, () =>
      saw([[], [A], [B], [A, B]][Math.floor(random() * 4)]!, {
        distance: random() ** 2 * 0.05,
        reason: random() < 0.8 ? 'done' : 'error',
      }),
    );
    const proposal = proposeAdapters(seen, random() < 0.1 ? Math.floor(random() * 256) : 500);
    rules.add(proposal.because.rule);
    expect(proposeAgain(JSON.parse(JSON.stringify(proposal)) as AdapterProposal)).toEqual(proposal);
    // Nobody's order matters but that of what is told.
    expect(proposeAdapters([...seen].reverse(), 500).adapters).toEqual(proposeAdapters(seen, 500).adapters);
  }
  expect(rules.size).toBe(5);
});
