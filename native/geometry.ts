/**
 * The geometry of a layer's pages: which of them are sealed and which may move at a given length, and where pages and
 * half pages end. The cache, the engine and the policies all use these functions instead of dividing by PAGE_TOKENS
 * themselves.
 *
 * The open page is sealed by the first token after it, so a length that is a multiple of PAGE_TOKENS ends with a page
 * that is full but still open. A sealed page is in the window, and may not move, until `windowTokens` newer tokens
 * follow it: a whole page unless a session chose less. Halfway to that point a page comes to be tried.
 */
import { PAGE_TOKENS } from './format.ts';
import { OPEN_ROWS_LEAST } from './layout.ts';

/** How many newer tokens may be what keeps a sealed page in the window. */
export const WINDOW_TOKENS: readonly number[] = [PAGE_TOKENS, PAGE_TOKENS / 2];

const HALF_PAGE = PAGE_TOKENS / 2;

/** The page that contains the token at this position. */
export const pageOf = (position: number): number => Math.floor(position / PAGE_TOKENS);

/** The position of a page's first token. */
export const firstToken = (page: number): number => page * PAGE_TOKENS;

/** The first length from `tokens` on at which a page ends. */
export const pageEnd = (tokens: number): number => Math.ceil(tokens / PAGE_TOKENS) * PAGE_TOKENS;

/** The last length up to `tokens` at which a page ends. */
export const pageStart = (tokens: number): number => tokens - (tokens % PAGE_TOKENS);

/** How many tokens fit into the open page, or into the next page if the open one is full. */
export const rowsLeft = (tokens: number): number => PAGE_TOKENS - (tokens % PAGE_TOKENS);

/** True if the open page is full, so that the next token seals it. */
export const isPageFull = (tokens: number): boolean => tokens > 0 && tokens % PAGE_TOKENS === 0;

export const sealedPages = (tokens: number): number => Math.max(0, Math.ceil(tokens / PAGE_TOKENS) - 1);

/** The number of rows in the open page. */
export const openRows = (tokens: number): number => tokens - sealedPages(tokens) * PAGE_TOKENS;

/** How many pages of a layer are sealed when `tokensNew` tokens are appended to `tokens`. */
export const sealsBetween = (tokens: number, tokensNew: number): number =>
  sealedPages(tokens + tokensNew) - sealedPages(tokens);

/** For how many rows a page that grows with its rows has room: 16, twice as many, and so on. */
export function roomFor(rows: number): number {
  let room = rows === 0 ? 0 : OPEN_ROWS_LEAST;
  while (room < rows) room *= 2;
  return room;
}

/** The length up to which an open page that grows with its rows has room. */
export const roomEnd = (tokens: number): number => tokens - openRows(tokens) + roomFor(openRows(tokens));

/** How many pages are followed by so many newer tokens. The others are in the window and may not move. */
export const movablePages = (tokens: number, windowTokens: number = PAGE_TOKENS): number =>
  Math.max(0, Math.floor((tokens - windowTokens) / PAGE_TOKENS));

/** How many pages of a layer with this sliding window no query at position `tokens`, or behind it, sees. */
export const pagesLeftBehind = (tokens: number, slidingWindow: number | null): number =>
  slidingWindow === null ? 0 : pageOf(Math.max(0, tokens - slidingWindow + 1));

/**
 * How many of them are freed: those that nothing sees even where a page of newer tokens is taken back, as answers and
 * guesses are.
 */
export const freedPages = (tokens: number, slidingWindow: number | null): number =>
  pagesLeftBehind(Math.max(0, tokens - PAGE_TOKENS), slidingWindow);

/** How many pages a query sees at most, where they end nowhere in particular. */
export const pagesSeen = (slidingWindow: number): number => Math.ceil(slidingWindow / PAGE_TOKENS) + 1;

/** The first length behind `tokens` at which one more of them is. */
export const nextFreed = (tokens: number, slidingWindow: number): number =>
  firstToken(freedPages(tokens, slidingWindow) + 2) + slidingWindow - 1;

/** How many tokens have been appended since a page left the window; negative while it is in the window. */
export const tokensBehind = (page: number, tokens: number): number => tokens - (page + 2) * PAGE_TOKENS;

/**
 * How many pages a forecast takes as movable: those that were so a token before. A page that has only just left the
 * window has not moved yet, and a forecast is cautious.
 */
export const forecastMovablePages = (tokens: number, windowTokens: number = PAGE_TOKENS): number =>
  movablePages(tokens - 1, windowTokens);

/** How many pages have been filled at least to the middle. */
export const halvesReached = (tokens: number): number => Math.floor((tokens + HALF_PAGE) / PAGE_TOKENS);

/** What so many tokens are of `bytes` that a page takes. */
export const partOfPage = (bytes: number, tokens: number): number => (bytes * tokens) / PAGE_TOKENS;

/** The first length after `tokens` at which a page may come to be tried or leave the window. */
export const nextPoint = (tokens: number, windowTokens: number = PAGE_TOKENS): number =>
  (Math.floor((2 * tokens) / windowTokens) + 1) * (windowTokens / 2);
