/**
 * Decimal numbers within bounds, as expressions of a grammar. Bounds are compared as decimals, digit by digit, so
 * nothing is rounded.
 */

import { decimalOf, scaled } from './decimal.ts';

/** A bound of a number; `isOpen`: it is not part of the range itself. */
export interface Bound {
  readonly value: number;
  readonly isOpen: boolean;
}

/** Digits behind the point that a number may have where its bounds have fewer. */
const DECIMALS = 6;
/** And at most: bounds that have more are rounded into the range, since each digit is an alternative of its own. */
const DECIMALS_MAX = 12;
/** Digits before the point of a number that is bounded on one side only: a float64 tells numbers of 15 digits apart. */
const DIGITS = 15;

/**
 * Numbers from `least` to `most`; null for none on that side. decimals: the most digits behind the point, 0 for whole
 * numbers; left out, as many as the bounds have. → null where there is none
 */
export function numberRange(least: Bound | null, most: Bound | null, decimals?: number): string | null {
  const bounds = [least, most].map((bound) => (bound === null ? null : decimalOf(bound.value)));
  const deepest =
    decimals ?? Math.min(DECIMALS_MAX, Math.max(DECIMALS, ...bounds.map((bound) => bound?.decimals ?? 0)));
  const parts: string[] = [];
  for (let places = 0; places <= deepest; places++) {
    const largest = 10n ** BigInt(DIGITS + places) - 1n;
    const from = least === null ? -largest : scaled(bounds[0]!, places, true, least.isOpen);
    const to = most === null ? largest : scaled(bounds[1]!, places, false, most.isOpen);
    if (from <= to) parts.push(...signed(from, to, places));
  }
  return parts.length === 0 ? null : parts.join(' | ');
}

/** Numbers of `places` digits behind the point, from and to in units of the last one. */
function signed(from: bigint, to: bigint, places: number): string[] {
  const parts: string[] = [];
  if (from < 0n) parts.push(`"-" (${unsigned(to < 0n ? -to : 1n, -from, places)})`);
  if (to >= 0n) parts.push(unsigned(from < 0n ? 0n : from, to, places));
  return parts;
}

/** An alternative for the fewest digits, one for the most, and one for all between. */
function unsigned(from: bigint, to: bigint, places: number): string {
  const least = Math.max(String(from).length, places + 1);
  const most = Math.max(String(to).length, places + 1);
  const low = String(from).padStart(least, '0');
  const high = String(to).padStart(most, '0');
  if (least === most) return between(low, high, places);
  const parts = [between(low, '9'.repeat(least), places)];
  const whole = least - places;
  if (most > least + 1)
    parts.push(`[1-9] [0-9]{${whole},${most - 2 - places}}${places === 0 ? '' : ` "." [0-9]{${places}}`}`);
  return [...parts, between(`1${'0'.repeat(most - 1)}`, high, places)].join(' | ');
}

/** Numbers of as many digits as both have, the point before the last `places`. */
function between(low: string, high: string, places: number): string {
  if (low.length === 0) return '';
  const point = low.length === places ? '"." ' : '';
  const [first, last] = [low[0]!, high[0]!];
  const rest = (from: string, to: string): string => between(from, to, places);
  const [zeros, nines] = ['0'.repeat(low.length - 1), '9'.repeat(low.length - 1)];
  const isFree = (from: string, to: string): boolean => from === zeros && to === nines;
  const tail = (from: string, to: string): string => (isFree(from, to) ? free(low.length - 1, places) : rest(from, to));
  if (first === last) return `${point}"${first}" ${tail(low.slice(1), high.slice(1))}`;
  const parts: string[] = [];
  let [from, to] = [Number(first), Number(last)];
  const ends: string[] = [];
  if (!isFree(low.slice(1), nines)) {
    parts.push(`"${first}" ${tail(low.slice(1), nines)}`);
    from++;
  }
  if (!isFree(zeros, high.slice(1))) {
    ends.push(`"${last}" ${tail(zeros, high.slice(1))}`);
    to--;
  }
  if (from <= to) parts.push(`[${from}-${to}] ${free(low.length - 1, places)}`);
  return `${point}(${[...parts, ...ends].join(' | ')})`;
}

/** Any digits, with the point where it belongs. */
function free(length: number, places: number): string {
  if (length === 0) return '';
  if (length < places || places === 0) return `[0-9]{${length}}`;
  return `${length > places ? `[0-9]{${length - places}} ` : ''}"." [0-9]{${places}}`;
}
