/**
 * What a session would have decided, had it not been told what others knew: its situations are decided again with that
 * taken out, and what is then planned is made, refused and counted as it comes. Only decisions are counterfactual.
 * Trials, probes and what originals said stay those of the log, so what would have been measured instead is not known.
 */
import { KvError, movablePages, type Part } from '../native/index.ts';
import {
  createPolicy,
  type Decision,
  defaultThresholds,
  type FormChange,
  isLatent,
  type LaterForm,
  type Outcome,
  openPolicy,
  type PageForm,
  type PolicyContext,
  type PolicySession,
  type Situation,
  type ThresholdSet,
} from '../policy/index.ts';
import { findSession, readLog } from './read.ts';
import { deciding, type PolicyFactory, replay, replaySession } from './replay.ts';
import type { Entry } from './types.ts';

/**
 * What can be taken out. `course`: how errors went on in earlier sessions. `later`: what was asked of the pages of a
 * beginning. `learned`: thresholds, gains and the law of errors that sessions, a threshold file or the package brought,
 * and what nearest sessions said of the text. `all`: these three.
 */
export type Without = 'course' | 'later' | 'learned' | 'all';
/** Every one of them. */
export const WITHOUT: readonly Without[] = ['course', 'later', 'learned', 'all'];

/** What becomes of a decision. The last three: at its situation nothing was planned for its page side. */
export type Otherwise = 'same' | 'other-form' | 'other-verdict' | 'earlier' | 'later' | 'never';
/** Every one of them. */
export const OTHERWISE: readonly Otherwise[] = ['same', 'other-form', 'other-verdict', 'earlier', 'later', 'never'];

/** A move as it would have been planned. */
export interface OtherMove {
  /** Number of the situation. */
  readonly situation: number;
  /** Tokens in the cache then. */
  readonly tokens: number;
  /** Form before. */
  readonly from: PageForm;
  /** Form that was planned. */
  readonly to: LaterForm;
  /** True if it would have been made. */
  readonly accepted: boolean;
  /** Predicted divergence per byte saved, in nats; null without trials. */
  readonly price: number | null;
}

/** A decision of the log, and what would have become of it. */
export interface DecisionWithout {
  /** seq of its entry. */
  readonly seq: number;
  /** What differs. */
  readonly what: Otherwise;
  /** Its price in the log. */
  readonly price: number | null;
  /** The move of its page side: at the same situation, else the one nearest to it; null: there is none. */
  readonly move: OtherMove | null;
}

/** A session beside what it would have decided. */
export interface WithoutReport {
  /** Id of the session. */
  readonly session: string;
  /** What was taken out. */
  readonly without: Without;
  /** False where the session had none of it: then nothing can differ. */
  readonly had: boolean;
  /** Decisions in the log, refused ones included. */
  readonly decisions: number;
  /** What would have become of them. */
  readonly counts: Readonly<Record<Otherwise, number>>;
  /** Moves that would have been planned at situations at which the log has none of their page side. */
  readonly added: number;
  /** Decisions that are not the same, in order. */
  readonly differing: readonly DecisionWithout[];
}

/**
 * Decides a session of the log in `dir` again without each of `without`, reading it once. `create` as for `replay`.
 * Throws what `replay` throws, and 'bad-log' for a session whose decisions do not follow from its log.
 */
export function decideWithout(
  dir: string,
  session: string,
  without: readonly Without[],
  create: PolicyFactory = createPolicy,
): WithoutReport[] {
  const id = findSession(dir, session);
  const { equal, missing = 0 } = replay(dir, id, create);
  if (!equal || missing > 0)
    throw new KvError('bad-log', `what session ${id} decided does not follow from its log`, {
      values: { session: id, missing },
      hint: 'audit replay says where they part; only a session that is decided again as it was can be decided otherwise',
    });
  return counterfactuals(readLog(dir, { session: id }), without, create).map((one) => one.report());
}

/** Decides the entries of one session that replays again without each of `without`. */
function counterfactuals(
  entries: Iterable<Entry>,
  without: readonly Without[],
  create: PolicyFactory,
): Counterfactual[] {
  let all: Counterfactual[] = [];
  for (const entry of entries)
    if (entry.kind === 'open')
      all = deciding(entry, () => without.map((one) => new Counterfactual(entry as Entry<'open'>, one, create)));
    else for (const one of all) deciding(entry, () => one.take(entry));
  for (const one of all) one.end();
  return all;
}

