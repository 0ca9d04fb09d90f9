/**
 * Pages that come back for an answer: those that its question looks at, in four bits and within the budget; they go
 * back to the bit when the answer is written. The log tells it and replays as ever, and policies know nothing of it.
 */
import fs from 'node:fs';
import { describe, expect, it } from 'vitest';
import { Meter } from '../../../../engine/metrics/meter.ts';
import type { SessionOptions } from '../../../../engine/options/types.ts';
import { Session } from '../../../../engine/session/session.ts';
import { PAGE_TOKENS, SIDES } from '../../../../native/index.ts';
import { defaultThresholds } from '../../../../policy/index.ts';
import { type Entry, explain, explanationText, replaySession, timeline } from '../../../../witness/index.ts';
import { codeOf } from '../../../refusal.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { ids } from '../on-reference.ts';
import { logged, onRuntime } from '../on-runtime.ts';

const folder = scratchFolders();
const prompt = ids(900);
const question = ids(20, 9);

interface PromotedSide {
  readonly layer: number;
  readonly page: number;
  readonly side: 'k' | 'v';
  readonly from: string;
  readonly to: string;
  readonly share: number;
}

interface Note {
  readonly promoted?: readonly PromotedSide[];
  readonly returned?: readonly PromotedSide[];
  readonly bytesBefore: number;
  readonly bytesAfter: number;
  readonly question?: number;
}

const notesOf = (entries: readonly Entry[]): Note[] =>
  entries
    .filter(({ kind }) => kind === 'note')
    .map(({ body }) => body as unknown as Note)
    .filter(({ promoted, returned }) => promoted !== undefined || returned !== undefined);

/** Every side of every page, as bytes. */
const formsOf = (session: Session): string[] =>
  Array.from({ length: session.runtime.shape.layers }, (_, layer) =>
    Array.from({ length: session.cache.table(layer).pages }, (_page, page) =>
      SIDES.map((side) => {
        const { format, bytes } = session.cache.exportSide(layer, page, side);
        return `${layer} ${page} ${side} ${format} ${Buffer.from(bytes).toString('base64')}`;
      }),
    ),
  ).flat(2);

