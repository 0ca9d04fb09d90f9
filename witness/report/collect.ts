/** One walk over the entries of a session: everything that its report shows. */
import { FORMAT_NAMES, KvError, PAGE_TOKENS, PARTS, type Part, plural, printable, show } from '../../native/index.ts';
import { type Because, FORMS, type LaterForm, type LayerChange, type PageForm, regionIn } from '../../policy/index.ts';
import { RULES } from '../because-text.ts';
import { DECISION } from '../entries/decision.ts';
import type { NoteBody } from '../entries/log-notes.ts';
import { SITUATION } from '../entries/situation.ts';
import { ORIGINS } from '../explain-text.ts';
import { gaveUpText } from '../gave-up-text.ts';
import { growthText } from '../growth-text.ts';
import { idleText } from '../idle-text.ts';
import { statedText } from '../stated-text.ts';
import type { Entry, OpenBody } from '../types.ts';
import { reportColumns } from './columns.ts';
import { Packer } from './pack.ts';
import type { Happening, Reason, ReportData } from './page/data.ts';

/**
 * More decisions than this are counted but not listed, so that a page stays small enough to open. Chosen, not measured.
 */
export const DECISIONS_MAX = 250_000;

/** What pages are in, and what is left of those that were freed. */
const LATER_FORMS: readonly LaterForm[] = [...FORMS, 'freed'];
const formOf = (form: LaterForm): number => LATER_FORMS.indexOf(form);
const sideOf = (side: Part): number => PARTS.indexOf(side);

const PLACE_COLUMNS = ['layer', 'page', 'side', 'from'];
/** Those that follow from the fields, and those that are computed of them. */
const OF_SITUATION = reportColumns(SITUATION);
const SITUATION_COLUMNS = [...OF_SITUATION.map(({ name }) => name), 'budget', 'canaryBytes', 'p95'];
const OF_DECISION = reportColumns(DECISION);
const DECISION_COLUMNS = [...OF_DECISION.map(({ name }) => name), 'because', 'verdict', 'freed'];

/** What the log says about a session, before it is a page. */
export interface Collected {
  readonly open: Entry<'open'>;
  /** null: it still runs, or was killed. */
  readonly close: Entry<'close'> | null;
  /** The time of its last entry, milliseconds since the epoch. */
  readonly lastMs: number;
  /** Entries of the session. */
  readonly entries: number;
  readonly refused: number;
  /** Most bytes of the cache in any situation, kept originals included. */
  readonly bytesPeak: number;
  /** Least bytes that any situation had for the cache; null without a byte budget. */
  readonly budgetBytes: number | null;
  readonly kldBudget: number | null;
  readonly data: ReportData;
}

/**
 * Collects what a report of one session shows. `entries`: those of the session in order of seq. Of more than
 * `decisionsMax` decisions the later ones are counted only. Throws 'not-found' when there is no 'open' entry; and what
 * `entries` throws.
 */
export function collect(entries: Iterable<Entry>, decisionsMax = DECISIONS_MAX): Collected {
  const collector = new Collector(decisionsMax);
  for (const entry of entries) collector.take(entry);
  return collector.result();
}

/** What a note may say of tokens that went or came. */
type Told = Readonly<Record<'takenBack' | 'parked' | 'resumed' | 'from' | 'why' | 'idle', unknown>>;

class Collector {
  readonly #decisionsMax: number;
  readonly #situations = new Packer(SITUATION_COLUMNS);
  readonly #decisions = new Packer(DECISION_COLUMNS);
  readonly #trials = new Packer(['seq+', ...PLACE_COLUMNS, ...FORMS]);
  readonly #canaries = new Packer(['seq+', 'tokens+', ...PLACE_COLUMNS, 'to', 'promised', 'now', 'age']);
  readonly #changes = new Packer(['seq+', 'tokens+', ...PLACE_COLUMNS, 'to']);
  readonly #happenings: Happening[] = [];
  readonly #reasons = new Map<string, { readonly at: number; readonly reason: Reason }>();
  #open: Entry<'open'> | null = null;
  #close: Entry<'close'> | null = null;
  #entries = 0;
  #lastMs = 0;
  #tokens = 0;
  #decisionCount = 0;
  #refused = 0;
  #bytesPeak = 0;
  #budgetBytes: number | null = null;
  #kldBudget: number | null = null;

