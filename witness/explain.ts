/**
 * One decision as a person would tell it: what moved, why, on what evidence, what the trial said, what it cost in bytes,
 * what else was on the table, and what became of the same page before and after. Everything is read from the log.
 */

import {
  brief,
  bytesText,
  fields,
  grouped,
  KvError,
  PAGE_TOKENS,
  plural,
  type Side,
  sidesOf,
  timeText,
} from '../native/index.ts';
import {
  type Because,
  type CanaryReport,
  type Decision,
  defaultLaw,
  FORMS,
  type LayerChange,
  type PageForm,
  type Situation,
  type Threshold,
  type ThresholdOrigin,
  type TrialReport,
} from '../policy/index.ts';
import type { LogFiles } from './files.ts';
import { decisionRow } from './query.ts';
import { readEntry, readLog } from './read.ts';
import { entryId } from './series.ts';
import type { DecisionRow, Entry, LikeSession, OpenBody } from './types.ts';

/** One format that the page could have taken, by its trial when its exact content was still there. */
export interface Candidate {
  /** The format. */
  readonly format: PageForm;
  /** Mean change of the layer's output, as a share of the residual stream. */
  readonly epsilon: number;
  /** Bytes that the page side takes in this format, or the page in this latent. */
  readonly bytes: number;
  /** Predicted divergence of this page side in this format, by the law that the session began with (c·g·ε² in version 1 of `price` and other policies). */
  readonly predictedKld: number;
}

/** What the log says about one decision. */
export interface Explanation {
  /** seq of the decision's entry. */
  readonly id: number;
  /** The decision, flat. */
  readonly decision: DecisionRow;
  /** Name of the model. */
  readonly model: string;
  /** Id of the policy. */
  readonly policy: string;
  /** First token of the page. */
  readonly tokenFirst: number;
  /** Last token of the page. */
  readonly tokenLast: number;
  /** Why it was planned. */
  readonly because: Because;
  /** Why it was then made or refused. */
  readonly verdict: Because;
  /** The threshold as the session began with it; null when the rule needs none. */
  readonly threshold: Threshold | null;
  /** Sessions found to be alike, when the threshold rests on them. */
  readonly neighbours: readonly LikeSession[];
  /** The trial made when the page became movable, with its seq; null when the policy needs none. */
  readonly trial: {
    readonly seq: number;
    readonly report: TrialReport;
    readonly candidates: readonly Candidate[];
  } | null;
  /** The state that the policy saw, with its seq; the trials of other pages are left out. null when its entry is missing. */
  readonly situation: {
    readonly seq: number;
    readonly seen: Omit<Situation, 'trials' | 'outcomes'>;
    readonly planned: number;
    readonly refused: number;
  } | null;
  /** Earlier decisions about the same page, both sides, oldest first. */
  readonly before: readonly DecisionRow[];
  /** Later ones. */
  readonly after: readonly DecisionRow[];
  /** What the original, where it was kept, said later about a move that was made; with the seq and the tokens of the situation that told it. */
  readonly canaries: readonly (CanaryReport & { readonly seq: number; readonly tokens: number })[];
  /** Changes of the quality of its layer in the whole session. */
  readonly layer: readonly (LayerChange & { readonly seq: number; readonly tokens: number })[];
  /** All of it in words, for people. */
  readonly sentences: readonly { readonly title: string; readonly text: string }[];
}

/**
 * Explains the decision whose entry has this seq (`audit list` shows it), accepted or refused.
 * Throws 'not-found' for a seq that the log does not have, 'bad-argument' for an entry that is no decision, 'bad-log'.
 */
export function explain(dir: string, seq: number): Explanation;
/** @internal */
export function explain(dir: string, seq: number, files: LogFiles): Explanation;
export function explain(dir: string, seq: number, files?: LogFiles): Explanation {
  const entry = readEntry(dir, seq, files);
  if (entry.kind !== 'decision') {
    throw new KvError('bad-argument', `entry ${entryId(seq)} is no decision but '${entry.kind}'`, {
      values: { seq, kind: entry.kind },
      hint: 'see `audit list` for decisions, `audit show` for any entry',
    });
  }
  const told = entry as Entry<'decision'>;
  const story = gather(told, readLog(dir, { session: entry.session, ...(files === undefined ? {} : { files }) }));
  const { body } = told;
  const { decision } = body;
  const open = story.open?.body ?? null;
  const threshold = open?.context.thresholds.thresholds[decision.because.threshold] ?? null;
  const facts: Omit<Explanation, 'sentences'> = {
    id: seq,
    decision: decisionRow(told),
    model: open?.model.name ?? 'unknown',
    policy: open === null ? 'unknown' : open.policy.id,
    tokenFirst: decision.page * PAGE_TOKENS,
    tokenLast: (decision.page + 1) * PAGE_TOKENS - 1,
    because: decision.because,
    verdict: body.verdict.because,
    threshold,
    neighbours: story.neighbours,
    trial:
      story.trial === null
        ? null
        : { ...story.trial, candidates: open === null ? [] : candidates(story.trial.report, open, decision) },
    situation: story.situation,
    before: story.page.filter((row) => row.seq < seq),
    after: story.page.filter((row) => row.seq > seq),
    canaries: story.canaries,
    layer: story.layer,
  };
  return { ...facts, sentences: tell(facts) };
}

