/** Random weights as files store them: blocks of every type that the dense half packs. */
import { toHalf } from '../../native/index.ts';
import { DENSE_TYPES, type DenseType } from '../../native/layout.ts';
import { gaussian } from './rows.ts';

export type QuantizedType = Exclude<DenseType, 'F32' | 'F16' | 'BF16'>;
export const QUANTIZED_TYPES = DENSE_TYPES.map(({ name }) => name).filter(
  (name): name is QuantizedType => !/^B?F/.test(name),
);

interface Halves {
  readonly scaleAt: number;
  readonly minimumAt?: number;
  /**
   * The root mean square of scale · code about the mean, where the scale is 1, and the mean of the codes that a minimum
   * balances.
   */
  readonly spread: number;
  readonly mean?: number;
}
const HALVES: Readonly<Record<QuantizedType, Halves>> = {
  Q8_0: { scaleAt: 0, spread: 74 },
  Q4_0: { scaleAt: 0, spread: 4.6 },
  Q4_1: { scaleAt: 0, minimumAt: 2, spread: 4.6, mean: -7.5 },
  Q5_0: { scaleAt: 0, spread: 9.2 },
  Q5_1: { scaleAt: 0, minimumAt: 2, spread: 9.2, mean: -15.5 },
  Q4_K: { scaleAt: 0, minimumAt: 2, spread: 4.6 * 36, mean: 7.5 },
  Q5_K: { scaleAt: 0, minimumAt: 2, spread: 9.2 * 36, mean: 15.5 },
  Q6_K: { scaleAt: 208, spread: 18.5 * 74 },
};

/** Where the halves of a block are. */
export const halvesOf = (type: QuantizedType): number[] => {
  const { scaleAt, minimumAt } = HALVES[type];
  return minimumAt === undefined ? [scaleAt] : [scaleAt, minimumAt];
};

/**
 * Blocks of `count` weights of about this root mean square: every bit of every code and small scale is drawn, and
 * scales of both signs.
 */
export function weightBlocks(random: () => number, type: DenseType, count: number, rms: number): Uint8Array {
  const { values, bytes } = DENSE_TYPES.find(({ name }) => name === type)!;
  const blocks = Uint8Array.from({ length: (count / values) * bytes }, () => Math.floor(random() * 256));
  const view = new DataView(blocks.buffer);
  for (let at = 0; at < blocks.length; at += bytes) {
    if (type === 'F32') view.setFloat32(at, rms * gaussian(random), true);
    else if (type === 'F16') view.setUint16(at, toHalf(Float32Array.of(rms * gaussian(random)))[0]!, true);
    else if (type === 'BF16') {
      const bits = new Uint32Array(Float32Array.of(rms * gaussian(random)).buffer)[0]!;
      view.setUint16(at, bits >>> 16, true);
    } else {
      const { scaleAt, minimumAt, spread, mean = 0 } = HALVES[type];
      const scale = (rms / spread) * (0.75 + random() / 2) * (random() < 0.5 ? -1 : 1);
      const [first, second] = toHalf(Float32Array.of(scale, scale * mean));
      view.setUint16(at + scaleAt, first!, true);
      if (minimumAt !== undefined) view.setUint16(at + minimumAt, second!, true);
    }
  }
  return blocks;
}
