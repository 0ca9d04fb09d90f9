/**
 * One session from its beginning to its end as a person reads it: what it was given, what it looked up, each plan with
 * what became of it, what changed without a decision, how the quality of layers went, what originals said, and how it
 * ended. Everything is read from the log.
 */
import {
  brief,
  bytesText,
  grouped,
  KvError,
  PAGE_TOKENS,
  percent,
  plural,
  printable,
  show,
  timeText,
  wrap,
} from '../native/index.ts';
import { FORM_STATES, type LayerChange, predictedBy, regionIn, type Situation } from '../policy/index.ts';
import { activationText } from './activation-text.ts';
import { askingText, parkingText } from './asking-text.ts';
import type { MendedSide, NoteBody, PromotedSide } from './entries/log-notes.ts';
import { decisionRow } from './entries/rows.gen.ts';
import { foresightText } from './foresight-text.ts';
import { FormStates } from './form-states.ts';
import { gaveUpText } from './gave-up-text.ts';
import { goneText } from './gone-text.ts';
import { growthText } from './growth-text.ts';
import { idleText } from './idle-text.ts';
import { isPool } from './pool-series.ts';
import { proposalText } from './proposal-text.ts';
import { readEnvelopes, readLog } from './read.ts';
import { entryId } from './series.ts';
import { statedText } from './stated-text.ts';
import type {
  ChangeBody,
  CloseBody,
  DecisionRow,
  Entry,
  EntryKind,
  EvidenceBody,
  OpenBody,
  SenselessEntry,
} from './types.ts';

/** One thing that happened in a session, or several of one kind in a row. */
export interface TimelineEvent {
  /** The entry that tells it; the first of several. */
  readonly seq: number;
  /** When, milliseconds since the epoch. */
  readonly timeMs: number;
  /** Tokens in the cache then. */
  readonly tokens: number;
  /** What kind of thing. */
  readonly kind:
    | 'evidence'
    | 'open'
    | 'quiet'
    | 'plan'
    | 'measured'
    | 'change'
    | 'note'
    | 'states'
    | 'close'
    | 'sealed';
  /** In words. */
  readonly text: string;
}

/** Fields of an event, in order: the columns of its CSV. */
export const EVENT_FIELDS = [
  'seq',
  'timeMs',
  'tokens',
  'kind',
  'text',
] as const satisfies readonly (keyof TimelineEvent)[];

/**
 * What happened in a session, in order. `session` is its whole id. Of one that cannot be opened, because it was erased
 * or its key is not here, only the envelopes are told. Throws 'bad-log', and 'not-found' where there is no log; a
 * session that the log does not have has no events.
 */
export function timeline(dir: string, session: string): TimelineEvent[] {
  const story = new Story();
  try {
    const onSenseless = (entry: SenselessEntry): void => story.senseless(entry);
    for (const entry of readLog(dir, { session, onSenseless })) story.add(entry);
  } catch (error) {
    if (!(error instanceof KvError) || error.code !== 'sealed') throw error;
    return envelopes(dir, session, error.message);
  }
  return story.end();
}

/** What can be told of a session without its key: when it was written, and what kinds of entries. */
function envelopes(dir: string, session: string, why: string): TimelineEvent[] {
  const own: { seq: number; timeMs: number; kind: EntryKind }[] = [];
  for (const one of readEnvelopes(dir)) if (one.session === session) own.push(one);
  const first = own[0]!;
  const marks = own.filter(({ kind }) => kind === 'erase' || kind === 'hold' || kind === 'release');
  const kinds = tally(own.filter((one) => !marks.includes(one)).map(({ kind }) => kind));
  return [
    {
      ...{ seq: first.seq, timeMs: first.timeMs, tokens: 0, kind: 'sealed' },
      text: `Nobody can read what it says: ${why}. What its envelopes say: ${kinds}, the last ${timeText(own.at(-1)!.timeMs)}.`,
    },
    ...marks.map(
      ({ seq, timeMs, kind }): TimelineEvent => ({ seq, timeMs, tokens: 0, kind: 'sealed', text: MARKS[kind] ?? kind }),
    ),
  ];
}

