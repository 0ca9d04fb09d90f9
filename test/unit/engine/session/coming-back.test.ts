// Where it is asked for, sides of a degraded layer come back from originals within the budget: those that cost more
// than their bytes do elsewhere. The log tells it, a replay finds that the policy wanted them, and none of it happens
// without being asked for, without originals, or while a fork shares the pages.
import { describe, expect, it } from 'vitest';
import type { SessionOptions } from '../../../../engine/options/types.ts';
import type { Session } from '../../../../engine/session/session.ts';
import {
  type ChangeBody,
  type DecisionBody,
  explain,
  explanationText,
  replaySession,
  timeline,
} from '../../../../witness/index.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { ids } from '../on-reference.ts';
import { type Logged, logged, onRuntime } from '../on-runtime.ts';

const folder = scratchFolders();
/** So little more than was promised is too much that layers are degraded which are not. */
const STRICT = { 'quality.ratio': 0.45 };
const governed = { kvBudget: '35%', tokensExpected: 1700, originals: 'memory' } as const;

interface WithChanges extends Logged {
  readonly changes: readonly ChangeBody[];
}

describe('sides of a degraded layer', () => {
  const { open } = onRuntime();

  async function degraded(options: SessionOptions, work: (session: Session) => Promise<void>): Promise<WithChanges> {
    const run = await logged(folder(), (log) => open({ ...governed, ...options }, log), work);
    const { entries } = run;
    expect(replaySession(entries)).toMatchObject({ equal: true, firstDifference: null });
    const changes = entries.flatMap(({ kind, body }) => (kind === 'change' ? [body as ChangeBody] : []));
    return { ...run, changes: changes.filter(({ cause }) => cause === 'degraded') };
  }

  const reading = async (session: Session): Promise<void> => {
    for (let at = 0; at < 13; at++) {
      await session.read(ids(128, 3 + at));
      const { kvBytes, budgetBytes } = session.report();
      expect(kvBytes).toBeLessThanOrEqual(budgetBytes!);
      expect(session.cache.auditBytes()).toBe(session.cache.usedBytes);
    }
  };
  const worth = (value: number): SessionOptions => ({ thresholdValues: { ...STRICT, 'degraded.worth': value } });

  it('come back within the budget, and the log says which, when and why', async () => {
    const { dir, entries, changes } = await degraded(worth(1), reading);
    const sides = changes.flatMap((change) => change.changes);
    expect(sides.length).toBeGreaterThan(0);
    for (const { from, to } of sides) expect([to, from === 'q8']).toEqual(['trellis4', false]);
    for (const { bytesBefore, bytesAfter } of changes) expect(bytesAfter).toBeGreaterThan(bytesBefore);
    const { session } = entries[0]!;
    expect(timeline(dir, session).some(({ text }) => text.includes('brought back from originals'))).toBe(true);
    const { layer, page, side } = sides[0]!;
    const decided = entries.find(({ kind, body }) => {
      const { decision } = body as DecisionBody;
      return kind === 'decision' && decision.layer === layer && decision.page === page;
    })!;
    const told = explain(dir, decided.seq);
    expect(told.restored[0]).toMatchObject({ layer, page, side, to: 'trellis4' });
    expect(explanationText(told)).toContain('Its layer was degraded');
    // What the policy did not want is found by a replay.
    const wrong = entries.map((entry) => {
      const { cause, changes: all } = entry.body as ChangeBody;
      if (entry.kind !== 'change' || cause !== 'degraded') return entry;
      return { ...entry, body: { ...entry.body, changes: all.map((one) => ({ ...one, page: one.page + 1 })) } };
    });
    expect(replaySession(wrong)).toMatchObject({ equal: false, firstDifference: { what: 'entry' } });
  });

  it('come back less where their worth must be more', async () => {
    const count = async (value: number): Promise<number> =>
      (await degraded(worth(value), reading)).changes.flatMap(({ changes }) => changes).length;
    expect(await count(1e6)).toBeLessThan(await count(1));
  });

  it('stay where they are unless that is asked for, without originals, and while a fork shares them', async () => {
    expect((await degraded({ thresholdValues: STRICT }, reading)).changes).toEqual([]);
    expect((await degraded({ ...worth(1), originals: 'none' }, reading)).changes).toEqual([]);
    const shared = await degraded({ ...worth(1), kvBudget: '45%' }, async (session) => {
      await session.read(ids(128, 3));
      const fork = session.fork();
      for (let at = 1; at < 13; at++) await session.read(ids(128, 3 + at));
      fork.close();
    });
    expect(shared.changes).toEqual([]);
  });
});
