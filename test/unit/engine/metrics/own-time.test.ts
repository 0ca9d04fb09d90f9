// Time of one kind of work: what it does within itself counts once, other work in between does not count.
import { expect, it } from 'vitest';
import { OwnTime } from '../../../../engine/metrics/own-time.ts';

/** How often time was added, as work went on. */
function counting() {
  const added: number[] = [];
  return { own: new OwnTime((seconds) => added.push(seconds)), added };
}

it('counts work once, however deep it is in itself', () => {
  const { own, added } = counting();
  expect(own.during(() => own.during(() => own.during(() => 7)))).toBe(7);
  expect(added).toHaveLength(1);
  expect(added[0]).toBeGreaterThanOrEqual(0);
});

it('counts what is before and behind other work, and work within that by itself', () => {
  const { own, added } = counting();
  own.during(() => {
    own.outside(() => {
      expect(added).toHaveLength(1);
      own.during(() => own.outside(() => expect(added).toHaveLength(2)));
      expect(added).toHaveLength(3);
    });
    expect(added).toHaveLength(3);
  });
  expect(added).toHaveLength(4);
});

it('counts nothing of other work alone, and ends where work throws', () => {
  const { own, added } = counting();
  expect(own.outside(() => 7)).toBe(7);
  expect(added).toHaveLength(0);
  const fails = (): never => {
    throw new Error('it fails');
  };
  expect(() => own.during(fails)).toThrow('it fails');
  expect(added).toHaveLength(1);
  expect(() => own.during(() => own.outside(fails))).toThrow('it fails');
  expect(added).toHaveLength(3);
  own.during(() => undefined);
  expect(added).toHaveLength(4);
});
