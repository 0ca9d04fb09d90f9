/**
 * One decision as a person would tell it: what moved, why, on what evidence, what the trial said, what it cost in
 * bytes, what else was on the table, and what became of the same page before and after. Everything is read from the
 * log.
 */

import { fields, isFormatName, KvError, PAGE_TOKENS, type Side, sidesOf } from '../native/index.ts';
import {
  createPolicy,
  type Decision,
  defaultLaw,
  isLatent,
  LatentGuard,
  regionIn,
  type Situation,
  type TrialReport,
  thresholdOf,
} from '../policy/index.ts';
import { askedFor } from './asked-for.ts';
import { decisionWithout, type Without } from './counterfactual.ts';
import type { NoteBody } from './entries/log-notes.ts';
import { decisionRow } from './entries/rows.gen.ts';
import { HEALTHY, isStopped, tell, tried } from './explain-text.ts';
import type { Candidate, Explanation } from './explanation.ts';
import type { LogFiles } from './files.ts';
import { KnownStory } from './known-before.ts';
import { readEntry, readLog } from './read.ts';
import type { PolicyFactory } from './replay.ts';
import { entryId } from './series.ts';
import type { DecisionRow, Entry, LikeSession, OpenBody } from './types.ts';

/** How a decision is explained. */
export interface ExplainOptions {
  /**
   * False: says what the session knew of others, and not what it would have decided otherwise, for which the whole
   * session is decided again some times. Default true.
   */
  readonly without?: boolean;
  /** Makes policies of one's own, as for `replay`; the built-in ones are known. */
  readonly create?: PolicyFactory;
  /** @internal */
  readonly files?: LogFiles;
}

/**
 * Explains the decision whose entry has this seq (`audit list` shows it), accepted or refused.
 * Throws 'not-found' for a seq that the log does not have, 'bad-argument' for an entry that is no decision, 'bad-log'.
 */
export function explain(dir: string, seq: number, options: ExplainOptions = {}): Explanation {
  const { files } = options;
  const entry = readEntry(dir, seq, files);
  if (entry.kind !== 'decision') {
    throw new KvError('bad-argument', `entry ${entryId(seq)} is no decision but '${entry.kind}'`, {
      values: { seq, kind: entry.kind },
      hint: 'see `audit list` for decisions, `audit show` for any entry',
    });
  }
  const told = entry as Entry<'decision'>;
  const read = { session: entry.session, ...(files === undefined ? {} : { files }) };
  const known = new KnownStory(seq);
  const story = gather(told, heardBy(known, readLog(dir, read)));
  const knownBefore = known.tell(dir, files);
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
    askedFor: askedFor(dir, told, files),
    threshold,
    proposal: open?.proposal === undefined ? null : { proposed: open.proposal, used: open.adapters ?? [] },
    foresight: open?.foresight ?? null,
    neighbours: story.neighbours,
    trial:
      story.trial === null
        ? null
        : { ...story.trial, candidates: open === null ? [] : candidates(story.trial.report, open, decision) },
    attention: story.attention,
    situation: story.situation,
    guard: guardOf(story, open, told.body.decision),
    alternatives: alternatives(story.plan, seq),
    before: story.page.filter((row) => row.seq < seq),
    after: story.page.filter((row) => row.seq > seq),
    canaries: story.canaries,
    promotions: story.promotions,
    damaged: story.damaged,
    freed: story.freed,
    restored: story.restored,
    layer: story.layer,
    knownBefore,
    ...otherwise(readLog(dir, read), seq, knownBefore, options),
  };
  return { ...facts, sentences: tell(facts) };
}

function* heardBy(known: KnownStory, entries: Iterable<Entry>): Generator<Entry> {
  for (const entry of entries) {
    known.add(entry);
    yield entry;
  }
}

