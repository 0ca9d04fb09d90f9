/** Byte budgets as people write them, and the forecast that refuses a hopeless one before work begins. */
import { totalmem } from 'node:os';
import {
  type CacheShape,
  FORMAT_NAMES,
  type FormatName,
  type FormatPair,
  forecastMovablePages,
  freedPages,
  isAutomatic,
  KvError,
  LOWER_FORMATS,
  openBytes,
  PAGE_TOKENS,
  pageBytes,
  pagesSeen,
  sealedPages,
  servedFormats,
  TRIAL_QUERIES,
  WINDOW_FORMAT,
  WINDOW_TOKENS,
  type WindowName,
} from '../../native/index.ts';
import { STEPS } from '../../policy/index.ts';

/**
 * The format of the open page under a budget of bytes where nothing else is asked for: at equal bytes half the
 * divergence of f16 at 2K tokens (docs/lab/engine.md).
 */
export const OPEN_FORMAT: WindowName = WINDOW_FORMAT;
/**
 * Where a sealed page of all layers takes more than this share of the budget, pages leave the window after half a page
 * of newer tokens. Measured on SmolLM2 at 2K and 4K tokens: below it the divergence was the same either way
 * (docs/lab/engine.md).
 */
const WINDOW_SHARE = 1 / 12;

/** How many newer tokens keep a sealed page in the window where nothing else is asked for. */
export const defaultWindowTokens = (shape: CacheShape, budgetBytes: number | null, windowFormat: WindowName): number =>
  budgetBytes !== null && 2 * shape.layers * sideBytes(shape)[windowFormat] > WINDOW_SHARE * budgetBytes
    ? Math.min(...WINDOW_TOKENS)
    : PAGE_TOKENS;

/** Bytes of a plain f16 cache: 2 sides · 2 bytes · layers · n · d per token. */
export function f16CacheBytes(shape: CacheShape, tokens: number): number {
  return tokens * shape.layers * shape.kvHeads * shape.headDim * 4;
}

/**
 * What is in the window: the format of the open page, that of sealed pages, and how many newer tokens keep a sealed
 * page there.
 */
export interface Window {
  readonly openFormat: WindowName;
  readonly windowFormat: WindowName;
  readonly windowTokens: number;
  /** How far the queries of each layer look back; left out: over all. */
  readonly slidingWindow?: readonly (number | null)[] | undefined;
}

/** Open pages and sinks of a session that has filled a page: what no move can free. */
export const fixedBytes = (shape: CacheShape, openFormat: WindowName): number =>
  openBytes(shape, PAGE_TOKENS, openFormat);

/** Bytes that a cache would take at a length. */
export interface Forecast {
  /** The length. */
  readonly tokens: number;
  /** Bytes of a plain f16 cache of that length. */
  readonly f16Bytes: number;
  /** Bytes of open pages and sinks, which no move can free. */
  readonly fixedBytes: number;
  /** Bytes at this length when every page that may move has this K:V pair and the window is 8-bit. */
  readonly pairs: readonly { readonly pair: string; readonly bytes: number; readonly effectiveBits: number }[];
}

/**
 * Pages of a layer that are freed at a length whatever is under way: a step of up to a page ends before what it leaves
 * behind is freed, and while a prompt is read what is seen from its beginning stays.
 */
export const surelyFreed = (tokens: number, slidingWindow: number | null): number =>
  slidingWindow === null ? 0 : Math.max(0, freedPages(tokens - PAGE_TOKENS, slidingWindow) - pagesSeen(slidingWindow));

/**
 * Most bytes up to `tokens` when all movable pages are in the pair of their layer, or let go where it has none, and
 * those in the window in its format.
 */
export function bytesAt(
  shape: CacheShape,
  tokens: number,
  pairs: readonly (FormatPair | null)[],
  window: Window,
): number {
  const { layers, kvHeads, headDim } = shape;
  const side = (format: FormatName): number => pageBytes(format, kvHeads, headDim);
  const lowOf = (pair: FormatPair | null): number => (pair === null ? 0 : side(pair.k) + side(pair.v));
  const low = pairs.reduce((sum, pair) => sum + lowOf(pair), 0);
  const windows = (window.slidingWindow ?? []).flatMap((size, layer) => (size === null ? [] : [{ layer, size }]));
  let most = 0;
  // A page that leaves the window takes more before than a page that grows behind it, so that what counts may be a page
  // back.
  for (let at = Math.max(0, tokens - PAGE_TOKENS); at <= tokens; at++) {
    const movable = forecastMovablePages(at, window.windowTokens);
    const inWindow = layers * (sealedPages(at) - movable) * 2 * side(window.windowFormat);
    const freed = windows.reduce(
      (sum, { layer, size }) => sum + Math.min(movable, surelyFreed(at, size)) * lowOf(pairs[layer]!),
      0,
    );
    most = Math.max(most, openBytes(shape, at, window.openFormat) + movable * low - freed + inWindow);
  }
  return most;
}

