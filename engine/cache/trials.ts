/**
 * The trial queue: pages that are about to leave the window wait here to be tried in every candidate format, are tried
 * some at a time beside the steps that go on, and are reported once they may move.
 */
import {
  FORMATS,
  type FormatName,
  isAutomatic,
  type KvCache,
  LATENT_NAMES,
  LOWER_FORMATS,
  movablePages,
  PAGE_TOKENS,
  PARTS,
  type Part,
  replacementOf,
  SIDES,
  type Side,
  sealedPages,
  servesSide,
  type TrialCandidate,
} from '../../native/index.ts';
import {
  type Decision,
  OutlierKeys,
  type PageForm,
  type Policy,
  type PolicyContext,
  type PolicySession,
  RUNGS,
  type TrialReport,
  thresholdOf,
} from '../../policy/index.ts';
import { latentOf } from './forms.ts';
import type { PageOfLayer } from './sliding.ts';
import type { Tally } from './tally.ts';
import type { Terms } from './terms.ts';

/** A side of a page, and a format that it may be tried in. */
export type SideCandidate = { readonly side: Side; readonly format: FormatName };
const FIRST_TRIAL: readonly SideCandidate[] = SIDES.flatMap((side) =>
  LOWER_FORMATS.filter((format) => servesSide(format, side)).map((format) => ({ side, format })),
);
type Candidates = readonly TrialCandidate[];

/**
 * True if a page that leaves the window is tried in a format under a policy, where its session has the formats that are
 * served.
 */
function isTried(
  format: FormatName,
  { skipsReplaced = false }: Pick<Policy, 'skipsReplaced'>,
  isServed: (format: FormatName) => boolean,
): boolean {
  const better = skipsReplaced ? replacementOf(format) : undefined;
  return isServed(format) && (better === undefined || !isServed(better));
}

/**
 * What a page that leaves the window is tried in under a policy, in a session that has named no formats and whose keys
 * have no outlier channels.
 */
export const firstTrial = (policy: Pick<Policy, 'skipsReplaced'>): readonly SideCandidate[] =>
  FIRST_TRIAL.filter(({ format }) => isTried(format, policy, isAutomatic));

/** How many of the lowest rungs pages are tried in again. */
const TRIED_AGAIN = 2;

/**
 * The format in which a page side is tried again or probed: the first of the lowest rungs that is lower than its
 * present one; undefined where that is as low. The errors of the others are taken to have changed in the same
 * proportion.
 */
export const lowerFormat = (side: Side, present: FormatName): FormatName | undefined =>
  RUNGS[side].slice(-TRIED_AGAIN).find((format) => FORMATS[format].rank > FORMATS[present].rank);
/** Older pages take turns: a prime, so that the layers do not all try the same one. */
const TURN = 7919;
/**
 * A step through so many places that comes to each of them, and to all parts early: where there is no time for all,
 * layers and ages have equal shares.
 */
function stepOf(places: number): number {
  const divides = (a: number, b: number): number => (b === 0 ? a : divides(b, a % b));
  // Near the golden section, whose multiples are spread most evenly.
  let step = Math.max(1, Math.round(0.618 * places));
  while (divides(step, places) > 1) step++;
  return step;
}
/** What trying a page again takes of a first trial: two candidates of seven. */
const AGAIN_COST = 2 / 7;
/**
 * The part of the window over whose tokens the trials of one page are spread while writing, so that no single step
 * carries them; done before the page leaves the window.
 */
const SPREAD = 3 / 8;
/**
 * While writing, trials are made some at a time: between steps their code and data leave the caches, and bringing them
 * back costs half a trial.
 */
const AT_ONCE = 5;
const NOTHING = new Float64Array(0);
const NO_REPORTS: readonly TrialReport[] = [];

const placeOf = ({ layer, page }: PageOfLayer): PageOfLayer => ({ layer, page });

