// The way back to where a session was before a prompt: after an abort or an error in the middle of it, at page
// boundaries and between them, with and without older pages, forks and a budget, the session holds the same tokens and
// bytes and writes on as one that never saw the prompt.
import { describe, expect, it } from 'vitest';
import type { SessionOptions } from '../../../../engine/options/types.ts';
import type { Session } from '../../../../engine/session/session.ts';
import { KvError } from '../../../../native/index.ts';
import { openWitnessLog, readLog, replaySession } from '../../../../witness/index.ts';
import { isForHome } from '../../../tier.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { codeOf, ids } from '../on-reference.ts';
import { onRuntime, write } from '../on-runtime.ts';

const folder = scratchFolders();
const { runtime, open } = onRuntime();

/** Reads a prompt and aborts it once so many tokens were read. */
async function aborted(session: Session, prompt: readonly number[], after: number): Promise<void> {
  const abort = new AbortController();
  const onProgress = ({ tokens }: { tokens: number }): void => void (tokens >= after && abort.abort());
  expect(await codeOf(session.read(prompt, { signal: abort.signal, onProgress }))).toBe('aborted');
}

/** What must be as it was. */
const stateOf = (session: Session): unknown => ({
  tokens: [...session.tokens],
  bytes: session.governed.usedBytes - session.cache.memory().openBytes,
  lengths: Array.from({ length: runtime().shape.layers }, (_, layer) => session.cache.length(layer)),
  pages: Array.from({ length: runtime().shape.layers }, (_, layer) => {
    const { kFormat, vFormat } = session.cache.table(layer);
    return [...kFormat, ...vFormat];
  }),
});

describe('a session whose prompt was aborted', () => {
  const sessions: [string, SessionOptions][] = [
    ['8-bit', {}],
    ['exact', { exact: true }],
    ['under a budget that does not bind', { kvBudget: '16MiB', tokensExpected: 2000 }],
  ];
  const cases = sessions.flatMap(([name, options]) =>
    [0, 1, 128, 300, 384].map((tokens) => [name, tokens, options] as const),
  );
  it.each(cases.filter((_, place) => isForHome(place, 4)))(
    '(%s, behind %d tokens) holds and writes what one that never saw it does',
    async (_name, tokens, options) => {
      const [session, other] = [open({ ...options, compareTokens: 64 }), open({ ...options, compareTokens: 64 })];
      for (const one of [session, other]) if (tokens > 0) await one.read(ids(tokens));
      const before = stateOf(session);
      await aborted(session, ids(900, 2), 512);
      expect(stateOf(session)).toEqual(before);
      expect(session.pool.auditBytes()).toBe(session.pool.usedBytes);
      expect(session.report().kvBytes).toBeGreaterThan(session.governed.usedBytes);
      // What is said next is the answer to the prompt before, and then to another one.
      if (tokens > 0) expect(await write(session, null)).toBe(await write(other, null));
      expect(await write(session, ids(450, 3))).toBe(await write(other, ids(450, 3)));
      expect(session.tokens).toEqual(other.tokens);
      expect(session.hiddenRows()).toEqual(other.hiddenRows());
      expect(stateOf(session)).toEqual(stateOf(other));
      session.close();
      other.close();
    },
  );

  it('and that has forks goes back beside them, and shares their pages still', async () => {
    const [session, other] = [open({}), open({})];
    for (const one of [session, other]) await one.read(ids(300));
    const fork = session.fork();
    const before = stateOf(session);
    await aborted(session, ids(900, 2), 512);
    expect(stateOf(session)).toEqual(before);
    expect(session.pool.auditBytes()).toBe(session.pool.usedBytes);
    const answer = await write(other, null);
    for (const one of [session, fork]) expect(await write(one, null)).toBe(answer);
    session.close();
    expect(await write(fork, ids(200, 4))).toBe(await write(other, ids(200, 4)));
    fork.close();
    other.close();
  });

  it('and that has forks but no room for another goes on from where it was stopped', async () => {
    const session = open({});
    await session.read(ids(300));
    const fork = session.fork();
    session.cache.fork = () => {
      throw new KvError('budget-exceeded', 'injected');
    };
    await aborted(session, ids(900, 2), 512);
    expect(session.tokens).toEqual([...ids(300), ...ids(900, 2).slice(0, session.length - 300)]);
    expect(session.length).toBeGreaterThan(300 + 512);
    await session.read(ids(100, 3));
    fork.close();
    session.close();
  });

  it('under a budget that binds keeps its moves, its budget and a log that replays', async () => {
    const dir = folder();
    const log = await openWitnessLog({ dir });
    const session = open({ kvBudget: '25%', tokensExpected: 2400, openFormat: 'f16', windowTokens: 128 }, log);
    await session.read(ids(1300));
    for (const [seed, after] of [
      [2, 20],
      [3, 600],
      [4, 800],
    ] as const) {
      await aborted(session, ids(1000, seed), after);
      expect(session.length).toBe(1300);
      expect(session.cache.length(runtime().shape.layers - 1)).toBe(1300);
      expect(session.pool.auditBytes()).toBe(session.pool.usedBytes);
    }
    await session.read(ids(1000, 5));
    const { decisions, kvBytes, budgetBytes } = session.report();
    expect(kvBytes).toBeLessThanOrEqual(budgetBytes!);
    await log.flush();
    const entries = [...readLog(dir, { session: session.id })];
    expect(replaySession(entries)).toMatchObject({ equal: true, complete: true, decisions });
    const notes = entries
      .filter(({ kind, body }) => kind === 'note' && !('layerChanges' in body))
      .map(({ body }) => body);
    expect(notes).toEqual([108, 620, 876].map((takenBack) => ({ takenBack, tokens: 1300 })));
    session.close();
    await log.close();
  });
});

describe('a session whose prompt failed', () => {
  it('for want of bytes is where it was, and reads a shorter one', async () => {
    const session = open({ kvBudget: 1_000_000, openFormat: 'f16', windowTokens: 128 });
    await session.read(ids(200));
    for (let i = 0; i < 3; i++) {
      expect(await codeOf(session.read(ids(2000, 2)))).toBe('budget-too-small');
      expect(session.length).toBe(200);
      expect(session.pool.auditBytes()).toBe(session.pool.usedBytes);
    }
    await session.read(ids(100, 3));
    expect(session.report()).toMatchObject({ tokens: 300, budgetBytes: 1_000_000 });
    session.close();
  });

  it('between two layers goes on as if it had not been', async () => {
    const [session, other] = [open({}), open({})];
    for (const one of [session, other]) await one.read(ids(200));
    const { next } = runtime().dense;
    let calls = 0;
    runtime().dense.next = (layer, ...rest) =>
      layer === 2 && ++calls > 2
        ? Promise.reject(new KvError('io', 'injected'))
        : next.call(runtime().dense, layer, ...rest);
    try {
      expect(await codeOf(session.read(ids(500, 2)))).toBe('io');
    } finally {
      runtime().dense.next = next;
    }
    expect(await write(session, ids(300, 3))).toBe(await write(other, ids(300, 3)));
    session.close();
    other.close();
  });
});
