/**
 * What a session measures of its text while it reads a prompt is part of a step of that prompt: nobody else takes one
 * meanwhile, it waits for room as the others do, and takes a share of what is read.
 */
import { expect, it } from 'vitest';
import { Meter } from '../../../../engine/metrics/meter.ts';
import type { Job, Solo } from '../../../../engine/scheduler/scheduler.ts';
import { Session } from '../../../../engine/session/session.ts';
import { SharedMemory } from '../../../../engine/session/shared-memory.ts';
import type { Turn } from '../../../../engine/session/sharing.ts';
import { openPool } from '../../../../native/index.ts';
import { defaultThresholds } from '../../../../policy/index.ts';
import { refused } from '../../../refusal.ts';
import { ids } from '../on-reference.ts';
import { onRuntime } from '../on-runtime.ts';

const { runtime, open } = onRuntime();

/** Knows whose steps it lets go on, and whether one is under way. */
class Watched extends SharedMemory {
  readonly reads: boolean[] = [];
  isStepping = false;

  override step(session: Session, turn: Turn, job: Job): Promise<void> {
    this.reads.push(turn.reads);
    return super.step(session, turn, job);
  }

  override stepAlone(session: Session, turn: Turn, { work, tokens }: Solo): Promise<void> {
    this.reads.push(turn.reads);
    const watched = async (): Promise<void> => {
      this.isStepping = true;
      await work();
      this.isStepping = false;
    };
    return super.stepAlone(session, turn, { work: watched, tokens });
  }
}

/** Tells of what a session measures of its text. */
function onProbe({ governed }: Session, tell: () => void): void {
  const heard = governed.heard.bind(governed);
  Object.assign(governed, {
    heard: (what: Parameters<typeof heard>[0]) => {
      if (what.probe !== undefined) tell();
      heard(what);
    },
  });
}

it('a probe of the text belongs to the step of its prompt', async () => {
  const pool = openPool(2 ** 26);
  const sessions: Session[] = [];
  const shared = new Watched({ pool, meter: new Meter(), form: null, sessions: () => sessions });
  const thresholds = defaultThresholds(runtime().shape.layers);
  const session = Session.open(runtime(), {
    kldBudget: 0.01,
    tokensExpected: 1200,
    pool,
    shared,
    thresholds,
    log: null,
  });
  sessions.push(session);
  const probes: boolean[] = [];
  onProbe(session, () => probes.push(shared.isStepping));
  await session.read(ids(1200));
  expect(probes.length).toBeGreaterThan(0);
  expect(probes.every((inTurn) => inTurn)).toBe(true);
  expect(shared.reads.every((reads) => reads)).toBe(true);
  session.close();
  pool.close();
});

/** Aborts as soon as a session holds so many tokens: what is under way then is no reading any more. */
function abortAt(session: Session, tokens: number): AbortSignal {
  const abort = new AbortController();
  const look = (): void => {
    if (session.tokens.length >= tokens) abort.abort();
    else setImmediate(look);
  };
  look();
  return abort.signal;
}

it.each([
  // The last tokens of each prompt are those that are measured: nobody reads on who would hear the signal.
  ['its text', { kldBudget: 0.01, tokensExpected: 4000, thresholdValues: { 'probe.share.kld': 0.0625 } }, 512, 32],
  ['its layers', { kvBudget: '95%', tokensExpected: 4000, thresholdValues: { 'probe.share': 0 } }, 1024, 8],
] as const)(
  'an abort is heard while a session measures %s: what was read is taken back, and measured again',
  async (what, options, from, rows) => {
    const session = open(options);
    let probes = 0;
    onProbe(session, () => probes++);
    const prompt = ids(from + rows);
    const error = await refused(session.read(prompt, { signal: abortAt(session, prompt.length) }));
    expect(error).toMatchObject({ code: 'aborted', message: expect.stringContaining('measured') });
    expect([session.length, probes, session.governed.costs]).toEqual([0, 0, []]);
    const other = open(options);
    for (const one of [session, other]) {
      await one.read(prompt);
      await one.read(ids(1, 7));
    }
    expect(session.hiddenRows()).toEqual(other.hiddenRows());
    expect(session.governed.costs).toEqual(other.governed.costs);
    expect(what === 'its text' ? probes : session.governed.costs.length).toBeGreaterThan(0);
    session.close();
    other.close();
  },
);

it('a fork measures nothing for tokens that it has not read itself', async () => {
  const session = open({ kvBudget: '25%', tokensExpected: 2000 });
  await session.read(ids(1800));
  expect(session.governed.costs.length).toBeGreaterThan(0);
  const fork = session.fork();
  await fork.read(ids(200, 2));
  expect(fork.governed.costs).toEqual([]);
  fork.close();
  session.close();
});
