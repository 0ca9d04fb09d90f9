// How divergence grows with the length, on the reference model, which was trained at 2,048 tokens: long windows say so,
// are not read twice, and those that are too short say nothing. Nothing shorter shows it: up to 2,048 tokens divergence
// is what the law says.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { measureLong, powerOf, withGrowth } from '../../../engine/calibrate/long.ts';
import type { MeasuredLong } from '../../../engine/calibrate/measured.ts';
import { Runtime } from '../../../engine/transformer/runtime/runtime.ts';
import { defaultThresholds, FITTED_TOKENS, thresholdOf } from '../../../policy/index.ts';
import { refused } from '../../refusal.ts';
import { MODEL } from './on-reference.ts';

const content = readFileSync(join(import.meta.dirname, '../../../models/text/chronicle.txt'), 'utf8').slice(0, 16_000);
const set = defaultThresholds(6);
const signal = new AbortController().signal;
let runtime: Runtime;
beforeAll(async () => {
  runtime = await Runtime.open({ model: MODEL, threads: 1 });
});
afterAll(() => runtime.close());

/** A session of a model of which divergence grows as this power. */
const seen = (power: number): MeasuredLong => ({
  ...{ text: 'one', digest: 'a'.repeat(64), tokens: 2 * FITTED_TOKENS },
  ...{ predicted: 0.001, kld: 0.001 * 2 ** power },
});

it('finds the power with which predictions come true', () => {
  expect(powerOf([])).toBeNull();
  expect(powerOf([{ ...seen(1), kld: 0 }])).toBeNull();
  expect(powerOf([seen(3)])).toBeCloseTo(3, 12);
  expect(powerOf([seen(2), seen(4), { ...seen(1), kld: 0 }])).toBeCloseTo(3, 12);
  expect(powerOf([seen(-1)])).toBe(0);
  expect(powerOf([seen(20)])).toBe(8);
});

it('reads a window that is long enough, and not again', async () => {
  const measured: { long?: MeasuredLong[] } = {};
  let written = 0;
  const request = { texts: [{ name: 'chronicle', content }], tokens: 3072, signal, onMeasured: () => written++ };
  await measureLong(runtime, measured, set, request);
  const long = measured.long!;
  expect(long).toHaveLength(1);
  for (const { text, tokens, kld } of long) {
    expect([text, tokens]).toEqual(['chronicle', 3072]);
    expect(kld).toBeGreaterThan(0);
  }
  expect(written).toBe(1);
  const { value, samples, origin, source } = thresholdOf(withGrowth(set, long), 'divergence.length');
  // Of windows of English it is 2.5 to 5 at twice the length of training.
  expect(value).toBeGreaterThan(thresholdOf(set, 'divergence.length').value);
  expect({ samples, origin }).toEqual({ samples: 1, origin: 'learned' });
  expect(source).toContain('1 window of 3072 tokens');
  await measureLong(runtime, measured, set, request);
  expect([written, measured.long!.length]).toEqual([1, 1]);
});

it('says nothing where no text or window is long enough, and ends when it is told to', async () => {
  for (const [tokens, text] of [
    [0, content],
    [2048, content],
    [3072, content.slice(0, 3000)],
  ] as const) {
    const measured: { long?: MeasuredLong[] } = {};
    await measureLong(runtime, measured, set, { texts: [{ name: 'one', content: text }], tokens, signal });
    expect(measured).toEqual({});
    expect(withGrowth(set, measured.long ?? [])).toBe(set);
  }
  const texts = [{ name: 'one', content }];
  const error = await refused(measureLong(runtime, {}, set, { texts, tokens: 3072, signal: AbortSignal.abort() }));
  expect(error).toMatchObject({ code: 'aborted' });
  const long = await refused(measureLong(runtime, {}, set, { texts, tokens: 4100, signal }));
  expect(long).toMatchObject({ code: 'context-too-long' });
});