/** A queue as it stands: what it has found, and what waits in it. */
export interface TrialsLeft {
  readonly admitted: number;
  readonly due: number;
  readonly found: readonly TrialReport[];
  readonly waiting: readonly PageOfLayer[];
  readonly waitingAgain: readonly PageOfLayer[];
  readonly foundAgain: readonly TrialReport[];
}

interface Started extends PageOfLayer {
  readonly candidates: Candidates;
  readonly isAgain: boolean;
  /**
   * What each side was in when the trial began, from which it measures: what the page has become when somebody comes to
   * ask depends on how fast trials are. null: there is no such side.
   */
  readonly from: Readonly<Record<Part, PageForm | null>>;
}

/** What others know of pages. */
export interface Asked {
  /** Whether the policy wants a page to be tried again. */
  readonly repeats: NonNullable<PolicySession['repeats']>;
  /** The form of a side that is promoted for an answer, of which policies know nothing; null: it is not. */
  readonly lowForm: (layer: number, page: number, side: Side) => FormatName | null;
  /** Whether nothing is left of a page. */
  readonly isFreed: (layer: number, page: number) => boolean;
}

export class TrialQueue {
  readonly #cache: KvCache;
  readonly #context: PolicyContext;
  readonly #needsTrials: boolean;
  /** What pages that leave the window are tried in, where their keys have no outlier channels. */
  readonly #tried: ReadonlySet<FormatName>;
  /** Pages behind a page when it is tried again, as long as it has the format that it was sealed in. */
  readonly #ages: readonly number[];
  readonly #outliers: OutlierKeys;
  readonly #tally: Tally;
  readonly #asked: Asked;
  /** Pages that have come to be tried. */
  #admitted = 0;
  /** How many first trials are due, from the tokens since the last ones. */
  #due = 0;
  // All three in the order of pages.
  #waiting: PageOfLayer[] = [];
  #started: Started[] = [];
  #found: TrialReport[] = [];
  /** Pages that are to be tried again, and what was found. Nobody waits for them, so they come after the others. */
  #waitingAgain: PageOfLayer[] = [];
  #foundAgain: TrialReport[] = [];
  /** Reported already: what a fork is told of pages that it shares. */
  #reported: TrialReport[] = [];

  constructor(cache: KvCache, { context, policy }: Pick<Terms, 'context' | 'policy'>, tally: Tally, asked: Asked) {
    this.#cache = cache;
    this.#context = context;
    this.#needsTrials = policy.needsTrials;
    const isServed = (format: FormatName): boolean => context.pageBytes[format] !== undefined;
    this.#tried = new Set(LOWER_FORMATS.filter((format) => isTried(format, policy, isServed)));
    const ages = policy.triesAgain === true ? thresholdOf(context.thresholds, 'trial.again').value : 0;
    this.#ages = Array.from({ length: Math.max(0, ages - 1) }, (_, i) => i + 2);
    this.#outliers = new OutlierKeys(context);
    this.#tally = tally;
    this.#asked = asked;
  }

  /** Counts `tokensNew`: in proportion, more trials of waiting pages become due. */
  pass(tokensNew: number): void {
    if (this.#queued > 0) this.#due += this.#share(tokensNew);
  }

  /** Enough trials are due that it pays to start them. */
  get areDue(): boolean {
    return this.#queued > 0 && this.#due >= Math.min(AT_ONCE, this.#queued);
  }

  /** What waits, in first trials. */
  get #queued(): number {
    return this.#waiting.length + AGAIN_COST * this.#waitingAgain.length;
  }

