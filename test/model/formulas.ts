/** Logits of models with small random weights, beside what their formulas make of the same weights in float64. */
import { createLoopBackend } from '../../engine/transformer/dense-loops.ts';
import { createNativeBackend } from '../../engine/transformer/dense-native.ts';
import { loadModel } from '../../engine/transformer/load.ts';
import { Rotary } from '../../engine/transformer/rotary.ts';
import { logitsAt, nativeAttention, plainAttention } from './forward.ts';

/** Rows of float64. */
export type Rows = readonly (readonly number[])[];

export const plus = (a: Rows, b: Rows): Rows => a.map((row, t) => row.map((value, i) => value + b[t]![i]!));

/** Logits of a model behind these positions of a text, by the plain dense half or by ours. */
export async function logitsOf(
  path: string,
  ids: readonly number[],
  positions: readonly number[],
  isExact: boolean,
): Promise<Float32Array[]> {
  const model = await loadModel(path);
  const create = isExact ? createLoopBackend : createNativeBackend;
  const dense = await create(model, { precision: isExact ? 'exact' : 'auto', threads: 1 });
  const attention = (isExact ? plainAttention : nativeAttention)(model.config);
  try {
    return await logitsAt(dense, model.config, new Rotary(model.config), attention, ids, 16, positions);
  } finally {
    attention.close();
    await dense.close();
    model.weights.close();
  }
}

/** The largest relative error among rows that were found at these positions. */
export const distance = (found: readonly Float32Array[], expected: Rows, positions: readonly number[]): number =>
  Math.max(
    ...found.map((row, i) => {
      const right = expected[positions[i]!]!;
      return Math.hypot(...right.map((value, at) => row[at]! - value)) / Math.hypot(...right);
    }),
  );
