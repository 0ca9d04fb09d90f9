/**
 * The geometry of a layer's pages: which are sealed at a length, which may move, where pages and their halves end. One law for
 * the cache, the engine and the policies; nothing else divides by PAGE_TOKENS to find out.
 *
 * The open page is sealed by the first token behind it, so a length that is a multiple of PAGE_TOKENS ends in a page that is full
 * and still open. A sealed page may move once a whole page of newer tokens stands behind it: until then it is in the window.
 */
import { PAGE_TOKENS } from './format.ts';

const HALF_PAGE = PAGE_TOKENS / 2;

/** Page that the token at this position lies in. */
export const pageOf = (position: number): number => Math.floor(position / PAGE_TOKENS);

/** First length at or behind `tokens` that ends a page. */
export const pageEnd = (tokens: number): number => Math.ceil(tokens / PAGE_TOKENS) * PAGE_TOKENS;

/** Tokens that fit into the open page before it must be sealed; a whole page where it is full. */
export const rowsLeft = (tokens: number): number => PAGE_TOKENS - (tokens % PAGE_TOKENS);

/** The open page has no free row: the next token seals it. */
export const isPageFull = (tokens: number): boolean => tokens > 0 && tokens % PAGE_TOKENS === 0;

export const sealedPages = (tokens: number): number => Math.max(0, Math.ceil(tokens / PAGE_TOKENS) - 1);

/** Rows of the open page: all of them where it is full. */
export const openRows = (tokens: number): number => tokens - sealedPages(tokens) * PAGE_TOKENS;

/** Pages of a layer that are sealed when `tokensNew` come behind `tokens`. */
export const sealsBetween = (tokens: number, tokensNew: number): number =>
  sealedPages(tokens + tokensNew) - sealedPages(tokens);

/** Pages with a whole page of newer tokens behind them: the others are in the window and never move. */
export const movablePages = (tokens: number): number => Math.max(0, Math.floor(tokens / PAGE_TOKENS) - 1);

/** Tokens that have come since a page left the window; negative while it is in there. */
export const tokensBehind = (page: number, tokens: number): number => tokens - (page + 2) * PAGE_TOKENS;

/**
 * Pages that a forecast takes as movable: all sealed ones but the newest. Where a page has just become full this is one less than
 * movablePages, since the newest sealed page leaves the window there and then and a forecast is on the cautious side.
 */
export const forecastMovablePages = (tokens: number): number => Math.max(0, sealedPages(tokens) - 1);

/** Pages whose middle has been reached: counts up in the middle of a page. */
export const halvesReached = (tokens: number): number => Math.floor((tokens + HALF_PAGE) / PAGE_TOKENS);

/** First length behind `tokens` that ends half a page. */
export const nextHalf = (tokens: number): number => (Math.floor(tokens / HALF_PAGE) + 1) * HALF_PAGE;