/**
 * What would have become of one decision of a session without each of `without`, as it is decided again beside that,
 * once and no further than it must be; null: it is not decided again as it was. Throws what `replaySession` throws.
 * @internal
 */
export function decisionWithout(
  entries: Iterable<Entry>,
  seq: number,
  without: readonly Without[],
  create: PolicyFactory = createPolicy,
): (DecisionWithout & { readonly without: Without })[] | null {
  let all: readonly Counterfactual[] = [];
  let left = all;
  const beside = function* (): Generator<Entry> {
    for (const entry of entries) {
      // First it is taken as it was: what cannot be is not decided otherwise.
      yield entry;
      if (entry.kind === 'open')
        left = all = without.map((one) => new Counterfactual(entry as Entry<'open'>, one, create));
      for (const one of left) deciding(entry, () => one.take(entry));
      if (entry.kind !== 'situation' || entry.seq < seq) continue;
      left = left.filter((one) => !one.isSettled(seq));
      if (left.length === 0) return;
    }
  };
  if (!replaySession(beside(), create).equal) return null;
  return all.flatMap((one) => {
    one.end();
    const found = one.of(seq);
    return found === undefined ? [] : [{ without: one.without, ...found }];
  });
}

/** Thresholds as they are where nobody knows anything; what an option says stays. */
function withoutLearned(set: ThresholdSet): ThresholdSet {
  const { law: _, ranges: __, thresholds, ...rest } = set;
  const known = defaultThresholds(set.gains.k.length);
  const kept = Object.entries(thresholds).flatMap(([id, one]) => {
    if (one.origin !== 'learned' && one.origin !== 'file') return [[id, one] as const];
    const instead = known.thresholds[id];
    return instead === undefined ? [] : [[id, instead] as const];
  });
  return { ...rest, thresholds: Object.fromEntries(kept), gains: known.gains, c: known.c };
}

/** True if thresholds are not those of a session that knows nothing. */
export function isLearned({ thresholds, law, gains, c }: ThresholdSet): boolean {
  const known = defaultThresholds(gains.k.length);
  const isGiven = Object.values(thresholds).some(({ origin }) => origin === 'learned' || origin === 'file');
  return isGiven || law !== undefined || c !== known.c || [...gains.k, ...gains.v].some((gain) => gain !== 1);
}

/** The forms that the sides and latents of pages have. */
class Forms {
  readonly #context: PolicyContext;
  /** Those that are not in the window format, by layer and page. */
  readonly #pages = new Map<number, Partial<Record<Part, PageForm>>>();
  /** Those of which nothing is left. */
  readonly #freed = new Set<number>();

  constructor(context: PolicyContext) {
    this.#context = context;
  }

  of(layer: number, page: number, side: Part): PageForm {
    return this.#pages.get(this.#key(layer, page))?.[side] ?? this.#context.windowFormat;
  }

  set(layer: number, page: number, side: Part, form: PageForm): void {
    const key = this.#key(layer, page);
    const before = this.#pages.get(key);
    // Keys and values that are made again of a latent take its place.
    if (side === 'kv' && !isLatent(form)) this.#pages.set(key, { k: form, v: form });
    else this.#pages.set(key, { ...before, [side]: form });
  }

  /** What a decision makes of a side; nothing is left of a page that is let go. */
  become(layer: number, page: number, side: Part, form: LaterForm): void {
    if (form === 'freed') this.free(layer, page);
    else this.set(layer, page, side, form);
  }

  free(layer: number, page: number): void {
    const key = this.#key(layer, page);
    this.#pages.delete(key);
    this.#freed.add(key);
  }

