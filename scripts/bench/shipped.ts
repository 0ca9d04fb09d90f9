/**
 * The formats that benches measure: those that sessions of the default policy go to, and those that these took the
 * place of, to compare with.
 */

import { firstTrial, lowerFormat, type SideCandidate } from '../../engine/cache/trials.ts';
import { FORMATS, type FormatName, isMove, type Side, WINDOW_FORMAT } from '../../native/index.ts';
import { policies } from '../../policy/index.ts';

/** The first policy is the default under a budget. */
const policy = Object.values(policies)[0]!({});

/** What a page that leaves the window is tried in. */
const tried: readonly SideCandidate[] = firstTrial(policy);
/** What it was tried in before: formats of as many bytes. */
const replaced: readonly SideCandidate[] = tried.flatMap(({ side, format }) => {
  const before = FORMATS[format].replaces;
  return before === undefined ? [] : [{ side, format: before as FormatName }];
});
/** What it is tried in once more when it is older, while it is as it was sealed. */
const again: readonly SideCandidate[] = [...new Set(tried.map(({ side }) => side))].map((side) => ({
  side,
  format: lowerFormat(side, WINDOW_FORMAT)!,
}));

/** The formats of a page before a trial, and what it is tried in. */
export interface Tried {
  readonly from: FormatName;
  readonly candidates: readonly SideCandidate[];
}

/** Moves of page sides from one format to another. */
export interface Moved {
  readonly from: FormatName;
  readonly to: FormatName;
  readonly sides: readonly Side[];
}

/** What is left to a side that is in a format: the lower ones of its family. */
function below(from: FormatName, candidates: readonly SideCandidate[]): readonly SideCandidate[] {
  return candidates.filter(({ format }) => FORMATS[format].rank > FORMATS[from].rank && isMove(from, format));
}

const formatsOf = (candidates: readonly SideCandidate[]): FormatName[] => [
  ...new Set(candidates.map(({ format }) => format)),
];

/**
 * First trials, trials of older pages, and trials of pages that are in the best of these formats already; then those of
 * the formats that were replaced.
 */
export const TRIALS: readonly Tried[] = [
  { from: WINDOW_FORMAT, candidates: tried },
  { from: WINDOW_FORMAT, candidates: again },
  ...[tried, replaced].flatMap((candidates): Tried[] => {
    const [best] = formatsOf(candidates);
    const first = candidates === tried ? [] : [{ from: WINDOW_FORMAT, candidates }];
    return best === undefined ? first : [...first, { from: best, candidates: below(best, candidates) }];
  }),
];

/** Every move to one of these formats, from the window, from an exact cache and from one of them. */
export const MOVES: readonly Moved[] = [
  { from: 'f16', to: WINDOW_FORMAT, sides: ['k', 'v'] },
  ...[tried, replaced].flatMap((candidates) => {
    const own = formatsOf(candidates);
    return (['f16', WINDOW_FORMAT, ...own] as const).flatMap((from) => {
      const to = formatsOf(below(from, candidates));
      return (from === 'f16' ? to.slice(0, 1) : to).map(
        (to): Moved => ({
          from,
          to,
          sides: candidates.filter(({ format }) => format === to).map(({ side }) => side),
        }),
      );
    });
  }),
];

/** The formats that these moves begin or end with. */
export const FORMATS_MOVED: readonly FormatName[] = [...new Set(MOVES.flatMap(({ from, to }) => [from, to]))];

/** The format that a page leaves the window for, of the least loss. */
export const FIRST_LOWER: FormatName = tried[0]!.format;
