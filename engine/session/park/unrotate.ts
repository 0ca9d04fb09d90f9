/** Keys before their rotary embedding. */
import { rope } from '../../../native/index.ts';
import type { RopeTable, RotaryConfig } from '../../transformer/rope.ts';
import type { ModelConfig } from '../../transformer/types.ts';

/** Takes the rotary embedding of positions from `start` on off k [tokens, n, d], in place. */
export function unrotate(
  k: Float32Array,
  start: number,
  table: RopeTable,
  { kvHeads, headDim, rotaryDim, ropeInterleaved }: RotaryConfig & Pick<ModelConfig, 'kvHeads'>,
): Float32Array {
  const tokens = k.length / (kvHeads * headDim);
  const { cos, sin } = table.rows(start, tokens);
  // YaRN makes rotated keys longer by this.
  const amplitude = table.rows(0, 1).cos[0]! ** 2;
  const back = sin.map((value) => -value / amplitude);
  rope(
    k,
    tokens,
    kvHeads,
    headDim,
    rotaryDim,
    cos.map((value) => value / amplitude),
    back,
    ropeInterleaved,
  );
  return k;
}
