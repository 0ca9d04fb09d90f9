/**
 * The geometry of a layer's pages: which of them are sealed and which may move at a given length, and where pages and half pages end.
 * The cache, the engine and the policies all use these functions instead of dividing by PAGE_TOKENS themselves.
 *
 * The open page is sealed by the first token after it, so a length that is a multiple of PAGE_TOKENS ends with a page that is full
 * but still open. A sealed page is in the window, and may not move, until a whole page of newer tokens follows it.
 */
import { PAGE_TOKENS } from './format.ts';

const HALF_PAGE = PAGE_TOKENS / 2;

/** The page that contains the token at this position. */
export const pageOf = (position: number): number => Math.floor(position / PAGE_TOKENS);

/** The first length from `tokens` on at which a page ends. */
export const pageEnd = (tokens: number): number => Math.ceil(tokens / PAGE_TOKENS) * PAGE_TOKENS;

/** How many tokens fit into the open page, or into the next page if the open one is full. */
export const rowsLeft = (tokens: number): number => PAGE_TOKENS - (tokens % PAGE_TOKENS);

/** Whether the open page is full, so that the next token seals it. */
export const isPageFull = (tokens: number): boolean => tokens > 0 && tokens % PAGE_TOKENS === 0;

export const sealedPages = (tokens: number): number => Math.max(0, Math.ceil(tokens / PAGE_TOKENS) - 1);

/** The number of rows in the open page. */
export const openRows = (tokens: number): number => tokens - sealedPages(tokens) * PAGE_TOKENS;

/** How many pages of a layer are sealed when `tokensNew` tokens are appended to `tokens`. */
export const sealsBetween = (tokens: number, tokensNew: number): number =>
  sealedPages(tokens + tokensNew) - sealedPages(tokens);

/** How many pages are followed by a whole page of newer tokens. The others are in the window and may not move. */
export const movablePages = (tokens: number): number => Math.max(0, Math.floor(tokens / PAGE_TOKENS) - 1);

/** How many tokens have been appended since a page left the window; negative while it is in the window. */
export const tokensBehind = (page: number, tokens: number): number => tokens - (page + 2) * PAGE_TOKENS;

/**
 * How many pages a forecast takes as movable: all sealed ones but the newest. When a page has just become full, this is one less than
 * movablePages(), because the newest sealed page has only just left the window and a forecast is cautious.
 */
export const forecastMovablePages = (tokens: number): number => Math.max(0, sealedPages(tokens) - 1);

/** How many pages have been filled at least to the middle. */
export const halvesReached = (tokens: number): number => Math.floor((tokens + HALF_PAGE) / PAGE_TOKENS);

/** The first length after `tokens` at which half a page ends. */
export const nextHalf = (tokens: number): number => (Math.floor(tokens / HALF_PAGE) + 1) * HALF_PAGE;
