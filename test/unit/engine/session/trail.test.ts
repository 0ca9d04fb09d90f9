// The rows behind the newest tokens, two numbers each: which are kept, which is the last, and what taking back and
// going back leave.
import { expect, it } from 'vitest';
import { Trail } from '../../../../engine/session/trail.ts';

const rows = (...tokens: number[]): Float32Array => Float32Array.from(tokens.flatMap((token) => [token, -token]));

it('keeps the newest rows of steps of any length, oldest first', () => {
  const trail = new Trail(2, 3);
  trail.add(1, rows(1));
  trail.add(2, rows(2, 3));
  expect(trail.kept()).toEqual(rows(1, 2, 3));
  trail.add(1, rows(4));
  expect(trail.kept()).toEqual(rows(2, 3, 4));
  trail.add(5, rows(5, 6, 7, 8, 9));
  expect(trail.kept()).toEqual(rows(7, 8, 9));
  expect(trail.newest).toEqual(rows(5, 6, 7, 8, 9));
  expect(trail.last).toEqual(rows(9));
});

it('copies what a dense half may overwrite, and leaves out what lies behind the rows', () => {
  const trail = new Trail(2, 1);
  const hidden = rows(1, 2, 77);
  trail.add(2, hidden);
  hidden.fill(0);
  expect([trail.newest, trail.last, trail.kept()]).toEqual([rows(1, 2), rows(2), rows(2)]);
});

it('knows no last row once tokens were taken back, until it is told one', () => {
  const trail = new Trail(2, 4);
  trail.add(3, rows(1, 2, 3));
  trail.cut(2);
  expect([trail.last, trail.kept()]).toEqual([null, rows(1)]);
  trail.endAt(rows(1));
  expect(trail.last).toEqual(rows(1));
  trail.cut(5);
  expect(trail.kept()).toEqual(rows());
});

it('has copies that stay as they are', () => {
  const trail = new Trail(2, 2);
  trail.add(2, rows(1, 2));
  const before = trail.copy();
  trail.add(2, rows(3, 4));
  expect([before.last, before.kept()]).toEqual([rows(2), rows(1, 2)]);
  before.add(1, rows(5));
  expect([before.last, before.kept()]).toEqual([rows(5), rows(2, 5)]);
  expect(trail.kept()).toEqual(rows(3, 4));
});