/** The explanation as text, as wide as the terminal. */
export function explanationText(explanation: Explanation, columns?: number): string {
  return fields(
    explanation.sentences.map(({ title, text }) => [title, text]),
    columns,
  );
}

interface Story {
  readonly open: Entry<'open'> | null;
  readonly neighbours: readonly LikeSession[];
  readonly trial: { readonly seq: number; readonly report: TrialReport } | null;
  readonly situation: Explanation['situation'];
  readonly page: readonly DecisionRow[];
  readonly canaries: Explanation['canaries'];
  readonly layer: Explanation['layer'];
}

/** One walk over the session's entries, keeping only what concerns this page. */
function gather(told: Entry<'decision'>, entries: Iterable<Entry>): Story {
  const { layer, page, side } = told.body.decision;
  let open: Entry<'open'> | null = null;
  let neighbours: readonly LikeSession[] = [];
  let trial: Story['trial'] = null;
  let seen: { seq: number; seen: Omit<Situation, 'trials' | 'outcomes'> } | null = null;
  let planned = 0;
  let refused = 0;
  const rows: DecisionRow[] = [];
  const canaries: Explanation['canaries'][number][] = [];
  const changes: Explanation['layer'][number][] = [];
  for (const entry of entries) {
    if (entry.kind === 'open') open = entry as Entry<'open'>;
    if (entry.kind === 'evidence' && entry.seq < told.seq) neighbours = (entry as Entry<'evidence'>).body.neighbours;
    if (entry.kind === 'situation' && entry.seq < told.seq) {
      const { trials, outcomes: _outcomes, ...rest } = (entry as Entry<'situation'>).body.situation;
      const report = trials.find((one) => one.layer === layer && one.page === page && one.side === side);
      if (report !== undefined) trial = { seq: entry.seq, report };
      if (rest.index === told.body.situation) seen = { seq: entry.seq, seen: rest };
    }
    if (entry.kind === 'situation' && entry.seq > told.seq) {
      const { canaries: probed = [], tokens } = (entry as Entry<'situation'>).body.situation;
      const report = probed.find((one) => one.layer === layer && one.page === page && one.side === side);
      if (report?.to === told.body.decision.to) canaries.push({ ...report, seq: entry.seq, tokens });
    }
    if (entry.kind === 'note') {
      const { layerChanges = [], tokens = 0 } = entry.body as { layerChanges?: LayerChange[]; tokens?: number };
      for (const change of layerChanges)
        if (change.layer === layer) changes.push({ ...change, seq: entry.seq, tokens });
    }
    if (entry.kind === 'decision') {
      const { body } = entry as Entry<'decision'>;
      if (body.situation === told.body.situation) {
        planned++;
        if (!body.verdict.accepted) refused++;
      }
      if (body.decision.layer === layer && body.decision.page === page)
        rows.push(decisionRow(entry as Entry<'decision'>));
    }
  }
  const situation = seen === null ? null : { ...seen, planned, refused };
  return { open, neighbours, trial, situation, page: rows, canaries, layer: changes };
}

/** ε per format that was tried, best format first. */
function tried({ epsilon }: TrialReport): [PageForm, number][] {
  return FORMS.flatMap((format): [PageForm, number][] => {
    const value = epsilon[format];
    return value === undefined ? [] : [[format, value]];
  });
}

/** Predicted divergence of each format, in proportion to that of the format that was chosen: what the session learned of the layer is in its price. */
function candidates(report: TrialReport, { context, policy }: OpenBody, decision: Decision): Candidate[] {
  const { gains, c, law = defaultLaw(context.layers) } = context.thresholds;
  const { side, layer } = report;
  const isLawful = policy.id === 'price' && policy.version > 1;
  const { price, bytesFreed, epsilonFrom, epsilonTo } = decision;
  const added = (epsilonTo ?? 0) ** 2 - (epsilonFrom ?? 0) ** 2;
  const weightOf = (of: Side): number =>
    (isLawful ? (law.coefficient[of][layer]?.value ?? 1) : c) * (gains[of][layer] ?? 1);
  // Of a latent, which stands for keys and values, the mean of both: what the policy goes by.
  const start = sidesOf(side).reduce((sum, of) => sum + weightOf(of), 0) / sidesOf(side).length;
  const weight = price !== null && price > 0 && added > 0 ? (price * bytesFreed) / added : start;
  return tried(report).map(([format, epsilon]) => ({
    format,
    epsilon,
    bytes: context.pageBytes[format] ?? 0,
    predictedKld: weight * epsilon * epsilon,
  }));
}

type Facts = Omit<Explanation, 'sentences'>;

