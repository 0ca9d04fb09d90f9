/**
 * What is watched of a session, and when: follows from the position in the session alone, so that no content decides
 * it.
 */
import { type FormatName, SIDES, type Side } from '../../native/index.ts';
import type { Decision } from '../../policy/index.ts';

/** Probes fall on multiples of so many tokens, as plans do while writing, so that several share the waking up. */
const STRIDE_TOKENS = 8;

/** A planned move of one side. */
export interface SideMove extends Pick<Decision, 'layer' | 'page' | 'epsilonTo'> {
  readonly side: Side;
  readonly from: FormatName;
  readonly to: FormatName;
}

/** How often things are measured. */
export interface Pace {
  /** Tokens between two measurements. */
  readonly every: number;
  /** How much more often than others a layer is measured. */
  readonly haste: (layer: number) => number;
  /** In which stretch of tokens a length lies: what is watched changes with each. */
  readonly stretchOf: (tokens: number) => number;
}

interface Place {
  readonly layer: number;
  readonly side: Side;
  readonly stretch: number;
  /** Layers and sides that a stretch watches. */
  readonly places: number;
  readonly layers: number;
  readonly haste: Pace['haste'];
}

/**
 * True if a layer and side is among those that a stretch of tokens watches. An order that looks random; layers that are
 * measured more often come first.
 */
export function isWatched({ layer, side, stretch, places, layers, haste }: Place): boolean {
  if (places >= 2 * layers) return true;
  const key = (of: number, index: number): number => scatter(stretch, 2 * of + index) - (haste(of) > 1 ? 1 : 0);
  const own = key(layer, SIDES.indexOf(side));
  let before = 0;
  for (let of = 0; of < layers && before < places; of++)
    for (let index = 0; index < SIDES.length; index++) if (key(of, index) < own) before++;
  return before < places;
}

export const dueAfter = (tokens: number, wait: number): number =>
  Math.ceil((tokens + Math.max(1, wait)) / STRIDE_TOKENS) * STRIDE_TOKENS;

/** A number in [0, 1) that follows from two whole numbers (the finalizer of MurmurHash3 over both). */
export function scatter(a: number, b: number): number {
  let h = (Math.imul(a + 1, 0x9e3779b1) ^ Math.imul(b + 1, 0x85ebca77)) >>> 0;
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b) >>> 0;
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35) >>> 0;
  return ((h ^ (h >>> 16)) >>> 0) / 2 ** 32;
}