const MARKS: Readonly<Partial<Record<EntryKind, string>>> = {
  erase: 'The session was erased.',
  hold: 'A legal hold on it began.',
  release: 'The legal hold on it ended.',
};

/** The events as lines, times counted from the first. */
export function timelineText(session: string, events: readonly TimelineEvent[], columns?: number): string {
  const [first] = events;
  if (first === undefined) return `The log has no entries of session ${printable(session)}.`;
  const ids = Math.max(...events.map(({ seq }) => entryId(seq).length));
  const lines = events.map(({ seq, timeMs, tokens, text }) => {
    const head = `${entryId(seq).padStart(ids)}  ${seconds(timeMs - first.timeMs).padStart(9)}  ${grouped(tokens).padStart(7)}  `;
    return `${head}${wrap(printable(text), columns === undefined ? undefined : columns - head.length).replaceAll('\n', `\n${' '.repeat(head.length)}`)}`;
  });
  const title = `${isPool(session) ? 'Pool' : 'Session'} ${printable(session)}, ${timeText(first.timeMs)}`;
  return [title, `${'id'.padStart(ids)}  ${'time'.padStart(9)}  ${'tokens'.padStart(7)}`, ...lines].join('\n');
}

const seconds = (ms: number): string => `+${(ms / 1000).toFixed(3)} s`;

/** A situation and the decisions that answered it. */
interface Point {
  readonly entry: Entry<'situation'>;
  readonly rows: DecisionRow[];
}

class Story {
  readonly #events: TimelineEvent[] = [];
  #tokens = 0;
  #point: Point | null = null;
  #quiet: Point[] = [];
  #forms: FormStates | null = null;
  /** The policy of the session. */
  #policy = '';
  #last: Entry | null = null;

  senseless(entry: SenselessEntry): void {
    this.#settle();
    this.#hush();
    this.#tell(entry, 'note', `passed over: ${entry.what}`);
  }

  add(entry: Entry): void {
    if (entry.kind === 'open') {
      const { body } = entry as Entry<'open'>;
      this.#forms = new FormStates(body);
      this.#policy = body.policy.id;
    }
    this.#forms?.add(entry);
    this.#last = entry;
    if (entry.kind === 'decision') {
      this.#point?.rows.push(decisionRow(entry as Entry<'decision'>));
      return;
    }
    this.#settle();
    if (entry.kind === 'situation') {
      const point = { entry: entry as Entry<'situation'>, rows: [] };
      this.#tokens = point.entry.body.situation.tokens;
      const told = measuredText(point.entry.body.situation);
      if (told !== null) this.#tell(entry, 'measured', told);
      this.#point = point;
      return;
    }
    this.#hush();
    if (entry.kind === 'evidence') this.#tell(entry, 'evidence', evidenceText(entry.body as EvidenceBody));
    if (entry.kind === 'open') this.#tell(entry, 'open', openText(entry.body as OpenBody));
    if (entry.kind === 'change') this.#tell(entry, 'change', changeText(entry.body as ChangeBody));
    if (entry.kind === 'note') this.#note(entry as Entry<'note'>);
    const mark = MARKS[entry.kind];
    if (mark !== undefined) this.#tell(entry, 'note', mark);
    if (entry.kind === 'close') {
      this.#states(entry);
      this.#tokens = (entry.body as CloseBody).tokens;
      this.#tell(entry, 'close', closeText(entry.body as CloseBody, this.#policy));
    }
  }

  end(): TimelineEvent[] {
    this.#settle();
    this.#hush();
    if (this.#last !== null) this.#states(this.#last);
    return this.#events;
  }

  /** Where sides of pages are at the end, or now, and how they came there. Told once. */
  #states(entry: Entry): void {
    const forms = this.#forms;
    this.#forms = null;
    if (forms !== null && forms.arrows.length > 0) this.#tell(entry, 'states', statesText(forms));
  }

