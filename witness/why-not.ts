/**
 * Why a page side was not demoted, or no further: from the situations and decisions that the log has of its session.
 * The policy weighs all pages against each other and records only what it takes, so what it passed over is reckoned
 * again here from the trials; where that is an estimate, it says so.
 */
import {
  brief,
  firstToken,
  grouped,
  KvError,
  LOWEST_FORMATS,
  movablePages,
  PAGE_TOKENS,
  percent,
  plural,
  SINK_TOKENS,
  type Side,
} from '../native/index.ts';
import {
  defaultLaw,
  FORMS,
  type LaterForm,
  type LayerChange,
  type PageForm,
  type Situation,
  type ThresholdId,
  type TrialReport,
  thresholdOf,
} from '../policy/index.ts';
import { decisionRow } from './entries/rows.gen.ts';
import { HEALTHY, isStopped } from './explain-text.ts';
import { readLog } from './read.ts';
import { entryId } from './series.ts';
import type { DecisionRow, Entry, OpenBody } from './types.ts';

/** One kind of answer. */
export type WhyNotReason =
  | 'policy'
  | 'not-there'
  | 'window'
  | 'skipped'
  | 'sinks'
  | 'freed'
  | 'moved'
  | 'refused'
  | 'no-need'
  | 'degraded'
  | 'resting'
  | 'dearer'
  | 'cheaper'
  | 'lowest';

/** What stood against moving a page side, by the log. */
export interface WhyNot {
  /** Id of the session. */
  readonly session: string;
  /** Number of the layer, from 0. */
  readonly layer: number;
  /** Number of the page, from 0. */
  readonly page: number;
  /** Keys or values. */
  readonly side: Side;
  /** Its form when the session's log ends, or that it was freed; null: it was never there. */
  readonly form: LaterForm | null;
  /** In the order in which they matter, each with the entries that it rests on. */
  readonly answers: readonly {
    readonly reason: WhyNotReason;
    readonly text: string;
    readonly entries: readonly number[];
  }[];
}

/** Which page: its side may be left open, then both are told of. */
export interface PagePlace {
  /** Number of the layer, from 0. */
  readonly layer: number;
  /** Number of the page, from 0. */
  readonly page: number;
  /** Keys or values. Default: both. */
  readonly side?: Side;
}

/**
 * Why the sides of a page were not demoted, or no further. `session` is its whole id. Throws 'not-found' for a session
 * without an 'open' entry, 'bad-argument' for a layer that the model does not have, and what `readLog` throws.
 */
export function whyNot(dir: string, session: string, { layer, page, side }: PagePlace): WhyNot[] {
  const entries = [...readLog(dir, { session })];
  const open = entries.find(({ kind }) => kind === 'open') as Entry<'open'> | undefined;
  if (open === undefined)
    throw new KvError('not-found', `the log has no beginning of session ${session}`, { values: { session } });
  const { layers } = open.body.shape;
  for (const [name, value, end] of [
    ['layer', layer, layers],
    ['page', page, Number.MAX_SAFE_INTEGER],
  ] as const)
    if (!Number.isSafeInteger(value) || value < 0 || value >= end)
      throw new KvError('bad-argument', `session ${session} has no ${name} ${value}`, {
        values: { [name]: value, layers },
      });
  return (side === undefined ? (['k', 'v'] as const) : [side]).map((one) => {
    const story = new Story(open, { layer, page, side: one });
    for (const entry of entries) story.add(entry);
    return story.tell();
  });
}

/** The answers as text: one paragraph a side. */
export function whyNotText(found: readonly WhyNot[]): [title: string, text: string][] {
  return found.flatMap(({ side, form, answers }) => [
    [SIDE_NAMES[side], form === null ? 'Never there.' : `In ${form} when the log ends.`] as [string, string],
    ...answers.map(({ reason, text, entries }): [string, string] => [
      reason,
      entries.length === 0
        ? text
        : `${text} (${entries.length === 1 ? 'entry' : 'entries'} ${shortList(entries.map(entryId))})`,
    ]),
  ]);
}

const SIDE_NAMES = { k: 'keys', v: 'values' } as const;

function shortList(items: readonly string[]): string {
  const rest = items.length - 4;
  return items.slice(0, 4).join(', ') + (rest > 0 ? ` and ${rest} more` : '');
}

/** A situation, and what was planned on it elsewhere. */
interface Point {
  readonly seq: number;
  readonly situation: Omit<Situation, 'trials' | 'outcomes'>;
  readonly rows: DecisionRow[];
}