  /** Pages that are in the window at this length are others when they leave it again. */
  forget(tokens: number): void {
    const first = this.#key(0, movablePages(tokens, this.#context.windowTokens));
    for (const pages of [this.#pages, this.#freed]) for (const key of pages.keys()) if (key >= first) pages.delete(key);
  }

  /** Bytes of all pages beyond what they would take in the window format. */
  get bytes(): number {
    const { pageBytes, windowFormat, latents } = this.#context;
    const beside = latents === undefined ? 0 : (pageBytes[latents.kept] ?? 0);
    const bytesOf = (form: PageForm = windowFormat): number => pageBytes[form] ?? 0;
    const whole = 2 * bytesOf() + beside;
    let sum = -whole * this.#freed.size;
    for (const { k, v, kv } of this.#pages.values()) {
      const isWhole = (k ?? windowFormat) === windowFormat && (v ?? windowFormat) === windowFormat;
      sum +=
        (kv !== undefined && isLatent(kv) ? bytesOf(kv) : bytesOf(k) + bytesOf(v) + (isWhole ? beside : 0)) - whole;
    }
    return sum;
  }

  #key(layer: number, page: number): number {
    return page * this.#context.layers + layer;
  }
}

type Place = Pick<Decision, 'layer' | 'page' | 'side'>;
const placeOf = ({ layer, page, side }: Place): string => `${layer} ${page} ${side}`;
const moveOf = (move: Decision): string => `${placeOf(move)} ${move.from} ${move.to}`;

/** One session of the log that is decided otherwise. @internal */
export class Counterfactual {
  readonly without: Without;
  readonly #session: string;
  readonly #policy: PolicySession;
  readonly #own: Forms;
  readonly #logged: Forms;
  #had = false;
  #index = -1;
  #tokens = 0;
  #plan: readonly Decision[] = [];
  /** Decisions that the log has of the present situation. */
  #told: Entry<'decision'>[] = [];
  #outcomes: Outcome[] = [];
  /** What the log measured last of moves that were tried again. */
  readonly #measured = new Map<string, number>();
  readonly #decisions: Entry<'decision'>[] = [];
  readonly #moves = new Map<string, OtherMove[]>();
  #planned = 0;

  constructor({ session, body: { policy, context } }: Entry<'open'>, without: Without, create: PolicyFactory) {
    this.#session = session;
    this.without = without;
    const { course, ...others } = context.thresholds;
    const keepsCourse = course === undefined || !this.#lacks('course');
    this.#had = !keepsCourse || (this.#lacks('learned') && isLearned(others));
    const thresholds = this.#lacks('learned') ? withoutLearned(others) : others;
    const told = { ...context, thresholds: keepsCourse && course ? { ...thresholds, course } : thresholds };
    this.#policy = openPolicy(create(policy.id, policy.options, policy.version), told);
    this.#own = new Forms(context);
    this.#logged = new Forms(context);
  }

  #lacks(what: Without): boolean {
    return this.without === what || this.without === 'all';
  }

  take(entry: Entry): void {
    if (entry.kind === 'decision') this.#told.push(entry as Entry<'decision'>);
    if (entry.kind !== 'situation') return;
    this.#finish();
    const { situation } = (entry as Entry<'situation'>).body;
    const seen = this.#seen(situation);
    this.#index = situation.index;
    this.#tokens = situation.tokens;
    this.#outcomes = [];
    try {
      this.#plan = this.#policy.decide(seen);
    } catch (error) {
      if (!(error instanceof KvError) || error.code !== 'budget-too-small') throw error;
      this.#plan = [];
    }
  }

