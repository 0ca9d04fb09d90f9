/** What a person types to narrow a list: times, spans, ranges. */
import { given, KvError } from '../native/index.ts';
import type { Range } from './types.ts';

const UNIT_MS: Readonly<Record<string, number>> = { s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 };
const AGO = /^(\d{1,9}(?:\.\d{1,3})?)([smhdw])$/;
/** A date, or a date and a time; without a zone it is local time, as on the clock of whoever asks. */
const ISO = /^\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,3})?)?(?:Z|[+-]\d{2}:?\d{2})?)?$/;

/**
 * '90s', '30m', '1h', '2d', '1w' (ago), '2026-01-31', '2026-01-31T13:05', '…T13:05:00Z' → ms since the epoch. Throws
 * 'bad-argument'.
 */
export function parseTime(text: string, nowMs: number): number {
  const ago = AGO.exec(text);
  if (ago !== null) return nowMs - Number(ago[1]) * (UNIT_MS[ago[2] as string] as number);
  const time = ISO.test(text) ? Date.parse(text.length === 10 ? `${text}T00:00` : text) : Number.NaN;
  if (Number.isNaN(time)) {
    throw new KvError('bad-argument', `'${text}' is not a time`, {
      values: { given: text },
      hint: 'write 30m, 2h or 7d (ago), or a date such as 2026-01-31 or 2026-01-31T13:05',
    });
  }
  return time;
}

const rangeOf = (number: string): RegExp => new RegExp(`^(${number})?(\\.\\.)?(${number})?$`);
const WHOLE_RANGE = rangeOf(String.raw`\d{1,15}`);
const REAL_RANGE = rangeOf(String.raw`\d{1,15}(?:\.\d{1,15})?(?:e[+-]?\d{1,3})?`);

/** '384', '100..200', '100..', '..200' → inclusive bounds; of real numbers also '1e-3..0.02'. Throws 'bad-argument'. */
export function parseRange(text: string, isReal = false): Range {
  const [, low, dots, high] = (isReal ? REAL_RANGE : WHOLE_RANGE).exec(text) ?? [];
  if (low === undefined && high === undefined) throw badRange(text);
  if (dots === undefined && (low === undefined || high !== undefined)) throw badRange(text);
  if (dots === undefined) return { min: Number(text), max: Number(text) };
  const range = given<Range>({
    min: low === undefined ? undefined : Number(low),
    max: high === undefined ? undefined : Number(high),
  });
  if (range.min !== undefined && range.max !== undefined && range.min > range.max) throw badRange(text);
  return range;
}

function badRange(text: string): KvError {
  return new KvError('bad-argument', `'${text}' is not a range`, {
    values: { given: text },
    hint: 'write 384, 100..200, 100.. or ..200',
  });
}
