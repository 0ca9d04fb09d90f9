/** An explanation in words. Nothing is looked up here: whatever is told stands in the facts. */
import { brief, bytesText, grouped, percent, plural, timeText } from '../native/index.ts';
import {
  type Because,
  FORMS,
  type LayerChange,
  type PageForm,
  regionIn,
  type ThresholdOrigin,
  type TrialReport,
} from '../policy/index.ts';
import { askedForText } from './asked-for.ts';
import { amount, ruleText, tellComparison } from './because-text.ts';
import type { Explanation } from './explanation.ts';
import { foresightText } from './foresight-text.ts';
import { tellKnown, tellWithout } from './known-before.ts';
import { proposalText } from './proposal-text.ts';
import { entryId } from './series.ts';
import type { DecisionRow } from './types.ts';

/** The state of a layer of which no entry says anything. */
export const HEALTHY = 'exact/healthy';
/** The state of a layer as the log has it → its quality. */
/** True if no page of the layer moved, as in logs of versions 1 to 4 of the price policy. */
export const isStopped = (state: string): boolean => state.startsWith('shut/');

/** ε per format that was tried, best format first. */
export function tried({ epsilon }: TrialReport): [PageForm, number][] {
  return FORMS.flatMap((format): [PageForm, number][] => {
    const value = epsilon[format];
    return value === undefined ? [] : [[format, value]];
  });
}

/** An explanation before it is put into words. */
type Facts = Omit<Explanation, 'sentences'>;

/** What is known of a decision, in sentences. */
export function tell(facts: Facts): { title: string; text: string }[] {
  return [
    { title: 'what', text: tellMove(facts) },
    { title: 'why', text: tellWhy(facts) },
    ...(facts.askedFor === null ? [] : [{ title: 'pool', text: askedForText(facts.askedFor, facts.decision.session) }]),
    { title: 'threshold', text: tellThreshold(facts) },
    ...(facts.proposal === null
      ? []
      : [{ title: 'adapters', text: proposalText(facts.proposal.proposed, facts.proposal.used) }]),
    ...(facts.foresight === null ? [] : [{ title: 'latents', text: foresightText(facts.foresight) }]),
    { title: 'known', text: tellKnown(facts) },
    ...(facts.knownBefore.length === 0 ? [] : [{ title: 'without', text: tellWithout(facts) }]),
    { title: 'trial', text: tellTrial(facts) },
    { title: 'verdict', text: tellVerdict(facts) },
    { title: 'bytes', text: tellBytes(facts) },
    { title: 'situation', text: tellSituation(facts) },
    { title: 'guard', text: tellGuard(facts) },
    { title: 'otherwise', text: tellOthers(facts) },
    { title: 'beside', text: tellAlternatives(facts) },
    { title: 'before', text: tellHistory(facts.before, facts, 'Nothing was decided about this page before.') },
    { title: 'after', text: tellHistory(facts.after, facts, 'Nothing was decided about this page afterwards.') },
    { title: 'later', text: tellCanaries(facts) },
    ...(facts.freed === null ? [] : [{ title: 'freed', text: tellFreed(facts.freed) }]),
    ...(facts.restored.length === 0 ? [] : [{ title: 'restored', text: tellRestored(facts) }]),
    ...(facts.damaged.length === 0 ? [] : [{ title: 'damaged', text: tellDamaged(facts) }]),
    ...(facts.promotions.length === 0 ? [] : [{ title: 'answers', text: tellPromotions(facts) }]),
    { title: 'layer', text: tellLayer(facts) },
    {
      title: 'record',
      text: `Entry ${entryId(facts.id)}, decision ${facts.decision.order} of situation ${facts.decision.situation}, session ${facts.decision.session}.`,
    },
  ];
}

const SIDE_NAMES = { k: 'keys', v: 'values', kv: 'keys and values' } as const;
const sideName = (side: DecisionRow['side']): string => SIDE_NAMES[side];

function tellMove(facts: Facts): string {
  const { decision, tokenFirst, tokenLast } = facts;
  const what = `the ${sideName(decision.side)} of page ${decision.page} (tokens ${grouped(tokenFirst)} to ${grouped(tokenLast)}) in layer ${decision.layer}`;
  const move = decision.accepted
    ? `went from ${decision.from} to ${decision.to}`
    : `were to go from ${decision.from} to ${decision.to} and stayed in ${decision.from}: refused`;
  return `At ${timeText(decision.timeMs)}, with ${plural(decision.tokens, 'token')} in the cache of ${facts.model}, ${what} ${move}.`;
}