/** What would have been decided without what was known before. */
function otherwise(
  entries: Iterable<Entry>,
  seq: number,
  known: Explanation['knownBefore'],
  { without: isAsked = true, create = createPolicy }: ExplainOptions,
): Pick<Explanation, 'without' | 'withoutUnknown'> {
  const unknown = (why: string | null) => ({ without: [], withoutUnknown: why });
  if (known.length === 0) return unknown(null);
  if (!isAsked) return unknown('nobody asked');
  const parts: Without[] = known.map(({ what }) => what);
  try {
    const told = decisionWithout(entries, seq, parts.length === 1 ? parts : [...parts, 'all'], create);
    if (told === null) return unknown('its session does not replay (audit replay says where)');
    return { without: told, withoutUnknown: null };
  } catch (error) {
    if (!(error instanceof KvError)) throw error;
    return unknown(error.message);
  }
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
  readonly attention: Explanation['attention'];
  readonly situation: Explanation['situation'];
  /** All moves that were planned on it. */
  readonly plan: readonly DecisionRow[];
  /** State of the layer then, as the log has it. */
  readonly state: string;
  readonly page: readonly DecisionRow[];
  readonly canaries: Explanation['canaries'];
  readonly promotions: Explanation['promotions'];
  readonly damaged: Explanation['damaged'];
  readonly freed: Explanation['freed'];
  readonly restored: Explanation['restored'];
  readonly layer: Explanation['layer'];
}

/** One walk over the session's entries, keeping only what concerns this page. */
function gather(told: Entry<'decision'>, entries: Iterable<Entry>): Story {
  const { layer, page, side } = told.body.decision;
  let open: Entry<'open'> | null = null;
  let neighbours: readonly LikeSession[] = [];
  let trial: Story['trial'] = null;
  let seen: { seq: number; seen: Omit<Situation, 'trials' | 'outcomes' | 'masses'> } | null = null;
  let attention: Explanation['attention'] = null;
  let planned = 0;
  let refused = 0;
  const plan: DecisionRow[] = [];
  const rows: DecisionRow[] = [];
  const canaries: Explanation['canaries'][number][] = [];
  let freed: Explanation['freed'] = null;
  const restored: Explanation['restored'][number][] = [];
  const notes: Entry<'note'>[] = [];
  for (const entry of entries) {
    if (entry.kind === 'open') open = entry as Entry<'open'>;
    if (entry.kind === 'evidence' && entry.seq < told.seq) neighbours = (entry as Entry<'evidence'>).body.neighbours;
    if (entry.kind === 'situation' && entry.seq < told.seq) {
      const { trials, outcomes: _outcomes, masses = [], ...rest } = (entry as Entry<'situation'>).body.situation;
      const report = trials.find((one) => one.layer === layer && one.page === page && one.side === side);
      if (report !== undefined) trial = { seq: entry.seq, report };
      const share = masses.find((one) => one.layer === layer)?.shares[page];
      if (share !== undefined) attention = { seq: entry.seq, share };
      if (rest.index === told.body.situation) seen = { seq: entry.seq, seen: rest };
    }
    if (entry.kind === 'situation' && entry.seq > told.seq) {
      const { canaries: probed = [], tokens } = (entry as Entry<'situation'>).body.situation;
      const report = probed.find((one) => one.layer === layer && one.page === page && one.side === side);
      if (report?.to === told.body.decision.to) canaries.push({ ...report, seq: entry.seq, tokens });
    }
    if (entry.kind === 'change') freed ??= freedBy(entry as Entry<'change'>, told);
    if (entry.kind === 'change') restored.push(...restoredBy(entry as Entry<'change'>, told));
    if (entry.kind === 'note') notes.push(entry as Entry<'note'>);
    if (entry.kind === 'decision') {
      const { body } = entry as Entry<'decision'>;
      if (body.situation === told.body.situation) {
        planned++;
        plan.push(decisionRow(entry as Entry<'decision'>));
        if (!body.verdict.accepted) refused++;
      }
      if (body.decision.layer === layer && body.decision.page === page)
        rows.push(decisionRow(entry as Entry<'decision'>));
    }
  }
  const situation = seen === null ? null : { ...seen, planned, refused };
  return {
    attention,
    open,
    neighbours,
    trial,
    situation,
    plan,
    page: rows,
    canaries,
    freed,
    restored,
    ...notedOf(told, notes),
  };
}