  #tell({ seq, timeMs }: Pick<Entry, 'seq' | 'timeMs'>, kind: TimelineEvent['kind'], text: string): void {
    if (kind !== 'quiet') this.#hush();
    this.#events.push({ seq, timeMs, tokens: this.#tokens, kind, text });
  }

  /** The decisions on a situation are complete. */
  #settle(): void {
    const point = this.#point;
    this.#point = null;
    if (point === null) return;
    if (point.rows.length === 0) this.#quiet.push(point);
    else this.#tell(point.entry, 'plan', planText(point));
  }

  /** Situations without a decision are told together. */
  #hush(): void {
    const quiet = this.#quiet;
    this.#quiet = [];
    const [first] = quiet;
    if (first === undefined) return;
    const { seq, timeMs, body } = first.entry;
    const last = quiet.at(-1)!.entry.body.situation;
    const from = body.situation.tokens;
    const span =
      from === last.tokens ? `At ${plural(from, 'token')}` : `From ${grouped(from)} to ${plural(last.tokens, 'token')}`;
    const fullest = Math.max(...quiet.map((one) => needOf(one.entry.body.situation) ?? 0));
    const need =
      last.budgetBytes === null ? '' : `; with the next pages it needed at most ${percent(fullest)} of its budget`;
    const tried = quiet.reduce((sum, one) => sum + one.entry.body.situation.trials.length, 0);
    const trials = tried === 0 ? '' : `; ${plural(tried, 'page side was', 'page sides were')} tried in lower formats`;
    const text = `${span}: ${plural(quiet.length, 'situation')} without a decision. The cache held ${bytesText(last.bytes)}${need}${trials}.`;
    this.#events.push({ seq, timeMs, tokens: from, kind: 'quiet', text });
  }

  #note(entry: Entry<'note'>): void {
    const { layerChanges = [], trustChanges = [] } = entry.body as NoteBody;
    const { tokens } = entry.body as { tokens?: number };
    if (tokens !== undefined) this.#tokens = tokens;
    const told = [...layerChanges.map(qualityText), ...trustChanges.map(trustText)];
    this.#tell(entry, 'note', told.length > 0 ? told.join(' ') : noteText(entry.body));
  }
}

/** Bytes that the cache and its next pages need, as a share of the budget; null without one. */
const needOf = ({ bytes, sealBytes, budgetBytes }: Situation): number | null =>
  budgetBytes === null ? null : (bytes + sealBytes) / Math.max(1, budgetBytes);

/** '3 a, 2 b': how often each, the most frequent first. */
function tally(names: readonly string[]): string {
  const counts = new Map<string, number>();
  for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1);
  return [...counts]
    .sort(([a, m], [b, n]) => n - m || (a < b ? -1 : 1))
    .map(([name, count]) => `${count} ${name}`)
    .join(', ');
}

/** '0, 3 to 5': whole numbers, runs told as such. */
export function runsText(numbers: Iterable<number>): string {
  const sorted = [...new Set(numbers)].sort((a, b) => a - b);
  const runs: [number, number][] = [];
  for (const one of sorted) {
    const last = runs.at(-1);
    if (last !== undefined && one === last[1] + 1) last[1] = one;
    else runs.push([one, one]);
  }
  return runs.map(([a, b]) => (a === b ? `${a}` : b === a + 1 ? `${a}, ${b}` : `${a} to ${b}`)).join(', ');
}

function planText({ entry, rows }: Point): string {
  const { situation } = entry.body;
  const made = rows.filter(({ accepted }) => accepted);
  const need = needOf(situation);
  const why =
    need === null
      ? ''
      : `The cache and its next pages needed ${percent(need)} of the budget${situation.urgent ? ', at once' : ''}. `;
  const refused = rows.length - made.length;
  const plan = `${plural(rows.length, 'move')} planned (${tally(rows.map(({ rule }) => rule))})${refused === 0 ? '' : `, ${refused} refused (${tally(rows.filter(({ accepted }) => !accepted).map(({ verdictRule }) => verdictRule))})`}`;
  if (made.length === 0) return `${why}${plan}.`;
  const first = rows[0]!;
  const last = rows.at(-1)!;
  const moves = tally(made.map(({ from, to }) => `${from}→${to}`));
  const bytes = `${bytesText(first.bytesBefore)} to ${bytesText(last.bytesAfter)}`;
  return `${why}${plan}: ${moves} in ${layersText(made.map(({ layer }) => layer))}. ${bytes}.`;
}

