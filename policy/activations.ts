/**
 * Which matrices of the dense half round what they are multiplied with to 8 bits instead of 16. What that costs was
 * measured of each matrix alone, as divergence of the output; what it saves is half of the products of the matrix.
 */
import { DENSE_SLOTS, type DenseSlot, KvError, plural, show } from '../native/index.ts';
import { checkEstimate, type Estimate } from './law.ts';

/** What it costs to round activations to 8 bits, as a calibration found it. */
export interface ActivationCosts {
  /** Divergence in nats in the mean, where this matrix alone does so, [layers] per slot. */
  readonly matrices: Readonly<Record<DenseSlot, readonly Estimate[]>>;
  /** The same of the output matrix. */
  readonly output: Estimate;
  /** What a choice of matrices costs over the sum of what they cost alone. */
  readonly together: Estimate;
}

/** Which matrices do so. */
export interface ActivationChoice {
  /**
   * By layer, and behind the last one for what follows it: the slots that do, as bits of a number in the order of
   * DENSE_SLOTS. The output matrix is the slot 'q' behind the last layer.
   */
  readonly eightBit: readonly number[];
  /** Divergence in nats that is expected of it in the mean. */
  readonly expectedNats: number;
  /** Share of the products of a token with weights that take half. */
  readonly share: number;
}

/** The most divergence in nats that a choice may be expected to have in the mean. */
export const ACTIVATION_NATS_MOST = 2e-4;
/** The most of a stated divergence that it may be. */
export const ACTIVATION_SHARE_MOST = 0.1;

/** One matrix, and what a choice goes by. */
interface Matrix {
  readonly layer: number;
  readonly slot: DenseSlot;
  readonly nats: number;
  readonly products: number;
}

/** All matrices of a model of so many layers. */
export function* matricesOf(layers: number): Generator<{ readonly layer: number; readonly slot: DenseSlot }> {
  for (let layer = 0; layer < layers; layer++) for (const slot of DENSE_SLOTS) yield { layer, slot };
  yield { layer: layers, slot: 'q' };
}

/** True if the matrix is among those of a choice. */
export const isEightBit = ({ eightBit }: Pick<ActivationChoice, 'eightBit'>, layer: number, slot: DenseSlot): boolean =>
  ((eightBit[layer] ?? 0) & (1 << DENSE_SLOTS.indexOf(slot))) !== 0;

/**
 * The choice that saves most products for its divergence: matrices by what each saves for a nat, as long as all that
 * are taken are expected to cost `mostNats` at most. products: of a token with the weights of a matrix.
 */
export function chooseActivations(
  costs: ActivationCosts,
  products: (layer: number, slot: DenseSlot) => number,
  mostNats = ACTIVATION_NATS_MOST,
): ActivationChoice {
  const layers = costs.matrices.q.length;
  const all = Array.from(matricesOf(layers), ({ layer, slot }): Matrix => {
    const alone = layer === layers ? costs.output : costs.matrices[slot][layer]!;
    return { layer, slot, nats: alone.value * costs.together.value, products: products(layer, slot) };
  });
  const eightBit = new Array<number>(layers + 1).fill(0);
  let [expectedNats, saved] = [0, 0];
  for (const one of [...all].sort((a, b) => b.products * a.nats - a.products * b.nats || a.layer - b.layer)) {
    if (expectedNats + one.nats > mostNats) continue;
    expectedNats += one.nats;
    saved += one.products;
    eightBit[one.layer]! |= 1 << DENSE_SLOTS.indexOf(one.slot);
  }
  return { eightBit, expectedNats, share: saved / all.reduce((sum, one) => sum + one.products, 0) };
}

/** Throws 'bad-thresholds' unless every number is in its range and there is one estimate per layer and slot. */
export function checkActivationCosts(costs: ActivationCosts, layers: number): void {
  const refuse = (id: string, what: string): never => {
    throw new KvError('bad-thresholds', `${id} ${what}`, {
      values: { id, layers },
      hint: 'measure them again with: palimpsest calibrate',
    });
  };
  const estimate = (given: Estimate | undefined, id: string): void =>
    checkEstimate(given, (name, number, least, most) => {
      refuse(`${id}.${name}`, `is ${show(number)}, not within ${least} to ${most}`);
    });
  for (const name of ['output', 'together'] as const) estimate(costs[name], `activations.${name}`);
  for (const slot of DENSE_SLOTS) {
    const id = `activations.${slot}`;
    const list = costs.matrices?.[slot];
    if (!Array.isArray(list) || list.length !== layers)
      refuse(id, `has ${plural(list?.length ?? 0, 'entry', 'entries')} for ${plural(layers, 'layer')}`);
    for (const [layer, one] of list.entries()) estimate(one, `${id}.${layer}`);
  }
}