  /** The situation with what the cache would be by then. */
  #seen(situation: Situation): Situation {
    const { later, text, changes = [], again, canaries, ...rest } = situation;
    const [own, logged] = [this.#own, this.#logged];
    if (situation.tokens < this.#tokens) for (const forms of [own, logged]) forms.forget(situation.tokens);
    const made = changes.flatMap((change) => this.#change(change));
    for (const { layer, page, side, from } of situation.trials)
      for (const forms of [own, logged]) forms.set(layer, page, side, from);
    const isSo = ({ layer, page, side }: Place, form: PageForm): boolean =>
      own.of(layer, page, side) === form && own.of(layer, page, 'kv') === logged.of(layer, page, 'kv');
    const tried = again?.filter((one) => isSo(one, one.from));
    const watched = canaries?.filter((one) => isSo(one, one.to));
    this.#had ||= this.#lacks('later') && later !== undefined;
    this.#had ||= this.#lacks('learned') && text !== undefined;
    return {
      ...rest,
      bytes: situation.bytes + own.bytes - logged.bytes,
      outcomes: this.#outcomes,
      ...(made.length === 0 ? {} : { changes: made }),
      ...(tried === undefined ? {} : { again: tried }),
      ...(watched === undefined ? {} : { canaries: watched }),
      ...(later === undefined || this.#lacks('later') ? {} : { later }),
      ...(text === undefined || this.#lacks('learned') ? {} : { text }),
    };
  }

  /** What others did to a form that the page would not have had is left out. */
  #change(change: FormChange): FormChange[] {
    const { layer, page, side, from, to } = change;
    const before = this.#own.of(layer, page, side);
    if (to === 'freed') {
      for (const forms of [this.#own, this.#logged]) forms.free(layer, page);
      return [{ ...change, from: before }];
    }
    this.#logged.set(layer, page, side, to);
    if (before !== from) return [];
    this.#own.set(layer, page, side, to);
    return [change];
  }

  /** Judges what was planned, by what the log measured of the same moves, and takes in what it made itself. */
  #finish(): void {
    const told = new Map(this.#told.map((entry) => [moveOf(entry.body.decision), entry.body]));
    for (const { decision, epsilonNow } of told.values())
      if (epsilonNow !== null) this.#measured.set(moveOf(decision), epsilonNow);
    for (const decision of this.#plan) {
      const { layer, page, side, from, to, price, retry } = decision;
      const same = told.get(moveOf(decision));
      const known = retry ? (this.#measured.get(moveOf(decision)) ?? null) : null;
      const epsilonNow = same === undefined ? known : same.epsilonNow;
      const { accepted } = this.#policy.judge(decision, epsilonNow);
      const freed = same?.verdict.accepted === true ? same.bytesBefore - same.bytesAfter : decision.bytesFreed;
      this.#outcomes.push({ layer, page, side, from, to, accepted, epsilonNow, bytesFreed: accepted ? freed : 0 });
      if (accepted) this.#own.become(layer, page, side, to);
      const move = { situation: this.#index, tokens: this.#tokens, from, to, accepted, price };
      this.#moves.set(placeOf(decision), [...(this.#moves.get(placeOf(decision)) ?? []), move]);
      this.#planned++;
    }
    for (const { decision, verdict } of told.values())
      if (verdict.accepted) this.#logged.become(decision.layer, decision.page, decision.side, decision.to);
    this.#decisions.push(...this.#told);
    this.#told = [];
    this.#plan = [];
  }

  /** The log says nothing more of the session. */
  end(): void {
    this.#finish();
  }

  /** What would have become of the decision with this seq; undefined: there is none. */
  of(seq: number): DecisionWithout | undefined {
    const entry = this.#decisions.find((one) => one.seq === seq);
    return entry && this.#compare(entry);
  }

  /** True if nothing that follows in the log changes what would have become of the decision with this seq. */
  isSettled(seq: number): boolean {
    const what = this.of(seq)?.what;
    return what === 'same' || what === 'other-form' || what === 'other-verdict';
  }

  report(): WithoutReport {
    const all = this.#decisions.map((entry) => this.#compare(entry));
    const counts = Object.fromEntries(
      OTHERWISE.map((what) => [what, all.filter((one) => one.what === what).length]),
    ) as Record<Otherwise, number>;
    return {
      session: this.#session,
      without: this.without,
      had: this.#had,
      decisions: all.length,
      counts,
      added: this.#planned - counts.same - counts['other-form'] - counts['other-verdict'],
      differing: all.filter(({ what }) => what !== 'same'),
    };
  }

  #compare({ seq, body: { decision, situation, verdict } }: Entry<'decision'>): DecisionWithout {
    const { from, to, price } = decision;
    const moves = this.#moves.get(placeOf(decision)) ?? [];
    const here = moves.find((move) => move.situation === situation);
    if (here !== undefined) {
      const isMove = here.from === from && here.to === to;
      const what = !isMove ? 'other-form' : here.accepted === verdict.accepted ? 'same' : 'other-verdict';
      return { seq, what, price, move: here };
    }
    // The move to the same form says most, and of those the one that is nearest.
    const rank = (move: OtherMove): number => Math.abs(move.situation - situation) + (move.to === to ? 0 : 1e9);
    const [move] = moves.filter(({ accepted }) => accepted).sort((a, b) => rank(a) - rank(b));
    if (move === undefined) return { seq, what: 'never', price, move: null };
    return { seq, what: move.situation < situation ? 'earlier' : 'later', price, move };
  }
}