function tellWhy({ policy, because, attention }: Facts): string {
  const had =
    attention === null
      ? ''
      : ` Of the attention that the sealed pages of the layer had lately, ${percent(attention.share)} went to this page (entry ${entryId(attention.seq)}).`;
  return `Planned by policy '${policy}', ${ruleText(because.rule)}. ${tellComparison(because)}${had}`;
}

/** What each origin of a threshold's value means. */
export const ORIGINS: Readonly<Record<ThresholdOrigin, string>> = {
  default: 'the built-in default',
  learned: 'learned from earlier sessions',
  file: 'taken from a threshold file',
  option: 'set by an option of this run',
  controller: 'set by the controller of this run',
};

function tellThreshold({ because, threshold, neighbours }: Facts): string {
  const origin = ORIGINS[because.origin] ?? because.origin;
  const now = `The bound of ${amount(because.bound, because.unit)} was ${origin}`;
  if (threshold === null) return `${now}. The session began without a value of its own for it.`;
  const start = amount(threshold.value, threshold.unit);
  const source = `${ORIGINS[threshold.origin] ?? threshold.origin}: ${threshold.source}`;
  const isUnmoved = because.bound === threshold.value && because.origin === threshold.origin;
  const parts = [
    isUnmoved
      ? `The bound of ${start} has not moved since the session began. It was ${source}.`
      : `${now}. The session began with ${start}, ${source}.`,
  ];
  if (threshold.samples > 0) {
    const entries = threshold.evidence.length === 0 ? '' : ` (entries ${shortList(threshold.evidence.map(entryId))})`;
    parts.push(`It rests on ${plural(threshold.samples, 'earlier session')}${entries}.`);
  }
  if (threshold.origin === 'learned' && neighbours.length > 0) {
    const near = neighbours.map(({ session, distance, seq, log }) => {
      const where = log === undefined ? '' : ` of log ${log}`;
      return `${session} (distance ${brief(distance)}, entry ${entryId(seq)}${where})`;
    });
    parts.push(`The sessions most like this one were ${shortList(near)}.`);
  } else if (threshold.samples === 0) parts.push('No earlier session stands behind it.');
  return parts.join(' ');
}

/** The first five, and how many more. */
function shortList(items: readonly string[]): string {
  const rest = items.length - 5;
  return items.slice(0, 5).join(', ') + (rest > 0 ? ` and ${rest} more` : '');
}

function tellTrial({ decision, trial, verdict }: Facts): string {
  const { epsilonFrom, epsilonTo, epsilonNow, price, bytesFreed, from, to } = decision;
  const parts: string[] = [];
  const results = trial === null ? [] : tried(trial.report).map(([format, epsilon]) => `${format} ${brief(epsilon)}`);
  if (trial !== null && results.length > 0)
    parts.push(
      `When it became movable (entry ${entryId(trial.seq)}), the page was tried in other formats against its ${trial.report.from} content. ε, the change of the layer's output as a share of the residual stream, was: ${results.join(', ')}.`,
    );
  if (epsilonTo !== null)
    parts.push(
      `The plan counted ε ${brief(epsilonTo)} in ${to}${epsilonFrom === null ? '' : ` against ${brief(epsilonFrom)} in ${from}`}.`,
    );
  if (price !== null)
    parts.push(
      `The predicted divergence is ${brief(price * bytesFreed)} KLD for ${bytesText(bytesFreed)}, or ${brief(price)} KLD per byte.`,
    );
  if (epsilonNow !== null)
    parts.push(`Tried again just before the move, on the newest queries: ε ${brief(epsilonNow)}.`);
  else if (epsilonTo !== null && verdict.rule === 'fresh-trial')
    parts.push('That trial was recent, so it was not repeated.');
  return parts.length === 0 ? 'None: this policy moves pages without trying them first.' : parts.join(' ');
}

function tellVerdict({ decision, verdict }: Facts): string {
  return `${decision.accepted ? 'Made' : 'Refused'} under ${ruleText(verdict.rule)}. ${tellComparison(verdict)}`;
}