const layersText = (layers: readonly number[]): string =>
  `${new Set(layers).size === 1 ? 'layer' : 'layers'} ${runsText(layers)}`;

/** What a situation says that was measured since the one before; null: nothing but trials. */
function measuredText({
  canaries = [],
  damaged = [],
  again = [],
  probe,
  text,
  later,
  tokens,
  lowMemory,
}: Situation): string | null {
  const parts: string[] = [];
  if (canaries.length > 0) {
    const ratio = (one: (typeof canaries)[number]): number =>
      one.epsilonNow / Math.max(Number.MIN_VALUE, one.epsilonPromised);
    const worst = canaries.reduce((a, b) => (ratio(b) > ratio(a) ? b : a));
    parts.push(
      `what was kept of ${plural(canaries.length, 'page side')} was measured; the worst, ${worst.side === 'k' ? 'keys' : 'values'} of page ${worst.page} in layer ${worst.layer} in ${worst.to}, errs by ${brief(worst.epsilonNow)} where ${brief(worst.epsilonPromised)} was promised.`,
    );
  }
  if (damaged.length > 0)
    parts.push(
      `The codes of ${plural(damaged.length, 'page side')} in ${layersText(damaged.map(({ layer }) => layer))} are no longer those that were made.`,
    );
  if (again.length > 0)
    parts.push(
      `${plural(again.length, 'page side was', 'page sides were')} tried again in ${layersText(again.map(({ layer }) => layer))}.`,
    );
  if (probe !== undefined)
    parts.push(
      `${plural(probe.rows, 'token was', 'tokens were')} run again over lower formats after ${plural(probe.tokens, 'token')}: divergence ${brief(probe.meanKld)} ± ${brief(probe.standardError)} nats.`,
    );
  if (text !== undefined)
    parts.push(
      `Earlier sessions say that an error costs ${brief(text.value)} times as much in such a text as in others.`,
    );
  if (later !== undefined) parts.push(beginningText(later));
  if (lowMemory) parts.push(`Low memory was signalled from outside at ${plural(tokens, 'token')}.`);
  return parts.length === 0 ? null : parts.join(' ');
}

function beginningText(later: NonNullable<Situation['later']>): string {
  const answers = Math.max(0, ...later.map((one) => one.answers));
  return `Earlier sessions began with the same ${plural(later.length, 'page')} and say what ${plural(answers, 'answer')} asked of them.`;
}

/** The nearest sessions by name. */
function someText(neighbours: EvidenceBody['neighbours']): string {
  const near = neighbours.slice(0, 3).map(({ session, distance }) => `${session} (distance ${brief(distance)})`);
  return `${near.join(', ')}${neighbours.length > near.length ? ` and ${neighbours.length - near.length} more` : ''}`;
}

function evidenceText({ neighbours, thresholds }: EvidenceBody): string {
  const learned = Object.values(thresholds.thresholds).filter(({ origin }) => origin === 'learned');
  const found =
    neighbours.length === 0 ? 'no earlier session is like this one' : `most like this one: ${someText(neighbours)}`;
  const taught =
    learned.length === 0
      ? 'nothing is learned from them'
      : `learned: ${learned.map(({ id, value }) => `${id} ${brief(value)}`).join(', ')}`;
  return `Asked what worked before: ${found}; ${taught}.`;
}

