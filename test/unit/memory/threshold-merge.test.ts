/** Merging counts each piece of evidence once, whatever the order; comparing says what matters first. */
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { joinCourses, mergeCourses } from '../../../memory/courses.ts';
import {
  diffThresholdFiles,
  formatThresholdFile,
  intervalOf,
  mergeEstimates,
  mergeThresholdFiles,
  parseThresholdFile,
  type ThresholdFile,
} from '../../../memory/index.ts';
import { KvError } from '../../../native/index.ts';
import { activations, course, estimate, example, from, law } from './threshold-data.ts';

const merged = (...files: ThresholdFile[]): string => formatThresholdFile(mergeThresholdFiles(files));
const refused = (run: () => unknown, code: string, words: string): void =>
  expect(run).toThrow(expect.objectContaining({ code, message: expect.stringContaining(words) }));

describe('estimates', () => {
  test('are weighted by inverse variance in logarithms', () => {
    // ln 1 = 0 with weight 4, ln e = 1 with weight 1: mean 0.2, variance 1/5. chi² = 4·0.04 + 0.64 = 0.8 is below 1.
    const { value, sd, samples } = mergeEstimates([estimate(1, 0.5, 2), estimate(Math.E, 1, 5)]);
    expect(Math.log(value)).toBeCloseTo(0.2, 12);
    expect(sd).toBeCloseTo(Math.sqrt(0.2), 12);
    expect(samples).toBe(7);
  });

  test('that contradict each other get an interval which holds both', () => {
    const [low, high] = [estimate(0.1, 0.1), estimate(10, 0.1)];
    const both = mergeEstimates([low, high]);
    const [from95, to95] = intervalOf(both);
    expect(from95).toBeLessThan(0.1);
    expect(to95).toBeGreaterThan(10);
    expect(both.sd).toBeGreaterThan(10 * low.sd);
    // Where they agree the interval becomes narrower than that of each.
    expect(mergeEstimates([low, low, low]).sd).toBeCloseTo(0.1 / Math.sqrt(3), 12);
  });

  test('that nobody measured weigh nothing, and one without spread does not silence the others', () => {
    expect(mergeEstimates([estimate(5, 0.3), estimate(50, 0.01, 0)])).toEqual(estimate(5, 0.3));
    expect(mergeEstimates([estimate(5, 0.3, 0), estimate(50, 2, 0)])).toEqual(estimate(50, 2, 0));
    const { value } = mergeEstimates([estimate(1, 0, 1), estimate(Math.E, 0.01, 1)]);
    expect(Math.log(value)).toBeCloseTo(0.5, 12);
  });

  test('between all given values, and never wider than contradiction demands', () => {
    const one = fc.record({
      value: fc.double({ min: 1e-6, max: 1e6, noNaN: true }),
      sd: fc.double({ min: 0.01, max: 5, noNaN: true }),
      samples: fc.integer({ min: 1, max: 100 }),
    });
    fc.assert(
      fc.property(fc.array(one, { minLength: 1, maxLength: 6 }), (given) => {
        const { value, sd } = mergeEstimates(given);
        const values = given.map((g) => g.value);
        expect(value).toBeGreaterThanOrEqual(Math.min(...values) * (1 - 1e-9));
        expect(value).toBeLessThanOrEqual(Math.max(...values) * (1 + 1e-9));
        const spread = Math.log(Math.max(...values) / Math.min(...values));
        expect(sd).toBeLessThanOrEqual(Math.max(Math.min(...given.map((g) => g.sd)), spread) * (1 + 1e-9));
      }),
      { seed: 11, numRuns: 300 },
    );
  });
});

