/** Values of GGUF metadata with the types that readers expect of their keys, for files that are written. */

export type GgufEntry =
  | { readonly type: 'u32' | 'i32' | 'f32'; readonly value: number }
  | { readonly type: 'bool'; readonly value: boolean }
  | { readonly type: 'text'; readonly value: string }
  | { readonly type: 'texts'; readonly value: readonly string[] }
  | { readonly type: 'i32s' | 'f32s'; readonly value: readonly number[] }
  | { readonly type: 'bools'; readonly value: readonly boolean[] };

export const u32 = (value: number): GgufEntry => ({ type: 'u32', value });
export const f32 = (value: number): GgufEntry => ({ type: 'f32', value });
export const bool = (value: boolean): GgufEntry => ({ type: 'bool', value });
export const text = (value: string): GgufEntry => ({ type: 'text', value });

/** Windows of models in which one of so many layers has none; what has them otherwise says it layer by layer. */
export function windowKeys(windows: readonly (number | null)[], every: number): Record<string, GgufEntry> {
  const size = windows.find((one) => one !== null) ?? 0;
  const isUsual = windows.every((one, layer) => (one === null) === ((layer + 1) % every === 0));
  return {
    'attention.sliding_window': u32(size),
    ...(!isUsual && {
      'attention.sliding_window_pattern': { type: 'bools', value: windows.map((one) => one !== null) },
    }),
  };
}
