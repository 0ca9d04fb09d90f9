/** A scheduling point of a session: what its policy saw. `policy/types.ts` says what every field means. */
import type {
  CanaryReport,
  DamagedSide,
  LaterReport,
  MassReport,
  Outcome,
  ProbeReport,
  RereadReport,
  SharedPages,
  Situation,
} from '../../policy/index.ts';
import type { BodyOf, Fields } from './field.ts';
import { changes, estimate, format, move, part, place, reals, side, trials } from './parts.ts';
import {
  type Certain,
  count,
  difference,
  type Flat,
  flag,
  list,
  noun,
  nullable,
  object,
  optional,
  real,
  type Same,
  whole,
} from './type.ts';

const outcome = noun<Outcome>()({ ...move, accepted: flag, epsilonNow: nullable(real), bytesFreed: difference });

const probe = noun<ProbeReport>()({
  tokens: whole,
  rows: count,
  meanKld: real,
  standardError: real,
  epsilon2: object({ k: reals, v: reals }),
});

const reread = noun<RereadReport>()({
  tokens: whole,
  rows: count,
  meanKld: real,
  standardError: real,
  isDoubled: optional(flag),
});

const canary = noun<CanaryReport>()({
  ...place,
  side,
  from: format,
  to: format,
  epsilonPromised: real,
  epsilonNow: real,
  age: whole,
  rows: optional(count),
});

const later = noun<LaterReport>()({ page: count, answers: whole, k: reals, v: reals });
const sharedPages = noun<SharedPages>()({ pages: count, sessions: count });
const damagedSide = noun<DamagedSide>()({ layer: count, page: count, side: part, mended: optional(flag) });

const mass = noun<MassReport>()({ layer: count, shares: reals });

export const SITUATION = {
  'situation.index': { type: count, row: 'situation', report: 'index+' },
  'situation.tokens': { type: whole, row: 'tokens', report: 'tokens+' },
  'situation.bytes': { type: whole, row: 'bytes', report: 'bytes' },
  'situation.sealBytes': { type: whole, report: 'sealBytes' },
  'situation.budgetBytes': { type: nullable(whole), row: 'budgetBytes' },
  'situation.kldBudget': { type: nullable(real), unit: 'nats', row: 'kldBudget' },
  'situation.tokensExpected': { type: nullable(whole) },
  'situation.movesMax': { type: whole },
  'situation.urgent': { type: flag, row: 'urgent', report: 'urgent' },
  'situation.lowMemory': { type: flag, row: 'lowMemory' },
  'situation.stepLatencyMsP95': { type: real },
  'situation.stepLatencyBudgetMs': { type: nullable(real) },
  'situation.trials': { type: list(trials), row: 'trials' },
  'situation.outcomes': { type: list(outcome), row: 'outcomes' },
  'situation.changes': { type: optional(changes) },
  'situation.again': { type: optional(list(trials, 1)) },
  'situation.text': { type: optional(estimate) },
  'situation.probe': { type: optional(probe) },
  'situation.later': { type: optional(list(later, 1)), since: '0.1.0' },
  'situation.sharers': { type: optional(list(sharedPages)), since: '0.1.0' },
  'situation.reread': { type: optional(reread), since: '0.1.0' },
  'situation.canaryBytes': { type: optional(whole) },
  'situation.canaries': { type: optional(list(canary, 1)) },
  'situation.damaged': { type: optional(list(damagedSide, 1)), since: '0.1.0' },
  'situation.masses': { type: optional(list(mass, 1)), since: '0.1.0' },
} as const satisfies Fields;

export type SituationBody = BodyOf<typeof SITUATION>;

/** It is what policies see. */
export type SituationAgrees = Certain<Same<SituationBody['situation'], Flat<Situation>>>;