describe('pages that come back for an answer', () => {
  const { runtime, open } = onRuntime();
  const governed = { kvBudget: '27%', tokensExpected: 1400, originals: 'disk', originalsDir: folder() } as const;

  async function answer(
    session: Session,
    asked: readonly number[] | null,
    maxTokens: number,
    seen?: () => void,
  ): Promise<string> {
    let text = '';
    for await (const piece of session.generate(asked, { maxTokens, temperature: 1, seed: 3 })) {
      text += piece;
      seen?.();
    }
    return text;
  }

  const entriesOf = async (
    options: SessionOptions,
    work: (session: Session) => Promise<void>,
    dir = folder(),
  ): Promise<readonly Entry[]> => (await logged(dir, (log) => open({ ...governed, ...options }, log), work)).entries;

  it('are those that it looks at, are better while it is written, and go back to the bit', async () => {
    const dir = folder();
    const reading = async (session: Session): Promise<void> => {
      await session.read(prompt);
      let during: string[] = [];
      await answer(session, question, 6, () => {
        if (during.length === 0) during = formsOf(session);
      });
      const after = formsOf(session);
      const changed = during.filter((side) => !after.includes(side));
      expect(changed.length).toBeGreaterThan(0);
      expect(changed.every((side) => side.split(' ')[3] === 'trellis4')).toBe(true);
      const { originals, kvBytes, budgetBytes } = session.report();
      expect(originals!.sidesPromoted).toBe(changed.length);
      expect(kvBytes).toBeLessThanOrEqual(budgetBytes!);
      expect(session.cache.auditBytes()).toBe(session.cache.usedBytes);
      expect(session.governed.promoted).toMatchObject({ count: 0, bytes: 0 });
    };
    const entries = await entriesOf({ promote: 2 }, reading, dir);
    const [promoted, ...returned] = notesOf(entries);
    expect(promoted!.question).toBe(question.length);
    const byPage = new Map(promoted!.promoted!.map(({ layer, page, share }) => [`${layer} ${page}`, share]));
    for (let layer = 0; layer < runtime().shape.layers; layer++)
      expect([...byPage.keys()].filter((key) => key.startsWith(`${layer} `)).length).toBeLessThanOrEqual(2);
    for (const share of byPage.values()) expect(share > 0 && share < 1).toBe(true);
    expect(returned.flatMap(({ returned: sides }) => sides ?? []).length).toBe(promoted!.promoted!.length);
    for (const { bytesBefore, bytesAfter, promoted: up } of notesOf(entries))
      expect(Math.sign(bytesAfter - bytesBefore)).toBe(up === undefined ? -1 : 1);
    expect(replaySession(entries)).toMatchObject({ equal: true, complete: true });
    // The story of a page, and that of the session, tell of it.
    const { layer, page } = promoted!.promoted![0]!;
    const decided = entries.find(({ kind, body }) => {
      const { decision } = body as unknown as { decision?: { layer: number; page: number } };
      return kind === 'decision' && decision!.layer === layer && decision!.page === page;
    })!;
    const told = explain(dir, decided.seq);
    expect(told.promotions[0]).toMatchObject({ layer, page, to: 'trellis4', share: byPage.get(`${layer} ${page}`) });
    expect(told.promotions.length % 2).toBe(0);
    expect(explanationText(told)).toContain('came back from their originals');
    const lines = timeline(dir, decided.session).map(({ text }) => text);
    expect(lines.filter((line) => line.includes('came back from originals')).length).toBe(1);
    expect(lines.filter((line) => line.includes('went back to what they were')).length).toBe(returned.length);
  });

  it('keep the budget over long answers, chats and many questions, in sessions that replay', async () => {
    const entries = await entriesOf({ promote: 16, kvBudget: '25%' }, async (session) => {
      const within = (): void => {
        const { kvBytes, budgetBytes } = session.report();
        expect(kvBytes).toBeLessThanOrEqual(budgetBytes!);
        expect(session.cache.auditBytes()).toBe(session.cache.usedBytes);
      };
      await answer(session, prompt, 2 * PAGE_TOKENS + 20, within);
      // As a chat does: what is read and what is written are two calls.
      const next = [...session.tokens, ...question];
      await session.follow(next, { tokensFollow: true });
      expect(session.governed.promoted!.count).toBe(0);
      await answer(session, null, 8, within);
      expect(session.governed.promoted!.count).toBe(0);
      const drafting = session.generate(question, { maxTokens: 8, temperature: 1, seed: 3, promptLookupTokens: 4 });
      while ((await drafting.next()).done !== true) within();
      await answer(session, ids(40, 77), 8, within);
      session.rewind(512);
      await answer(session, question, 4, within);
    });
    expect(notesOf(entries).filter(({ promoted }) => promoted !== undefined).length).toBeGreaterThan(2);
    expect(replaySession(entries)).toMatchObject({ equal: true, complete: true });
  });

  it('are none where nothing moved, and where pages are shared with a fork', async () => {
    const loose = open({ promote: 4, originals: 'memory' });
    await loose.read(prompt);
    await answer(loose, question, 2);
    expect(loose.report().originals).toMatchObject({ sides: 0, sidesPromoted: 0 });
    loose.close();
    const session = open({ ...governed, kvBudget: '45%', promote: 4 });
    await session.read(prompt);
    const fork = session.fork();
    await answer(session, question, 2);
    await answer(fork, question, 2);
    expect(session.report().originals!.sidesPromoted).toBe(0);
    fork.close();
    session.close();
  });

  it('says how likely an answer is behind a question, with them and without', async () => {
    const nats: number[] = [];
    for (const promote of [0, 4]) {
      const session = open({ ...governed, promote });
      await session.read(prompt);
      nats.push(await session.likelihood(question, [50, 60]));
      expect(session.length).toBe(prompt.length + question.length + 2);
      expect(session.governed.promoted!.count).toBe(0);
      session.close();
    }
    expect(nats.every((one) => one < 0 && Number.isFinite(one))).toBe(true);
    expect(nats[0]).not.toBe(nats[1]);
  });

  it('go back all the same where the low forms are lost with all originals', async () => {
    let isFailing = false;
    const readSync = ((...given: unknown[]) => {
      if (isFailing) throw Object.assign(new Error('the disk failed'), { code: 'EIO' });
      return (fs.readSync as (...all: unknown[]) => number)(...given);
    }) as unknown as typeof fs.readSync;
    const session = Session.open(runtime(), {
      ...governed,
      promote: 2,
      originalFiles: { ...fs, readSync },
      meter: new Meter(),
      log: null,
      thresholds: defaultThresholds(runtime().shape.layers),
    });
    await session.read(prompt);
    let sides = 0;
    const waitAtFirst = session.generate(question, { maxTokens: 6, temperature: 1, seed: 3 });
    await waitAtFirst.next();
    sides = session.governed.promoted!.count;
    expect(sides).toBeGreaterThan(0);
    // What was kept lately may still wait to be written; it is by then.
    await new Promise((resolve) => setTimeout(resolve, 100));
    isFailing = true;
    await waitAtFirst.return(undefined as never);
    expect(session.governed.promoted).toMatchObject({ count: 0, bytes: 0 });
    expect(session.report().originals).toMatchObject({ place: 'none', lost: 'io' });
    expect(session.cache.auditBytes()).toBe(session.cache.usedBytes);
    // It goes on, and promotes nothing any more.
    await answer(session, ids(20, 5), 4);
    expect(session.report().originals!.sidesPromoted).toBe(sides);
    session.close();
  });

  it('are refused without originals', () => {
    expect(codeOf(() => open({ kvBudget: '27%', tokensExpected: 1400, promote: 2 }))).toBe('bad-argument');
    open({ kvBudget: '27%', tokensExpected: 1400, promote: 0 }).close();
  });
});