describe('files', () => {
  const [a, b, c] = [from('a', 50, 1), from('b', 80, 2, 8), from('c', 20, 0.5, 1)];

  test('give the same bytes in any order, in any grouping, and given twice', () => {
    const all = merged(a, b, c);
    expect(merged(c, a, b)).toBe(all);
    expect(merged(mergeThresholdFiles([a, b]), c)).toBe(all);
    expect(merged(a, mergeThresholdFiles([c, b]))).toBe(all);
    expect(merged(mergeThresholdFiles([a, b]), mergeThresholdFiles([b, c]), a)).toBe(all);
    expect(merged(mergeThresholdFiles([a, b, c]))).toBe(all);
    expect(merged(a, a)).toBe(formatThresholdFile(a));
    expect(parseThresholdFile(Buffer.from(all))).toMatchObject({
      evidence: { sessions: 12, tokens: 12_000, logs: [{ logId: 'a' }, { logId: 'b' }, { logId: 'c' }] },
      parts: [{}, {}, {}],
      signature: null,
    });
  });

  test('in any order and grouping, whatever stretches of logs they rest on', () => {
    const stretch = fc.record({ logId: fc.constantFrom('a', 'b'), from: fc.nat(8), length: fc.nat(8) });
    const file = fc
      .record({
        logs: fc.array(stretch, { minLength: 1, maxLength: 2 }),
        scale: fc.integer({ min: 1, max: 4 }),
        sessions: fc.nat(3),
      })
      .map(
        ({ logs, scale, sessions }): ThresholdFile => ({
          ...from('', 0, scale, sessions),
          evidence: {
            sessions,
            tokens: null,
            logs: logs
              .filter(({ logId }, at) => logs.findIndex((other) => other.logId === logId) === at)
              .map(({ logId, from: first, length }) => ({ logId, from: first, to: first + length, headHash: null })),
          },
        }),
      );
    fc.assert(
      fc.property(fc.array(file, { minLength: 3, maxLength: 6 }), fc.nat(5), (files, cut) => {
        const all = merged(...files);
        expect(merged(...files.toReversed())).toBe(all);
        const at = 1 + (cut % (files.length - 1));
        expect(merged(mergeThresholdFiles(files.slice(0, at)), mergeThresholdFiles(files.slice(at)))).toBe(all);
        expect(merged(...files, mergeThresholdFiles(files))).toBe(all);
        expect(formatThresholdFile(parseThresholdFile(Buffer.from(all)))).toBe(all);
      }),
      { seed: 12, numRuns: 200 },
    );
  });

  test('are weighted: what is better known moves less', () => {
    const precise: ThresholdFile = {
      ...b,
      law: { ...law(2), coefficient: { ...law(2).coefficient, k: [estimate(1, 0.05), estimate(6)] } },
    };
    const { coefficient } = mergeThresholdFiles([a, precise]).law!;
    // 0.5 ± 0.25 and 1 ± 0.05: the mean lies near 1.
    expect(coefficient.k[0]!.value).toBeGreaterThan(0.95);
    // 3 and 6 with the same spread: their geometric mean.
    expect(coefficient.k[1]!.value).toBeCloseTo(Math.sqrt(18), 9);
    expect(coefficient.k[1]!.samples).toBe(6);
  });

  test('of one log count its evidence once: a later state stands for the earlier one', () => {
    const later = from('a', 90, 3, 5);
    expect(merged(a, later)).toBe(formatThresholdFile(later));
    expect(merged(mergeThresholdFiles([a, b]), later)).toBe(merged(b, later));
  });

  test('that overlap without one holding the other: the one that rests on more counts, and neither is forgotten', () => {
    const early: ThresholdFile = {
      ...a,
      evidence: { ...a.evidence, sessions: 9, logs: [{ ...a.evidence.logs[0]!, from: 0, to: 60 }] },
    };
    const late: ThresholdFile = {
      ...from('a', 0, 4, 2),
      evidence: { sessions: 2, tokens: 9, logs: [{ logId: 'a', from: 40, to: 99, headHash: null }] },
    };
    const both = mergeThresholdFiles([early, late]);
    expect(both.law).toEqual(early.law);
    expect(both.evidence.sessions).toBe(9);
    expect(both.parts).toHaveLength(2);
    // Neither together with a third that holds all of it.
    const whole = from('a', 120, 2, 12);
    expect(merged(both, whole)).toBe(formatThresholdFile(whole));
  });

  test('without a log are told apart by their content', () => {
    const lonely = (scale: number): ThresholdFile => ({
      ...from('', 0, scale),
      evidence: { sessions: 2, tokens: null, logs: [] },
    });
    expect(merged(lonely(1), lonely(1))).toBe(formatThresholdFile(lonely(1)));
    const two = mergeThresholdFiles([lonely(1), lonely(2)]);
    expect(two.evidence).toMatchObject({ sessions: 4, tokens: null, logs: [{}, {}] });
    expect(merged(two, lonely(2))).toBe(formatThresholdFile(two));
  });

  test('with and without a law: what only one knows is taken from it', () => {
    const silent: ThresholdFile = { ...c, law: null };
    const { law: found } = mergeThresholdFiles([a, silent]);
    expect(found).toEqual(a.law);
    const partial: ThresholdFile = { ...c, law: { ...law(), epsilon: { k: [], v: [] } } };
    expect(mergeThresholdFiles([a, partial]).law!.epsilon).toEqual(law().epsilon);
  });

  test('keep the spread between texts, which more files do not make less', () => {
    expect(mergeThresholdFiles([a, b, c]).law!.text.sd).toBeCloseTo(0.7, 12);
  });

  test('join thresholds, gains and c by evidence; what nobody measured stands where all agree', () => {
    const set = (id: string, value: number, samples: number) => ({
      [id]: { value, unit: 'x', sd: null, samples, source: '', evidence: [1] },
    });
    const with_ = (file: ThresholdFile, thresholds: ThresholdFile['thresholds']): ThresholdFile => ({
      ...file,
      thresholds,
    });
    const join = (x: ThresholdFile['thresholds'], y: ThresholdFile['thresholds']) =>
      mergeThresholdFiles([with_(a, x), with_(b, y)]).thresholds;
    // sd of one that was not estimated is 0.3/√samples, so these weigh 1 and 4: exp((ln 1 + 4 ln 32) / 5) = 16.
    expect(join(set('law.c', 1, 1), set('law.c', 32, 4))['law.c']).toMatchObject({ samples: 5, evidence: [] });
    expect(join(set('law.c', 1, 1), set('law.c', 32, 4))['law.c']!.value).toBeCloseTo(16, 9);
    expect(join(set('x', 0, 1), set('x', 5, 9))['x']).toMatchObject({ value: 5, sd: null, samples: 10 });
    expect(join(set('trial.age', 64, 0), {})).toMatchObject({ 'trial.age': { value: 64 } });
    expect(join(set('trial.age', 64, 0), set('trial.age', 64, 0))).toMatchObject({ 'trial.age': { value: 64 } });
    expect(join(set('trial.age', 64, 0), set('trial.age', 32, 0))).toEqual({});
    expect(join(set('trial.age', 64, 0), set('trial.age', 32, 7))).toMatchObject({ 'trial.age': { value: 32 } });
    refused(
      () => join(set('x', 1, 1), { x: { ...set('x', 1, 1)['x']!, unit: 'ms' } }),
      'bad-thresholds',
      'x has several units: ',
    );

    const gained = (file: ThresholdFile, k: number[], constant: number): ThresholdFile => ({
      ...file,
      gains: { k, v: [1, 1] },
      c: constant,
    });
    // 3 and 8 sessions; a gain of 1 and c = 4 are what stands where nobody measured.
    const { gains, c: joined } = mergeThresholdFiles([gained(a, [2, 1], 4), gained(b, [8, 3], 2)]);
    expect(gains.k[0]).toBeCloseTo(2 ** ((1 * 3 + 3 * 8) / 11), 12);
    expect([gains.k[1], ...gains.v, joined]).toEqual([3, 1, 1, 2]);
  });

  test('are refused: another model, a rewritten log, contradictory bounds, none', () => {
    const other = { ...b, model: { ...b.model, digest: 'sha256:11' } };
    refused(() => mergeThresholdFiles([a, other]), 'model-mismatch', 'file 2 belongs to another model');
    const wider = { ...b, model: { ...b.model, shape: { ...b.model.shape, headDim: 128 } } };
    refused(() => mergeThresholdFiles([a, wider]), 'model-mismatch', 'headDim 128, here 64');
    const at = (headHash: string): ThresholdFile => ({
      ...a,
      evidence: { ...a.evidence, logs: [{ logId: 'a', from: 0, to: 50, headHash }] },
    });
    refused(
      () => mergeThresholdFiles([at('a'.repeat(64)), at('b'.repeat(64))]),
      'bad-thresholds',
      'two hashes at entry 50',
    );
    refused(() => mergeThresholdFiles([]), 'bad-argument', 'no file');
    const hand = (id: string, value: number) => ({ [id]: { ...example.thresholds['pressure.enter']!, value } });
    const apart = mergeThresholdFiles([
      { ...a, thresholds: hand('pressure.enter', 0.5) },
      { ...b, thresholds: hand('pressure.leave', 0.7) },
    ]);
    expect(() => formatThresholdFile(apart)).toThrow(KvError);
  });
});