function tellBytes({ decision }: Facts): string {
  const { bytesBefore, bytesAfter, bytesFreed, accepted } = decision;
  if (!accepted)
    return `The cache stayed at ${plural(bytesBefore, 'byte')}; the move would have freed ${grouped(bytesFreed)}.`;
  const freed = bytesBefore - bytesAfter;
  const planned = freed === bytesFreed ? ', as planned' : `, where ${grouped(bytesFreed)} were planned`;
  return `The cache went from ${grouped(bytesBefore)} to ${plural(bytesAfter, 'byte')}: ${grouped(freed)} freed${planned}.`;
}

function tellSituation({ situation }: Facts): string {
  if (situation === null) return 'The entry with the situation is not in the log.';
  const { seq, seen, planned, refused } = situation;
  const expected = seen.tokensExpected === null ? '' : ` of ${grouped(seen.tokensExpected)} expected`;
  const budget =
    seen.budgetBytes === null
      ? 'with no byte budget'
      : `${brief((100 * seen.bytes) / Math.max(1, seen.budgetBytes))}% of its budget of ${bytesText(seen.budgetBytes)}`;
  const parts = [
    `The cache held ${plural(seen.tokens, 'token')}${expected} in ${bytesText(seen.bytes)}, ${budget}, and the next pages needed ${bytesText(seen.sealBytes)}${seen.urgent ? ' at once' : ''} (entry ${entryId(seq)}).`,
    ...(seen.kldBudget === null ? [] : [`A divergence of ${brief(seen.kldBudget)} KLD may be spent in all.`]),
    ...(seen.lowMemory ? ['Low memory was signalled from outside.'] : []),
    ...(seen.stepLatencyBudgetMs === null
      ? []
      : [`Steps took ${brief(seen.stepLatencyMsP95)} ms (p95) of the ${brief(seen.stepLatencyBudgetMs)} ms allowed.`]),
    `The plan had ${plural(planned, 'move')}, of which ${refused} ${refused === 1 ? 'was' : 'were'} refused.`,
  ];
  return parts.join(' ');
}

function tellGuard({ guard, decision }: Facts): string {
  if (guard === null) return 'None beside the rule itself, or the entries that would tell it are not in the log.';
  const { quality, stops, pressure, warm, archive } = guard;
  const latent = guard.latent.map(latentGuardText).join('');
  const layer = `The quality of layer ${decision.layer} was ${quality} then${stops ? ', which stopped its demotions' : ''}.`;
  if (pressure === null) return `${layer} There is no byte budget, so its pressure opens or shuts no format.${latent}`;
  const open = pressure >= archive ? 'all formats' : pressure >= warm ? '4-bit formats' : 'no format below the window';
  return `${layer} The cache and its next pages needed ${percent(pressure)} of the budget: ${open} ${open === 'all formats' || open.startsWith('4') ? 'are' : 'is'} open at that (4-bit formats from ${percent(warm)}, all from ${percent(archive)}).${latent}`;
}

/** One bound that a page had to reach to become a latent. */
function latentGuardText({ threshold, measured, bound, unit }: Because): string {
  const what =
    threshold === 'latent.memory'
      ? `where ${amount(bound, unit)} of the budget or more is needed, which was ${amount(measured, unit)}`
      : `with ${amount(bound, unit)} or more between it and the window, where ${amount(measured, unit)} were`;
  const gaveWay = measured < bound ? ', but nothing else kept the budget' : '';
  return ` A page becomes a latent ${what} ('${threshold}')${gaveWay}.`;
}

function tellAlternatives({ alternatives, situation }: Facts): string {
  if (alternatives.length === 0) return 'It was the only move of its plan.';
  const name = (row: DecisionRow): string =>
    `layer ${row.layer} page ${row.page}${row.side} ${row.from} to ${row.to}${row.price === null ? '' : ` at ${brief(row.price)}`} (${entryId(row.seq)})`;
  const [made, refused] = [true, false].map((accepted) => alternatives.filter((row) => row.accepted === accepted));
  const parts: string[] = [];
  if (refused!.length > 0) parts.push(`Refused in the same plan: ${shortList(refused!.map(name))}.`);
  if (made!.length > 0) parts.push(`Made in the same plan: ${shortList(made!.map(name))}.`);
  return `${parts.join(' ')}${situation === null ? '' : ' Prices are KLD per byte.'}`;
}

