// How many calls may be at work where sessions are parked and wanted back at once.
import fc from 'fast-check';
import { expect, it } from 'vitest';
import {
  type Concurrency,
  concurrencyAfter,
  refaultRatio,
  type ThrashWindow,
  UNBOUNDED,
} from '../../../policy/index.ts';

const window = (share: number, given: Partial<ThrashWindow> = {}): ThrashWindow => ({
  reclaimedBytes: 1000,
  refaultedBytes: 1000 * share,
  workingCalls: 6,
  wantedCalls: 10,
  ...given,
});
const after = (windows: readonly ThrashWindow[], before = UNBOUNDED): Concurrency =>
  windows.reduce(concurrencyAfter, before);
const times = (count: number, one: ThrashWindow): ThrashWindow[] => Array.from({ length: count }, () => one);

it('is one call fewer than were at work after two windows in a row in which more than a quarter comes back', () => {
  expect(after([window(0.3)]).callsMax).toBe(null);
  expect(after(times(2, window(0.3))).callsMax).toBe(5);
  expect(after(times(2, window(0.25))).callsMax).toBe(null);
  expect(after([window(0.3), window(0.2), window(0.3)]).callsMax).toBe(null);
  expect(after(times(4, window(0.3, { workingCalls: 5 }))).callsMax).toBe(3);
});

it('goes from what was at work, and never below one', () => {
  const low = after(times(2, window(0.9, { workingCalls: 2 })));
  expect(low.callsMax).toBe(1);
  expect(after(times(8, window(0.9, { workingCalls: 1 })), low).callsMax).toBe(1);
  expect(after(times(2, window(0.9, { workingCalls: 3 })), { ...UNBOUNDED, callsMax: 9 }).callsMax).toBe(2);
});

it('is one more after eight calm windows, and unbounded where nobody waits for it', () => {
  const bounded: Concurrency = { ...UNBOUNDED, callsMax: 3 };
  expect(after(times(7, window(0.04)), bounded).callsMax).toBe(3);
  expect(after(times(8, window(0.04)), bounded).callsMax).toBe(4);
  expect(after(times(16, window(0.04)), bounded).callsMax).toBe(5);
  expect(after([...times(7, window(0.04)), window(0.1), ...times(7, window(0.04))], bounded).callsMax).toBe(3);
  expect(after(times(8, window(0, { wantedCalls: 4 })), bounded).callsMax).toBe(null);
});

it('takes a window in which nothing was parked for a calm one', () => {
  expect(refaultRatio(window(0, { reclaimedBytes: 0, refaultedBytes: 500 }))).toBe(0);
  const quiet = window(0, { reclaimedBytes: 0, refaultedBytes: 500 });
  expect(after(times(8, quiet), { ...UNBOUNDED, callsMax: 2 }).callsMax).toBe(3);
});

it('changes at most once in two windows, whatever comes', () => {
  const windows = fc.array(
    fc.record({
      reclaimedBytes: fc.nat(10_000),
      refaultedBytes: fc.nat(10_000),
      workingCalls: fc.nat(12),
      wantedCalls: fc.nat(40),
    }),
    { maxLength: 60 },
  );
  fc.assert(
    fc.property(windows, (all) => {
      let state: Concurrency = { ...UNBOUNDED, callsMax: 20 };
      let changedAt = -2;
      for (const [at, one] of all.entries()) {
        const next = concurrencyAfter(state, one);
        if (next.callsMax !== state.callsMax) {
          expect(at - changedAt).toBeGreaterThanOrEqual(2);
          changedAt = at;
          if (next.callsMax !== null) expect(next.callsMax).toBeGreaterThanOrEqual(1);
        }
        state = next;
      }
    }),
  );
});
