// What a session would have decided, had it not been told what others knew: decided again from its log with that taken
// out. Where nothing is taken out every decision is the same, in sessions of every kind; where something is, the report
// and the explanation of a decision say how it differs, at which price, and whom the session had asked.
import { expect, it } from 'vitest';
import type { Engine } from '../../../../engine/index.ts';
import { setupOf } from '../../../../engine/session/experience.ts';
import { Session } from '../../../../engine/session/session.ts';
import { logDir, openState } from '../../../../engine/state/folder.ts';
import { Runtime } from '../../../../engine/transformer/runtime/runtime.ts';
import { defaultThresholds, type Policy } from '../../../../policy/index.ts';
import { decideWithout, explain, OTHERWISE, type WithoutReport, withoutText } from '../../../../witness/index.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { entriesOf, ids, withEngine } from '../on-reference.ts';

const TOKENS = 1400;
const folder = scratchFolders();
let engine: Engine;
let state: string;
withEngine(folder, (opened, dir) => {
  engine = opened;
  state = dir;
});

async function read(beginning: number, question: number, budget = '30%'): Promise<string> {
  const session = await engine.openSession({ kvBudget: budget, tokensExpected: TOKENS });
  const prompt = [...ids(1200, beginning), ...ids(150, 100 + question)];
  await session.generate(prompt, { maxTokens: 24, temperature: 0 }).result;
  await session.close();
  return session.id;
}

const expectSame = ({ decisions, counts, added, differing }: WithoutReport): void => {
  expect(decisions).toBeGreaterThan(0);
  expect(counts.same).toBe(decisions);
  expect({ added, differing }).toEqual({ added: 0, differing: [] });
};

it('says what course, beginning and law decided, and that nothing differs where nothing was known', async () => {
  const [first, second] = [await read(1, 1), await read(1, 2)];
  const dir = logDir(state);
  const [course, later] = decideWithout(dir, first, ['course', 'later']);
  for (const report of [course!, later!]) {
    expect(report.had).toBe(false);
    expectSame(report);
  }
  expect(withoutText(course!)).toContain('knew nothing of that');

  const reports = decideWithout(dir, second.slice(-8), ['course', 'later', 'learned', 'all']);
  for (const { session, had, decisions, counts, differing } of reports) {
    expect([session, had]).toEqual([second, true]);
    expect(OTHERWISE.reduce((sum, what) => sum + counts[what], 0)).toBe(decisions);
    expect(counts.same).toBeLessThan(decisions);
    expect(differing).toHaveLength(decisions - counts.same);
  }
  expect(withoutText(reports[3]!)).toContain(`of ${reports[3]!.decisions} decisions of session ${second}`);

  const decided = entriesOf(state, second, 'decision');
  const differing = new Map(reports[0]!.differing.map((one) => [one.seq, one]));
  for (const what of ['same', 'other-form', 'later'] as const) {
    const { seq } = decided.find((entry) => (differing.get(entry.seq)?.what ?? 'same') === what)!;
    const { knownBefore, without, withoutUnknown, decision, sentences } = explain(dir, seq);
    expect(withoutUnknown).toBe(null);
    expect(knownBefore.find((one) => one.what === 'course')).toMatchObject({
      samples: 1,
      // As it was asked before the session began, and not as it was asked again since.
      sessions: [
        {
          session: first,
          distance: entriesOf(state, second, 'evidence')[0]!.body.neighbours[0]!.distance,
          endMs: entriesOf(state, first, 'close')[0]!.timeMs,
        },
      ],
    });
    const told = without.find((one) => one.without === 'course')!;
    // One decision is looked at no further than it must be, and comes to what the whole session does.
    for (const one of without) {
      const whole = reports.find((report) => report.without === one.without)!.differing.find((it) => it.seq === seq);
      if (whole === undefined) expect(one.what).toBe('same');
      else expect(one).toEqual({ without: one.without, ...whole });
    }
    expect(told).toMatchObject({ what, price: decision.price });
    expect(told.move!.price).toBeGreaterThan(0);
    const text = Object.fromEntries(sentences.map((one) => [one.title, one.text]));
    expect(text['known']).toContain(`course of errors of 1 earlier session; asked were ${first}`);
    expect(text['without']).toContain('Without how errors went on in earlier sessions: ');
  }
  // Of the last one all that the session was told is known.
  const last = explain(dir, decided.at(-1)!.seq);
  expect(last.knownBefore.map(({ what }) => what)).toEqual(['course', 'later', 'learned']);
  expect(last.without.map(({ without }) => without)).toEqual(['course', 'later', 'learned', 'all']);
  expect(last.knownBefore[1]!.sessions).toMatchObject([{ session: first }]);
  expect(explain(dir, decided[0]!.seq, { without: false })).toMatchObject({
    without: [],
    withoutUnknown: 'nobody asked',
  });
});

