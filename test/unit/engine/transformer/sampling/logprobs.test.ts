// Tries log probabilities against a softmax computed here: of the token itself, of the most likely ones in order, and
// what cannot be asked for.
import { describe, expect, test } from 'vitest';
import { logprobsOf } from '../../../../../engine/transformer/sampling/logprobs.ts';
import { Rng } from '../rng.ts';
import { plainVocabulary } from './pieces.ts';
import { everyToken, softmax, topK } from './reference.ts';

const logits = new Rng(4).normal(500, 3);
const of = (values: Float32Array, id: number, count: number) =>
  logprobsOf(values, id, count, new Int32Array(values.length), plainVocabulary(values.length).tokenizer);

describe('log probabilities', () => {
  test('are those of the softmax, and the most likely stand in order', () => {
    const tokens = everyToken(logits);
    const expected = softmax(tokens).map(Math.log);
    for (const id of [0, 17, 499]) {
      const told = of(logits, id, 20);
      expect(told).toMatchObject({ id, text: `<${id}>` });
      expect(told.logprob).toBeCloseTo(expected[id]!, 9);
      expect(told.top.map((token) => token.id)).toEqual(topK(tokens, 20).map((token) => token.id));
      for (const { id: other, logprob, text } of told.top) {
        expect(logprob).toBeCloseTo(expected[other]!, 9);
        expect(text).toBe(`<${other}>`);
      }
    }
  });

  test('of 0 further tokens there are none, and of more than the vocabulary has, all', () => {
    expect(of(logits, 3, 0).top).toEqual([]);
    expect(of(Float32Array.of(1, 1, 2), 0, 20).top.map(({ id }) => id)).toEqual([2, 0, 1]);
  });

  test('of the only possible token is 0, of an impossible one −∞', () => {
    const told = of(Float32Array.of(-Infinity, 5), 1, 2);
    expect(told.logprob).toBe(0);
    expect(told.top.map(({ logprob }) => logprob)).toEqual([0, -Infinity]);
  });
});
