// Which of the sessions that wait is parked first: by how long it has waited, and by how likely it is used again soon
// and what that would cost.
import { describe, expect, it } from 'vitest';
import {
  LONGEST,
  PARKING_POLICIES,
  Pauses,
  parkedInTurn,
  parkingPolicy,
  RETURNING,
  type Waiter,
} from '../../../policy/index.ts';
import { returnsSoon } from '../../../policy/parking.ts';

const NO_PAUSES = new Pauses().seen;

const waiter = (id: string, given: Partial<Waiter> = {}): Waiter => ({
  ...{ id, idleMs: 10_000, freedBytes: 1000, restoreMs: 10, pauses: 0, meanLog: 0, isInLine: false },
  ...given,
});

describe('every policy', () => {
  it.each(PARKING_POLICIES)('$id parks those last for whom a call waits, and nobody where nobody waits', (policy) => {
    const line = waiter('line', { idleMs: 10_000_000, isInLine: true });
    const free = waiter('free', { idleMs: 1 });
    expect(policy.next([line, free], NO_PAUSES)).toBe(free);
    expect(policy.next([line], NO_PAUSES)).toBe(line);
    expect(policy.next([], NO_PAUSES)).toBe(null);
    expect([...parkedInTurn(policy, [line, free], NO_PAUSES)]).toEqual([free, line]);
    expect(parkingPolicy(policy.id, policy.version)).toBe(policy);
    expect(parkingPolicy(policy.id, policy.version + 1)).toBe(null);
  });
});

describe('whoever has waited longest', () => {
  it('is parked first, of equal ones the first', () => {
    const [a, b, c] = [waiter('a'), waiter('b', { idleMs: 20_000 }), waiter('c', { idleMs: 20_000 })];
    expect(LONGEST.next([a, b, c], NO_PAUSES)).toBe(b);
  });
});

describe('how likely a session is used again soon', () => {
  it('is less the longer it waits, where nothing else is known', () => {
    const likely = [1, 1000, 30_000, 300_000, 3_000_000].map((idleMs) =>
      returnsSoon(waiter('a', { idleMs }), NO_PAUSES),
    );
    expect(likely).toEqual(likely.toSorted((a, b) => b - a));
    for (const one of likely) expect(one >= 0 && one <= 1).toBe(true);
  });

  it('goes by the pace of each, as far as sessions differ', () => {
    const pauses = new Pauses();
    // One comes back every two seconds, the other every five minutes.
    for (let n = 0; n < 12; n++) {
      pauses.returned('quick', 2000 + 100 * (n % 3));
      pauses.returned('slow', 300_000 + 10_000 * (n % 3));
    }
    const quick = waiter('quick', { idleMs: 4000, ...pauses.of('quick') });
    const slow = waiter('slow', { idleMs: 3000, ...pauses.of('slow') });
    // Who will be away for minutes is parked, though the other has waited longer.
    expect(RETURNING.next([quick, slow], pauses.seen)).toBe(slow);
    expect(LONGEST.next([quick, slow], pauses.seen)).toBe(quick);
    const alike = { ...pauses.seen, betweenLog: 0 };
    expect(returnsSoon({ ...quick, idleMs: 3000 }, alike)).toBe(returnsSoon(slow, alike));
  });

  it('goes by what became of first pauses and of later ones', () => {
    const pauses = new Pauses();
    for (let n = 0; n < 20; n++) pauses.gone(`once ${n}`);
    for (let n = 0; n < 20; n++) pauses.returned('again', 20_000);
    const [first, later] = [waiter('new'), waiter('again', pauses.of('again'))];
    expect(pauses.seen.first).toEqual({ returned: 1, gone: 20 });
    expect(pauses.seen.later).toEqual({ returned: 19, gone: 0 });
    expect(returnsSoon(later, pauses.seen)).toBeGreaterThan(3 * returnsSoon(first, pauses.seen));
    expect(RETURNING.next([later, first], pauses.seen)).toBe(first);
    pauses.gone('again');
    expect(pauses.of('again')).toEqual({ pauses: 0, meanLog: 0 });
  });
});

describe('what it costs to have a session back', () => {
  it('counts for each byte that parking it frees', () => {
    const [cheap, dear] = [waiter('cheap', { restoreMs: 20, freedBytes: 4000 }), waiter('dear')];
    expect(RETURNING.next([dear, cheap], NO_PAUSES)).toBe(cheap);
    expect(LONGEST.next([dear, cheap], NO_PAUSES)).toBe(dear);
    // But for one that waits so long that nobody expects it.
    expect(RETURNING.next([{ ...dear, idleMs: 3_600_000 }, cheap], NO_PAUSES)?.id).toBe('dear');
  });
});
