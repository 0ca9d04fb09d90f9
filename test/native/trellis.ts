/** What tests of trellis codes share: sequences, their levels, targets and windows. */
import { PAGE_TOKENS, type Side } from '../../native/format.ts';
import {
  levelsOf,
  nextWindow,
  SEQUENCE_BITS,
  type Sequence,
  type TrellisHead,
  TrellisSearch,
  WINDOW_BITS,
} from '../../native/formats/trellis/trellis.ts';
import { CODECS, meanUnit, type ReferenceCodec, tileOffset } from '../../native/reference/index.ts';
import { gaussian } from './rows.ts';

export type Bits = 4 | 3 | 2 | 1;
export const WIDTHS = [4, 3, 2, 1] as const;
/** All demotions. trellis1 keeps no code of another. */
export const DEMOTIONS = WIDTHS.flatMap((from) => WIDTHS.filter((to) => to < from).map((to) => [from, to] as const));
export const SEQUENCES = ['high', 'low2', 'low1', 'single'] as const;
/** The sequences of each width, the one with the high bits of codes first. */
export const PARTS: Readonly<Record<Bits, readonly Sequence[]>> = {
  4: ['high', 'low2'],
  3: ['high', 'low1'],
  2: ['high'],
  1: ['single'],
};
export const PAGE = PAGE_TOKENS;
export const D = 64;
/** What one of a level is in targets, and the most that a target is. */
export const LEVEL_ONE = 128;
export const TARGET_MOST = 16384;
export const LEVELS = Object.fromEntries(SEQUENCES.map((name) => [name, levelsOf(name)])) as Readonly<
  Record<Sequence, Int8Array>
>;
export const most = (sequence: Sequence): number => Math.max(...LEVELS[sequence].map(Math.abs));
export const codecOf = (bits: Bits): ReferenceCodec<TrellisHead> => CODECS[`trellis${bits}`];
export const rotOf = (bits: Bits) => CODECS[`rot${bits}`] as unknown as ReferenceCodec<TrellisHead>;
export const k = (head: TrellisHead, t: number): number => (head.rowScales[t]! << 16) >> 16;
/** What an element is coded from. */
export const origin = (head: TrellisHead, t: number, c: number): number =>
  head.fromZero[t] ? 0 : Math.fround(head.means[c]! * meanUnit(head));

/** A target of the search: 1/4096 is one, within four. */
export const targetOf = (x: number): number => Math.round(4096 * Math.min(4, Math.max(-4, x)));
export const normalTargets = (steps: number, random: () => number, spread = 1): Int16Array =>
  Int16Array.from({ length: steps }, () => targetOf(spread * gaussian(random)));

/** The windows of a sequence of codes. */
export function windowsOf(sequence: Sequence, codes: readonly number[]): number[] {
  let window = 0;
  return codes.map((code) => (window = nextWindow(sequence, window, code)));
}
export const codesOf = (sequence: Sequence, windows: Iterable<number>): number[] =>
  Array.from(windows, (window) => window >> (WINDOW_BITS[sequence] - SEQUENCE_BITS[sequence]));

/** What a sequence leaves of targets. */
export const leftBy = (sequence: Sequence, targets: Int16Array, windows: ArrayLike<number>): Int16Array =>
  targets.map((target, step) => target - LEVEL_ONE * LEVELS[sequence][windows[step]!]!);
export const LEFT_SEARCH = new TrellisSearch('high');
/** Targets as a sequence gets them: low2 and low1 those that high leaves. */
export const given = (sequence: Sequence, targets: Int16Array): Int16Array =>
  sequence.startsWith('low') ? leftBy('high', targets, LEFT_SEARCH.windows(targets)) : targets;

/** What the search must make least, as the head of trellis.ts says it. */
export const costOf = (windows: Iterable<number>, targets: Int16Array, sequence: Sequence): number => {
  let [sum, step] = [0, 0];
  for (const window of windows) {
    const error = targets[step++]! - LEVEL_ONE * LEVELS[sequence][window]!;
    sum += Math.round(error ** 2 / 2 ** 15);
  }
  return sum;
};

/** Index in rows by the index in tile order. */
export const places = (side: Side, d = D): number[] => {
  const found: number[] = [];
  for (let t = 0; t < PAGE; t++) for (let c = 0; c < d; c++) found[tileOffset(side, d, t, c)] = t * d + c;
  return found;
};
/** Indices in rows of the 64 sequences of a head. */
export const sequencesOf = (side: Side): number[][] => {
  const at = places(side);
  return Array.from({ length: 64 }, (_, first) => at.filter((_place, i) => i % 64 === first));
};