/** What notes say of the page of a decision and of its layer. */
function notedOf(
  told: Entry<'decision'>,
  notes: readonly Entry<'note'>[],
): Pick<Story, 'state' | 'promotions' | 'damaged' | 'layer'> {
  const { layer, page } = told.body.decision;
  const promotions: Explanation['promotions'][number][] = [];
  const damaged: Explanation['damaged'][number][] = [];
  const changes: Explanation['layer'][number][] = [];
  let state = HEALTHY;
  for (const { seq, body } of notes) {
    const { layerChanges = [], promoted = [], returned = [], damaged: sides = [], tokens = 0 } = body as NoteBody;
    for (const one of [...promoted, ...returned])
      if (one.layer === layer && one.page === page) promotions.push({ ...one, seq, tokens });
    for (const one of sides) if (one.layer === layer && one.page === page) damaged.push({ ...one, seq, tokens });
    for (const change of layerChanges) {
      if (change.layer !== layer) continue;
      changes.push({ ...change, seq, tokens });
      if (seq < told.seq) state = change.state;
    }
  }
  return { state, promotions, damaged, layer: changes };
}

/** Sides of the page of a decision that an entry brought back, because its layer was degraded. */
function restoredBy(
  { seq, body: { cause, changes, tokens } }: Entry<'change'>,
  told: Entry<'decision'>,
): Explanation['restored'] {
  const { layer, page } = told.body.decision;
  if (cause !== 'degraded') return [];
  return changes.filter((one) => one.layer === layer && one.page === page).map((one) => ({ ...one, seq, tokens }));
}

/** When an entry freed the page of a decision that was made before; null: it did not. */
function freedBy({ seq, body: { changes, tokens } }: Entry<'change'>, told: Entry<'decision'>): Explanation['freed'] {
  const { layer, page } = told.body.decision;
  const isIts = changes.some((one) => one.to === 'freed' && one.layer === layer && one.page === page);
  return isIts && seq > told.seq ? { seq, tokens } : null;
}

function guardOf({ situation, state }: Story, open: OpenBody | null, decision: Decision): Explanation['guard'] {
  if (situation === null || open === null || !open.policy.id.startsWith('price')) return null;
  const { bytes, sealBytes, budgetBytes } = situation.seen;
  const { thresholds } = open.context;
  return {
    quality: regionIn(state, 'quality'),
    stops: isStopped(state),
    pressure: budgetBytes === null ? null : (bytes + sealBytes) / Math.max(1, budgetBytes),
    warm: thresholdOf(thresholds, 'pressure.enter').value,
    archive: thresholdOf(thresholds, 'pressure.critical').value,
    latent: becomesLatent(decision) ? new LatentGuard(open.context).compared(decision.page, situation.seen) : [],
  };
}

/** True if keys and values are given up for a latent. */
const becomesLatent = ({ from, to }: Decision): boolean => isFormatName(from) && to !== 'freed' && isLatent(to);

/** So many moves of a plan are told of each kind. */
const ALTERNATIVES_MAX = 10;

function alternatives(plan: readonly DecisionRow[], seq: number): DecisionRow[] {
  const others = plan.filter((row) => row.seq !== seq);
  const of = (accepted: boolean): DecisionRow[] =>
    others.filter((row) => row.accepted === accepted).slice(0, ALTERNATIVES_MAX);
  return [...of(false), ...of(true)];
}

/**
 * Predicted divergence of each format, in proportion to that of the format that was chosen: what the session learned of
 * the layer is in its price.
 */
function candidates(report: TrialReport, { context, policy }: OpenBody, decision: Decision): Candidate[] {
  const { gains, c, law = defaultLaw(context.layers) } = context.thresholds;
  const { side, layer } = report;
  const isLawful = policy.id === 'price' && policy.version > 1;
  const { price, bytesFreed, epsilonFrom, epsilonTo } = decision;
  const added = (epsilonTo ?? 0) ** 2 - (epsilonFrom ?? 0) ** 2;
  const weightOf = (of: Side): number =>
    (isLawful ? (law.coefficient[of][layer]?.value ?? 1) : c) * (gains[of][layer] ?? 1);
  // A latent stands for keys and values, so the policy goes by the mean of both.
  const start = sidesOf(side).reduce((sum, of) => sum + weightOf(of), 0) / sidesOf(side).length;
  const weight = price !== null && price > 0 && added > 0 ? (price * bytesFreed) / added : start;
  return tried(report).map(([format, epsilon]) => ({
    format,
    epsilon,
    bytes: context.pageBytes[format] ?? 0,
    predictedKld: weight * epsilon * epsilon,
  }));
}