describe('courses of errors', () => {
  const taught = (seed: number, scale: number): ReturnType<typeof course> => {
    const one = course(scale);
    const ofSide = (side: 'k' | 'v') => one.persistence[side].map(({ value }) => estimate(value, 0.1, 40 + seed));
    return { ...one, persistence: { k: ofSide('k'), v: ofSide('v') } };
  };

  test('of two machines are nearly what all sessions of both would have been joined to', () => {
    const all = [1, 2, 3, 4, 5, 6].map((n) => ({ course: taught(n, n / 3), weight: 1 }));
    const whole = joinCourses(all, 2)!;
    const both = mergeCourses([joinCourses(all.slice(0, 2), 2)!, joinCourses(all.slice(2), 2)!])!;
    for (const side of ['k', 'v'] as const)
      for (const [layer, { value, sd, samples }] of both.persistence[side].entries()) {
        const expected = whole.persistence[side][layer]!;
        expect(samples).toBe(expected.samples);
        expect(Math.log(value)).toBeCloseTo(Math.log(expected.value), 1);
        expect(Math.log(sd / expected.sd)).toBeCloseTo(0, 0);
      }
    expect(mergeCourses([whole])).toBe(whole);
    expect(mergeCourses([])).toBe(null);
  });

  test('are merged with the files in any order, and once for a log', () => {
    const [a, b] = [
      { ...from('one', 9), course: course(2) },
      { ...from('two', 9, 1, 6), course: course(0.5, 6) },
    ];
    const plain = from('three', 9);
    const all = merged(a, b, plain);
    expect(merged(plain, b, a)).toBe(all);
    expect(merged(mergeThresholdFiles([a, plain]), b, a)).toBe(all);
    const { persistence } = mergeThresholdFiles([a, b, plain]).course!;
    expect(persistence.k[0]!.samples).toBe(9);
    expect(Math.log(persistence.k[0]!.value)).toBeCloseTo((Math.log(3) + 2 * Math.log(0.75)) / 3, 3);
    // Nobody has seen this layer.
    expect(persistence.v[1]).toEqual({ value: 1, sd: 0.5, samples: 0 });
    const later = { ...from('one', 20, 1, 4), course: course(4, 4) };
    expect(mergeThresholdFiles([a, later]).course).toEqual(course(4, 4));
  });

  test('are compared number by number, and one with none in one line', () => {
    const [a, b] = [
      { ...example, course: course() },
      { ...example, course: course(2) },
    ];
    const what = diffThresholdFiles(a, b).map((row) => row.what);
    expect(what).toEqual([
      // It alone has changed by more than both intervals explain.
      'left from 4 pages on',
      'persistence K, layer 0',
      'persistence K, layer 1',
      'persistence V, layer 0',
    ]);
    expect(diffThresholdFiles(example, a)).toMatchObject([
      { what: 'course of errors', before: '(none)', after: '2 layers, from 3 sessions' },
    ]);
  });
});

