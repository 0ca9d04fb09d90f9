/**
 * Sides of pages in real caches go only where the machine of forms has an arrow: what a policy of one's own plans
 * otherwise is refused with its reason, what the engine does by itself is counted, and a move that nobody asked for is
 * a fault that leaves the page as it is.
 */
import { describe, expect, it } from 'vitest';
import { openCache } from '../../../../engine/index.ts';
import { Session } from '../../../../engine/session/session.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { PAGE_TOKENS, SIDES } from '../../../../native/index.ts';
import { type Decision, type FormKind, kindOf, type Policy } from '../../../../policy/index.ts';
import { type Entry, explain, openWitnessLog, readLog, replaySession, timeline } from '../../../../witness/index.ts';
import { normals, uniform } from '../../../native/dense.ts';
import { inputs, model, QUERY, SHAPE } from '../../../native/latent-model.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { ids } from '../on-reference.ts';
import { onRuntime } from '../on-runtime.ts';

const folder = scratchFolders();
const because = { threshold: 'mine', measured: 0, bound: 1, unit: '1', origin: 'option', rule: 'mine' } as const;
const unknown = { epsilonFrom: null, epsilonTo: null, price: null, bytesFreed: 0, retry: false, because } as const;

/** Makes a latent of every page that has left the window, and wants to code the keys of the same page at once. */
const greedy: Policy = {
  id: 'greedy',
  version: 1,
  needsTrials: true,
  holdsLatents: true,
  open: () => ({
    decide: ({ trials }) =>
      trials.flatMap(({ layer, page, side }): Decision[] => {
        if (side !== 'kv') return [];
        const move = { layer, page, from: 'q8', ...unknown } as const;
        return [
          { ...move, side: 'kv', to: 'xq4' },
          { ...move, side: 'k', to: 'rot4' },
        ];
      }),
    judge: () => ({ accepted: true, because }),
    summary: () => ({ priceThreshold: 0, predictedKld: 0, layerStates: [], layerEpsilonMax: [], layerKld: [] }),
  }),
};

