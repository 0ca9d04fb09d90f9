// Tries each sampler that narrows the tokens down against its definition with full sorts: random scores with many
// equals and impossible tokens, the ends of every range, one token, and a vocabulary as large as that of a real model.
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  admitAll,
  type Candidates,
  candidates,
  draw,
  minP,
  moveHighest,
  topK,
  topP,
  typicalP,
} from '../../../../../engine/transformer/sampling/candidates.ts';
import { Rng } from '../rng.ts';
import * as reference from './reference.ts';

function of(scores: ArrayLike<number>): Candidates {
  const all = candidates(scores.length);
  all.scores.set(scores);
  admitAll(all);
  return all;
}

const left = ({ ids, count }: Candidates): number[] => Array.from(ids.subarray(0, count));
const sorted = (ids: readonly number[]): number[] => [...ids].sort((a, b) => a - b);
const idsOf = (tokens: readonly reference.Scored[]): number[] => tokens.map(({ id }) => id);

/**
 * Few values, so that many are equal; whole ones, so that sums of probabilities do not depend on the order of additions
 * by more than rounding.
 */
const scoreLists = fc
  .array(
    fc.oneof(
      { weight: 8, arbitrary: fc.integer({ min: -12, max: 12 }) },
      { weight: 1, arbitrary: fc.constant(-Infinity) },
    ),
    { minLength: 1, maxLength: 400 },
  )
  .filter((scores) => scores.some((score) => score > -Infinity));

/** Shares that no sum of probabilities of these tests is equal to, but for rounding. */
const shares = fc.double({ min: 0.001, max: 0.999, noNaN: true });

describe('of random scores', () => {
  test('the highest are put in front in order, and none is lost', () => {
    fc.assert(
      fc.property(scoreLists, fc.integer({ min: 1, max: 400 }), (scores, first) => {
        const { ids, scores: keys, count } = of(scores);
        const expected = idsOf(reference.topK(reference.everyToken(scores), scores.length));
        moveHighest(ids, keys, Math.min(first, count), count);
        expect(Array.from(ids.subarray(0, Math.min(first, count)))).toEqual(expected.slice(0, first));
        expect(sorted(Array.from(ids.subarray(0, count)))).toEqual(sorted(expected));
      }),
    );
  });

  test('top-k keeps the k highest, lowest ids first among equals', () => {
    fc.assert(
      fc.property(scoreLists, fc.nat(450), (scores, k) => {
        const all = of(scores);
        topK(all, k);
        expect(sorted(left(all))).toEqual(sorted(idsOf(reference.topK(reference.everyToken(scores), k))));
      }),
    );
  });

  test('top-p keeps the fewest that reach it', () => {
    fc.assert(
      fc.property(scoreLists, shares, (scores, p) => {
        const all = of(scores);
        topP(all, p);
        expect(sorted(left(all))).toEqual(sorted(idsOf(reference.topP(reference.everyToken(scores), p))));
      }),
    );
  });

  test('min-p keeps what is likely enough beside the likeliest', () => {
    fc.assert(
      fc.property(scoreLists, shares, (scores, p) => {
        const all = of(scores);
        minP(all, p);
        expect(sorted(left(all))).toEqual(sorted(idsOf(reference.minP(reference.everyToken(scores), p))));
      }),
    );
  });

  test('typical-p keeps those of the most expected surprise: the same probability, and none that is further from it than one that went', () => {
    fc.assert(
      fc.property(scoreLists, shares, (scores, p) => {
        const tokens = reference.everyToken(scores);
        const all = of(scores);
        typicalP(all, p);
        const expected = reference.typicalP(tokens, p);
        // Tokens on both sides of the entropy may be equally far from it but for rounding, so scores are compared, and
        // distances of those that differ.
        expect(all.count).toBeGreaterThan(0);
        const probabilities = reference.softmax(tokens);
        const entropy = probabilities.reduce((sum, q) => sum - (q > 0 ? q * Math.log(q) : 0), 0);
        const distance = (id: number): number =>
          Math.abs(-Math.log(probabilities[tokens.findIndex((token) => token.id === id)]!) - entropy);
        const furthest = Math.max(...left(all).map(distance));
        expect(furthest).toBeCloseTo(Math.max(...idsOf(expected).map(distance)), 9);
        const gone = idsOf(tokens).filter((id) => !left(all).includes(id));
        for (const id of gone) expect(distance(id)).toBeGreaterThan(furthest - 1e-9);
      }),
    );
  });

  test('one behind the other they narrow down what the one before left', () => {
    fc.assert(
      fc.property(scoreLists, fc.nat(60), shares, shares, (scores, k, p, least) => {
        const all = of(scores);
        topK(all, k);
        topP(all, p);
        minP(all, least);
        const expected = reference.minP(reference.topP(reference.topK(reference.everyToken(scores), k), p), least);
        expect(sorted(left(all))).toEqual(sorted(idsOf(expected)));
      }),
    );
  });

  test('a token is drawn where its share of [0, 1) is', () => {
    fc.assert(
      fc.property(scoreLists, fc.double({ min: 0.2, max: 3, noNaN: true }), (scores, temperature) => {
        const tokens = reference.everyToken(scores);
        const probabilities = reference.softmax(tokens, temperature);
        const all = of(scores);
        let begin = 0;
        for (const [i, share] of probabilities.entries()) {
          // The middle of its share, far from the rounding at both ends.
          if (share > 1e-9) expect(draw(all, temperature, begin + share / 2)).toBe(tokens[i]!.id);
          begin += share;
        }
      }),
    );
  });
});