function openText(body: OpenBody): string {
  const { model, shape, adapters, proposal, activations, policy, context, requested, foresight } = body;
  const own = Object.values(context.thresholds.thresholds).filter(({ origin }) => origin !== 'default');
  const asked = Object.entries(requested)
    .filter(([, value]) => value !== null && value !== undefined)
    .map(([name, value]) => `${name} ${typeof value === 'object' ? JSON.stringify(value) : String(value)}`);
  return [
    `Opened: model ${model.name} (${plural(shape.layers, 'layer')}, ${plural(shape.kvHeads, 'KV head')} of ${shape.headDim}), policy ${policy.id} version ${policy.version}, pages of ${PAGE_TOKENS} tokens sealed in ${context.windowFormat}.`,
    asked.length === 0 ? 'Nothing particular was asked for.' : `Asked for: ${asked.join(', ')}.`,
    own.length === 0
      ? 'All thresholds are as built in.'
      : `Not as built in: ${own.map(({ id, value, origin }) => `${id} ${brief(value)} (${origin})`).join(', ')}.`,
    ...(activations === undefined ? [] : [`Activations: ${activationText(activations)}.`]),
    ...(proposal === undefined ? [] : [proposalText(proposal, adapters)]),
    ...(foresight === undefined ? [] : [foresightText(foresight)]),
  ].join(' ');
}

const CAUSES: Readonly<Record<ChangeBody['cause'], string>> = {
  restore: 'made again from their latents or originals',
  'give-back': 'given back for room',
  shared: 'moved by a fork that shares them',
  'sliding-window': 'left behind by the sliding window of their layer and freed',
  degraded: 'brought back from originals, because their layer was degraded,',
};

function changeText({ cause, changes, bytesBefore, bytesAfter }: ChangeBody): string {
  const moves = tally(changes.map(({ from, to }) => `${from}→${to}`));
  return `${plural(changes.length, 'page was', 'pages were')} ${CAUSES[cause]} without a decision: ${moves} in ${layersText(changes.map(({ layer }) => layer))}. ${bytesText(bytesBefore)} to ${bytesText(bytesAfter)}.`;
}

function qualityText({ layer, state, source, measured, bound, threshold }: LayerChange): string {
  return `Layer ${layer} is ${regionIn(state, 'quality')}: ${source} of severity ${brief(measured)} against ${brief(bound)} ('${threshold}').`;
}

function trustText({ layer, state, measured, bound, threshold }: LayerChange): string {
  return `Layer ${layer} is ${regionIn(state, 'trust')}: its trials agree by ${brief(measured)} with what earlier sessions told, against ${brief(bound)} ('${threshold}').`;
}

/** Layers that have equally many sides in each state are told together. */
function statesText(forms: FormStates): string {
  const layers = new Map<string, number[]>();
  for (const [layer, counts] of forms.byLayer) {
    const text = FORM_STATES.flatMap((state) =>
      counts[state] === undefined ? [] : [`${counts[state]} ${state}`],
    ).join(', ');
    layers.set(text, [...(layers.get(text) ?? []), layer]);
  }
  const states = [...layers].map(([text, of]) => `${text} in ${of.length > 1 ? 'each of ' : ''}${layersText(of)}`);
  const arrows = forms.arrows.map(
    ({ from, to, sides, firstAt, lastAt }) =>
      `${from}→${to} ${sides} (${firstAt === lastAt ? `at ${grouped(firstAt)}` : `${grouped(firstAt)} to ${grouped(lastAt)}`} tokens)`,
  );
  const now = states.length === 0 ? 'None has left the window now' : states.join('; ');
  return `Sides of pages behind the window: ${now}. They went ${arrows.join(', ')}.`;
}

const sidesText = (sides: readonly PromotedSide[]): string =>
  `${plural(sides.length, 'page side')} in ${layersText(sides.map(({ layer }) => layer))} (${tally(sides.map(({ from, to }) => `${from}→${to}`))})`;

function damageText(damaged: readonly MendedSide[]): string {
  const told = [true, false].flatMap((mended) => {
    const sides = damaged.filter((one) => one.mended === mended);
    if (sides.length === 0) return [];
    const which = `${plural(sides.length, 'page side')} in ${layersText(sides.map(({ layer }) => layer))} (${tally(sides.map(({ format }) => format))})`;
    return [mended ? `${which} made again of originals` : `${which} left so, for want of originals or of room`];
  });
  return `Codes were damaged in memory: ${told.join('; ')}.`;
}

