/** What errors of attention mean for the output: the one place where a simulation turns errors into nats. */
import type { ThresholdSet } from '../../policy/index.ts';

/**
 * The error law, KLD ≈ c·Σ g·ε² over layers, from the mean square of ‖S·W_o(o′−o)‖/‖x‖ in each sampled layer. `layers`: which of the model those
 * are. Layers that were not sampled are taken to be like those that were. A layer's error is that of keys and values together, so its gain is the
 * mean of the two.
 */
export function predictKld(
  squares: readonly number[],
  layers: readonly number[],
  layersTotal: number,
  { c, gains }: Pick<ThresholdSet, 'c' | 'gains'>,
): number {
  const sum = squares.reduce(
    (all, square, at) => all + ((gains.k[layers[at]!]! + gains.v[layers[at]!]!) / 2) * square,
    0,
  );
  return (c * sum * layersTotal) / layers.length;
}
