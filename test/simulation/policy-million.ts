/**
 * Seeded sessions of the price policy without content, until so many decisions were made: budgets, lengths, latencies,
 * low memory, canaries that go bad and recover, tokens taken back. Every move is checked
 * (test/suite/policy-simulation.ts), every session is decided again from its situations as they stand in JSON, and the
 * arrows that its layers take are counted.
 */

import { Arrows, createPolicy, type PolicyContext, type Situation } from '../../policy/index.ts';
import { mulberry32 } from '../random.ts';
import { contextOf, epsilonOf, f16Bytes, type Result, simulate } from '../suite/policy-simulation.ts';

const policy = createPolicy('price');

export interface Million {
  readonly decisions: number;
  readonly sessions: number;
  readonly situations: number;
  /** Sides that were put back. */
  readonly putBack: number;
  /** Sessions that decided something else the second time, or went on deciding on the same situation. */
  readonly different: number;
  readonly restless: number;
  readonly arrows: Arrows;
}

export function runMillion(decisionsMin: number, seed: number): Million {
  const arrows = new Arrows();
  let [decisions, sessions, situations, putBack, different, restless] = [0, 0, 0, 0, 0, 0];
  while (decisions < decisionsMin) {
    arrows.begin();
    const { context, result } = oneSession(seed + sessions, arrows);
    const planned = JSON.stringify(result.entries.map((entry) => entry.decisions));
    decisions += result.entries.reduce((sum, entry) => sum + entry.decisions.length, 0);
    putBack += planned.split('"rule":"put-back"').length - 1;
    situations += result.entries.length;
    if (decidedAgain(context, result) !== planned) different++;
    if (isRestless(context, result)) restless++;
    sessions++;
  }
  return { decisions, sessions, situations, putBack, different, restless, arrows };
}

function oneSession(seed: number, arrows: Arrows): { readonly context: PolicyContext; readonly result: Result } {
  const next = mulberry32(seed);
  const layers = 2 + Math.floor(next() * 10);
  const context = contextOf({ layers });
  const pages = 14 + Math.floor(next() * 26);
  const tokens = pages * 128;
  const budgetBytes = Math.floor((0.27 + 0.3 * next()) * f16Bytes(context, tokens));
  const badLayer = Math.floor(next() * layers);
  const [badFrom, badTo] = [tokens * (0.3 + 0.3 * next()), tokens * (0.6 + 0.3 * next())];
  const bad = Math.exp(5 * next());
  const [lowFrom, lowTo] = [tokens * next(), tokens * next()];
  const [isFickle, lowEvery] = [next() < 0.4, 128 * Math.ceil(6 * next())];
  const isTakenBack = next() < 0.2;
  const noise = mulberry32(seed + 1);
  const result = simulate({
    policy,
    context,
    tokens,
    budgetBytes,
    tokensExpected: next() < 0.7 ? tokens : null,
    epsilon: epsilonOf(seed),
    drift: () => 0.4 + 1.4 * noise(),
    originals: next() < 0.8 ? layers : 0,
    ratio: (layer, at) =>
      layer === badLayer && (isFickle ? Math.floor(at / lowEvery) % 3 === 1 : at >= badFrom && at < badTo)
        ? bad * (0.7 + noise())
        : 0.2 + 0.5 * noise(),
    low: (at) => (isFickle ? Math.floor(at / lowEvery) % 2 === 1 : at >= lowFrom && at < lowTo),
    ...(next() < 0.5 ? { latencyMs: (at: number) => 0.8 + 0.3 * Math.abs(Math.sin(at / 700)) } : {}),
    ...(isTakenBack ? { back: { at: (pages >> 1) * 128, to: (pages >> 2) * 128 } } : {}),
    see: ({ layerStates }) => arrows.see(layerStates),
  });
  return { context, result };
}

/** Decides from what a log would hold. */
function decidedAgain(context: PolicyContext, { entries }: Result): string {
  const session = policy.open(JSON.parse(JSON.stringify(context)) as PolicyContext);
  return JSON.stringify(
    entries.map(({ situation, verdicts, epsilonNow }) => {
      const decided = session.decide(JSON.parse(JSON.stringify(situation)) as Situation);
      const isSame = decided.every(
        (decision, i) => JSON.stringify(session.judge(decision, epsilonNow[i]!)) === JSON.stringify(verdicts[i]),
      );
      return isSame ? decided : null;
    }),
  );
}

/** True if something is still decided when the last situation comes again and again. */
function isRestless(context: PolicyContext, { entries, bytes: bytesAtEnd }: Result): boolean {
  const session = policy.open(context);
  for (const { situation } of entries) session.decide(situation);
  const last = entries.at(-1)!;
  let bytes = bytesAtEnd;
  let { decisions, verdicts } = last;
  let late = 0;
  for (let round = 0; round < 40; round++) {
    const outcomes = decisions.map(({ layer, page, side, from, to, bytesFreed }, i) => {
      const { accepted } = verdicts[i]!;
      return { layer, page, side, from, to, accepted, epsilonNow: null, bytesFreed: accepted ? bytesFreed : 0 };
    });
    const { canaries: _, ...situation } = last.situation;
    decisions = session.decide({ ...situation, index: situation.index + 1 + round, bytes, trials: [], outcomes });
    verdicts = decisions.map(({ because }) => ({ accepted: true, because }));
    bytes -= decisions.reduce((sum, { bytesFreed }) => sum + bytesFreed, 0);
    if (round >= 20) late += decisions.length;
  }
  return late > 0;
}