const activatedText = (activated: NonNullable<NoteBody['activated']>): string =>
  `Adapters that are activated by tokens: ${activated
    .map(({ digest, since }) => `${digest.slice(0, 12)} adds ${since === null ? 'to none' : `from token ${since} on`}`)
    .join('; ')}.`;

/** null: it did not begin with pages of another session. */
function adoptedText({ adopted, heldTokens, from }: Readonly<Record<string, unknown>>): string | null {
  if (typeof adopted !== 'number' || typeof heldTokens !== 'number') return null;
  return `Began with ${plural(adopted, 'token')} that session ${show(from)} had read: ${heldTokens} in pages that both hold, ${adopted - heldTokens} in copies.`;
}

function noteText(body: Readonly<Record<string, unknown>>): string {
  const { gaveWay, takenBack, budgetBytes, parked, resumed, from, why, otherwise } = body;
  const { promoted, returned, damaged, beginning, pool, parking, adapterGone, receipt, activated } = body as NoteBody;
  if (pool !== undefined) return askingText(pool);
  if (parking !== undefined) return parkingText(parking);
  if (adapterGone !== undefined) return goneText(adapterGone);
  if (receipt !== undefined)
    return `An answer of ${plural(receipt.answer.tokens, 'token')} behind ${receipt.request.tokens} was given a receipt.`;
  if (promoted !== undefined) return `For an answer, ${sidesText(promoted)} came back from originals.`;
  if (returned !== undefined) return `${sidesText(returned)} went back to what they were.`;
  if (damaged !== undefined) return damageText(damaged);
  if (activated !== undefined) return activatedText(activated);
  if (beginning !== undefined)
    return `Began as ${plural(beginning.length, 'earlier session')} did: ${someText(beginning)}.`;
  if (typeof takenBack === 'number') return `${plural(takenBack, 'token was', 'tokens were')} taken back.`;
  if (typeof gaveWay === 'string')
    return `The budget of ${gaveWay} gave way${typeof budgetBytes === 'number' ? `; bytes may now be ${bytesText(budgetBytes)}` : ''}.`;
  if (typeof body['packLeft'] === 'string')
    return `${plural(Number(body['pages']), 'page')} of ${body['packLeft']} went on in a format of ours: ${show(why)}.`;
  const stated = statedText(body);
  if (stated !== null) return stated;
  if (typeof parked === 'number') return `Parked with ${plural(parked, 'token')}.`;
  if (typeof resumed === 'number')
    return typeof why === 'string'
      ? `Session ${show(from)}, which was parked, is read again: ${why}.`
      : `Goes on from session ${show(from)}, which was parked with ${plural(resumed, 'token')}${typeof otherwise === 'string' ? `; ${otherwise}` : ''}.`;
  const { growth } = body as NoteBody;
  return (
    adoptedText(body) ?? idleText(body) ?? gaveUpText(body) ?? growthText(growth) ?? `Noted: ${JSON.stringify(body)}.`
  );
}

const ENDS: Readonly<Record<CloseBody['reason'], string>> = {
  done: 'Closed',
  aborted: 'Closed after it was aborted',
  error: 'Closed after an error',
};

function closeText(body: CloseBody, policy: string): string {
  const {
    reason,
    tokens,
    kvBytes,
    kvBytesF16,
    effectiveBits,
    decisions,
    refused,
    predictedKld,
    meanKld,
    measured: reread,
  } = body;
  const predicted = predictedBy(policy, predictedKld);
  const measured = [
    ...(meanKld === null ? [] : [`measured as ${brief(meanKld)}`]),
    ...(reread === undefined ? [] : [`${brief(reread.meanKld)} on ${plural(reread.tokens, 'token')} read twice`]),
  ];
  return `${ENDS[reason]} with ${plural(tokens, 'token')}: ${bytesText(kvBytes)} at its peak, ${percent(kvBytes / Math.max(1, kvBytesF16))} of f16, ${brief(effectiveBits)} bits per number; ${plural(decisions, 'move')}, ${refused} refused; divergence ${predicted === null ? 'not predicted' : `predicted as ${brief(predicted)} nats`}, ${measured.join(', ') || 'not measured'}.`;
}
