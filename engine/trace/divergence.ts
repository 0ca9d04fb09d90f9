/** What errors of attention mean for the output: the one place where a simulation turns errors into nats. */
import { defaultLaw, type ThresholdSet } from '../../policy/index.ts';

/**
 * The error law, KLD ≈ Σ coefficient·g·ε² over layers, from the mean square of ‖S·W_o(o′−o)‖/‖x‖ in each sampled layer.
 * `layers`: which of the model those are. Layers that were not sampled are taken to be like those that were. A layer's
 * error is that of keys and values together, so its coefficient is the mean of the two; and it is that of later
 * queries, so nothing fades.
 */
export function predictKld(
  squares: readonly number[],
  layers: readonly number[],
  layersTotal: number,
  { gains, law = defaultLaw(layersTotal) }: Pick<ThresholdSet, 'gains' | 'law'>,
): number {
  const { coefficient, text } = law;
  const weightOf = (layer: number): number =>
    (coefficient.k[layer]!.value * gains.k[layer]! + coefficient.v[layer]!.value * gains.v[layer]!) / 2;
  const sum = squares.reduce((all, square, at) => all + weightOf(layers[at]!) * square, 0);
  return (text.value * sum * layersTotal) / layers.length;
}
