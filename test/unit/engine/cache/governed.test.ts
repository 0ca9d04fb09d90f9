// A governed cache under the smallest budget that is accepted: writing token by token over many page boundaries must
// stay within it, never run out of legal moves, and keep trials and plans spread. The reference model with its real
// cache; the log is read back from memory.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Session } from '../../../../engine/session/session.ts';
import { Runtime } from '../../../../engine/transformer/runtime/runtime.ts';
import { KvError, PAGE_TOKENS } from '../../../../native/index.ts';
import { defaultThresholds } from '../../../../policy/index.ts';
import type { DecisionBody, SituationBody, WitnessLog } from '../../../../witness/index.ts';

let runtime: Runtime;
beforeAll(async () => {
  runtime = await Runtime.open({ model: 'reference', threads: 1 });
});
afterAll(() => runtime.close());

const TOKENS = 1100;
const ids = Array.from({ length: TOKENS }, (_, i) => 300 + ((i * 7919) % 3000));

interface Kept {
  readonly kind: string;
  readonly body: SituationBody | DecisionBody;
}

function memoryLog(kept: Kept[]): WitnessLog {
  return {
    id: 'memory',
    dir: 'memory',
    append: (_session: string, kind: string, body: unknown) => kept.push({ kind, body: body as SituationBody }) - 1,
    acknowledgedSeq: -1,
    droppedCount: 0,
    missingOf: () => 0,
    leftOutOf: () => 0,
    bytes: 0,
    flush: async () => -1,
    close: async () => {},
  } as unknown as WitnessLog;
}

/** Where pages stay in the window for a page, so that it is clear with which of them a boundary has to do. */
const WHOLE = { openFormat: 'f16', windowTokens: 128 } as const;

function open(kvBudget: number, kept: Kept[], window: Partial<typeof WHOLE> = {}): Session {
  return Session.open(runtime, {
    ...window,
    kvBudget,
    tokensExpected: TOKENS,
    log: memoryLog(kept),
    thresholds: defaultThresholds(runtime.shape.layers),
  });
}

/** What the refusal of a hopeless budget says would be enough. */
function leastBudget(window: Partial<typeof WHOLE> = {}): number {
  try {
    open(100_000, [], window).close();
  } catch (error) {
    if (error instanceof KvError && error.code === 'budget-too-small') return Number(error.values['neededBytes']);
    throw error;
  }
  throw new Error('a budget of 100,000 bytes was accepted');
}

describe('a session behind a prompt that ends on a page boundary', () => {
  // Reads the same prompt twice, once with the promise that more follows: only then is the seal of its last page paid
  // with the prompt.
  it('pays for its last page with the prompt when tokens follow, and not before they are certain', async () => {
    const budget = Math.round(leastBudget(WHOLE) * 1.2);
    const read = async (tokensFollow: boolean): Promise<{ session: Session; kept: Kept[]; entries: number }> => {
      const kept: Kept[] = [];
      const session = open(budget, kept, WHOLE);
      await session.read(ids.slice(0, 5 * PAGE_TOKENS), { tokensFollow });
      return { session, kept, entries: kept.length };
    };
    const later = await read(false);
    const now = await read(true);
    const room = ({ session }: typeof now): number => budget - session.pool.usedBytes;
    expect(room(now)).toBeGreaterThanOrEqual(now.session.cache.sealBytes * runtime.shape.layers);
    expect(room(later)).toBeLessThan(later.session.cache.sealBytes * runtime.shape.layers);
    await now.session.read([5]);
    await later.session.read([5]);
    expect(now.kept.length).toBe(now.entries);
    expect(later.kept.length).toBeGreaterThan(later.entries);
    // Both have made the same moves by now, in one plan or in two.
    const moves = (kept: readonly Kept[]): string[] =>
      kept
        .filter(({ kind }) => kind === 'decision')
        .map(({ body }) => (body as DecisionBody).decision)
        .map(({ layer, page, side, to }) => `${layer}/${page}/${side} ${to}`)
        .sort();
    expect(moves(now.kept)).toEqual(moves(later.kept));
    now.session.close();
    later.session.close();
  });

  it('does so in generate(), and not when the answer is empty', async () => {
    const run = async (stop: boolean): Promise<number> => {
      const kept: Kept[] = [];
      const session = open(Math.round(leastBudget() * 1.2), kept);
      // An end right behind the prompt, whatever the model would say.
      const { config } = runtime.model;
      if (stop) for (let id = 0; id < config.vocabSize; id++) (config.eosIds as number[]).push(id);
      const from = config.eosIds.length;
      try {
        const stream = session.generate(ids.slice(0, 5 * PAGE_TOKENS), { maxTokens: 1 });
        for (let next = await stream.next(); next.done !== true; next = await stream.next());
      } finally {
        if (stop) (config.eosIds as number[]).splice(from - config.vocabSize);
      }
      const last = kept.filter(({ kind }) => kind === 'situation').at(-1)!.body as SituationBody;
      session.close();
      return last.situation.sealBytes;
    };
    expect(await run(false)).toBeGreaterThan(0);
    expect(await run(true)).toBe(0);
  });
});