type Answer = WhyNot['answers'][number];

class Story {
  readonly #open: OpenBody;
  readonly #session: string;
  readonly #place: Required<PagePlace>;
  readonly #points: Point[] = [];
  readonly #own: DecisionRow[] = [];
  /** States of its layer. */
  readonly #states: { readonly seq: number; readonly tokens: number; readonly state: string }[] = [];
  #trial: { readonly seq: number; readonly report: TrialReport; readonly tokens: number } | null = null;
  #form: PageForm;
  /** When nothing was left of it; null: it is there. */
  #freed: { readonly seq: number; readonly tokens: number; readonly isLetGo: boolean } | null = null;
  #tokens = 0;
  /** Divergence per ε² of this layer and side, as its last decision had it; null: none was made. */
  #weight: number | null = null;

  constructor({ session, body }: Entry<'open'>, place: Required<PagePlace>) {
    this.#open = body;
    this.#session = session;
    this.#place = place;
    this.#form = body.context.windowFormat;
  }

  add(entry: Entry): void {
    if (entry.kind === 'situation') this.#situation(entry as Entry<'situation'>);
    if (entry.kind === 'decision') this.#decision(decisionRow(entry as Entry<'decision'>));
    if (entry.kind === 'close') this.#tokens = (entry as Entry<'close'>).body.tokens;
    if (entry.kind === 'change') this.#change(entry as Entry<'change'>);
    if (entry.kind === 'note') {
      const { layerChanges = [], tokens = 0 } = entry.body as { layerChanges?: LayerChange[]; tokens?: number };
      for (const { layer, state } of layerChanges)
        if (layer === this.#place.layer) this.#states.push({ seq: entry.seq, tokens, state });
    }
  }

  #change({ seq, body: { cause, changes, tokens } }: Entry<'change'>): void {
    for (const change of changes)
      if (!this.#isOurs(change)) continue;
      else if (change.to === 'freed') this.#freed = { seq, tokens, isLetGo: cause !== 'sliding-window' };
      else this.#form = change.to;
  }

  #isOurs(one: { readonly layer: number; readonly page: number; readonly side: string }): boolean {
    const { layer, page, side } = this.#place;
    return one.layer === layer && one.page === page && (one.side === side || one.side === 'kv');
  }

