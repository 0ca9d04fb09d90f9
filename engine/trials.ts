/**
 * The trial queue: pages that are about to leave the window wait here to be tried in every candidate format, are tried some at a
 * time beside the steps that go on, and are reported once they may move.
 */
import {
  FORMATS,
  type FormatName,
  halvesReached,
  type KvCache,
  movablePages,
  SIDES,
  type Side,
  sealedPages,
  TRIAL_CANDIDATES,
  type TrialCandidate,
} from '../native/index.ts';
import type { Decision, PolicyContext, TrialReport } from '../policy/index.ts';
import type { LayerCounts, Spent } from './mover.ts';

const FIRST_TRIAL: readonly (TrialCandidate & { readonly side: Side })[] = (['k', 'v'] as const).flatMap((side) =>
  TRIAL_CANDIDATES.map((format) => ({ side, format })),
);
const NOTHING = new Float64Array(0);
/** Tokens over which the trials of one page are spread while writing, so that no single step carries them; done before the page leaves the window. */
const SPREAD_TOKENS = 48;
/** While writing, trials are made some at a time: between steps their code and data leave the caches, and bringing them back costs half a trial. */
const AT_ONCE = 5;
const NO_REPORTS: readonly TrialReport[] = [];

interface PageOfLayer {
  readonly layer: number;
  readonly page: number;
}

export class TrialQueue {
  readonly #cache: KvCache;
  readonly #context: PolicyContext;
  readonly #needsTrials: boolean;
  readonly #counts: readonly LayerCounts[];
  readonly #spent: Spent;
  /** Pages that have come to be tried. */
  #admitted = 0;
  /** How many trials are due, from the tokens since the last ones. */
  #due = 0;
  // All three in the order of pages.
  #waiting: PageOfLayer[] = [];
  #started: (PageOfLayer & { readonly isTried: boolean })[] = [];
  #found: TrialReport[] = [];
  /** Reported already: what a fork is told of pages that it shares. */
  #reported: TrialReport[] = [];

  constructor(
    cache: KvCache,
    context: PolicyContext,
    needsTrials: boolean,
    counts: readonly LayerCounts[],
    spent: Spent,
  ) {
    this.#cache = cache;
    this.#context = context;
    this.#needsTrials = needsTrials;
    this.#counts = counts;
    this.#spent = spent;
  }