describe('costs of activations', () => {
  test('are merged by how sure they are, in any order, and compared number by number', () => {
    const [a, b] = [
      { ...from('one', 9), activations: activations(1) },
      { ...from('two', 9), activations: activations(4) },
    ];
    expect(merged(a, b, from('three', 9))).toBe(merged(from('three', 9), b, a));
    const { matrices, output, together } = mergeThresholdFiles([a, b]).activations!;
    expect(output).toMatchObject({ value: expect.closeTo(18e-4, 6), samples: 6 });
    expect(matrices.v[0]!.value).toBeCloseTo(16e-6, 8);
    expect(matrices.v[1]!.value).toBeCloseTo(16e-6, 8);
    expect(together.value).toBeCloseTo(1.1, 8);
    const what = diffThresholdFiles(a, { ...a, activations: activations(4) }).map((row) => row.what);
    expect(what).toHaveLength(8);
    expect(what).toEqual(expect.arrayContaining(['activations of down, layer 0', 'activations of the output matrix']));
    expect(diffThresholdFiles(example, { ...example, activations: activations() })).toMatchObject([
      { what: 'costs of activations', before: '(none)', after: '2 layers, from 3 windows' },
    ]);
  });
});

describe('a comparison', () => {
  test('says nothing about equal files, and the other way round says the inverse', () => {
    expect(diffThresholdFiles(example, structuredClone(example))).toEqual([]);
    const [there] = diffThresholdFiles(example, { ...example, c: 7.4 });
    const [back] = diffThresholdFiles({ ...example, c: 7.4 }, example);
    expect(there).toMatchObject({ what: 'c', unit: 'nats/ε²', factor: 2, isClear: true });
    expect(back).toMatchObject({ what: 'c', factor: 0.5, before: there!.after, after: there!.before });
  });

  test('names what changed, by how much and in which unit, most important first', () => {
    const changed: ThresholdFile = {
      ...example,
      createdBy: 'palimpsest 9',
      evidence: { sessions: 30, tokens: 1, logs: [] },
      thresholds: { 'trial.age': { value: 64, unit: 'tokens', sd: null, samples: 0, source: 'by hand', evidence: [] } },
      gains: { k: [1, 4.5], v: [0.75, 1] },
      law: {
        ...law(),
        // ±0.25 each: a factor of 1.2 is within both intervals, one of 10 is not.
        coefficient: { k: [estimate(0.6), estimate(30, 0.25, 30)], v: law().coefficient.v },
        text: estimate(1, 0.5),
      },
    };
    const rows = diffThresholdFiles(example, changed);
    expect(rows.map(({ what }) => what)).toEqual([
      'price.start',
      'coefficient K, layer 1',
      'gain K, layer 1',
      'trial.age',
      'pressure.enter',
      'coefficient K, layer 0',
      'text',
      'evidence',
      'created by',
    ]);
    const row = (what: string) => rows.find((one) => one.what === what);
    expect(row('coefficient K, layer 1')).toMatchObject({
      before: { value: 3, samples: 3 },
      after: { value: 30, samples: 30, interval: intervalOf({ value: 30, sd: 0.25 }) },
      unit: 'nats/ε²',
      factor: 10,
      isClear: true,
    });
    expect(row('coefficient K, layer 0')).toMatchObject({ isClear: false, factor: 1.2 });
    // What a file leaves out is at its default.
    expect(row('trial.age')).toMatchObject({
      before: { value: 128 },
      after: { value: 64 },
      unit: 'tokens',
      factor: 0.5,
    });
    expect(row('price.start')).toMatchObject({ after: { value: 0 }, factor: null });
    expect(row('text')).toMatchObject({ factor: 1, isClear: false });
  });

  test('begins with what makes two files incomparable, and tells a law from none in one line', () => {
    const other: ThresholdFile = {
      ...example,
      model: { digest: '', shape: { ...example.model.shape, headDim: 128 } },
      law: null,
    };
    expect(diffThresholdFiles(example, other)).toMatchObject([
      { what: 'model digest', before: 'sha256:00ff', after: '(none)' },
      { what: 'shape, headDim', before: '64', after: '128' },
      { what: 'law of errors', before: '2 layers, with typical errors', after: '(none)' },
    ]);
  });
});