describe('a session while writing', () => {
  it('tells the policy how long steps took, and the budget for them', async () => {
    const kept: Kept[] = [];
    const session = Session.open(runtime, {
      kvBudget: Math.round(leastBudget() * 1.25),
      tokensExpected: TOKENS,
      stepLatencyBudgetMs: 1e-3,
      log: memoryLog(kept),
      thresholds: defaultThresholds(runtime.shape.layers),
    });
    await session.read(ids.slice(0, 700));
    for (const id of ids.slice(700, 800)) await session.read([id]);
    const seen = kept.flatMap(({ kind, body }) => (kind === 'situation' ? [(body as SituationBody).situation] : []));
    expect(seen[0]).toMatchObject({ stepLatencyMsP95: 0, stepLatencyBudgetMs: 1e-3 });
    expect(seen.at(-1)!.stepLatencyMsP95).toBeGreaterThan(1e-3);
    // No step is that short, so every layer holds back what need not be.
    expect(session.report().summary.layerStates.every((state) => state.endsWith('/tight'))).toBe(true);
    session.close();
    expect(() =>
      Session.open(runtime, {
        stepLatencyBudgetMs: Number.NaN,
        log: null,
        thresholds: defaultThresholds(runtime.shape.layers),
      }),
    ).toThrowError(expect.objectContaining({ code: 'bad-argument' }));
  });

  it('keeps the smallest accepted budget over every page boundary', async () => {
    const kept: Kept[] = [];
    const budget = leastBudget();
    const session = open(budget, kept);
    await session.read(ids.slice(0, 200));
    for (const id of ids.slice(200)) await session.read([id]);
    expect(session.length).toBe(TOKENS);
    expect(session.pool.peakBytes).toBeLessThanOrEqual(budget);
    expect(session.pool.auditBytes()).toBe(session.pool.usedBytes);
    session.close();
  });

  it('tries pages before they leave the window, and plans few moves between boundaries', async () => {
    const kept: Kept[] = [];
    const session = open(Math.round(leastBudget(WHOLE) * 1.25), kept, WHOLE);
    await session.read(ids.slice(0, 640));
    const from = kept.length;
    for (const id of ids.slice(640)) await session.read([id]);
    session.close();
    let trials = 0;
    for (const { kind, body } of kept.slice(from)) {
      if (kind !== 'situation') continue;
      const { situation } = body as SituationBody;
      trials += situation.trials.length;
      // Reports arrive when their page leaves the window, all at once: they were measured on the way there.
      if (situation.trials.length > 0) expect(situation.tokens % PAGE_TOKENS).toBe(0);
      // At a boundary the page that leaves has two steps for its moves: half of its sides each.
      const atBoundary = situation.tokens % PAGE_TOKENS === 0;
      expect(situation.movesMax).toBeLessThanOrEqual(atBoundary ? Math.max(16, runtime.shape.layers) : 16);
    }
    // Pages 4, 5 and 6 left the window after token 640: both sides of each layer.
    expect(trials).toBe(3 * 2 * runtime.shape.layers);
  });
});

describe('a governed cache', () => {
  it('notices when what it is told of its tokens is not so', async () => {
    const session = Session.open(runtime, { log: null, thresholds: defaultThresholds(runtime.shape.layers) });
    const { governed } = session;
    expect(() => governed.filled(1)).toThrow('hold 0 to 0 tokens, and 1 are counted');
    await session.read(ids.slice(0, 5));
    expect(() => governed.advanced(1)).toThrow('hold 5 to 5 tokens, and 6 are counted');
    expect(() => governed.filled(5)).toThrow('a cache of 5 tokens was filled with 5');
    expect(() => governed.cameBack()).toThrow('was not parked');
    expect(governed.length).toBe(5);
    session.close();
  });

  it('tells the next situation all that was heard, the newest of each kind, and the one after nothing', () => {
    const session = Session.open(runtime, { log: null, thresholds: defaultThresholds(runtime.shape.layers) });
    const { governed } = session;
    const now = {
      ...{ bytes: 0, sealBytes: 0, movesMax: 0, urgent: false, stepLatencyMsP95: 0 },
      ...{ trials: [], outcomes: [], changes: [], again: [], masses: [] },
    };
    const text = (value: number) => ({ value, sd: 0.5, samples: 1 });
    const probe = { tokens: 512, rows: 16, meanKld: 0.1, standardError: 0.01, epsilon2: { k: [], v: [] } };
    governed.heard({ text: text(1) });
    governed.heard({ probe });
    governed.heard({ text: text(2) });
    governed.memoryIsLow(true);
    expect(governed.situate(now)).toMatchObject({ index: 0, probe, text: text(2), lowMemory: true });
    governed.memoryIsLow(false);
    const after = governed.situate(now);
    expect(after).toMatchObject({ index: 1, lowMemory: false });
    expect(Object.keys(after)).not.toContain('probe');
    expect(Object.keys(after)).not.toContain('text');
    session.close();
  });
});
