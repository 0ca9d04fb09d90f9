/** Multiples of a number within bounds, as expressions of a grammar. */
import { decimalOf, scaled } from './decimal.ts';
import { type Bound, numberRange } from './number-range.ts';
import type { Writing } from './writing.ts';

/** A step is so many units of 10^−places. */
export interface Step {
  readonly units: bigint;
  readonly places: number;
}

interface Bounds {
  readonly least: Bound | null;
  readonly most: Bound | null;
}

/** So many are written one by one. */
const LISTED_MAX = 200;
/** Remainders that are followed from digit to digit. */
const REMAINDERS_MAX = 32;
const DIGITS = 15;
/** Before a point behind which are more. */
const FRACTION_DIGITS = 9;
const PLACES_MAX = 15;

/** null: it has too many digits. isWhole: of whole numbers alone. */
export function stepWithin(step: number, isWhole: boolean): Step | null {
  const { units, decimals } = decimalOf(step);
  if (decimals > PLACES_MAX || units >= 10n ** BigInt(DIGITS)) return null;
  return isWhole ? { units: units / divisor(units, 10n ** BigInt(decimals)), places: 0 } : { units, places: decimals };
}

/** null: there is none. What cannot be said is left for when the text is complete. */
export function multiples(bounds: Bounds, step: Step, writing: Writing): string | null {
  const { least, most } = bounds;
  const { units, places } = step;
  const from = least === null ? null : ceiling(scaled(decimalOf(least.value), places, true, least.isOpen), units);
  const to = most === null ? null : floor(scaled(decimalOf(most.value), places, false, most.isOpen), units);
  if (from !== null && to !== null) {
    if (from > to) return null;
    if (to - from < LISTED_MAX) return listed(from, to, step);
  }
  if (units === 1n) return numberRange(least, most, places);
  const isPositive = from !== null && from >= 0n;
  const isEndless = (from === null || from === 0n || from === 1n) && to === null;
  const fractions = isEndless && places > 0 ? 10n ** BigInt(places) / units : 0n;
  if (fractions > 0n && fractions <= LISTED_MAX && fractions * units === 10n ** BigInt(places)) {
    if (from === 1n) writing.leave();
    const behind = listed(1n, fractions - 1n, step).replaceAll('"0.', '"');
    return `${isPositive ? '' : '"-"? '}("0" | [1-9] [0-9]{0,${FRACTION_DIGITS - 1}}) ("." (${behind}))?`;
  }
  const endless = isEndless ? stepped(step, writing) : null;
  if (endless === null) {
    writing.leave();
    return numberRange(least, most, places);
  }
  const sign = isPositive ? '' : '"-"? ';
  return from === 1n ? endless.positive : `${sign}(${endless.positive}) | "0"`;
}

/** All multiples above zero; null: they are not followed. */
function stepped({ units, places }: Step, writing: Writing): { readonly positive: string } | null {
  if (places > 0) return null;
  const zeros = /0*$/.exec(String(units))![0].length;
  const rest = units / 10n ** BigInt(zeros);
  const behind = zeros === 0 ? '' : ` "${'0'.repeat(zeros)}"`;
  const length = DIGITS - zeros;
  if (rest === 1n) return { positive: `[1-9] [0-9]{0,${length - 1}}${behind}` };
  if (rest > REMAINDERS_MAX) return null;
  return { positive: `${remainders(Number(rest), length, writing)}${behind}` };
}

/** A rule for what is left of a number of so many digits at most, by the remainder of those that were written. */
function remainders(step: number, length: number, { rules }: Writing): string {
  // By remainder, of the numbers that have one digit less to come.
  let shorter: readonly (string | null)[] = Array.from({ length: step }, (_, rest) => (rest === 0 ? '""' : null));
  const next = (rest: number, isFirst: boolean, behind: readonly (string | null)[]): string | null => {
    const ways = Array.from({ length: step }, (_, to) => {
      const digits = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].filter(
        (digit) => (10 * rest + digit) % step === to && !(isFirst && digit === 0),
      );
      return digits.length === 0 || behind[to] === null ? [] : [`[${digits.join('')}] ${behind[to]}`];
    }).flat();
    const ends = rest === 0 && !isFirst ? ['""'] : [];
    return ways.length + ends.length === 0 ? null : rules.addPlain([...ways, ...ends].join(' | '));
  };
  for (let digits = 1; digits < length; digits++) {
    const behind = shorter;
    shorter = Array.from({ length: step }, (_, rest) => next(rest, false, behind));
  }
  return next(0, true, shorter)!;
}

function listed(from: bigint, to: bigint, { units, places }: Step): string {
  const all: string[] = [];
  for (let index = from; index <= to; index++) {
    const value = index * units;
    const digits = String(value < 0n ? -value : value).padStart(places + 1, '0');
    const whole = digits.slice(0, digits.length - places);
    const fraction = digits.slice(digits.length - places).replace(/0+$/, '');
    all.push(`"${value < 0n ? '-' : ''}${whole}${fraction === '' ? '' : `.${fraction}`}"`);
  }
  return all.join(' | ');
}

function divisor(a: bigint, b: bigint): bigint {
  return b === 0n ? a : divisor(b, a % b);
}

const floor = (value: bigint, unit: bigint): bigint => value / unit - (value < 0n && value % unit !== 0n ? 1n : 0n);
const ceiling = (value: bigint, unit: bigint): bigint => -floor(-value, unit);
