/** Which matrices take activations of 8 bits, in words. */
import { brief, DENSE_SLOTS, percent, plural } from '../native/index.ts';
import { type ActivationChoice, isEightBit, matricesOf } from '../policy/index.ts';

export function activationText(choice: ActivationChoice): string {
  const { eightBit, expectedNats, share } = choice;
  const layers = eightBit.length - 1;
  const taken = [...matricesOf(layers)].filter(({ layer, slot }) => isEightBit(choice, layer, slot)).length;
  const all = layers * DENSE_SLOTS.length + 1;
  return `8 bits in ${taken} of ${plural(all, 'matrix', 'matrices')}, ${percent(share)} of the products with weights; ${brief(expectedNats, 2)} nats of divergence are expected of that`;
}