describe('at the ends of the ranges', () => {
  const flat = new Array<number>(10).fill(2);

  test('k of 0, p of 1 and min-p of 0 keep all', () => {
    const all = of(flat);
    topK(all, 0);
    typicalP(all, 1);
    topP(all, 1);
    minP(all, 0);
    expect(left(all)).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
  });

  test('of equals the lowest ids enter', () => {
    for (const narrow of [(all: Candidates) => topK(all, 3), (all: Candidates) => topP(all, 0.25)]) {
      const all = of(flat);
      narrow(all);
      expect(sorted(left(all))).toEqual([0, 1, 2]);
    }
    const all = of(flat);
    typicalP(all, 0.45);
    expect(sorted(left(all))).toEqual([0, 1, 2, 3, 4]);
  });

  test('one token outlives everything', () => {
    for (const scores of [[5], [-Infinity, -3e38, -Infinity]]) {
      const all = of(scores);
      topK(all, 1);
      typicalP(all, 1e-9);
      topP(all, 1e-9);
      minP(all, 1);
      expect(left(all)).toEqual([scores.length === 1 ? 0 : 1]);
      expect(draw(all, 1e-300, 0.999)).toBe(left(all)[0]);
      expect(draw(all, 0, 0)).toBe(left(all)[0]);
    }
  });

  test('min-p of 1 keeps the likeliest and its equals', () => {
    const all = of([1, 3, 2, 3]);
    minP(all, 1);
    expect(left(all)).toEqual([1, 3]);
  });

  test('typical-p may take the most likely token away', () => {
    // Surprises 0.92 and four of 1.90, entropy 1.51: those of 1.90 are nearer.
    const all = of([0.4, 0.15, 0.15, 0.15, 0.15].map(Math.log));
    typicalP(all, 0.5);
    expect(sorted(left(all))).toEqual([1, 2, 3, 4]);
  });

  test('an impossible token is never a candidate', () => {
    expect(left(of([-Infinity, 1, -Infinity]))).toEqual([1]);
    expect(of([-Infinity]).count).toBe(0);
  });
});

test('on a vocabulary of 49,152 tokens the sets are those of a full sort', () => {
  const scores = new Rng(8).normal(49152, 3);
  const tokens = reference.everyToken(scores);
  for (const k of [1, 40, 5000]) {
    const all = of(scores);
    topK(all, k);
    expect(sorted(left(all))).toEqual(sorted(idsOf(reference.topK(tokens, k))));
  }
  for (const p of [0.1, 0.95, 0.9999]) {
    const all = of(scores);
    topP(all, p);
    expect(sorted(left(all))).toEqual(sorted(idsOf(reference.topP(tokens, p))));
  }
  const all = of(scores);
  typicalP(all, 0.9);
  expect(sorted(left(all))).toEqual(sorted(idsOf(reference.typicalP(tokens, 0.9))));
});