  /**
   * Takes in the pages that leave the window next, once half of the tokens that keep them there have come. Their
   * queries see these pages whole; reading a page at a time they are tried on all of them. Older pages are due to be
   * tried again at the same time.
   */
  admit(tokens: number, tokensNew: number): void {
    const pages = movablePages(tokens, this.#windowTokens / 2);
    if (pages > this.#admitted && this.#queued === 0) this.#due = this.#share(tokensNew);
    const { layers } = this.#context;
    for (; this.#admitted < pages; this.#admitted++) {
      for (let layer = 0; layer < layers; layer++) this.#waiting.push({ layer, page: this.#admitted });
      this.#admitAgain(this.#admitted);
    }
  }

  /**
   * Pages that are tried again when `newest` comes to be tried: in every layer those of certain ages, and one older
   * page in turn. What was not tried since the page before gives way, since its age is another now.
   */
  #admitAgain(newest: number): void {
    const { layers } = this.#context;
    const places: PageOfLayer[] = [];
    for (let layer = 0; layer < layers; layer++) {
      const pages = this.#ages.map((age) => newest - age + 1).filter((page) => page >= 0);
      const older = newest - this.#ages.length;
      if (this.#ages.length > 0 && older > 0) pages.push((newest * TURN + layer) % older);
      for (const page of pages) if (this.#asked.repeats(layer, page, newest)) places.push({ layer, page });
    }
    if (places.length === 0) {
      this.#waitingAgain = [];
      return;
    }
    const step = stepOf(places.length);
    this.#waitingAgain = places.map((_, i) => places[((i + newest) * step) % places.length]!);
  }

  /**
   * Starts the trials that are due; they run beside the next steps, and nobody waits for them before they are reported.
   */
  start(): void {
    this.#collect(false);
    const start = performance.now();
    const first = this.#waiting.splice(0, Math.floor(this.#due));
    this.#due -= first.length;
    for (const place of first) this.#start(place, this.#candidates(place), false);
    const again = this.#waitingAgain.splice(0, Math.floor(this.#due / AGAIN_COST));
    this.#due -= AGAIN_COST * again.length;
    for (const place of again) this.#start(place, this.#candidatesAgain(place), true);
    this.#tally.trialsTook(performance.now() - start);
  }

  #start({ layer, page }: PageOfLayer, candidates: Candidates, isAgain: boolean): void {
    const from = this.#forms({ layer, page });
    if (candidates.length > 0) this.#cache.startTrial(layer, page, candidates);
    else if (isAgain) return;
    this.#started.push({ layer, page, candidates, isAgain, from });
  }

  /** One format of each side that is lower than the present one; a side in the lowest is not tried. */
  #candidatesAgain({ layer, page }: PageOfLayer): Candidates {
    if (this.#context.skipLayers.includes(layer) || this.#asked.isFreed(layer, page)) return [];
    // What a page that is better for an answer would lose says nothing of the page as it is otherwise.
    if (SIDES.some((side) => this.#asked.lowForm(layer, page, side) !== null)) return [];
    const latent = this.#latent(layer, page);
    if (latent?.isHeld === true) return [];
    const whole: Candidates = latent === null ? [] : [{ side: 'kv', format: latent.name }];
    return SIDES.flatMap((side): Candidates => {
      const format = lowerFormat(side, this.#cache.format(layer, page, side));
      return format === undefined ? [] : [{ side, format }];
    }).concat(whole);
  }

  /** Reports of pages that have left the window since the last time; what is still untried of them is tried now. */
  reports(tokens: number): readonly TrialReport[] {
    const movable = movablePages(tokens, this.#windowTokens);
    const first = this.#found[0] ?? this.#started[0] ?? this.#waiting[0];
    if (first === undefined || first.page >= movable) return NO_REPORTS;
    this.#try(this.#waiting.filter(({ page }) => page < movable).length);
    const ready = this.#found.filter(({ page }) => page < movable);
    if (ready.length === 0) return NO_REPORTS;
    this.#found = this.#found.filter(({ page }) => page >= movable);
    const told: TrialReport[] = [];
    for (const report of ready) {
      const now = this.#asItIs(report)[0];
      // Nobody need be told of a page of which nothing is left; a file tells what was found of every page.
      this.#reported.push(now ?? report);
      if (now === undefined) continue;
      this.#outliers.learn(now);
      told.push(now);
    }
    return told;
  }

  /**
   * What trying pages again has found since the last time, the first `most` of it. Called behind `reports`, at points
   * that do not depend on how fast trials are.
   */
  reportsAgain(most: number): readonly TrialReport[] {
    const found = this.#foundAgain.filter((report) => this.#asItIs(report)[0]?.from === report.from);
    this.#foundAgain = found.slice(most);
    return found.slice(0, most);
  }

  /**
   * The report with the form that the page has now: a fork that shares it may have moved it since, or it may have been
   * restored. None of a latent that is gone, and of a page that is freed.
   */
  #asItIs(report: TrialReport): readonly TrialReport[] {
    const from = this.#form(report.layer, report.page, report.side);
    if (from === null) return NO_REPORTS;
    return [from === report.from ? report : { ...report, from }];
  }

  /** The latent of a page, where pages may become latents. */
  #latent(layer: number, page: number): ReturnType<typeof latentOf> {
    return this.#context.latents === undefined ? null : latentOf(this.#cache.table(layer), page);
  }

  /**
   * What a side of a page is in, as far as a policy knows: while a latent takes its place, in what it was before. null:
   * the page has no latent, or is freed.
   */
  #form(layer: number, page: number, side: Part): PageForm | null {
    if (this.#asked.isFreed(layer, page)) return null;
    const latent = this.#latent(layer, page);
    const { windowFormat } = this.#context;
    if (side === 'kv') return latent === null ? null : latent.isHeld ? latent.name : windowFormat;
    if (latent?.isHeld === true) return windowFormat;
    return this.#asked.lowForm(layer, page, side) ?? this.#cache.format(layer, page, side);
  }

  /** The same of all sides. */
  #forms({ layer, page }: PageOfLayer): Started['from'] {
    const [k, v, kv] = PARTS.map((side) => this.#form(layer, page, side));
    return { k: k!, v: v!, kv: kv! };
  }

  /** What a fork takes over, or a session that was parked. Trials that were started have ended before. */
  left(): TrialsLeft {
    this.#collect(true);
    return {
      admitted: this.#admitted,
      due: this.#due,
      found: [...this.#reported, ...this.#found],
      waiting: [...this.#started.filter(({ isAgain }) => !isAgain), ...this.#waiting].map(placeOf),
      waitingAgain: [...this.#started.filter(({ isAgain }) => isAgain), ...this.#waitingAgain].map(placeOf),
      foundAgain: [...this.#foundAgain],
    };
  }

  /**
   * Takes over from the queue of the cache that this one is forked from: its reports, and the pages that wait in it.
   */
  follow(left: TrialsLeft): void {
    this.#admitted = left.admitted;
    this.#due = left.due;
    for (const report of left.found) this.#found.push(report);
    this.#waiting = [...left.waiting];
    this.#waitingAgain = [...left.waitingAgain];
    this.#foundAgain = [...left.foundAgain];
  }

  /** Waits for those under way: their pages are about to go. */
  finish(): void {
    this.#collect(true);
  }

  /**
   * Tokens were taken back: pages that are gone are forgotten, and those that are in the window again are reported once
   * more when they leave it.
   */
  takeBack(tokens: number): void {
    this.#collect(true);
    const sealed = sealedPages(tokens);
    const isThere = ({ page }: { readonly page: number }): boolean => page < sealed;
    const isOut = ({ page }: { readonly page: number }): boolean => page < movablePages(tokens, this.#windowTokens);
    this.#admitted = Math.min(this.#admitted, sealed);
    this.#waiting = this.#waiting.filter(isThere);
    this.#waitingAgain = this.#waitingAgain.filter(isOut);
    this.#foundAgain = this.#foundAgain.filter(isOut);
    this.#found = [...this.#reported.filter((report) => !isOut(report)), ...this.#found].filter(isThere);
    this.#reported = this.#reported.filter(isOut);
  }

  /** Tries a planned move on the latest queries. → ε, or null where none of them sees the page */
  again({ layer, page, side, to }: Decision): number | null {
    const start = performance.now();
    const epsilon = this.#cache.trial(layer, page, [{ side, format: to } as TrialCandidate])[0]!;
    this.#tally.tried(layer, 1);
    this.#tally.trialsTook(performance.now() - start);
    return Number.isFinite(epsilon) ? epsilon : null;
  }

  /** Trials that belong to so many tokens. */
  #share(tokens: number): number {
    return (this.#context.layers * tokens) / (SPREAD * this.#windowTokens);
  }

  get #windowTokens(): number {
    return this.#context.windowTokens ?? PAGE_TOKENS;
  }

  /**
   * What a page is tried as first. One that a fork has already moved is not tried, because its earlier form is gone.
   */
  #candidates({ layer, page }: PageOfLayer): Candidates {
    const { windowFormat, skipLayers, pageBytes } = this.#context;
    if (!this.#needsTrials || skipLayers.includes(layer) || this.#asked.isFreed(layer, page)) return [];
    const latent = this.#latent(layer, page);
    const lower = latent === null ? [] : LATENT_NAMES.slice(LATENT_NAMES.indexOf(latent.name) + Number(latent.isHeld));
    const latents = lower
      .filter((name) => pageBytes[name] !== undefined)
      .map((format) => ({ side: 'kv', format }) as const);
    if (latent?.isHeld === true) return latents;
    const isWhole = SIDES.every(
      (side) => FORMATS[this.#cache.format(layer, page, side)].rank <= FORMATS[windowFormat].rank,
    );
    if (!isWhole) return [];
    const isCandidate = ({ side, format }: SideCandidate): boolean =>
      this.#outliers.wants({ side, format }, { layer, page }) ?? this.#tried.has(format);
    return [...FIRST_TRIAL.filter(isCandidate), ...latents];
  }

  /** Tries so many waiting pages at once. */
  #try(count: number): void {
    this.#collect(true);
    if (count === 0) return;
    const start = performance.now();
    for (const place of this.#waiting.splice(0, count)) {
      const { layer, page } = place;
      const candidates = this.#candidates(place);
      const errors = candidates.length > 0 ? this.#cache.trial(layer, page, candidates) : NOTHING;
      this.#report({ ...place, candidates, isAgain: false, from: this.#forms(place) }, errors);
    }
    this.#tally.trialsTook(performance.now() - start);
  }

  /** What trials that were started have found: all of them, or those that have ended. */
  #collect(wait: boolean): void {
    if (this.#started.length === 0) return;
    const start = performance.now();
    const found = this.#cache.finishTrials(wait);
    let at = 0;
    let done = 0;
    for (; done < this.#started.length; done++) {
      const started = this.#started[done]!;
      const isTried = started.candidates.length > 0;
      if (isTried && at === found.length) break;
      this.#report(started, isTried ? found[at++]! : NOTHING);
    }
    this.#started.splice(0, done);
    this.#tally.trialsTook(performance.now() - start);
  }

  /** `errors`: of the candidates. Every side of a first trial is reported, also where nothing was tried. */
  #report({ layer, page, candidates, isAgain, from: forms }: Started, errors: Float64Array): void {
    for (const side of PARTS) {
      // Of a page of which nothing is left a file tells as of others, and the policy is told nothing.
      const gone = side === 'kv' || !this.#asked.isFreed(layer, page) ? null : this.#context.windowFormat;
      const from = this.#asked.isFreed(layer, page) ? gone : forms[side];
      if (from === null) continue;
      const epsilon: Partial<Record<PageForm, number>> = {};
      // No kept query sees the whole page (sliding window). Nobody will miss it, but only what was measured is
      // reported.
      for (const [i, candidate] of candidates.entries())
        if (candidate.side === side && Number.isFinite(errors[i])) epsilon[candidate.format] = errors[i]!;
      const report = { layer, page, side, from, epsilon };
      if (!isAgain) this.#found.push(report);
      else if (Object.keys(epsilon).length > 0) this.#foundAgain.push(report);
    }
    this.#tally.tried(layer, errors.length);
  }
}
