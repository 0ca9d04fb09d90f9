/** The attention shapes and pairs of formats that benches measure, and how they are written. */
import { type FormatName, KvError, parsePair } from '../../native/index.ts';

export interface Shape {
  readonly queryHeads: number;
  readonly kvHeads: number;
  readonly headDim: number;
}

export interface Pair {
  readonly k: FormatName;
  readonly v: FormatName;
}

/** Writes a shape such as `9/3x64`: 9 query heads and 3 KV heads of size 64. */
export const shapeName = ({ queryHeads, kvHeads, headDim }: Shape): string => `${queryHeads}/${kvHeads}x${headDim}`;
export const groupOf = ({ queryHeads, kvHeads }: Shape): number => queryHeads / kvHeads;
export const pairName = ({ k, v }: Pair): string => (k === v && !k.startsWith('rot') ? k : `${k}:${v}`);

export function parseShape(text: string): Shape {
  const match = /^(\d+)\/(\d+)x(\d+)$/.exec(text.trim());
  const [queryHeads, kvHeads, headDim] = (match?.slice(1) ?? []).map(Number) as [number?, number?, number?];
  if (
    queryHeads === undefined ||
    kvHeads === undefined ||
    headDim === undefined ||
    !(kvHeads > 0 && headDim > 0 && queryHeads % kvHeads === 0 && queryHeads > 0)
  ) {
    throw new KvError('bad-argument', `'${text}' is not a shape`, {
      hint: 'write query heads, KV heads and head size, as in 9/3x64',
    });
  }
  return { queryHeads, kvHeads, headDim };
}

export const shapes = (text: string): Shape[] => text.split(',').map(parseShape);
export const pairs = (text: string): Pair[] => text.split(',').map(parsePair);

/**
 * The shape of SmolLM2-135M, one with groups of four, one without groups, and two with the wide heads of larger models.
 */
export const SHAPES = shapes('9/3x64,16/4x64,8/8x64,12/4x128,8/8x128');
/** The other head sizes that quantized formats serve. */
export const OTHER_SHAPES = shapes('16/4x80,9/3x96,8/4x256');
export const PAIRS = pairs('f16,q8,rot4:rot4,rot4:rot2,rot3:rot2,rot2:rot2');

/** Roughly normal numbers of variance 1, the same on every machine: each is the sum of three uniform ones. */
export function gaussians(count: number, random: () => number): Float32Array {
  return Float32Array.from({ length: count }, () => 2 * (random() + random() + random() - 1.5));
}