  /** Counts `tokensNew`: in proportion, more trials of waiting pages become due. */
  pass(tokensNew: number): void {
    if (this.#waiting.length > 0) this.#due += this.#share(tokensNew);
  }

  /** Enough trials are due that it pays to start them. */
  get areDue(): boolean {
    return this.#waiting.length > 0 && this.#due >= Math.min(AT_ONCE, this.#waiting.length);
  }

  /**
   * Takes in the pages that leave the window with the page that is open now, from its middle on. By then half a page of queries
   * sees them whole; reading a page at a time they are tried on all of them.
   */
  admit(tokens: number, tokensNew: number): void {
    const pages = Math.max(0, halvesReached(tokens) - 1);
    if (pages > this.#admitted && this.#waiting.length === 0) this.#due = this.#share(tokensNew);
    for (; this.#admitted < pages; this.#admitted++)
      for (let layer = 0; layer < this.#context.layers; layer++) this.#waiting.push({ layer, page: this.#admitted });
  }

  /** Starts the trials that are due; they run beside the next steps, and nobody waits for them before they are reported. */
  start(): void {
    this.#collect(false);
    const start = performance.now();
    const count = Math.floor(this.#due);
    this.#due -= count;
    for (const { layer, page } of this.#waiting.splice(0, count)) {
      const isTried = this.#isTried({ layer, page });
      if (isTried) this.#cache.startTrial(layer, page, FIRST_TRIAL);
      this.#started.push({ layer, page, isTried });
    }
    this.#spent.trialMs += performance.now() - start;
  }

  /** Reports of pages that have left the window since the last time; what is still untried of them is tried now. */
  reports(tokens: number): readonly TrialReport[] {
    const movable = movablePages(tokens);
    const first = this.#found[0] ?? this.#started[0] ?? this.#waiting[0];
    if (first === undefined || first.page >= movable) return NO_REPORTS;
    this.#try(this.#waiting.filter(({ page }) => page < movable).length);
    const ready = this.#found.filter(({ page }) => page < movable).map((report) => this.#asItIs(report));
    if (ready.length > 0) this.#found = this.#found.filter(({ page }) => page >= movable);
    for (const report of ready) this.#reported.push(report);
    return ready;
  }

  /** The report with the format that the page has now: a fork that shares it may have moved it since, or it may have been restored. */
  #asItIs(report: TrialReport): TrialReport {
    const from = this.#cache.format(report.layer, report.page, report.side);
    return from === report.from ? report : { ...report, from };
  }

  /** Takes over from the queue of the cache that this one is forked from: its reports, and the pages that wait in it. */
  follow(parent: TrialQueue): void {
    this.#admitted = parent.#admitted;
    this.#due = parent.#due;
    for (const report of [...parent.#reported, ...parent.#found]) this.#found.push(report);
    this.#waiting = [...parent.#started, ...parent.#waiting];
  }

  /** Tokens were taken back: pages that are gone are forgotten, and those that are in the window again are reported once more when they leave it. */
  takeBack(tokens: number): void {
    this.#collect(true);
    const sealed = sealedPages(tokens);
    const isThere = ({ page }: { readonly page: number }): boolean => page < sealed;
    const isOut = ({ page }: { readonly page: number }): boolean => page < movablePages(tokens);
    this.#admitted = Math.min(this.#admitted, sealed);
    this.#waiting = this.#waiting.filter(isThere);
    this.#found = [...this.#reported.filter((report) => !isOut(report)), ...this.#found].filter(isThere);
    this.#reported = this.#reported.filter(isOut);
  }

  /** Tries a planned move on the latest queries. → ε, or null where none of them sees the page */
  again({ layer, page, side, to }: Decision): number | null {
    const start = performance.now();
    const epsilon = this.#cache.trial(layer, page, [{ side, format: to }])[0]!;
    this.#counts[layer]!.tried += 1;
    this.#spent.trialMs += performance.now() - start;
    return Number.isFinite(epsilon) ? epsilon : null;
  }

  /** Trials that belong to so many tokens. */
  #share(tokens: number): number {
    return (this.#context.layers * tokens) / SPREAD_TOKENS;
  }

  /** A page that a fork has already moved is not tried, because its earlier form is gone. */
  #isTried({ layer, page }: PageOfLayer): boolean {
    const { windowFormat, skipLayers } = this.#context;
    return (
      this.#needsTrials &&
      !skipLayers.includes(layer) &&
      SIDES.every((side) => FORMATS[this.#cache.format(layer, page, side)].rank <= FORMATS[windowFormat].rank)
    );
  }

  /** Tries so many waiting pages at once. */
  #try(count: number): void {
    this.#collect(true);
    if (count === 0) return;
    const start = performance.now();
    for (const { layer, page } of this.#waiting.splice(0, count))
      this.#report(layer, page, this.#isTried({ layer, page }) ? this.#cache.trial(layer, page, FIRST_TRIAL) : NOTHING);
    this.#spent.trialMs += performance.now() - start;
  }

  /** What trials that were started have found: all of them, or those that have ended. */
  #collect(wait: boolean): void {
    if (this.#started.length === 0) return;
    const start = performance.now();
    const found = this.#cache.finishTrials(wait);
    let at = 0;
    let done = 0;
    for (; done < this.#started.length; done++) {
      const { layer, page, isTried } = this.#started[done]!;
      if (isTried && at === found.length) break;
      this.#report(layer, page, isTried ? found[at++]! : NOTHING);
    }
    this.#started.splice(0, done);
    this.#spent.trialMs += performance.now() - start;
  }

  /** `errors`: of FIRST_TRIAL, or nothing. */
  #report(layer: number, page: number, errors: Float64Array): void {
    for (let at = 0; at < FIRST_TRIAL.length; at += TRIAL_CANDIDATES.length) {
      const { side } = FIRST_TRIAL[at]!;
      const epsilon: Partial<Record<FormatName, number>> = {};
      for (let i = at; i < at + TRIAL_CANDIDATES.length && i < errors.length; i++) {
        // No kept query sees the whole page (sliding window). Nobody will miss it, but only what was measured is reported.
        if (Number.isFinite(errors[i])) epsilon[FIRST_TRIAL[i]!.format] = errors[i]!;
      }
      this.#found.push({ layer, page, side, from: this.#cache.format(layer, page, side), epsilon });
    }
    this.#counts[layer]!.tried += errors.length;
  }
}
