// The p95 of recent steps against a count by hand: silent before enough steps, robust to one slow step, and forgetful.
import { expect, it } from 'vitest';
import { RecentLatency } from '../../../../engine/cache/latency.ts';

it('says nothing before twenty steps, then what all but one in twenty stay under', () => {
  const latency = new RecentLatency();
  for (let i = 1; i < 20; i++) latency.add(i);
  expect(latency.p95).toBe(0);
  latency.add(1000);
  expect(latency.p95).toBe(19);
});

it('forgets what is older than 64 steps', () => {
  const latency = new RecentLatency();
  for (let i = 0; i < 64; i++) latency.add(50.00004);
  expect(latency.p95).toBe(50);
  for (let i = 0; i < 64; i++) latency.add(2);
  expect(latency.p95).toBe(2);
});
