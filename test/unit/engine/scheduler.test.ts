// The scheduler under the smallest budget that is accepted: writing token by token over many page boundaries must stay within it, never run
// out of legal moves, and keep trials and plans spread. The reference model with its real cache; the log is read back from memory.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Runtime } from '../../../engine/runtime.ts';
import { Session } from '../../../engine/session.ts';
import { KvError, PAGE_TOKENS } from '../../../native/index.ts';
import { defaultThresholds } from '../../../policy/index.ts';
import type { DecisionBody, SituationBody, WitnessLog } from '../../../witness/index.ts';

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
    bytes: 0,
    flush: async () => -1,
    close: async () => {},
  } as unknown as WitnessLog;
}

function open(kvBudget: number, kept: Kept[]): Session {
  return Session.open(runtime, {
    kvBudget,
    tokensExpected: TOKENS,
    log: memoryLog(kept),
    thresholds: defaultThresholds(runtime.shape.layers),
  });
}

/** What the refusal of a hopeless budget says would be enough. */
function leastBudget(): number {
  try {
    open(100_000, []).close();
  } catch (error) {
    if (error instanceof KvError && error.code === 'budget-too-small') return Number(error.values['neededBytes']);
    throw error;
  }
  throw new Error('a budget of 100,000 bytes was accepted');
}

describe('the scheduler while writing', () => {
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
    const session = open(Math.round(leastBudget() * 1.25), kept);
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
      if (situation.tokens % PAGE_TOKENS !== 0) expect(situation.movesMax).toBeLessThanOrEqual(8);
    }
    // Pages 4, 5 and 6 left the window after token 640: both sides of each layer.
    expect(trials).toBe(3 * 2 * runtime.shape.layers);
  });
});