  constructor(decisionsMax: number) {
    this.#decisionsMax = decisionsMax;
  }

  take(entry: Entry): void {
    this.#entries++;
    this.#lastMs = entry.timeMs;
    if (entry.kind === 'open') this.#open = entry as Entry<'open'>;
    else if (entry.kind === 'situation') this.#situation(entry as Entry<'situation'>);
    else if (entry.kind === 'decision') this.#decision(entry as Entry<'decision'>);
    else if (entry.kind === 'change') this.#change(entry as Entry<'change'>);
    else if (entry.kind === 'note') this.#note(entry as Entry<'note'>);
    else if (entry.kind === 'close') {
      this.#close = entry as Entry<'close'>;
      this.#tokens = this.#close.body.tokens;
    }
  }

  #situation(entry: Entry<'situation'>): void {
    const { seq, body } = entry;
    const { tokens, bytes, budgetBytes, canaryBytes = 0, canaries = [], trials } = body.situation;
    const { stepLatencyMsP95, kldBudget } = body.situation;
    this.#tokens = tokens;
    this.#kldBudget = kldBudget;
    this.#bytesPeak = Math.max(this.#bytesPeak, bytes + canaryBytes);
    // The situation leaves out what kept originals take; the report shows the whole.
    const budget = budgetBytes === null ? null : budgetBytes + canaryBytes;
    if (budget !== null) this.#budgetBytes = Math.min(budget, this.#budgetBytes ?? budget);
    // 0: too few steps of one token were seen.
    const p95 = stepLatencyMsP95 === 0 ? null : stepLatencyMsP95;
    this.#situations.add([...OF_SITUATION.map((column) => column.value(entry)), budget, canaryBytes, p95]);
    for (const { layer, page, side, from, epsilon } of trials) {
      const errors = FORMS.map((form) => epsilon[form] ?? null);
      this.#trials.add([seq, layer, page, sideOf(side), formOf(from), ...errors]);
    }
    for (const { layer, page, side, from, to, epsilonPromised, epsilonNow, age } of canaries) {
      const place = [layer, page, sideOf(side), formOf(from), formOf(to)];
      this.#canaries.add([seq, tokens, ...place, epsilonPromised, epsilonNow, age]);
    }
  }

  #decision(entry: Entry<'decision'>): void {
    const { decision, verdict, bytesBefore, bytesAfter } = entry.body;
    this.#decisionCount++;
    if (!verdict.accepted) this.#refused++;
    if (this.#decisionCount > this.#decisionsMax) return;
    this.#decisions.add([
      ...OF_DECISION.map((column) => column.value(entry)),
      this.#reason(decision.because),
      this.#reason(verdict.because),
      bytesBefore - bytesAfter,
    ]);
  }

  #reason({ rule, threshold, unit, origin }: Because): number {
    const reason: Reason = [printable(rule), printable(threshold), printable(unit), origin];
    const key = reason.join('\n');
    const known = this.#reasons.get(key);
    if (known !== undefined) return known.at;
    const at = this.#reasons.size;
    this.#reasons.set(key, { at, reason });
    return at;
  }

  #change({ seq, body }: Entry<'change'>): void {
    for (const { layer, page, side, from, to } of body.changes)
      this.#changes.add([seq, body.tokens, layer, page, sideOf(side), formOf(from), formOf(to)]);
  }

  #note({ seq, body }: Entry<'note'>): void {
    const note = body as { layerChanges?: LayerChange[]; tokens?: number; gaveWay?: unknown } & NoteBody & Told;
    const tokens = note.tokens ?? this.#tokens;
    const tell = (text: string): void => void this.#happenings.push({ seq, tokens, layer: null, state: null, text });
    for (const { layer, state, threshold, measured, bound, source } of note.layerChanges ?? []) {
      const text = `${SOURCES[source]}: severity ${digits(measured)} against ${digits(bound)} of '${threshold}'`;
      const quality = printable(regionIn(state, 'quality'));
      this.#happenings.push({ seq, tokens, layer, state: quality, text: printable(text) });
    }
    if (note.gaveWay === 'bytes') tell('The byte budget gave way to the divergence budget, which is ranked before it.');
    if (note.gaveWay === 'kld') tell('The divergence budget gave way to the byte budget, which is ranked before it.');
    const stated = statedText(note);
    if (stated !== null) tell(stated);
    if (note.promoted !== undefined)
      tell(`${plural(note.promoted.length, 'page side')} came back from originals for an answer.`);
    if (note.damaged !== undefined) {
      const mended = note.damaged.filter((one) => one.mended).length;
      tell(
        `Codes of ${plural(note.damaged.length, 'page side')} were damaged in memory; ${mended} made again of originals.`,
      );
    }
    if (note.returned !== undefined) tell(`${plural(note.returned.length, 'page side')} went back to what they were.`);
    if (typeof note.takenBack === 'number')
      tell(`${plural(note.takenBack, 'token')} ${note.takenBack === 1 ? 'was' : 'were'} taken back.`);
    if (typeof note.parked === 'number') tell(`Parked with ${plural(note.parked, 'token')}.`);
    const idle = idleText(note) ?? gaveUpText(note) ?? growthText(note.growth);
    if (idle !== null) tell(idle);
    if (typeof note.resumed !== 'number') return;
    const from = printable(show(note.from));
    if (note.why === undefined) tell(`Goes on from session ${from}, which was parked.`);
    else tell(`Session ${from}, which was parked, is read again: ${printable(show(note.why))}.`);
  }

  result(): Collected {
    const open = this.#open;
    if (open === null)
      throw new KvError('not-found', 'the session has no open entry', {
        hint: 'see `audit sessions` for the sessions there are',
      });
    const reasons = [...this.#reasons.values()].map(({ reason }) => reason);
    return {
      open,
      close: this.#close,
      lastMs: this.#lastMs,
      entries: this.#entries,
      refused: this.#refused,
      bytesPeak: this.#bytesPeak,
      budgetBytes: this.#budgetBytes,
      kldBudget: this.#kldBudget,
      data: {
        ...sessionFacts(open),
        tokens: this.#tokens,
        reasons,
        starts: startsOf(open.body, reasons),
        situations: this.#situations.columns(),
        decisions: this.#decisions.columns(),
        decisionCount: this.#decisionCount,
        trials: this.#trials.columns(),
        canaries: this.#canaries.columns(),
        changes: this.#changes.columns(),
        happenings: this.#happenings,
        pool: null,
      },
    };
  }
}