export function forecast(shape: CacheShape, tokens: number): Forecast {
  const f16Bytes = f16CacheBytes(shape, tokens);
  const window: Window = { openFormat: OPEN_FORMAT, windowFormat: WINDOW_FORMAT, windowTokens: PAGE_TOKENS };
  return {
    tokens,
    f16Bytes,
    fixedBytes: openBytes(shape, tokens, OPEN_FORMAT),
    pairs: STEPS.map(({ k, v }) => {
      const bytes = bytesAt(
        shape,
        tokens,
        Array.from({ length: shape.layers }, () => ({ k, v })),
        window,
      );
      return { pair: `${k}:${v}`, bytes, effectiveBits: f16Bytes === 0 ? 0 : (16 * bytes) / f16Bytes };
    }),
  };
}

/** The lowest pair of formats that pages of each layer may reach (null: they may be let go), and the window. */
export interface Least extends Window {
  readonly pairs: readonly (FormatPair | null)[];
  /** Formats that pages may take on their way there, beside those that every session may use. */
  readonly onTheWay?: readonly FormatPair[];
}

/** The source page of a move lives until the new one is complete: one page side must always fit beside the rest. */
export const spareBytes = (pageBytes: Readonly<Record<FormatName, number>>, windowFormat: WindowName): number =>
  Math.max(
    ...LOWER_FORMATS.map((name) => pageBytes[name] ?? 0),
    windowFormat === WINDOW_FORMAT ? 0 : pageBytes[WINDOW_FORMAT],
  );

/**
 * The least byte budget that can be kept at this length (null: a page or more), with the lowest formats that each layer
 * may use.
 */
export function leastBudget(shape: CacheShape, tokensExpected: number | null, least: Least): number {
  const named = least.pairs.filter((pair) => pair !== null);
  const spare = spareBytes(sideBytes(shape, [...named, ...(least.onTheWay ?? [])]), least.windowFormat);
  return bytesAt(shape, tokensExpected ?? PAGE_TOKENS, least.pairs, least) + spare;
}

/** The byte budget within which nothing need move up to this length: everything is in the formats of the window. */
export function windowBudget(shape: CacheShape, tokens: number): number {
  const pairs = Array.from({ length: shape.layers }, () => ({ k: WINDOW_FORMAT, v: WINDOW_FORMAT }));
  return leastBudget(shape, tokens, {
    pairs,
    openFormat: OPEN_FORMAT,
    windowFormat: WINDOW_FORMAT,
    windowTokens: PAGE_TOKENS,
  });
}

/** Refuses a byte budget that cannot be kept at this length, and says how much is missing. */
export function checkBudget(shape: CacheShape, budgetBytes: number, tokensExpected: number | null, least: Least): void {
  const { pairs, windowFormat, openFormat } = least;
  const tokens = tokensExpected ?? PAGE_TOKENS;
  const neededBytes = leastBudget(shape, tokensExpected, least);
  if (budgetBytes >= neededBytes) return;
  throw new KvError(
    'budget-too-small',
    `a KV budget of ${budgetBytes === 1 ? '1 byte' : `${budgetBytes} bytes`} cannot hold ${tokens} tokens`,
    {
      values: {
        budgetBytes,
        neededBytes,
        windowBytes: fixedBytes(shape, openFormat) + shape.layers * 2 * sideBytes(shape)[windowFormat],
        tokens,
        lowest: [...new Set(pairs.map((pair) => (pair === null ? 'freed' : `${pair.k}:${pair.v}`)))].join(' '),
        formats: servedFormats().join(' '),
      },
      hint: `give at least ${(Math.ceil((10 * neededBytes) / 2 ** 20) / 10).toFixed(1)}MiB, allow lower formats, or shorten the prompt`,
    },
  );
}

/**
 * Bytes of one page side in every format that a session may use: those that policies choose from, and of the others
 * those among `named`.
 */
export const sideBytes = (
  { kvHeads, headDim }: CacheShape,
  named: readonly FormatPair[] = [],
): Readonly<Record<FormatName, number>> =>
  Object.fromEntries(
    FORMAT_NAMES.filter((name) => isAutomatic(name) || named.some(({ k, v }) => name === k || name === v)).map(
      (name) => [name, pageBytes(name, kvHeads, headDim)],
    ),
  ) as Record<FormatName, number>;

/** Memory that this process may use: all of the machine's, or what its container allows. */
export function memoryBytes(): number {
  const constrained = process.constrainedMemory();
  return constrained > 0 ? Math.min(constrained, totalmem()) : totalmem();
}

/**
 * Refuses a cache that does not fit this machine's memory. Counted are open pages, kept queries and, without a budget,
 * all pages at the planned length.
 */
export function checkMemory(shape: CacheShape, pagesBytes: number, openFormat: WindowName): void {
  const queries = shape.layers * 2 * TRIAL_QUERIES * shape.queryHeads * shape.headDim * 4;
  const neededBytes = Math.max(fixedBytes(shape, openFormat), pagesBytes) + queries;
  const memory = memoryBytes();
  if (neededBytes <= memory) return;
  const { layers, queryHeads, kvHeads, headDim } = shape;
  throw new KvError(
    'budget-too-small',
    `a cache of this shape needs ${neededBytes} bytes, and this machine has ${memory}`,
    {
      values: { layers, queryHeads, kvHeads, headDim, neededBytes, memoryBytes: memory },
      hint: 'check the shape and tokensExpected, or give a kvBudget',
    },
  );
}
