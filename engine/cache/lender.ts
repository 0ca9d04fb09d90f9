/**
 * A cache with whose first pages another one may begin: one that is open, or what is kept of one that was closed. Pages
 * that have left its window are held together by caches that are governed alike and have one budget, as forks hold
 * theirs: a move is one for all. Others begin with copies, of pages in which nothing is lost.
 */
import { FORMAT_NAMES, type FormatName, type KvCache, PAGE_KINDS, type PagePool } from '../../native/index.ts';
import type { FormChange } from '../../policy/index.ts';
import type { Descent } from './descent.ts';
import type { Kin } from './kin.ts';
import type { Terms } from './terms.ts';
import type { TrialsLeft } from './trials.ts';

export interface Lender {
  /** Its id in the log. */
  readonly id: string;
  readonly kv: KvCache;
  readonly kin: Kin;
  /** Pages from 0 on that have left its window, and are done with moves that nobody tries first. */
  readonly settledPages: number;
  /** In what those agree that hold pages together; null: it holds none with others. */
  readonly sharedTerms: string | null;
  /** How rows are written that are in the window, and in the open page. */
  readonly formats: { readonly window: FormatName; readonly open: FormatName };
  /** Whether its pages can be made again; null: the log does not have what that takes. */
  readonly lineage: Descent | null;
  /** Moves of its pages that its own entries do not have, because it was closed before. */
  readonly movedSince?: readonly FormChange[];
  /** What is known of its pages. */
  trialsLeft(): TrialsLeft;
}

/** What another cache begins with: pages that both hold, then copies. */
export interface Loan {
  readonly heldPages: number;
  readonly pages: number;
}

const RESIDENT = PAGE_KINDS.indexOf('resident');
const NOTHING: Loan = { heldPages: 0, pages: 0 };

/** In what caches of a pool must agree to hold pages together; null: this one holds none with others. */
export function sharedTermsOf(terms: Terms, pool: PagePool): string | null {
  const { policy, kldBudget, budgetBytes } = terms;
  // Whoever may spend so much and no more has pages of its own.
  const isOwn = kldBudget !== null || (budgetBytes !== null && budgetBytes < pool.budgetBytes);
  if (isOwn || policy.evicts === true) return null;
  const text = texts.get(terms) ?? textOf(terms);
  texts.set(terms, text);
  return text;
}

/** What was made of them. */
const texts = new WeakMap<Terms, string>();

function textOf(terms: Terms): string {
  const { policy, policyOptions, policyModule, context, exact, thresholdValues } = terms;
  const { windowFormat, openFormat, windowTokens, skipLayers } = context;
  return JSON.stringify([
    ...[policy.id, policy.version, policyOptions, policyModule?.sha256, exact, thresholdValues],
    ...[windowFormat, openFormat, windowTokens, skipLayers, terms.lowest],
  ]);
}

/** What a cache that is governed by `asking` may begin with, of the first `pages` pages of a lender. */
export function loanOf(lender: Lender, asking: Pick<Lender, 'sharedTerms' | 'formats'>, pages: number): Loan {
  const { formats } = lender;
  if (formats.window !== asking.formats.window || formats.open !== asking.formats.open) return NOTHING;
  if (lender.sharedTerms === null || lender.sharedTerms !== asking.sharedTerms)
    return { heldPages: 0, pages: firstOther(lender, pages, FORMAT_NAMES.indexOf(formats.window)) };
  const there = firstOther(lender, pages, null);
  return { heldPages: Math.min(there, lender.settledPages), pages: there };
}

/** The first of so many pages that is gone from a layer, or not in a format on both sides; their number if none is. */
function firstOther({ kv }: Lender, pages: number, format: number | null): number {
  let end = pages;
  for (let layer = 0; layer < kv.shape.layers; layer++) {
    const { kind, kFormat, vFormat } = kv.table(layer);
    const isSo = (page: number): boolean =>
      kind[page] === RESIDENT && (format === null || (kFormat[page] === format && vFormat[page] === format));
    for (let page = 0; page < end; page++) if (!isSo(page)) end = page;
  }
  return end;
}

/** What is known of the first `pages` pages. */
export function trialsOf(left: TrialsLeft, pages: number): TrialsLeft {
  const isIn = ({ page }: { readonly page: number }): boolean => page < pages;
  return {
    admitted: Math.min(left.admitted, pages),
    due: 0,
    found: left.found.filter(isIn),
    waiting: left.waiting.filter(isIn),
    waitingAgain: [],
    foundAgain: [],
  };
}