function tell(facts: Facts): { title: string; text: string }[] {
  return [
    { title: 'what', text: tellMove(facts) },
    { title: 'why', text: tellWhy(facts) },
    { title: 'threshold', text: tellThreshold(facts) },
    { title: 'trial', text: tellTrial(facts) },
    { title: 'verdict', text: tellVerdict(facts) },
    { title: 'bytes', text: tellBytes(facts) },
    { title: 'situation', text: tellSituation(facts) },
    { title: 'otherwise', text: tellOthers(facts) },
    { title: 'before', text: tellHistory(facts.before, facts, 'Nothing was decided about this page before.') },
    { title: 'after', text: tellHistory(facts.after, facts, 'Nothing was decided about this page afterwards.') },
    { title: 'later', text: tellCanaries(facts) },
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

/** What each rule of the policies means, of a plan and of a verdict. A rule that is not listed is told by its name. */
export const RULES: Readonly<Record<string, string>> = {
  price: 'a move is made while the divergence it costs per saved byte stays below the current price',
  deficit: 'the cache and the next pages together would not fit into the budget, and this was the cheapest legal move',
  'low-memory': 'low memory was signalled from outside, so the cache aims at less than its budget',
  'fresh-trial': 'the first trial was recent enough, so the planned price stands',
  'settled-trial':
    'the page left the window so long ago that its first trial is a safe bound, so the planned price stands',
  'not-seen': 'no recent query looks at this page, so nothing speaks against the first trial',
  'trial-again': 'the page was tried again, and the new price may exceed the planned one only by the slack allowed',
  'deficit-override':
    'the repeated trial came out worse than planned, but the budget is hard and the next page was due',
  'put-back':
    'errors in this layer are too far above what was promised, so its demotions stop, and the original that was kept takes the place of the coded form',
  'quality-gives-way':
    'errors in this layer are too far above what was promised, but nothing else was left and the budget is hard',
  fixed: 'the page takes the format that the fixed table gives it',
  table: 'the page takes the format that the table gives it',
  age: 'the page is old enough for the next format of the age rule',
  uniform: 'all pages alike take the format whose bits fit the budget',
  'kld-gives-way':
    'the next pages would not fit otherwise, and the byte budget is ranked before the divergence budget, which this move exceeds',
};

const ruleText = (rule: string): string => `rule '${rule}'${RULES[rule] === undefined ? '' : ` (${RULES[rule]})`}`;

function tellWhy({ policy, because }: Facts): string {
  return `Planned by policy '${policy}', ${ruleText(because.rule)}. ${tellComparison(because)}`;
}

function tellComparison({ threshold, measured, bound, unit }: Because): string {
  const relation = measured < bound ? 'below' : measured > bound ? 'above' : 'exactly at';
  // A share of the budget is told as what the cache needs of it.
  const needs = threshold.startsWith('pressure') && unit === 'share';
  const what = needs ? `This needs ${amount(measured, unit)} of the budget` : `Measured ${amount(measured, unit)}`;
  return `${what}, ${relation} the bound of ${amount(bound, unit)} ('${threshold}').`;
}

/** A number with its unit; shares in percent. */
function amount(value: number, unit: string): string {
  if (unit === 'share') return `${brief(100 * value)}%`;
  return `${brief(value)}${unit === '' || unit === '1' ? '' : ` ${unit}`}`;
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
    return `The cache stayed at ${grouped(bytesBefore)} bytes; the move would have freed ${grouped(bytesFreed)}.`;
  const freed = bytesBefore - bytesAfter;
  const planned = freed === bytesFreed ? ', as planned' : `, where ${grouped(bytesFreed)} were planned`;
  return `The cache went from ${grouped(bytesBefore)} to ${grouped(bytesAfter)} bytes: ${grouped(freed)} freed${planned}.`;
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
    return decision.accepted ? 'No original was kept to measure it against later.' : 'Nothing was moved.';
  const told = canaries.map(
    ({ seq, age, epsilonNow }) => `${brief(epsilonNow)} after ${plural(age, 'token')} (${entryId(seq)})`,
  );
  return `Its original was kept. Against it, ε was promised as ${brief(canaries[0]!.epsilonPromised)} and measured as ${shortList(told)}.`;
}

const SOURCES: Readonly<Record<LayerChange['source'], string>> = {
  error: 'measured over promised error',
  topic: 'a change of topic',
  gain: 'a gain that is not believed',
};

function tellLayer({ layer }: Facts): string {
  if (layer.length === 0) return 'The quality of the layer stayed healthy.';
  const told = layer.map(({ seq, tokens, state, source, measured, bound, threshold }) => {
    const quality = state.split('/')[1] ?? state;
    return `${quality} at ${plural(tokens, 'token')} (${SOURCES[source] ?? source}: severity ${brief(measured)} against ${brief(bound)} of '${threshold}', entry ${entryId(seq)})`;
  });
  return `The quality of the layer was ${shortList(told)}.`;
}