  #situation({ seq, body }: Entry<'situation'>): void {
    const { trials, outcomes: _, ...situation } = body.situation;
    this.#tokens = situation.tokens;
    // Its tokens were taken back: the page that comes then is another.
    if (situation.tokens < firstToken(this.#place.page + 1)) this.#freed = null;
    this.#points.push({ seq, situation, rows: [] });
    const report = trials.find((one) => one.side === this.#place.side && this.#isOurs(one));
    if (report !== undefined) this.#trial = { seq, report, tokens: situation.tokens };
  }

  #decision(row: DecisionRow): void {
    this.#points.at(-1)?.rows.push(row);
    const { layer, side } = this.#place;
    const added = (row.epsilonTo ?? 0) ** 2 - (row.epsilonFrom ?? 0) ** 2;
    if (row.layer === layer && row.side === side && row.price !== null && row.price > 0 && added > 0)
      this.#weight = (row.price * row.bytesFreed) / added;
    if (!this.#isOurs(row)) return;
    this.#own.push(row);
    if (!row.accepted) return;
    if (row.to === 'freed') this.#freed = { seq: row.seq, tokens: row.tokens, isLetGo: true };
    else this.#form = row.to;
  }

  tell(): WhyNot {
    const { layer, page, side } = this.#place;
    const answers = this.#answers();
    const isThere = this.#tokens >= firstToken(page + 1) || this.#trial !== null;
    return {
      session: this.#session,
      layer,
      page,
      side,
      form: !isThere ? null : this.#freed === null ? this.#form : 'freed',
      answers,
    };
  }

  #answers(): Answer[] {
    const { policy, context } = this.#open;
    const { layer, page } = this.#place;
    const end = firstToken(page + 1);
    const answer = (reason: WhyNotReason, text: string, entries: readonly number[] = []): Answer => ({
      reason,
      text,
      entries,
    });
    if (this.#tokens < end)
      return [
        answer(
          'not-there',
          `The session reached ${plural(this.#tokens, 'token')}, and page ${page} is full with ${grouped(end)}. The page that tokens are appended to does not move.`,
        ),
      ];
    const answers: Answer[] = [];
    if (page === 0)
      answers.push(
        answer(
          'sinks',
          `The first ${SINK_TOKENS} tokens of this page are sinks and stay in f16 whatever becomes of it.`,
        ),
      );
    if (this.#freed !== null)
      answers.push(
        answer(
          'freed',
          `With ${plural(this.#freed.tokens, 'token')} in the cache ${this.#freed.isLetGo ? `policy '${policy.id}' let it go` : `the sliding window of layer ${layer} had left it behind: it was freed`}, and nothing is left of it to move.`,
          [this.#freed.seq],
        ),
      );
    const window = context.windowTokens ?? PAGE_TOKENS;
    if (movablePages(this.#tokens, window) <= page)
      return [
        ...answers,
        answer(
          'window',
          `It was in the window to the end: ${plural(this.#tokens - end, 'newer token')} followed it, and a page may move when ${window} do.`,
        ),
      ];
    if (context.skipLayers.includes(layer))
      return [
        ...answers,
        answer('skipped', `Layer ${layer} is one of those that were told to stay in ${context.windowFormat}.`),
      ];
    if (policy.id === 'none') return [...answers, answer('policy', "Policy 'none' moves no page.")];
    return [...answers, ...this.#moves(answer), ...this.#rest(answer)];
  }

  /** What was decided about it. */
  #moves(answer: (reason: WhyNotReason, text: string, entries?: readonly number[]) => Answer): Answer[] {
    const made = this.#own.filter(({ accepted }) => accepted);
    const refused = this.#own.filter(({ accepted }) => !accepted);
    const answers: Answer[] = [];
    if (made.length > 0)
      answers.push(
        answer(
          'moved',
          `It did move: ${made.map(({ from, to, tokens }) => `${from} to ${to} at ${plural(tokens, 'token')}`).join(', ')}. What follows is why it went no further.`,
          made.map(({ seq }) => seq),
        ),
      );
    if (refused.length > 0) {
      const { from, to, verdictMeasured, verdictBound, verdictThreshold, unit } = refused.at(-1)!;
      answers.push(
        answer(
          'refused',
          `It was planned to move and refused ${refused.length === 1 ? 'once' : `${refused.length} times`}, because the trial repeated just before came out too dear: last ${from} to ${to}, ${brief(verdictMeasured)} against ${brief(verdictBound)}${unit === '1' ? '' : ` ${unit}`} ('${verdictThreshold}').`,
          refused.map(({ seq }) => seq),
        ),
      );
    }
    return answers;
  }

  /** Why nothing more was decided about it after it could have moved. */
  #rest(answer: (reason: WhyNotReason, text: string, entries?: readonly number[]) => Answer): Answer[] {
    const { context, policy } = this.#open;
    const last = this.#own.filter(({ accepted }) => accepted).at(-1) ?? null;
    const since = Math.max(last?.seq ?? -1, this.#trial === null ? -1 : this.#trial.seq - 1);
    const points = this.#points.filter(
      ({ seq, situation }) =>
        seq > since && movablePages(situation.tokens, context.windowTokens ?? PAGE_TOKENS) > this.#place.page,
    );
    const lowest = this.#lowest();
    if (FORMS.indexOf(this.#form) >= FORMS.indexOf(lowest))
      return [answer('lowest', `${this.#form} is the lowest form that ${SIDE_NAMES[this.#place.side]} may take here.`)];
    const planned = points.filter(({ rows }) => rows.length > 0);
    if (planned.length === 0) return [this.#noNeed(points, answer)];
    const answers: Answer[] = [];
    const degraded = this.#stopped(points);
    if (degraded.length > 0)
      answers.push(
        answer(
          'degraded',
          `The quality of layer ${this.#place.layer} was degraded at ${degraded.length} of ${plural(points.length, 'scheduling point')}, which stopped its demotions.`,
          degraded,
        ),
      );
    const dwell = thresholdOf(context.thresholds, 'dwell.tokens' satisfies ThresholdId);
    const resting =
      last === null ? [] : planned.filter(({ situation }) => situation.tokens < last.tokens + dwell.value);
    if (resting.length > 0)
      answers.push(
        answer(
          'resting',
          `After a move a page side rests for ${plural(dwell.value, 'token')} ('dwell.tokens') unless bytes are due at once; so it was passed over at ${plural(resting.length, 'plan')}.`,
          resting.map(({ seq }) => seq),
        ),
      );
    answers.push(...this.#price(planned, policy.id, answer));
    return answers;
  }

  #noNeed(
    points: readonly Point[],
    answer: (reason: WhyNotReason, text: string, entries?: readonly number[]) => Answer,
  ): Answer {
    if (points.length === 0)
      return answer('no-need', 'The policy was not asked again after that, so nothing more was decided.');
    const needs = points.flatMap(({ situation: { budgetBytes, bytes, sealBytes } }) =>
      budgetBytes === null ? [] : [(bytes + sealBytes) / Math.max(1, budgetBytes)],
    );
    const fullest =
      needs.length === 0 ? '' : `: with the next pages it needed at most ${percent(Math.max(...needs))} of its budget`;
    const kld = points[0]!.situation.kldBudget;
    const what =
      needs.length > 0
        ? `No bytes were needed at any of ${plural(points.length, 'scheduling point')} since it could move${fullest}.`
        : kld === null
          ? 'The session had no budget, so nothing had to move.'
          : `Nothing was moved at any of ${plural(points.length, 'scheduling point')} since it could move: the divergence budget of ${brief(kld)} nats allowed no more.`;
    return answer('no-need', what, [points[0]!.seq, points.at(-1)!.seq]);
  }

  /** The entries of the points at which no page of the layer could move. */
  #stopped(points: readonly Point[]): number[] {
    return points
      .filter(({ seq }) => isStopped(this.#states.findLast((change) => change.seq < seq)?.state ?? HEALTHY))
      .map(({ seq }) => seq);
  }

  /** Its cheapest step by the trial it had, against what was taken instead. */
  #price(
    planned: readonly Point[],
    policy: string,
    answer: (reason: WhyNotReason, text: string, entries?: readonly number[]) => Answer,
  ): Answer[] {
    const rows = planned.flatMap((point) => point.rows.filter((row) => !this.#isOurs(row)));
    const prices = rows.flatMap(({ price }) => (price === null ? [] : [price]));
    const step = this.#cheapestStep();
    const others = `${plural(rows.length, 'move')} of other pages ${rows.length === 1 ? 'was' : 'were'} planned at ${plural(planned.length, 'scheduling point')} after it could move`;
    if (prices.length === 0 || step === null)
      return [
        answer(
          'policy',
          `${others}; policy '${policy}' took those, and ${step === null ? 'no trial of this page side in a lower form is in the log' : 'it has no prices'}.`,
          planned.map(({ seq }) => seq),
        ),
      ];
    const most = Math.max(...prices);
    const how =
      this.#weight === null
        ? 'by the law that the session began with'
        : "by the trial and by what errors cost in the layer's last decision";
    const own = `The cheapest step of this one was ${this.#form} to ${step.to}, about ${brief(step.price)} KLD per byte, reckoned ${how}`;
    const compared = `${others}, at up to ${brief(most)} KLD per byte.`;
    return [
      step.price >= most
        ? answer('dearer', `${compared} ${own}: dearer than any of them, so others went first until there was room.`, [
            this.#trial!.seq,
            ...planned.map(({ seq }) => seq),
          ])
        : answer(
            'cheaper',
            `${compared} ${own}: not dearer than all of them. By then the policy held it for dearer, by trials that were repeated or by how long errors last in this layer, which no entry records page by page; or its keys waited for its values, or its layer was not open to that form.`,
            [this.#trial!.seq, ...planned.map(({ seq }) => seq)],
          ),
    ];
  }

  #cheapestStep(): { readonly to: PageForm; readonly price: number } | null {
    const { context } = this.#open;
    const { layer, side } = this.#place;
    if (this.#trial === null) return null;
    const { law = defaultLaw(context.layers), gains } = context.thresholds;
    const weight = this.#weight ?? (law.coefficient[side][layer]?.value ?? 1) * (gains[side][layer] ?? 1);
    const { epsilon } = this.#trial.report;
    const from = (epsilon[this.#form] ?? 0) ** 2;
    const bytes = (form: PageForm): number => context.pageBytes[form] ?? 0;
    let best: { to: PageForm; price: number } | null = null;
    for (const to of FORMS) {
      const error = epsilon[to];
      const freed = bytes(this.#form) - bytes(to);
      if (error === undefined || freed <= 0 || FORMS.indexOf(to) > FORMS.indexOf(this.#lowest())) continue;
      const price = (weight * Math.max(0, error ** 2 - from)) / freed;
      if (best === null || price < best.price) best = { to, price };
    }
    return best;
  }

  /** The lowest form that this side may take. */
  #lowest(): PageForm {
    const { context } = this.#open;
    const { side } = this.#place;
    const floor = context.floor?.[side];
    const lowest = LOWEST_FORMATS[side];
    return floor !== undefined && FORMS.indexOf(floor) < FORMS.indexOf(lowest) ? floor : lowest;
  }
}