const SOURCES: Readonly<Record<LayerChange['source'], string>> = {
  error: 'measured over promised error',
  topic: 'a change of topic',
  codes: 'codes that were damaged',
  gain: 'a gain that is not believed',
  agreement: 'agreement with what earlier sessions told',
};

const digits = (value: number): string => String(Number(value.toPrecision(3)));

function sessionFacts({ session, body }: Entry<'open'>) {
  const { model, shape, policy, context } = body;
  const numbers = shape.kvHeads * shape.headDim * PAGE_TOKENS;
  // A latent is keys and values in one.
  const bitsOf = (form: PageForm): number =>
    (8 * (context.pageBytes[form] ?? 0)) / numbers / (formOf(form) < FORMAT_NAMES.length ? 1 : 2);
  return {
    session,
    model: printable(model.name),
    policy: printable(policy.id),
    layers: shape.layers,
    pageTokens: PAGE_TOKENS,
    f16BytesPerToken: f16Bytes(body, 1),
    forms: LATER_FORMS,
    formBits: [...FORMS.map(bitsOf), 0],
    formBytes: [...FORMS.map((form) => context.pageBytes[form] ?? null), null],
    freedForm: formOf('freed'),
    formats: FORMAT_NAMES.length,
    windowForm: formOf(context.windowFormat),
    openForm: formOf(context.openFormat ?? 'f16'),
    rules: RULES,
    origins: ORIGINS,
  };
}

/** What keys and values of so many tokens take in f16. */
export const f16Bytes = ({ shape }: OpenBody, tokens: number): number =>
  2 * shape.layers * shape.kvHeads * shape.headDim * Uint16Array.BYTES_PER_ELEMENT * tokens;

/** The thresholds that decisions name, as the session began with them. */
function startsOf({ context }: OpenBody, reasons: readonly Reason[]): ReportData['starts'] {
  const starts: Record<string, { value: number; unit: string; source: string }> = {};
  for (const [, threshold] of reasons) {
    const start = context.thresholds.thresholds[threshold];
    if (start === undefined) continue;
    const { value, unit, source } = start;
    starts[threshold] = { value, unit: printable(unit), source: printable(source) };
  }
  return starts;
}
