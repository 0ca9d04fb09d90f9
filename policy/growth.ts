/**
 * Whether a cache grows without end: no budget holds it, its bytes go on growing with its tokens, and at that pace they
 * reach a limit before the text can be as long as it may get. Where a byte budget holds a cache, its bytes stay where
 * they are while pages go lower, so what counts there is the least that it can take, once it has come near that. No
 * decision follows from it. The same numbers give the same answer.
 */
import { PAGE_TOKENS } from '../native/index.ts';

/** What a cache took when it had so many tokens. */
export interface GrowthPoint {
  /** Tokens in the cache. */
  readonly tokens: number;
  /** What it takes then. */
  readonly bytes: number;
}

/** What is known of a cache at the end of a page. */
export interface GrowthSeen {
  /** Of its last pages, the oldest first; the last one is now. */
  readonly points: readonly GrowthPoint[];
  /** The least that it takes now, and for each token more; null: no byte budget holds it. */
  readonly least: { readonly bytes: number; readonly bytesPerToken: number } | null;
  /** That budget, or else what memory there is. */
  readonly limitBytes: number;
  /** Tokens that it may come to have; null: nobody knows. */
  readonly tokensMost: number | null;
}

/** That it grows without end, and when that ends. */
export interface Growth {
  /** Tokens in the cache when it was seen. */
  readonly tokens: number;
  /** What the cache takes. */
  readonly bytes: number;
  /** At which it grows. */
  readonly bytesPerToken: number;
  /** The budget that it will reach, or what memory there is. */
  readonly limitBytes: number;
  /** Until it has reached the limit at this pace. */
  readonly tokensLeft: number;
}

/** Pages that are looked at, and how many there must be. Chosen: a few pages tell nothing of a pace. */
export const GROWTH_PAGES = 16;
const PAGES_LEAST = 8;
/** So near the least that it can take, a cache has hardly anything left to give. Chosen. */
const NEAR_LEAST = 1.1;

/** Bytes a token, by least squares; 0 for fewer than two lengths. */
function slopeOf(points: readonly GrowthPoint[]): number {
  const mean = (of: (point: GrowthPoint) => number): number =>
    points.reduce((sum, point) => sum + of(point), 0) / points.length;
  const [tokens, bytes] = [mean((point) => point.tokens), mean((point) => point.bytes)];
  const spread = points.reduce((sum, point) => sum + (point.tokens - tokens) ** 2, 0);
  if (spread === 0) return 0;
  return points.reduce((sum, point) => sum + (point.tokens - tokens) * (point.bytes - bytes), 0) / spread;
}

/** The pace of all of them, or of the newer half if that is slower: what has come to rest does not grow. */
function paceOf(points: readonly GrowthPoint[]): number {
  const middle = (points[0]!.tokens + points.at(-1)!.tokens) / 2;
  const half = points.filter(({ tokens }) => tokens >= middle);
  return Math.min(slopeOf(points), slopeOf(half));
}

/** → that a cache grows without end; null: it does not, or nobody can tell */
export function growthOf({ points, least, limitBytes, tokensMost }: GrowthSeen): Growth | null {
  const now = points.at(-1);
  const first = points[0];
  if (first === undefined || now === undefined || tokensMost === null) return null;
  if (now.tokens - first.tokens < PAGES_LEAST * PAGE_TOKENS) return null;
  if (least !== null && now.bytes > NEAR_LEAST * least.bytes) return null;
  const bytesPerToken = least?.bytesPerToken ?? paceOf(points);
  if (bytesPerToken <= 0) return null;
  const tokensLeft = Math.max(0, Math.floor((limitBytes - (least?.bytes ?? now.bytes)) / bytesPerToken));
  return now.tokens + tokensLeft < tokensMost ? { ...now, bytesPerToken, limitBytes, tokensLeft } : null;
}
