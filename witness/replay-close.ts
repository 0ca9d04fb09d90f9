/**
 * What a session says of itself at its end, against what its entries before say: whoever writes a log can seal whatever
 * numbers, and those that follow from others are computed again. docs: README.md, "What can be checked".
 */
import type { PolicySummary } from '../policy/index.ts';
import { canonicalJson } from './canonical.ts';
import type { EntryBodies } from './types.ts';

/** What deciding again knows when a session ends. */
export interface KnownAtEnd {
  readonly open: EntryBodies['open'];
  readonly summary: PolicySummary;
  /** Decisions in the log, and how many of them were refused. */
  readonly decisions: number;
  readonly refused: number;
  /** The most bytes that an entry says the cache had. */
  readonly bytesMax: number;
}

/**
 * Fields of the end that follow from nothing in the log. What is left of the others: `tokens` and `kvBytes` have to fit
 * the numbers that follow from them, and so do shares of formats.
 */
export const NOT_REPLAYED = ['meanKld', 'fingerprint', 'reason'] as const;

/** Shares of a hundred thousand pages add up to one this nearly. */
const ROUNDING = 1e-9;
const BITS_F16 = 16;
const BYTES_F16 = 2;

/** The first field that is not what follows from other entries; null: none. */
export function differenceAtEnd(
  body: EntryBodies['close'],
  { open, summary, decisions, refused, bytesMax }: KnownAtEnd,
): { readonly logged: string; readonly replayed: string } | null {
  const { layers, kvHeads, headDim } = open.shape;
  const { gains, c } = open.context.thresholds;
  const f16Bytes = 2 * BYTES_F16 * body.tokens * layers * kvHeads * headDim;
  const expected: Readonly<Partial<Record<keyof typeof body, unknown>>> = {
    kvBytesF16: f16Bytes,
    kvBytes: Math.max(body.kvBytes, bytesMax),
    effectiveBits: f16Bytes === 0 ? 0 : (BITS_F16 * body.kvBytes) / f16Bytes,
    ...{ decisions, refused, gains, c },
    priceThreshold: summary.priceThreshold,
    predictedKld: summary.predictedKld,
    text: summary.text?.measured,
    measured: summary.measured,
  };
  for (const [name, value] of Object.entries(expected)) {
    const [logged, replayed] = [body[name as keyof typeof body], value].map((one) => canonicalJson(one ?? null));
    if (logged !== replayed) return { logged: `${name} ${logged}`, replayed: `${name} ${replayed}` };
  }
  for (const [side, shares] of Object.entries(body.formats ?? {})) {
    const sum = Object.values(shares).reduce((all, share) => all + share, 0);
    const areShares = Object.values(shares).every((share) => share > 0 && share <= 1);
    const isWhole = Object.keys(shares).length === 0 || Math.abs(sum - 1) < ROUNDING;
    if (!areShares || !isWhole)
      return { logged: `formats.${side} ${canonicalJson(shares)}`, replayed: `formats.${side} that add up to 1` };
  }
  return null;
}
