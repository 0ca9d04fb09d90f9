// Retention removes the oldest segments of a log, by age and by size, and nothing that must stay: logs of many small
// segments are written with a clock of their own, retained, and looked at afterwards. What is left verifies, and what a
// dry run says is what is done.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import {
  holdSession,
  openWitnessLog,
  planRetention,
  planSegments,
  readLog,
  replay,
  retain,
  retainPlanned,
  verifyLog,
  type WitnessLog,
} from '../../../witness/index.ts';
import { scratchFolders } from './folder.ts';
import { recordSession, tinyPolicy } from './session.ts';

const folder = scratchFolders();
const DAY_MS = 86_400_000;

interface Written {
  readonly dir: string;
  /** When session n began. */
  readonly atMs: (n: number) => number;
  /** Goes on in the same log. */
  readonly next: (session: string, close?: boolean) => void;
  readonly log: WitnessLog;
}

/** A log of sessions s0, s1 … one day apart, of several segments each. */
async function days(count: number, more: { encrypt?: boolean } = {}): Promise<Written> {
  const dir = folder();
  const startMs = Date.now() - count * DAY_MS;
  let now = startMs;
  const log = await openWitnessLog({ dir, encrypt: true, segmentBytesMax: 2000, clock: () => now++, ...more });
  const next = (session: string, close = true): void => void recordSession(log, session, { close });
  for (let n = 0; n < count; n++) {
    now = startMs + n * DAY_MS;
    next(`s${n}`);
  }
  await log.flush();
  return { dir, log, next, atMs: (n) => startMs + n * DAY_MS };
}

const segmentsOf = (dir: string): string[] => readdirSync(dir).filter((name) => name.endsWith('.wal'));
const keysOf = (dir: string): number => readdirSync(join(dir, 'keys')).length;
const sessionsOf = (dir: string): string[] =>
  [...new Set([...readLog(dir)].map(({ session }) => session))].filter((id) => id !== '');

describe('by age', () => {
  it('whole sessions go that ended before, with their keys, and the rest is as it was', async () => {
    const { dir, log, atMs } = await days(8);
    await log.close();
    const before = [...readLog(dir)];
    const plan = planRetention(dir, { beforeMs: atMs(5) });
    expect(segmentsOf(dir).length).toBeGreaterThan(16);
    const report = await retain(dir, { beforeMs: atMs(5) });
    expect(report).toEqual(plan);
    expect(report.series.map(({ series }) => series)).toEqual([0]);
    expect(report.series[0]!.segments).toBeGreaterThan(6);
    // s4 may share its last segment with s5, which stays.
    expect(report.sessions.filter((id) => id !== 's4')).toEqual(['s0', 's1', 's2', 's3']);
    expect(verifyLog(dir)).toMatchObject({ ok: true, problem: null, unopened: 0 });
    const after = [...readLog(dir)];
    const kept = after.filter(({ kind }) => kind !== 'retention');
    expect(kept).toEqual(before.slice(before.length - kept.length));
    expect(after.filter(({ kind }) => kind === 'retention').length).toBe(1);
    expect(keysOf(dir)).toBe(8 - report.sessions.length);
    for (const session of ['s5', 's6', 's7'])
      expect(replay(dir, session, () => tinyPolicy())).toMatchObject({ equal: true, complete: true });
    const bytes = segmentsOf(dir).reduce((sum, name) => sum + readFileSync(join(dir, name)).length, 0);
    expect(report.bytesAfter).toBeLessThanOrEqual(bytes);
  });

  it('nothing goes twice, and nothing where nothing is old enough', async () => {
    const { dir, log, atMs } = await days(4);
    await log.close();
    expect(await retain(dir, { beforeMs: atMs(0) })).toMatchObject({ series: [], sessions: [] });
    await retain(dir, { beforeMs: atMs(2) });
    const there = segmentsOf(dir);
    expect(await retain(dir, { beforeMs: atMs(2) })).toMatchObject({ series: [], sessions: [] });
    expect(segmentsOf(dir)).toEqual(there);
  });
});

it('by size, the oldest go until the log is small enough', async () => {
  const { dir, log } = await days(8);
  await log.close();
  const whole = planRetention(dir, { maxBytes: 10 ** 9 });
  expect(whole).toMatchObject({ series: [], bytesAfter: whole.bytesBefore });
  const report = await retain(dir, { maxBytes: whole.bytesBefore / 2 });
  expect(report.bytesAfter).toBeLessThanOrEqual(whole.bytesBefore / 2);
  expect(report.bytesAfter).toBeGreaterThan(whole.bytesBefore / 2 - 10_000);
  expect(verifyLog(dir)).toMatchObject({ ok: true });
  // Less than one segment cannot be.
  await retain(dir, { maxBytes: 1 });
  expect(segmentsOf(dir).length).toBeLessThan(3);
  expect(verifyLog(dir)).toMatchObject({ ok: true });
});

