/**
 * What a session measures of its text while it reads a prompt is part of a step of that prompt: nobody else takes one
 * meanwhile, it waits for room as the others do, and takes a share of what is read.
 */
import { expect, it } from 'vitest';
import { Meter } from '../../../../engine/metrics/meter.ts';
import type { Job } from '../../../../engine/scheduler/scheduler.ts';
import { Session } from '../../../../engine/session/session.ts';
import { SharedMemory } from '../../../../engine/session/shared-memory.ts';
import { openPool } from '../../../../native/index.ts';
import { defaultThresholds } from '../../../../policy/index.ts';
import { ids } from '../on-reference.ts';
import { onRuntime } from '../on-runtime.ts';

const { runtime, open } = onRuntime();

/** Knows whose steps it lets go on, and whether one is under way. */
class Watched extends SharedMemory {
  readonly reads: boolean[] = [];
  isStepping = false;

  override step(session: Session, reads: boolean, job: Job): Promise<void> {
    this.reads.push(reads);
    return super.step(session, reads, job);
  }

  override stepAlone(session: Session, reads: boolean, work: () => Promise<void>): Promise<void> {
    this.reads.push(reads);
    return super.stepAlone(session, reads, async () => {
      this.isStepping = true;
      await work();
      this.isStepping = false;
    });
  }
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
  const { governed } = session;
  const heard = governed.heard.bind(governed);
  Object.assign(governed, {
    heard: (what: Parameters<typeof heard>[0]) => {
      if (what.probe !== undefined) probes.push(shared.isStepping);
      heard(what);
    },
  });
  await session.read(ids(1200));
  expect(probes.length).toBeGreaterThan(0);
  expect(probes.every((inTurn) => inTurn)).toBe(true);
  expect(shared.reads.every((reads) => reads)).toBe(true);
  session.close();
  pool.close();
});

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
