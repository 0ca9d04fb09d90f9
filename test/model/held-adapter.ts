/** What holding an adapter in 8 bits costs: distributions in float32 with factors as they are, and as they are held. */
import { adaptedDense } from '../../engine/transformer/adapted-dense.ts';
import { Rotary } from '../../engine/transformer/rotary.ts';
import type { AdapterMatrix, DenseBackend, LoadedModel } from '../../engine/transformer/types.ts';
import { logitsAt, plainAttention } from './forward.ts';

/** A sentence, and the log that the demonstration adapter makes of what follows. */
export const LOG =
  'It was a bright cold day.\nDay 14. Wind west, fresh. Saw a low green island at noon. The cook is better. All well.\n' +
  'Day 15. Wind south, light.';

/** In 8 bits, with a scale for those of a group. */
function rounded(values: Float32Array, groupOf: (at: number) => number): Float32Array {
  const most = new Map<number, number>();
  for (const [at, value] of values.entries())
    most.set(groupOf(at), Math.max(most.get(groupOf(at)) ?? 0, Math.abs(value)));
  return values.map((value, at) => {
    const scale = most.get(groupOf(at))! / 127;
    return scale === 0 ? 0 : Math.round(value / scale) * scale;
  });
}

/** As the kernels hold it: A with a scale for 32 numbers of a row, B with one for each of its columns. */
export function held({ rank, a, b, ...rest }: AdapterMatrix): AdapterMatrix {
  const inputs = a.length / rank;
  const block = (at: number): number => Math.floor(at / inputs) * inputs + Math.floor((at % inputs) / 32);
  return { ...rest, rank, a: rounded(a, block), b: rounded(b, (at) => at % rank) };
}

/** Log probabilities after every token, of rows that have what `matrices` adds. */
export async function distributions(
  dense: DenseBackend,
  { config }: Pick<LoadedModel, 'config'>,
  tokens: readonly number[],
  matrices: readonly AdapterMatrix[],
): Promise<Float64Array[]> {
  const attention = plainAttention(config);
  const adapter = dense.addAdapter!(matrices);
  const adapted = adaptedDense(dense, matrices.length === 0 ? [] : [{ adapter, scale: 1 }]);
  const found = await logitsAt(adapted, config, new Rotary(config, tokens.length), attention, tokens, 64, [
    ...tokens.keys(),
  ]);
  attention.close();
  dense.dropAdapter!(adapter);
  return found.map((logits) => {
    const most = logits.reduce((a, b) => Math.max(a, b));
    const sum = Math.log(logits.reduce((total, logit) => total + Math.exp(logit - most), 0));
    return Float64Array.from(logits, (logit) => logit - most - sum);
  });
}

/** The mean divergence of q from p, in nats. */
export const divergence = (p: readonly Float64Array[], q: readonly Float64Array[]): number =>
  p.reduce((sum, row, at) => sum + row.reduce((part, log, i) => part + Math.exp(log) * (log - q[at]![i]!), 0), 0) /
  p.length;
