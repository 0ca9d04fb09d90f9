// Tries the penalties against their definitions on random histories of few tokens, where repetitions are many; and the
// texts that end repetitions against a search in the joined text, with texts that are cut into several tokens.
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { loadModel } from '../../../../../engine/transformer/load.ts';
import { Breakers } from '../../../../../engine/transformer/sampling/breakers.ts';
import { SAMPLING_DEFAULTS, type SamplingOptions } from '../../../../../engine/transformer/sampling/options.ts';
import { penalize, penalizeRepetition } from '../../../../../engine/transformer/sampling/penalties.ts';
import { MODEL } from '../../on-reference.ts';
import { vocabularyOf } from './pieces.ts';
import * as reference from './reference.ts';

/** Pieces that make ":-)" and a line break in several ways. */
const PIECES = ['a', 'b', 'c', ':', '-', ')', ':-', '-)', 'x:-)y', '\n', 'b\nc', ' a'];
const V = PIECES.length;
const histories = fc.array(fc.nat(V - 1), { maxLength: 60 });
const someScores = fc.array(fc.integer({ min: -20, max: 20 }), { minLength: V, maxLength: V });
const windows = fc.integer({ min: -1, max: 80 });
const marks = new Uint32Array(V);

const withDefaults = (options: SamplingOptions): Required<SamplingOptions> => ({ ...SAMPLING_DEFAULTS, ...options });

describe('repetition, frequency and presence', () => {
  test('are those of a count over the window', () => {
    const penalties = fc.record({
      repeatPenalty: fc.double({ min: 0.5, max: 2, noNaN: true }),
      frequencyPenalty: fc.double({ min: -2, max: 2, noNaN: true }),
      presencePenalty: fc.double({ min: -2, max: 2, noNaN: true }),
      repeatLastN: windows,
    });
    fc.assert(
      fc.property(someScores, histories, penalties, (list, history, given) => {
        const options = withDefaults(given);
        const scores = Float64Array.from(list);
        penalize(scores, history, options, marks);
        for (const [id, expected] of reference.penalize(list, history, options).entries())
          expect(scores[id]).toBeCloseTo(expected, 9);
        expect(marks.every((mark) => mark === 0)).toBe(true);
      }),
    );
  });

  test('make a token that was there less likely, whatever its sign, and an impossible one stays impossible', () => {
    const scores = Float64Array.of(4, -4, 0, -Infinity, 4);
    penalize(scores, [0, 1, 2, 3], withDefaults({ repeatPenalty: 2 }), marks);
    expect([...scores]).toEqual([2, -8, 0, -Infinity, 4]);
  });
});

const dryOptions = fc.record({
  dryMultiplier: fc.double({ min: 0.1, max: 3, noNaN: true }),
  dryBase: fc.double({ min: 1, max: 3, noNaN: true }),
  dryAllowedLength: fc.nat(4),
  dryPenaltyLastN: windows,
  drySequenceBreakers: fc.constantFrom<string[]>([], ['\n'], [':-)'], [':-)', '\n'], ['b:', 'a'], ['c ab']),
});

function dry(list: readonly number[], history: readonly number[], options: Required<SamplingOptions>): Float64Array {
  const scores = Float64Array.from(list);
  const breakers = new Breakers(options.drySequenceBreakers, vocabularyOf(PIECES).tokenizer);
  // What an earlier call left in the scratch.
  const lengths = new Int32Array(history.length).fill(7);
  penalizeRepetition(scores, history, options, breakers, marks, lengths);
  return scores;
}

describe('DRY', () => {
  test('is that of a search of every end of the window in all of it', () => {
    let penalized = 0;
    fc.assert(
      fc.property(someScores, histories, dryOptions, (list, history, given) => {
        const options = withDefaults(given);
        const expected = reference.dry(list, history, options, PIECES);
        const scores = dry(list, history, options);
        for (const [id, score] of expected.entries()) {
          expect(scores[id]).toBeCloseTo(score, 6);
          if (score !== list[id]) penalized++;
        }
        expect(marks.every((mark) => mark === 0)).toBe(true);
      }),
      { numRuns: 1000 },
    );
    expect(penalized).toBeGreaterThan(100);
  });

  test('the longest repetition counts, and its length is known', () => {
    // … a b c c … c y … and now "a b c": c would make 4 of 3, y would make 3 of 2.
    const [a, b, c, y] = [0, 1, 2, 4];
    const history = [a, b, c, c, b, c, y, a, b, c];
    const options = withDefaults({ dryMultiplier: 1, dryBase: 2, dryAllowedLength: 2, drySequenceBreakers: [] });
    const scores = dry(new Array<number>(V).fill(0), history, options);
    expect([scores[a], scores[b], scores[c], scores[y]]).toEqual([0, 0, -2, -1]);
  });

  test('no repetition reaches back over a break, and a token that is one is free', () => {
    const [a, b, line] = [0, 1, 9];
    const options = withDefaults({ dryMultiplier: 1, dryAllowedLength: 2 });
    const zeros = new Array<number>(V).fill(0);
    expect(dry(zeros, [a, b, a, b, a, b], options)[a]).toBeLessThan(0);
    expect(dry(zeros, [a, b, a, b, a, line, b], options)[a]).toBe(0);
    expect(dry(zeros, [a, b, line, a, b], options)[line]).toBe(0);
  });

  test('a penalty stays a number, however long the repetition', () => {
    const history = new Array<number>(2000).fill(0);
    const options = withDefaults({ dryMultiplier: 1000, dryBase: 1000, dryPenaltyLastN: -1 });
    const [score] = dry(new Array<number>(V).fill(0), history, options);
    expect(score).toBeLessThan(-1e38);
    expect(Number.isFinite(score)).toBe(true);
  });
});

describe('texts that end repetitions', () => {
  test('are found as the history grows as they are in all of it at once', () => {
    fc.assert(
      fc.property(histories, fc.constantFrom([':-)'], [':-)', '\n'], ['b:', 'a']), windows, (history, texts, lastN) => {
        const { tokenizer } = vocabularyOf(PIECES);
        const growing = new Breakers(texts, tokenizer);
        for (let length = 0; length <= history.length; length++) {
          const window = lastN < 0 ? length : Math.min(lastN, length);
          const part = history.slice(0, length);
          expect(growing.tokensSince(part, window)).toBe(new Breakers(texts, tokenizer).tokensSince(part, window));
        }
      }),
    );
  });

  test('are found however a real tokenizer cuts them', async () => {
    const { tokenizer } = await loadModel(MODEL);
    const breakers = new Breakers(['said the', 'ü'], tokenizer);
    const ids = tokenizer.encode('"Well," said the fox, and a bütter day');
    const since = breakers.tokensSince(ids, ids.length);
    expect(tokenizer.decode(ids.slice(ids.length - since))).toBe('tter day');
    expect(breakers.has(tokenizer.encode(' fox')[0]!)).toBe(false);
  });
});
