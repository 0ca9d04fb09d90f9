// Which partitions rows of a span of time may be in: the same that are made for them one by one.
import { expect, it } from 'vitest';
import { Partitions, partitionsOf } from '../../../witness/sql/partitions.ts';

const DAY_MS = 86_400_000;
const made = (fromMs: number, toMs: number): string[] => {
  const times = Array.from({ length: Math.floor((toMs - fromMs) / DAY_MS) + 1 }, (_, day) => fromMs + day * DAY_MS);
  const statements = new Partitions().missing([...times, toMs]).map(({ sql }) => sql);
  return statements.flatMap((sql) => /^create table if not exists (\S+)/.exec(sql)?.[1] ?? []).sort();
};

it('are those of every month from the first time to the last', () => {
  for (const [from, to] of [
    ['2026-01-31T23:59:59.999Z', '2026-03-01T00:00:00Z'],
    ['2026-11-05T00:00:00Z', '2026-11-05T00:00:00Z'],
    ['2025-12-31T00:00:00Z', '2027-01-01T00:00:00Z'],
    ['2020-01-01T00:00:00Z', '2020-01-01T00:00:00Z'],
    ['2099-12-31T23:59:59.999Z', '2099-12-31T23:59:59.999Z'],
  ] as const)
    expect(partitionsOf(Date.parse(from), Date.parse(to)).sort(), from).toEqual(made(Date.parse(from), Date.parse(to)));
  expect(partitionsOf(Date.UTC(2026, 1), Date.UTC(2026, 1))).toEqual(['decisions_2026_02', 'situations_2026_02']);
});

it('are those at the ends for times that have no month', () => {
  expect(partitionsOf(0, 0)).toEqual(['decisions_before_2020', 'situations_before_2020']);
  expect(partitionsOf(Date.UTC(2100), 1e15)).toEqual(['decisions_from_2100', 'situations_from_2100']);
  expect(partitionsOf(Date.UTC(2019, 11), Date.UTC(2020)).filter((name) => name.startsWith('d'))).toEqual([
    'decisions_before_2020',
    'decisions_2020_01',
  ]);
  // Of a session of which nothing was recorded no time is known.
  expect(partitionsOf(Number.POSITIVE_INFINITY, 0)).toEqual([]);
});