it('a dry run changes nothing', async () => {
  const { dir, log, atMs } = await days(4);
  await log.close();
  const bytes = (): string[] => segmentsOf(dir).map((name) => readFileSync(join(dir, name)).toString('base64'));
  const before = bytes();
  expect(planRetention(dir, { beforeMs: atMs(3), maxBytes: 1 }).series.length).toBe(1);
  expect(bytes()).toEqual(before);
  expect(keysOf(dir)).toBe(4);
});

it('a held session, and all segments from it on, stay until the hold ends', async () => {
  const { dir, log, atMs } = await days(6);
  await log.close();
  await holdSession(dir, 's2', { by: 'a test' });
  const report = await retain(dir, { beforeMs: atMs(5), maxBytes: 1 });
  expect(report.held).toEqual(['s2']);
  expect(sessionsOf(dir)).toContain('s2');
  expect(replay(dir, 's2', () => tinyPolicy())).toMatchObject({ equal: true, complete: true });
  expect(report.sessions.filter((id) => id !== 's1')).toEqual(['s0']);
  await holdSession(dir, 's2', { release: true, by: 'a test' });
  const keys = keysOf(dir);
  expect((await retain(dir, { beforeMs: atMs(5) })).sessions).toContain('s2');
  expect(keysOf(dir)).toBeLessThan(keys);
  expect(verifyLog(dir)).toMatchObject({ ok: true });
});

it('a hold that begins while it is planned what goes is seen before it goes', async () => {
  const { dir, log, atMs } = await days(6);
  await log.close();
  const policy = { beforeMs: atMs(5) };
  let plans = 0;
  const report = await retainPlanned(dir, async () => {
    const plan = planSegments(dir, policy);
    // Whoever plans has read the log by now.
    if (plans++ === 0) await holdSession(dir, 's2', { by: 'a test' });
    return plan;
  });
  expect(plans).toBe(2);
  expect(report.held).toEqual(['s2']);
  expect(replay(dir, 's2', () => tinyPolicy())).toMatchObject({ equal: true, complete: true });
  expect(report.sessions).toContain('s0');
});

it('a hold that begins while segments go waits, and is refused when nothing of its session is left', async () => {
  const { dir, log, atMs } = await days(5);
  await log.close();
  let isPlanned = false;
  const retained = retainPlanned(dir, async () => {
    const plan = planSegments(dir, { beforeMs: atMs(4) });
    isPlanned = true;
    return plan;
  });
  await expect.poll(() => isPlanned).toBe(true);
  const [report, held] = await Promise.allSettled([retained, holdSession(dir, 's0', { by: 'a test' })]);
  expect(report).toMatchObject({ status: 'fulfilled', value: { sessions: expect.arrayContaining(['s0']) } });
  expect(held).toMatchObject({ status: 'rejected', reason: { code: 'not-found' } });
});

it('a session that runs stays, and so does everything behind it; one that was killed does not', async () => {
  const { dir, log, next, atMs } = await days(3);
  next('open', false);
  for (let n = 0; n < 3; n++) next(`later${n}`);
  await log.flush();
  // Its clock is of long ago: as far as anybody can tell, its writer is gone.
  const dead = planRetention(dir, { beforeMs: Date.now() + DAY_MS });
  expect(dead.sessions).toContain('open');
  expect(dead.series[0]!.series).toBe(0);
  // The writer of the series is this process: only its own hand may remove.
  expect(await retain(dir, { beforeMs: atMs(2) })).toMatchObject({ series: [], busy: [0] });
  expect(await retain(dir, { beforeMs: atMs(2) }, { open: log })).toMatchObject({
    busy: [],
    sessions: expect.arrayContaining(['s0']),
  });
  await log.close();
  const now = await openWitnessLog({ dir, encrypt: true, segmentBytesMax: 2000 });
  recordSession(now, 'running', { close: false });
  recordSession(now, 'ended');
  await now.flush();
  const plan = planRetention(dir, { beforeMs: Date.now() + DAY_MS, maxBytes: 1 });
  expect(plan.sessions).not.toContain('running');
  expect(plan.sessions).not.toContain('ended');
  await retain(dir, { maxBytes: 1 }, { open: now });
  expect(sessionsOf(dir)).toEqual(expect.arrayContaining(['running', 'ended']));
  await now.close();
  expect(verifyLog(dir)).toMatchObject({ ok: true });
  expect(planRetention(dir, { maxBytes: 1 }).sessions).toContain('running');
});

it('a policy without an age or a size is refused', async () => {
  const { dir, log } = await days(1);
  await log.close();
  expect(() => planRetention(dir, {})).toThrow(expect.objectContaining({ code: 'bad-argument' }));
  expect(() => planRetention(join(dir, 'none'), { maxBytes: 1 })).toThrow(
    expect.objectContaining({ code: 'not-found' }),
  );
});