it('keys of a page that is held as a latent do not move, explain says why, and the session goes on', async () => {
  const of = model('xq4', 21, 'move');
  const random = uniform(22);
  const dir = folder();
  const cache = await openCache({ ...SHAPE, policy: greedy, stateDir: dir, latents: of.latents });
  for (let tokens = 0; tokens < 640; tokens += 128) {
    for (let layer = 0; layer < SHAPE.layers; layer++) {
      const x = inputs(random, 128);
      const { k, v } = of.project(layer, x, tokens);
      cache.append(layer, k, v, x);
      cache.attention(layer, normals(random, 128 * QUERY));
    }
  }
  for (const { kPages } of cache.report().layers) expect(kPages.xq4).toBeGreaterThan(2);
  await cache.close();
  const entries = [...readLog(logDir(dir), { session: cache.session })];
  const refused = entries.filter(
    (entry): entry is Entry<'decision'> =>
      entry.kind === 'decision' && !(entry as Entry<'decision'>).body.verdict.accepted,
  );
  expect(new Set(refused.map(({ body }) => body.verdict.because.rule))).toEqual(new Set(['unsafe-held']));
  const { sentences } = explain(logDir(dir), refused[0]!.seq);
  expect(sentences.find(({ title }) => title === 'verdict')!.text).toMatch(
    /^Refused under rule 'unsafe-held' \(the page is held as the inputs of its layer/,
  );
  expect(replaySession(entries, () => greedy)).toMatchObject({ equal: true, complete: true });
});

describe('a session', () => {
  const { open } = onRuntime();
  const taken = (session: ReturnType<typeof open>): Record<string, number> =>
    Object.fromEntries([...session.governed.arrows.counts].filter(([, count]) => count > 0));

  it('counts what its sides did, those that were taken back and that came back for an answer among them', async () => {
    const session = open({ kvBudget: '27%', tokensExpected: 1400, originals: 'memory', promote: 2 });
    await session.read(ids(900));
    const read = taken(session);
    const { layers } = session.runtime.shape;
    const { length } = session.governed;
    // A page is in the window until 64 newer tokens follow it.
    const left = 2 * layers * Math.floor((length - 64) / 128);
    expect(read['form: window → tried (leave)']).toBe(left);
    const moved = Object.entries(read).filter(([name]) => name.endsWith('(demote)'));
    expect(moved.reduce((sum, [, count]) => sum + count, 0)).toBe(
      session.report().layers.reduce((sum, { movesAccepted }) => sum + movesAccepted, 0),
    );
    for await (const _ of session.generate(ids(20, 9), { maxTokens: 4, temperature: 1, seed: 3 }));
    const answered = taken(session);
    const sum = (all: Record<string, number>, name: RegExp): number =>
      Object.entries(all).reduce((total, [key, count]) => total + (name.test(key) ? count : 0), 0);
    expect(sum(answered, /\(promote\)/)).toBe(session.governed.promoted!.everRaised);
    expect(sum(answered, /\(promote\)/)).toBeGreaterThan(0);
    expect(sum(answered, /\(return\)/)).toBe(sum(answered, /\(promote\)/));
    session.rewind(0);
    expect(sum(taken(session), /→ window \(takeBack\)/)).toBe(left);
    session.close();
  });

  it('tells in its timeline where its sides are, how they came there, and which layers it trusts', async () => {
    const dir = folder();
    const first = open({ kvBudget: '25%', tokensExpected: 1500 });
    await first.read(ids(1400));
    const course = first.governed.policy.course!()!;
    first.close();
    const log = await openWitnessLog({ dir });
    const { runtime, setup } = first;
    const told = { ...setup.thresholds, course };
    const session = Session.open(runtime, { kvBudget: '25%', tokensExpected: 2600, thresholds: told, log });
    // A layer is trusted after some ten pages.
    await session.read(ids(2300, 5));
    session.rewind(8 * PAGE_TOKENS);
    await session.read(ids(300, 7));
    const trusted = session.governed.summary.layerStates.map((state) => state.split('/')[4]);
    const last = (): string => timeline(dir, session.id).find(({ kind }) => kind === 'states')!.text;
    const kinds = Array.from({ length: runtime.shape.layers }, (_, layer) => {
      const { pages } = session.cache.table(layer);
      const left = Array.from({ length: pages - 1 }, (_page, page) => page);
      return left.flatMap((page) => SIDES.map((side) => kindOf(session.cache.format(layer, page, side))));
    });
    await log.flush();
    const text = last();
    const counted = (kind: FormKind): number =>
      [
        ...text.split('. They went ')[0]!.matchAll(/(?<states>[^;:]*) in (?<each>each of )?layers? (?<layers>[^;]*)/g),
      ].reduce((sum, { groups }) => {
        const times = groups!['layers']!.split(', ').reduce((total, run) => {
          const [from, to = from] = run.split(' to ').map(Number);
          return total + to! - from! + 1;
        }, 0);
        return sum + times * Number(new RegExp(`(\\d+) ${kind}`).exec(groups!['states']!)?.[1] ?? 0);
      }, 0);
    for (const kind of ['tried', 'coded', 'archived'] as const)
      expect(counted(kind), `${kind}: ${text}`).toBe(kinds.flat().filter((one) => one === kind).length);
    for (const arrow of ['window→tried', 'tried→coded', 'coded→archived', '→window']) expect(text).toContain(arrow);
    session.close();
    await log.close();
    const lines = timeline(dir, session.id).map((event) => event.text);
    const trust = lines.filter((line) => / is trusted: its trials agree by /.test(line));
    expect(trust.length).toBeGreaterThan(0);
    for (const [layer, state] of trusted.entries())
      if (state === 'trusted')
        expect(
          trust.some((line) => line.includes(`Layer ${layer} is trusted`)),
          `${layer}`,
        ).toBe(true);
    expect(replaySession([...readLog(dir, { session: session.id })])).toMatchObject({ equal: true, complete: true });
  });

  it('does not make a move that is no arrow, whoever accepted it', async () => {
    const session = open({ kvBudget: '80%', tokensExpected: 1400 });
    await session.read(ids(300));
    const { governed } = session;
    const decision: Decision = { layer: 0, page: 1, side: 'k', from: 'q8', to: 'rot4', ...unknown };
    const situation = governed.situate({
      ...{ bytes: 0, sealBytes: 0, movesMax: 0, urgent: false, stepLatencyMsP95: 0 },
      ...{ trials: [], outcomes: [], changes: [], again: [], masses: [] },
    });
    const judged = { situation, order: 0, epsilonNow: null, verdict: { accepted: true, because } };
    const move = { ...judged, usedBytes: governed.usedBytes, canaryBytesMax: 0 };
    expect(() => governed.mover.carryOut({ ...move, decision })).toThrow(/no arrow leads .* from 'window' by 'demote'/);
    expect(session.cache.format(0, 1, 'k')).toBe('q8');
    expect(governed.mover.carryOut({ ...move, decision: { ...decision, page: 0 } })).toBeGreaterThan(0);
    session.close();
  });
});
