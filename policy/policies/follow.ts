/**
 * Policies that set a format per page side by rule and try nothing: an aim says where each side should be, and this
 * follows it, oldest pages first, values before keys (so that 2-bit keys never stand beside fine values).
 */
import { FORMAT_NAMES, FORMATS, type FormatName, KvError, SIDES, type Side } from '../../native/index.ts';
import { isLatent, rank } from '../ladder.ts';
import { isRemade, Sides } from '../sides.ts';
import { checkThresholds } from '../thresholds.ts';
import type {
  Because,
  Decision,
  LaterForm,
  Policy,
  PolicyContext,
  PolicySession,
  PolicySummary,
  Situation,
  Verdict,
} from '../types.ts';
import { usefulPair } from '../unsafe.ts';

/** Where a rule wants page sides to be. Its answers may only go down the ladder as a session goes on. */
export interface Aim {
  /**
   * Takes a situation in. `lackBytes` are still missing although every side is where the rule wants it. → true when
   * known sides may have to move
   */
  steer(situation: Situation, sides: Sides, lackBytes: number): boolean;
  target(layer: number, page: number): Readonly<Record<Side, FormatName>>;
  because(decision: Omit<Decision, 'because'>): Because;
}

class FollowSession implements PolicySession {
  readonly id: string;
  readonly context: PolicyContext;
  readonly aim: Aim;
  readonly sides: Sides;
  /** Slots that may not be where they should be, in the order in which they are moved. */
  work: number[] = [];

  constructor(id: string, context: PolicyContext, aim: Aim) {
    checkThresholds(context.thresholds, context.layers);
    this.id = id;
    this.context = context;
    this.aim = aim;
    this.sides = new Sides(context);
  }

  decide(situation: Situation): Decision[] {
    return follow(situation, this);
  }

  judge({ because }: Decision): Verdict {
    return { accepted: true, because };
  }

  summary(): PolicySummary {
    return { priceThreshold: 0, predictedKld: 0, layerStates: [], layerEpsilonMax: [], layerKld: [] };
  }
}

/** Makes a policy of a rule. */
export function followPolicy(
  id: string,
  version: number,
  aim: (context: PolicyContext) => Aim,
  more: Pick<Policy, 'lowest' | 'pairs' | 'readsMasses'> = {},
): Policy {
  return { ...more, id, version, needsTrials: false, open: (context) => new FollowSession(id, context, aim(context)) };
}

function follow(situation: Situation, state: FollowSession): Decision[] {
  const { id, sides, aim, context } = state;
  const { tokens, bytes, sealBytes, budgetBytes, urgent } = situation;
  for (const outcome of situation.outcomes) {
    const slot = sides.settle(outcome);
    if (!outcome.accepted) state.work.push(slot);
  }
  const gone = [...sides.forget(tokens)];
  for (const change of situation.changes ?? [])
    if (isRemade(change)) sides.change(change);
    else gone.push(...sides.free(change));
  if (gone.length > 0) state.work = state.work.filter((slot) => !gone.includes(slot));
  for (const report of situation.trials) state.work.push(sides.add(report, tokens));
  const lack = budgetBytes === null ? 0 : bytes + sealBytes - sides.pendingBytes - budgetBytes;
  const all = (): number[] => [...sides.slots];
  if (aim.steer(situation, sides, urgent && state.work.length === 0 ? Math.max(0, lack) : 0)) state.work = all();
  let decisions = doWork(situation, state);
  // No move is left under the present rule, so the rule itself must give way. It must yield at least the room of a
  // page, or it would not change.
  const room = Math.max(lack, 2 * context.pageBytes[context.windowFormat]);
  while (urgent && lack > 0 && decisions.length === 0 && aim.steer(situation, sides, room)) {
    state.work = all();
    decisions = doWork(situation, state);
  }
  if (urgent && lack > 0 && decisions.length === 0) {
    throw new KvError(
      'budget-too-small',
      `policy '${id}' has no move left at ${tokens} tokens and ${lack} bytes are missing`,
      {
        values: { policy: id, budgetBytes, bytes, sealBytes, deficitBytes: lack, tokens },
        hint: "raise the budget, allow lower formats, or use policy 'price'",
      },
    );
  }
  return decisions;
}

/** Plans moves for sides that are not where they should be, as many as are wanted, and leaves the others for later. */
function doWork({ urgent, movesMax }: Situation, state: FollowSession): Decision[] {
  const { sides, aim, context } = state;
  state.work.sort(
    (a, b) => sides.page[a]! - sides.page[b]! || sides.layer[a]! - sides.layer[b]! || sides.side[b]! - sides.side[a]!,
  );
  const decisions: Decision[] = [];
  let done = 0;
  for (; done < state.work.length && (urgent || decisions.length < movesMax); done++) {
    const slot = state.work[done]!;
    if (sides.pending[slot] === 1) continue;
    const decision = move(slot, aim, sides, context);
    if (decision === null) continue;
    sides.plan(slot, decision);
    decisions.push(decision);
  }
  state.work = state.work.slice(done);
  return decisions;
}

function move(slot: number, aim: Aim, sides: Sides, context: PolicyContext): Decision | null {
  const layer = sides.layer[slot]!;
  if (context.skipLayers.includes(layer)) return null;
  const page = sides.page[slot]!;
  const side = SIDES[sides.side[slot]!]!;
  const from = FORMAT_NAMES[sides.format[slot]!]!;
  const to = allowed(aim.target(layer, page), context)[side];
  if (rank(to) <= rank(from)) return null;
  const bytesFreed = context.pageBytes[from] - context.pageBytes[to];
  const decision = {
    layer,
    page,
    side,
    from,
    to,
    epsilonFrom: null,
    epsilonTo: null,
    price: null,
    bytesFreed,
    retry: false,
  };
  return { ...decision, because: aim.because(decision) };
}

/** The pair a rule asks for, raised to the floor, and keys raised to 3 bits where values stay fine. */
export function allowed(
  pair: Readonly<Record<Side, FormatName>>,
  { floor }: PolicyContext,
): Readonly<Record<Side, FormatName>> {
  const raise = (side: Side): FormatName =>
    floor !== null && rank(pair[side]) > rank(floor[side]) ? floor[side] : pair[side];
  return usefulPair({ k: raise('k'), v: raise('v') });
}

/** For rules that steer by bytes alone. Throws 'unsupported' when a divergence budget is to be kept as well. */
export function refuseKldBudget(policy: string, { kldBudget }: Situation): void {
  if (kldBudget === null) return;
  throw new KvError('unsupported', `policy '${policy}' measures nothing and cannot keep a divergence budget`, {
    values: { policy, kldBudget },
    hint: "use policy 'price', or a byte budget alone",
  });
}

/** Bytes of a page's two sides. */
export const pairBytes = (pair: Readonly<Record<Side, FormatName>>, { pageBytes }: PolicyContext): number =>
  pageBytes[pair.k] + pageBytes[pair.v];

/** Such rules move sides alone, which are in formats. */
const bitsOf = (form: LaterForm): number => (form === 'freed' || isLatent(form) ? 0 : FORMATS[form].codeBits);

/** A rule that compares widths: what the side has against what it should have. */
export const widthBecause = (
  decision: Omit<Decision, 'because'>,
  threshold: string,
  origin: Because['origin'],
  rule: string,
): Because => ({
  threshold,
  measured: bitsOf(decision.from),
  bound: bitsOf(decision.to),
  unit: 'bits',
  origin,
  rule,
});
