// A session that is told what its cache is to hold keeps what it begins with and reads the rest: it then holds the same
// tokens and writes the same as one that has read them from the start, whether what it gives up is in the open page or
// sealed, shared with forks, moved under a budget, or all of it.
import { describe, expect, it } from 'vitest';
import type { SessionOptions } from '../../../../engine/options/types.ts';
import { openWitnessLog, readLog, replaySession } from '../../../../witness/index.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { codeOf, ids } from '../on-reference.ts';
import { onRuntime, write } from '../on-runtime.ts';

const folder = scratchFolders();
const { open } = onRuntime();

/** So many tokens of one text, and then others. */
const branch = (alike: number, tokens: number, seed: number): number[] => [
  ...ids(700).slice(0, alike),
  ...ids(tokens, seed).map((id) => (id === 10 ? 11 : id)),
];

describe('a session that follows', () => {
  const sessions: [string, SessionOptions][] = [
    ['8-bit', {}],
    ['exact', { exact: true }],
    ['under a budget that does not bind', { kvBudget: '16MiB', tokensExpected: 2000 }],
  ];
  const cases = sessions.flatMap(([name, options]) =>
    [
      [700, 0, 700],
      [700, 40, 700],
      [690, 30, 690],
      [640, 30, 640],
      [639, 30, 512],
      [300, 500, 256],
      [256, 3, 256],
      [100, 3, 0],
      [0, 200, 0],
    ].map((numbers) => [name, ...(numbers as [number, number, number]), options] as const),
  );
  it.each(cases)('(%s) %d tokens alike and %d others keeps %d', async (_name, alike, others, kept, options) => {
    const [session, other] = [open({ ...options, compareTokens: 64 }), open({ ...options, compareTokens: 64 })];
    await session.read(ids(700));
    const target = branch(alike, others, 5);
    expect(session.keeps(target)).toBe(kept);
    expect(await session.follow(target)).toBe(kept);
    await other.read(target);
    expect(session.tokens).toEqual(target);
    expect(session.pool.auditBytes()).toBe(session.pool.usedBytes);
    expect(await write(session)).toBe(await write(other));
    expect(session.hiddenRows().length).toBeLessThanOrEqual(other.hiddenRows().length);
    session.close();
    other.close();
  });

  it('reads one token again where the cache holds more, or no longer knows what came last', async () => {
    const session = open({});
    await session.read(ids(300));
    expect(await session.follow(ids(300))).toBe(300);
    expect(await session.follow(ids(290))).toBe(289);
    session.rewind(280);
    expect(await session.follow(ids(280))).toBe(279);
    session.close();
  });

  it('leaves a fork what it shares, and follows beside it', async () => {
    const [session, other] = [open({}), open({})];
    for (const one of [session, other]) await one.read(ids(700));
    const fork = session.fork();
    const target = branch(200, 300, 6);
    expect(await session.follow(target)).toBe(128);
    expect(await write(fork)).toBe(await write(other));
    await other.follow(target);
    expect(await write(session)).toBe(await write(other));
    expect(await fork.follow(target)).toBe(128);
    expect(session.pool.auditBytes()).toBe(session.pool.usedBytes);
    for (const one of [session, fork, other]) one.close();
  });

  it('under a budget that binds keeps it, and leaves a log that replays', async () => {
    const dir = folder();
    const log = await openWitnessLog({ dir });
    const session = open({ kvBudget: '25%', tokensExpected: 1500 }, log);
    await session.read(ids(1400));
    const fork = session.fork();
    for (const [alike, tokens, seed] of [
      [1200, 200, 2],
      [500, 900, 3],
      [0, 1300, 4],
    ] as const) {
      const target = [...session.tokens.slice(0, alike), ...ids(tokens, seed)];
      await session.follow(target);
      expect(session.tokens).toEqual(target);
      expect(session.pool.auditBytes()).toBe(session.pool.usedBytes);
      await write(session);
      if (seed === 2) fork.close();
    }
    const { decisions, kvBytes, budgetBytes } = session.report();
    expect(kvBytes).toBeLessThanOrEqual(budgetBytes!);
    expect(decisions).toBeGreaterThan(0);
    await log.flush();
    expect(replaySession([...readLog(dir, { session: session.id })])).toMatchObject({
      equal: true,
      complete: true,
      decisions,
    });
    session.close();
    await log.close();
  });

  it('with latents, which know only the newest inputs, reads all of it where a sealed page goes', async () => {
    const session = open({ latents: { format: 'xq8', keep: 'always' } });
    await session.read(ids(700));
    expect(await session.follow(branch(690, 10, 5))).toBe(690);
    expect(await session.follow(branch(300, 500, 5))).toBe(0);
    expect(session.restore(0, 1)).not.toBeNaN();
    session.close();
  });

  it('that is aborted holds what it kept, and goes on from there', async () => {
    const [session, other] = [open({}), open({})];
    await session.read(ids(700));
    const target = branch(300, 600, 7);
    const abort = new AbortController();
    const onProgress = ({ tokens }: { tokens: number }): void => void (tokens >= 256 && abort.abort());
    expect(await codeOf(session.follow(target, { signal: abort.signal, onProgress }))).toBe('aborted');
    expect(session.tokens).toEqual(target.slice(0, 256));
    expect(await session.follow(target)).toBe(256);
    await other.read(target);
    expect(session.tokens).toEqual(other.tokens);
    await write(session);
    session.close();
    other.close();
  });

  it('is refused before anything is taken back', async () => {
    const session = open({});
    await session.read(ids(300));
    for (const [target, reserve, code] of [
      [[], 0, 'bad-argument'],
      [[1, -1], 0, 'bad-value'],
      [ids(4000, 2), 97, 'context-too-long'],
    ] as const) {
      expect(await codeOf(session.follow(target, { reserve }))).toBe(code);
      expect(session.tokens).toEqual(ids(300));
    }
    session.close();
  });

  it('is as it was where it cannot go back: within a page that has gone to lower formats', async () => {
    const session = open({ cacheTypes: 'rot3:rot2', compareTokens: 640 });
    await session.read(ids(700));
    const rows = session.hiddenRows();
    expect(() => session.rewind(100)).toThrow(expect.objectContaining({ code: 'unsupported' }));
    expect(session.hiddenRows()).toEqual(rows);
    expect(session.length).toBe(700);
    session.close();
  });
});
