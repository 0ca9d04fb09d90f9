/** The steps of short sessions beside a long one: while it waits, while it reads, and while it writes. */
import { z } from 'zod';
import type { Engine, EngineSession } from '../../engine/index.ts';
import { endless, type Loading, open, place, placeOf, textsOf } from './crowd-engine.ts';
import { alternate, median, p95 } from './measure.ts';

export const hogRow = place
  .extend({
    part: z.literal('hog'),
    /** Short sessions that write. */
    sessions: z.int().positive(),
    hog: z.enum(['waits', 'reads', 'writes']),
    hogTokens: z.int().positive(),
    steps: z.int().positive(),
    p50StepMs: z.number().positive(),
    p95StepMs: z.number().positive(),
    /** The last against that beside a hog that waits. */
    ratio: z.number().positive(),
  })
  .readonly();
export type HogRow = z.infer<typeof hogRow>;

export interface HogPlan {
  readonly hogTokens: number;
  readonly sessions: number;
  readonly promptTokens: number;
  readonly answerTokens: number;
  readonly rounds: number;
}

/** Milliseconds between the texts of short sessions that write at once, as long as that counts. */
async function shortSteps(engine: Engine, plan: HogPlan, counts = (): boolean => true): Promise<number[]> {
  const sessions: EngineSession[] = [];
  for (const text of await textsOf(engine, plan.sessions, plan.promptTokens)) {
    const session = await engine.openSession();
    await session.read(text);
    sessions.push(session);
  }
  const gaps = sessions.map(async (session) => {
    const own: number[] = [];
    let last: number | null = null;
    for await (const _ of session.generate(null, endless(engine, plan.answerTokens))) {
      if (!counts()) break;
      const now = performance.now();
      if (last !== null) own.push(now - last);
      last = now;
    }
    return own;
  });
  const all = (await Promise.all(gaps)).flat();
  await Promise.all(sessions.map((session) => session.close()));
  return all;
}

/** More than a hog writes while short sessions read, in the smallest pieces, and write. */
const besideTokens = ({ sessions, promptTokens, answerTokens }: HogPlan): number =>
  sessions * Math.ceil(promptTokens / 16) + 2 * answerTokens;

/** The steps of short sessions while the hog writes. */
async function besideWriter(engine: Engine, hog: EngineSession, plan: HogPlan): Promise<number[]> {
  const leaving = new AbortController();
  const writing = hog.generate(null, { ...endless(engine, besideTokens(plan)), signal: leaving.signal });
  const steps = await shortSteps(engine, plan);
  leaving.abort();
  await writing.result;
  return steps;
}

/** Reads the text of the hog, and measures short sessions while the second half is read. */
async function besideReader(engine: Engine, hog: EngineSession, text: readonly number[], plan: HogPlan) {
  let isReading = true;
  let isHalf = (): void => {};
  const half = new Promise<void>((resolve) => {
    isHalf = resolve;
  });
  const reading = hog
    .read(text, { onProgress: ({ tokens }) => (tokens >= text.length / 2 ? isHalf() : undefined) })
    .finally(() => {
      isReading = false;
    });
  await Promise.race([half, reading]);
  const steps = await shortSteps(engine, plan, () => isReading);
  await reading;
  return steps;
}

/** A row beside a hog that waits, one beside a hog that reads, and one beside a hog that writes. */
export async function hogRows(loading: Loading, plan: HogPlan): Promise<HogRow[]> {
  const engine = await open(loading, {});
  const where = placeOf(engine);
  const left = engine.info.config.contextLength - (plan.rounds + 1) * besideTokens(plan);
  const hogTokens = Math.min(plan.hogTokens, left);
  const [text] = await textsOf(engine, 1, hogTokens);
  const hog = await engine.openSession();
  // Code is compiled before anything counts.
  await shortSteps(engine, plan);
  const reads = await besideReader(engine, hog, text!, plan);
  const subjects = [{ run: () => shortSteps(engine, plan) }, { run: () => besideWriter(engine, hog, plan) }];
  const [waits, writes] = (await alternate(subjects, plan.rounds)).map((passes) => passes.flat());
  await engine.close();
  const rowOf = (state: HogRow['hog'], gaps: readonly number[]): HogRow => ({
    ...{ ...where, part: 'hog', sessions: plan.sessions, hog: state, hogTokens },
    ...{ steps: gaps.length, p50StepMs: median(gaps), p95StepMs: p95(gaps), ratio: p95(gaps) / p95(waits!) },
  });
  // A hog that has read everything before the others wrote a token is no measure.
  return [rowOf('waits', waits!), ...(reads.length === 0 ? [] : [rowOf('reads', reads)]), rowOf('writes', writes!)];
}
