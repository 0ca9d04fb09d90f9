/**
 * Pacing: at which tokens something is decided, how many moves one plan may hold and how many bytes it makes room for
 * ahead. What is never touched in a step need not be fetched from memory in it, so a step does something worth the
 * waking up or nothing at all.
 */
import {
  freedPages,
  isPageFull,
  nextPoint,
  openRows,
  PAGE_TOKENS,
  partOfPage,
  roomFor,
  sealedPages,
} from '../../native/index.ts';
import type { PolicyContext } from '../../policy/index.ts';
import { RecentLatency } from './latency.ts';

/**
 * While writing, plans are made this often: half of what a plan and its entries cost is waking up code that has not run
 * for some steps.
 */
const DECIDE_EVERY_TOKENS = 8;
/** Moves per token at most while a prompt is read. */
const MOVES_PER_TOKEN = 2;
/**
 * Moves of one plan while writing, or half a side of each layer where there are more: two steps at a page boundary move
 * one page.
 */
const MOVES_AT_ONCE = 16;
/**
 * How much of what an average page gives back the page that leaves the window gives: the newest stay larger. Measured
 * on SmolLM2-135M, 25% of f16.
 */
const GIVEN_BACK = 0.8;

export class Pacing {
  readonly latency = new RecentLatency();
  /** The last plan found nothing to do, so no other is made before something changes. */
  #idle = false;
  readonly #context: PolicyContext;
  readonly #sealBytes: number;
  #tokensSince = 0;
  /** Before this length no page becomes due for a trial or leaves the window. */
  #nextPoint = 0;

  /** `sealBytes`: of all layers together. */
  constructor(context: PolicyContext, sealBytes: number) {
    this.#context = context;
    this.#sealBytes = sealBytes;
  }

  pass(tokensNew: number): void {
    this.#tokensSince += tokensNew;
  }

  /** True where pages may have become due for a trial, or have left the window. */
  isPoint(tokens: number): boolean {
    return tokens >= this.#nextPoint;
  }

  reached(tokens: number): void {
    this.#nextPoint = nextPoint(tokens, this.#context.windowTokens);
  }

  takeBack(tokens: number): void {
    this.#nextPoint = nextPoint(tokens, this.#context.windowTokens);
    this.#idle = false;
  }

  planIsDue(lowMemory: boolean): boolean {
    return this.#tokensSince >= DECIDE_EVERY_TOKENS && !(this.#idle && !lowMemory);
  }

  /** Trials have been reported. */
  reported(): void {
    this.#idle = false;
  }

  /** A plan begins. */
  planned(): void {
    this.#tokensSince = 0;
  }

  /** A plan had so many moves. */
  decided(moves: number): void {
    this.#idle = moves === 0;
  }

  /** True if the last plan found nothing to move, and nothing was reported since. */
  get isIdle(): boolean {
    return this.#idle;
  }

  movesMax(tokens: number, tokensNew: number): number {
    return Math.max(isPageFull(tokens) ? this.#movesAtBoundary : MOVES_AT_ONCE, MOVES_PER_TOKEN * tokensNew);
  }

  /**
   * Bytes that the next seal of all layers will need, or the next growth of open pages in 8 bits, beyond what the page
   * that leaves the window just before gives back in the two steps around that point. None at a full page: whether more
   * tokens come at all is not known yet, and making room for them is the next step's work.
   */
  aheadBytes(tokens: number, usedBytes: number): number {
    if (isPageFull(tokens)) return 0;
    const { layers, openFormat = 'f16', windowTokens = PAGE_TOKENS } = this.#context;
    const share = Math.min(1, this.#movesAtBoundary / layers);
    const leaving = Math.round(share * this.#givenBack(tokens, usedBytes));
    if (openFormat === 'f16') return this.#sealBytes - leaving;
    // A page with room for half as many tokens takes half the bytes.
    const room = roomFor(openRows(tokens));
    const growth = partOfPage(this.#sealBytes, room === PAGE_TOKENS ? roomFor(1) : room);
    return Math.max(0, Math.round(growth) - (room === windowTokens ? leaving : 0));
  }

  /** Most moves of one step at a page boundary. */
  get #movesAtBoundary(): number {
    return Math.max(MOVES_AT_ONCE, Math.ceil(this.#context.layers / 2));
  }

  /**
   * What a page that leaves the window gives back if its sides become as small as the others are on average, or nearly.
   */
  #givenBack(tokens: number, usedBytes: number): number {
    const { layers, pageBytes, windowFormat, fixedBytes, slidingWindow = [] } = this.#context;
    const pages = sealedPages(tokens);
    if (pages < 2) return 0;
    const windowBytes = 2 * layers * pageBytes[windowFormat];
    const freed = slidingWindow.reduce<number>((sum, size) => sum + freedPages(tokens, size), 0) / layers;
    const average = (usedBytes - fixedBytes - windowBytes) / Math.max(1, pages - 1 - freed);
    return GIVEN_BACK * Math.max(0, windowBytes - Math.max(average, 0));
  }
}
