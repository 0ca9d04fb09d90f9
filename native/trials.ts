/**
 * Trials: their arguments in the form of the binary, and those that run in the background. types.ts describes KvCache's
 * methods.
 */
import { fail, formatNumber, partId, partNumber, record, show, sideId, sideNumber } from './arguments.ts';
import { KvError } from './error.ts';
import type { Part, Side } from './format.ts';
import {
  LATENT_CANDIDATES_FROM,
  LATENT_NAMES,
  type LatentName,
  ORIGINAL_OPERATIONS,
  TRIAL_CANDIDATES_MAX,
} from './layout.ts';
import { type CacheHandle, check, errorOf } from './load.ts';
import { checkMove } from './moves.ts';
import type { PageTable, TrialCandidate } from './types.ts';

/** A status that stands for a call which was not made, because its arguments were wrong. */
export const REFUSED = 1;

/** True if a candidate's format is a latent. */
const isLatentName = (format: unknown): format is LatentName => (LATENT_NAMES as readonly unknown[]).includes(format);

/** Throws unless all candidates can be tried for a page. */
export function checkCandidates(
  candidates: readonly TrialCandidate[],
  layer: number,
  page: number,
  table: PageTable,
  headDim: number,
): void {
  if (!Array.isArray(candidates) || candidates.length > TRIAL_CANDIDATES_MAX) {
    fail(`candidates must be an array of at most ${TRIAL_CANDIDATES_MAX}`, { candidates: show(candidates) });
  }
  for (const candidate of candidates as readonly TrialCandidate[]) {
    record(candidate, 'candidate');
    const { side, format } = candidate;
    partId(side);
    if (isLatentName(format)) checkLatent(side, format, table.latent[page]!, page);
    else checkMove({ layer, page, side, to: format }, table, headDim);
  }
}

/** Throws unless a page with `has` (as in table().latent) can be held as this latent. */
function checkLatent(side: Part, format: LatentName, has: number, page: number): void {
  if (side !== 'kv') fail("a latent is a form of both sides, 'kv'", { side: show(side), format });
  const best = LATENT_NAMES[has - 1];
  if (best !== undefined && LATENT_NAMES.indexOf(format) >= has - 1) return;
  throw new KvError('unsupported', `page ${page} has ${best ?? 'no latent'}, so it cannot be held as ${format}`, {
    values: { page, has: best ?? 'none', format },
    hint: 'keep a latent of this format or a better one beside the page (keepLatent)',
  });
}

/** The parts and formats of candidates as numbers, or null if they are not a list or too many. */
export function movesOf(candidates: readonly TrialCandidate[]): Uint8Array | null {
  if (!Array.isArray(candidates) || candidates.length > TRIAL_CANDIDATES_MAX) return null;
  const moves = new Uint8Array(2 * candidates.length);
  for (let i = 0; i < candidates.length; i++) {
    const candidate = candidates[i] as TrialCandidate | null | undefined;
    moves[2 * i] = partNumber(candidate?.side);
    const format = candidate?.format;
    moves[2 * i + 1] = isLatentName(format)
      ? LATENT_CANDIDATES_FROM + LATENT_NAMES.indexOf(format)
      : formatNumber(format);
  }
  return moves;
}

/** The trials that a cache has started and not yet finished, in the order of their start. */
export class Trials {
  /** The number of candidates of each. */
  #underWay: number[] = [];

  get count(): number {
    return this.#underWay.length;
  }

  add(candidates: number): void {
    this.#underWay.push(candidates);
  }

  finish(handle: CacheHandle, wait: boolean): Float64Array[] {
    if (typeof wait !== 'boolean') fail('wait must be true or false', { wait: show(wait) });
    const out = new Float64Array(1 + this.#underWay.reduce((sum, count) => sum + count, 0));
    check(handle.finishTrials(wait, out), 'finish the trials');
    let at = 1;
    const finished = this.#underWay.slice(0, out[0]!).map((count) => out.slice(at, (at += count)));
    this.#underWay = this.#underWay.slice(finished.length);
    return finished;
  }
}

/**
 * Does something with the kept original of a page side. `check` throws for a layer or page that does not exist. Returns
 * the freed bytes, the error or the id of the format, which is NaN where there is no original.
 */
export function original(
  handle: CacheHandle,
  operation: keyof typeof ORIGINAL_OPERATIONS,
  layer: number,
  page: number,
  side: Side,
  out: Float64Array,
  check: () => unknown,
): number {
  const status = handle.original(ORIGINAL_OPERATIONS[operation], layer, page, sideNumber(side), out);
  if (status === 0) return out[0]!;
  check();
  sideId(side);
  if (operation === 'format') return Number.NaN;
  throw errorOf(status, `${operation} the original of page ${page} of layer ${layer}`, { layer, page, side });
}
