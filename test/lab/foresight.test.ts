// Latents by foresight in real sessions: on the reference model, whose KV heads are shared, and on the same function
// with a KV head for each query head. What is decided stands in the log, is told and is decided again.
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { f16CacheBytes } from '../../engine/cache/budget.ts';
import type { SessionOptions } from '../../engine/options/types.ts';
import { leave, setupOf } from '../../engine/session/experience.ts';
import { parkedBytes } from '../../engine/session/park/park.ts';
import { Session } from '../../engine/session/session.ts';
import { logDir, openState, type State } from '../../engine/state/folder.ts';
import { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { widened } from '../../lab/evaluate/latents.ts';
import { given } from '../../native/index.ts';
import { type Entry, explain, readLog, replaySession, timeline, timelineText } from '../../witness/index.ts';
import { ids, MODEL } from '../unit/engine/on-reference.ts';
import { scratchFolders } from '../unit/witness/folder.ts';

const TOKENS = 1100;
const folder = scratchFolders();
let narrow: Runtime;
let wide: Runtime;
let dir: string;
let state: State;
beforeAll(async () => {
  narrow = await Runtime.open({ model: MODEL, threads: 1 });
  wide = widened(narrow);
  dir = join(folder(), 'state');
  state = await openState(dir, { mode: 'halt' });
});
afterAll(async () => {
  await state.close();
  await narrow.close();
});

const open = async (runtime: Runtime, options: SessionOptions): Promise<Session> =>
  Session.open(
    runtime,
    await setupOf(runtime, { kvBudget: '22%', tokensExpected: TOKENS + 10, compareTokens: 64, ...options }, state),
  );

/** Reads the same text each time. → entries of its log, and the rows that it put out. */
async function read(runtime: Runtime, options: SessionOptions) {
  const session = await open(runtime, options);
  await session.read(ids(TOKENS, 5));
  const { id, foresight, latents } = session.governed;
  const rows = session.hiddenRows();
  const usage = session.governed.memoryUsage();
  session.close();
  await state.log!.flush();
  const entries = [...readLog(logDir(dir), { session: id })];
  return { id, foresight, latents, rows, usage, entries };
}

const decided = (entries: readonly Entry[]): unknown[] =>
  entries.filter(({ kind }) => kind === 'decision').map(({ body }) => body);
const heldIn = (entries: readonly Entry[]): number =>
  entries.filter(
    ({ kind, body }) => kind === 'decision' && (body as Entry<'decision'>['body']).decision.to.startsWith('xq'),
  ).length;

describe('where KV heads are shared', () => {
  it('keeps none, and does to the bit what a session without latents does, also with time', async () => {
    const [none, auto, given] = [
      await read(narrow, { latents: 'none' }),
      await read(narrow, {}),
      await read(narrow, { latents: 'auto' }),
    ];
    expect(none.foresight).toBeNull();
    expect(auto.foresight).toMatchObject({ kept: null, because: { rule: 'latent-shape' } });
    expect(auto.rows).toEqual(none.rows);
    expect(decided(auto.entries)).toEqual(decided(none.entries));
    expect(decided(given.entries)).toEqual(decided(none.entries));
    const slow = await read(narrow, { stepLatencyBudgetMs: 10_000 });
    expect(slow.foresight).toMatchObject({ kept: null, because: { rule: 'latent-shape' } });
  });
});

describe('where every query head has its own', () => {
  it('keeps none while nobody gives it time, to the bit as without', async () => {
    const [none, auto] = [await read(wide, { latents: 'none' }), await read(wide, {})];
    expect(auto.foresight).toMatchObject({
      kept: null,
      because: { rule: 'latent-time', threshold: 'latent.foreseen' },
    });
    expect(auto.latents).toBeNull();
    expect(auto.rows).toEqual(none.rows);
    expect(decided(auto.entries)).toEqual(decided(none.entries));
  });

  it('keeps them where a latency is stated that they fit into, and pages become them', async () => {
    const { foresight, entries, usage } = await read(wide, { stepLatencyBudgetMs: 10_000 });
    expect(foresight).toMatchObject({ kept: 'xq4', because: { rule: 'latent-pressure' } });
    expect(foresight!.seen.pageMs).toBeGreaterThan(0);
    expect(heldIn(entries)).toBeGreaterThan(10);
    expect(usage.latentBytes).toBeGreaterThan(0);
    const { context } = (entries[0] as Entry<'open'>).body;
    expect(context.latents).toMatchObject({ kept: 'xq4' });
    expect(context.thresholds.thresholds['latent.operations']).toMatchObject({
      value: foresight!.operations,
      origin: 'controller',
    });
  });

  it('then does what a session does that was asked for them', async () => {
    const auto = await read(wide, { stepLatencyBudgetMs: 10_000 });
    const asked = await read(wide, { stepLatencyBudgetMs: 10_000, latents: 'xq4' });
    expect(asked.foresight).toBeNull();
    expect(auto.rows).toEqual(asked.rows);
    expect(decided(auto.entries)).toEqual(decided(asked.entries));
  });

  it('lets no more pages become latents than the latency allows', async () => {
    const generous = await read(wide, { stepLatencyBudgetMs: 10_000 });
    const { seen, pages } = generous.foresight!;
    // Time for just so many pages as must be latents, with a little to spare for a clock that is not even.
    const thresholdValues = { 'latent.operations': (pages + 2) * seen.operations };
    const bound = await read(wide, { stepLatencyBudgetMs: 10_000, thresholdValues });
    expect(bound.foresight).toMatchObject({ kept: 'xq4', operations: thresholdValues['latent.operations'] });
    expect(heldIn(bound.entries)).toBeGreaterThan(0);
    expect(heldIn(bound.entries)).toBeLessThanOrEqual(pages + 2);
  });

  it('keeps keys and values of pages right behind the window where a bound says so, explained and decided again', async () => {
    const thresholdValues = { 'latent.materialized': 256 };
    const { entries } = await read(wide, { stepLatencyBudgetMs: 10_000, thresholdValues });
    expect(replaySession(entries)).toMatchObject({ equal: true });
    const told = entries.flatMap(({ kind, seq, body }) => {
      const { decision } = body as Entry<'decision'>['body'];
      const isOne = kind === 'decision' && decision.to.startsWith('xq') && !decision.from.startsWith('xq');
      return isOne ? [{ seq, decision }] : [];
    });
    expect(told.length).toBeGreaterThan(10);
    for (const { seq, decision } of told) {
      const { guard, sentences } = explain(logDir(dir), seq, { without: false });
      const [memory, materialized] = guard!.latent;
      expect(memory).toMatchObject({ threshold: 'latent.memory', bound: 0.9 });
      expect(materialized).toMatchObject({ threshold: 'latent.materialized', bound: 256 });
      const gaveWay = memory!.measured < 0.9 || materialized!.measured < 256;
      expect(decision.because.rule === 'latent-gives-way').toBe(gaveWay);
      const { text } = sentences.find(({ title }) => title === 'guard')!;
      expect(text).toContain('between it and the window, where');
      expect(text.includes('but nothing else kept the budget')).toBe(gaveWay);
    }
    const free = await read(wide, { stepLatencyBudgetMs: 10_000 });
    expect(decided(free.entries)).not.toEqual(decided(entries));
  });

  it('is told by the log, and decided again from it', async () => {
    const { id, entries, foresight } = await read(wide, { stepLatencyBudgetMs: 10_000 });
    expect((entries[0] as Entry<'open'>).body.foresight).toEqual(foresight);
    expect(replaySession(entries)).toMatchObject({ equal: true });
    const told = entries.find(({ kind }) => kind === 'decision')!;
    const explained = explain(logDir(dir), told.seq, { without: false });
    expect(explained.foresight).toEqual(foresight);
    const { text } = explained.sentences.find(({ title }) => title === 'latents')!;
    expect(text).toContain('It was decided to keep latents (xq4)');
    expect(text).toContain("'latent.pressure'");
    expect(timelineText(id, timeline(logDir(dir), id))).toContain('keep latents (xq4)');
    const [open, ...rest] = entries as [Entry<'open'>, ...Entry[]];
    const other = { ...open, body: { ...open.body, foresight: { ...foresight!, kept: null } } };
    const differs = replaySession([other, ...rest]);
    expect(differs).toMatchObject({ equal: false, firstDifference: { what: 'policy', seq: open.seq } });
  });

  it('knows from earlier sessions how long one gets, where nobody says', async () => {
    const dir = join(folder(), 'lengths');
    const own = await openState(dir, { mode: 'halt' });
    const kvBudget = Math.floor(0.22 * f16CacheBytes(wide.shape, TOKENS));
    const begin = async (tokensExpected?: number): Promise<Session> => {
      const options = { kvBudget, stepLatencyBudgetMs: 10_000, ...given({ tokensExpected }) };
      return Session.open(wide, await setupOf(wide, options, own));
    };
    const first = await begin();
    expect(first.governed.foresight).toMatchObject({
      seen: { tokens: null, sessions: 0 },
      because: { rule: 'latent-length' },
    });
    first.close();
    for (const tokens of [900, TOKENS, 1000]) {
      const session = await begin(tokens);
      await session.read(ids(tokens, 7));
      await leave(session.governed, own.book, 'done');
      session.close();
    }
    const known = await begin();
    expect(known.governed.foresight).toMatchObject({ kept: 'xq4', seen: { tokens: 1000, sessions: 3 } });
    expect(known.governed.terms.tokensExpected).toBeNull();
    await known.read(ids(TOKENS, 8));
    known.close();
    // Whoever says it is believed.
    const said = await begin(300);
    expect(said.governed.foresight).toMatchObject({ kept: null, seen: { tokens: 300, sessions: 0 } });
    said.close();
    await own.close();
  });

  it('does not ask where pages may come back, or a divergence is stated', async () => {
    for (const options of [
      { originals: 'memory' },
      { kldBudget: 0.01 },
      { exact: true, kvBudget: undefined },
    ] as const) {
      const session = await open(wide, { stepLatencyBudgetMs: 10_000, ...(options as SessionOptions) });
      expect(session.governed.foresight).toBeNull();
      expect(session.governed.latents).toBeNull();
      session.close();
    }
  });

  it('is not parked where it keeps them, nor is its fork; without, it is', async () => {
    const session = await open(wide, { stepLatencyBudgetMs: 10_000, tokensExpected: 4000 });
    await session.read(ids(300, 5));
    const fork = session.fork();
    expect(fork.governed.foresight).toBeNull();
    for (const one of [session, fork]) expect(() => parkedBytes(one)).toThrow(/latents/);
    const plain = await open(wide, { tokensExpected: 4000 });
    await plain.read(ids(300, 5));
    expect(parkedBytes(plain).length).toBeGreaterThan(0);
    for (const one of [fork, session, plain]) one.close();
  });
});