function tellOthers({ decision, trial }: Facts): string {
  const others = (trial?.candidates ?? []).filter(({ format }) => format !== decision.to);
  if (others.length === 0) return 'No other format of this page was tried.';
  return others
    .map(
      ({ format, bytes, epsilon, predictedKld }) =>
        `${format}: ${bytesText(bytes)}, ε ${brief(epsilon)}, predicted divergence ${brief(predictedKld)}`,
    )
    .join('. ')
    .concat('.');
}

function tellHistory(rows: readonly DecisionRow[], { decision }: Facts, none: string): string {
  if (rows.length === 0) return none;
  const told = rows.map(
    (row) =>
      `${entryId(row.seq)}: ${row.side === decision.side ? '' : `${sideName(row.side)} `}${row.from} to ${row.to} at ${plural(row.tokens, 'token')}${row.accepted ? '' : ' (refused)'}`,
  );
  return `${shortList(told)}.`;
}

function tellCanaries({ canaries, decision }: Facts): string {
  if (canaries.length === 0)
    return decision.accepted ? 'Nothing of its original was kept to measure it against later.' : 'Nothing was moved.';
  const told = canaries.map(
    ({ seq, age, epsilonNow }) => `${brief(epsilonNow)} after ${plural(age, 'token')} (${entryId(seq)})`,
  );
  const { rows } = canaries[0]!;
  const kept =
    rows === undefined
      ? 'Its original was kept. Against it'
      : `Of its original ${plural(rows, 'row was', 'rows were')} kept. In ${rows === 1 ? 'it' : 'them'} alone`;
  return `${kept}, ε was promised as ${brief(canaries[0]!.epsilonPromised)} and measured as ${shortList(told)}.`;
}

const tellFreed = ({ seq, tokens }: NonNullable<Facts['freed']>): string =>
  `With ${plural(tokens, 'token')} in the cache the sliding window of its layer had left the page behind, and it was freed (${entryId(seq)}): what the move has cost is seen by nobody any more.`;

function tellRestored({ restored }: Facts): string {
  const told = restored.map(
    ({ seq, tokens, side, from, to }) =>
      `${sideName(side)} ${from} to ${to} at ${plural(tokens, 'token')} (${entryId(seq)})`,
  );
  return `Its layer was degraded, so those of its sides that cost more than their bytes do elsewhere came back from originals: ${shortList(told)}.`;
}

function tellDamaged({ damaged }: Facts): string {
  const told = damaged.map(({ seq, tokens, side, format, mended }) => {
    const what = mended ? 'made again of their original' : 'left so, for want of an original or of room';
    return `${sideName(side)} in ${format} at ${plural(tokens, 'token')}, ${what} (${entryId(seq)})`;
  });
  return `Codes of the page were damaged in memory: ${shortList(told)}.`;
}

function tellPromotions({ promotions }: Facts): string {
  const told = promotions.map(({ seq, tokens, side, from, to, share }) => {
    const why =
      share === undefined ? 'back' : `for a question that gave ${percent(share)} of its attention to the page`;
    return `${sideName(side)} ${from} to ${to} at ${plural(tokens, 'token')}, ${why} (${entryId(seq)})`;
  });
  return `Sides of the page came back from their originals while an answer was written: ${shortList(told)}. The policy was not told.`;
}

const SOURCES: Readonly<Record<LayerChange['source'], string>> = {
  error: 'measured over promised error',
  topic: 'a change of topic',
  codes: 'codes that were damaged',
  gain: 'a gain that is not believed',
  agreement: 'agreement with what earlier sessions told',
};

function tellLayer({ layer }: Facts): string {
  if (layer.length === 0) return 'The quality of the layer stayed healthy.';
  const told = layer.map(({ seq, tokens, state, source, measured, bound, threshold }) => {
    const quality = regionIn(state, 'quality');
    return `${quality} at ${plural(tokens, 'token')} (${SOURCES[source] ?? source}: severity ${brief(measured)} against ${brief(bound)} of '${threshold}', entry ${entryId(seq)})`;
  });
  return `The quality of the layer was ${shortList(told)}.`;
}
