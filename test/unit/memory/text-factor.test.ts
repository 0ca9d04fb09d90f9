// What is expected of the text factor of a session: by what sessions like it have measured, and never as surely as if
// it were their text.
import { expect, test } from 'vitest';
import { textFactor } from '../../../memory/estimate.ts';

const assumed = { value: 1, sd: 0.5, samples: 0 };
const session = (value: number, weight = 1) => ({ value, sd: 0.3, samples: 2, weight });

test('without evidence nothing changes, and sessions without weight are none', () => {
  expect(textFactor(assumed, [])).toBe(assumed);
  expect(textFactor(assumed, [session(3, 0)])).toBe(assumed);
});

test('more sessions that agree count for more, and some doubt always stays', () => {
  const after = [1, 3, 10, 100].map((count) =>
    textFactor(
      assumed,
      Array.from({ length: count }, () => session(3)),
    ),
  );
  for (const [i, { value, sd, samples }] of after.entries()) {
    expect(value).toBeGreaterThan(i === 0 ? 1 : after[i - 1]!.value);
    expect(value).toBeLessThan(3);
    expect(sd).toBeLessThanOrEqual(i === 0 ? assumed.sd : after[i - 1]!.sd);
    expect(sd).toBeGreaterThan(0.3);
    expect(samples).toBe([1, 3, 10, 100][i]);
  }
  expect(after.at(-1)!.value).toBeGreaterThan(2.8);
});

test('a session that lies farther away moves it less', () => {
  expect(textFactor(assumed, [session(3, 0.2)]).value).toBeLessThan(textFactor(assumed, [session(3)]).value);
});