it('decides sessions of every kind as they were where nothing is taken out', async () => {
  const runtime = await Runtime.open({ model: 'reference' });
  const dir = folder();
  const kept = await openState(dir, { mode: 'halt' });
  const thresholds = defaultThresholds(runtime.shape.layers);
  const run = async (options: object, act: (session: Session) => Promise<void>): Promise<void> => {
    const given = { tokensExpected: TOKENS, thresholds, ...options };
    const session = Session.open(runtime, await setupOf(runtime, given, kept));
    await act(session);
    const { id } = session.governed;
    session.close();
    await kept.log!.flush();
    for (const report of decideWithout(logDir(dir), id, ['all'])) {
      expect(report.had).toBe(false);
      expectSame(report);
    }
  };
  const whole = async (session: Session): Promise<void> => {
    await session.read(ids(TOKENS, 3));
  };
  await run({ kvBudget: '20%' }, whole);
  await run({ kldBudget: 0.01 }, whole);
  await run({ kvBudget: '25%', latents: 'xq4' }, whole);
  await run({ kvBudget: '25%', policy: 'tiers' }, whole);
  await run({ kvBudget: '25%' }, async (session) => {
    await session.read(ids(1300, 3));
    session.rewind(640);
    await session.read(ids(600, 4));
  });
  await kept.close();
  await runtime.close();
});

it('counts the bytes of a page that would not have been let go', async () => {
  const runtime = await Runtime.open({ model: 'reference' });
  const dir = folder();
  const kept = await openState(dir, { mode: 'halt' });
  const seen: number[] = [];
  const because = {
    threshold: 'one.page',
    measured: 1,
    bound: 0,
    unit: 'pages',
    origin: 'default',
    rule: 'one',
  } as const;
  /** Lets the first page that leaves the window go, unless its constant is that of sessions that know nothing. */
  const policy: Policy = {
    ...{ id: 'one', version: 1, needsTrials: false, evicts: true },
    open: ({ thresholds, pageBytes, windowFormat }) => {
      let isDone = thresholds.c === defaultThresholds(1).c;
      return {
        decide: ({ bytes, trials }) => {
          seen.push(bytes);
          const [first] = trials;
          if (isDone || first === undefined) return [];
          isDone = true;
          const move = { layer: first.layer, page: first.page, side: 'kv', from: windowFormat, to: 'freed' } as const;
          const none = { epsilonFrom: null, epsilonTo: null, price: null, retry: false };
          return [{ ...move, ...none, bytesFreed: 2 * pageBytes[windowFormat], because }];
        },
        judge: () => ({ accepted: true, because }),
        summary: () => ({ priceThreshold: 0, predictedKld: 0, layerStates: [], layerEpsilonMax: [], layerKld: [] }),
      };
    },
  };
  const thresholds = { ...defaultThresholds(runtime.shape.layers), c: 5 };
  const setup = await setupOf(runtime, { tokensExpected: TOKENS, kvBudget: '100%', thresholds }, kept);
  const session = Session.open(runtime, { ...setup, policy });
  await session.read(ids(TOKENS, 3));
  const { pageBytes, windowFormat } = session.governed.terms.context;
  session.close();
  await kept.log!.flush();
  const own = seen.splice(0);
  const [report] = decideWithout(logDir(dir), session.governed.id, ['learned'], () => policy);
  expect(report).toMatchObject({ had: true, decisions: 1, counts: { never: 1 } });
  // It is replayed once before it is decided otherwise.
  expect(seen.slice(0, own.length)).toEqual(own);
  expect(seen.at(-1)! - own.at(-1)!).toBe(2 * pageBytes[windowFormat]);
  await kept.close();
  await runtime.close();
});
