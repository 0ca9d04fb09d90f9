/** Sessions that write at once on memory for fewer, beside as many as fit. */
import { z } from 'zod';
import { metricSums } from '../../engine/serve/top-metrics.ts';
import { endless, type Loading, open, place, placeOf, sum, textsOf } from './crowd-engine.ts';
import { alternate, took, typical } from './measure.ts';

export const poolRow = place
  .extend({
    part: z.literal('pool'),
    sessions: z.int().positive(),
    /** As many would fit as they are. */
    fitting: z.int().positive(),
    promptTokens: z.int().positive(),
    answerTokens: z.int().positive(),
    /** Of all together, by the clock, while all read and while all write. */
    readTokensPerSecond: z.number().positive(),
    tokensPerSecond: z.number().positive(),
    /** Of those that all write together. */
    tokensPerCpuSecond: z.number().positive(),
    /** How many times the tokens of a CPU second of as many sessions as fit. */
    ratio: z.number().positive(),
    /** Deciding who begins, whose pages go lower and who is parked, as a share of the time of passes. */
    deciding: z.number().nonnegative(),
    /** Bits of a number of the cache, in the mean over the sessions. */
    bits: z.number().positive(),
    /** Answers that did not begin at once, and sessions whose tokens were read again. */
    waited: z.int().nonnegative(),
    readAgain: z.int().nonnegative(),
  })
  .readonly();
export type PoolRow = z.infer<typeof poolRow>;

export interface PoolPlan {
  readonly fitting: number;
  readonly sessions: number;
  readonly promptTokens: number;
  readonly answerTokens: number;
  readonly rounds: number;
}

/** Bytes of one session at its end, as it is. */
async function bytesAlone(loading: Loading, { promptTokens, answerTokens }: PoolPlan): Promise<number> {
  const engine = await open(loading, { kvBudget: '64GiB' });
  const [text] = await textsOf(engine, 1, promptTokens + answerTokens);
  const session = await engine.openSession();
  await session.read(text!);
  const { kvBytes } = await session.report();
  await engine.close();
  return kvBytes;
}

/** All sessions read at once, and then all write at once. */
async function poolPass(loading: Loading, kvBudget: number, plan: PoolPlan, count: number) {
  const engine = await open(loading, { kvBudget });
  const texts = await textsOf(engine, count, plan.promptTokens);
  const sessions = await Promise.all(texts.map(() => engine.openSession()));
  const read = await took(async () => {
    await Promise.all(sessions.map((session, at) => session.read(texts[at]!)));
  });
  const gone = await Promise.all(sessions.map(async (session) => (await session.report()).parked !== null));
  let written = 0;
  const write = await took(async () => {
    const answers = sessions.map((session) => session.generate(null, endless(engine, plan.answerTokens)).result);
    written = sum((await Promise.all(answers)).map(({ tokens }) => tokens));
  });
  const reports = await Promise.all(sessions.map((session) => session.report()));
  const where = placeOf(engine);
  const sums = metricSums(await engine.metrics());
  const deciding = sums.get('pool_deciding_seconds_total')! / sums.get('scheduler_pass_seconds_sum')!;
  await engine.close();
  return {
    where,
    deciding,
    readTokensPerSecond: (count * plan.promptTokens) / read.seconds,
    tokensPerSecond: written / write.seconds,
    tokensPerCpuSecond: written / write.cpuSeconds,
    bits: sum(reports.map(({ kvBytesNow, kvBytesF16 }) => (16 * kvBytesNow) / kvBytesF16)) / count,
    waited: sum(reports.map(({ pressure }) => pressure?.waitedCalls ?? 0)),
    readAgain: gone.filter((isGone) => isGone).length,
  };
}

/** A row for as many sessions as fit, and one for more. */
export async function poolRows(loading: Loading, plan: PoolPlan): Promise<PoolRow[]> {
  const kvBudget = plan.fitting * (await bytesAlone(loading, plan));
  const counts = [plan.fitting, plan.sessions];
  const subjects = counts.map((count) => ({ run: () => poolPass(loading, kvBudget, plan, count) }));
  const { fitting, promptTokens, answerTokens } = plan;
  const rows = (await alternate(subjects, plan.rounds)).map((passes, at): PoolRow => {
    const { where, bits, waited, readAgain } = passes.at(-1)!;
    const speed = (of: 'tokensPerSecond' | 'readTokensPerSecond' | 'tokensPerCpuSecond'): number =>
      1 / typical(passes.map((pass) => 1 / pass[of]));
    const speeds = {
      readTokensPerSecond: speed('readTokensPerSecond'),
      tokensPerSecond: speed('tokensPerSecond'),
      tokensPerCpuSecond: speed('tokensPerCpuSecond'),
    };
    const plain = { ...where, part: 'pool' as const, sessions: counts[at]!, fitting, promptTokens, answerTokens };
    const deciding = typical(passes.map((pass) => pass.deciding));
    return { ...plain, ...speeds, ratio: 1, deciding, bits, waited, readAgain };
  });
  return rows.map((row) => ({ ...row, ratio: row.tokensPerCpuSecond / rows[0]!.tokensPerCpuSecond }));
}
