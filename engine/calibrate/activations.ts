/**
 * What it costs to round the activations of one matrix to 8 bits: the first tokens of a window are computed again with
 * each matrix so by itself, and once with all that such a window would choose.
 */
import { DENSE_SLOTS, KvError } from '../../native/index.ts';
import { chooseActivations, defaultThresholds, matricesOf } from '../../policy/index.ts';
import { Session } from '../session/session.ts';
import { applyActivations, hasPlanes, type PlanedDense, productsOf } from '../transformer/activations.ts';
import type { Runtime } from '../transformer/runtime/runtime.ts';
import { activationCostsOf } from './fit.ts';
import type { MeasuredActivations, MeasuredWindow } from './measured.ts';
import type { WindowTokens } from './window.ts';

/** What of a window is about activations. */
export type Rounded = Pick<MeasuredWindow, 'activations'>;

/** How many numbers are measured of a window: one a matrix, and one of all together. */
export const activationProbes = ({ dense, shape }: Runtime): number =>
  hasPlanes(dense) ? [...matricesOf(shape.layers)].length + 1 : 0;

/** How many of them are there. */
export function activationsDone({ activations }: Rounded): number {
  if (activations === undefined) return 0;
  const { alone, output, together } = activations;
  const lists = [...Object.values(alone), [output, together]];
  return lists.reduce((sum, list) => sum + list.filter((one) => one !== null).length, 0);
}

/**
 * Measures what the window lacks of this. `onMeasured` is called after every number. Throws 'aborted', and
 * 'unsupported' for a dense half without the choice.
 */
export async function measureActivations(
  runtime: Runtime,
  { tokens }: Pick<WindowTokens, 'tokens'>,
  measured: Rounded,
  onMeasured: () => void,
  signal?: AbortSignal,
): Promise<void> {
  const { dense, shape } = runtime;
  if (!hasPlanes(dense)) throw new KvError('unsupported', 'activations have 16 bits or more in this dense half');
  const { layers } = shape;
  const found = (measured.activations ??= nothing(layers));
  const setup = { policy: 'none', log: null, thresholds: defaultThresholds(layers), tokensExpected: tokens.length };
  const session = Session.open(runtime, setup);
  const probe = session.probe(Array.from({ length: layers }, (_, layer) => layer));
  const divergence = async (layer: number): Promise<number> => {
    if (signal?.aborted) throw new KvError('aborted', 'aborted between two probes');
    const klds = await probe.recomputed(layer);
    return klds.reduce((sum, one) => sum + one, 0) / klds.length;
  };
  try {
    await session.read(tokens, { ...(signal === undefined ? {} : { signal }) });
    // With all as it is: what the others are compared with.
    await divergence(layers);
    await measureAlone(dense, layers, found, divergence, onMeasured);
    if (found.together !== null) return;
    const costs = activationCostsOf({ settings: { layers }, windows: [measured] })!;
    const choice = chooseActivations(costs, productsOf(runtime.model.config));
    applyActivations(dense, choice, layers);
    found.together = { kld: await divergence(0), sum: choice.expectedNats };
    onMeasured();
  } finally {
    applyActivations(dense, runtime.activations, layers);
    probe.close();
    session.close();
  }
}

/** One matrix after the other, as far as they are not known. */
async function measureAlone(
  dense: PlanedDense,
  layers: number,
  found: MeasuredActivations,
  divergence: (layer: number) => Promise<number>,
  onMeasured: () => void,
): Promise<void> {
  for (const { layer, slot } of matricesOf(layers)) {
    const known = layer === layers ? found.output : found.alone[slot][layer];
    if (known != null) continue;
    dense.setPlanes(layer, slot, 1);
    const kld = await divergence(layer);
    dense.setPlanes(layer, slot, 2);
    if (layer === layers) found.output = kld;
    else found.alone[slot][layer] = kld;
    onMeasured();
    // Lets Ctrl-C be noticed.
    await new Promise((resolve) => setImmediate(resolve));
  }
}

function nothing(layers: number): MeasuredActivations {
  const list = (): null[] => new Array<null>(layers).fill(null);
  const alone = Object.fromEntries(
    DENSE_SLOTS.map((slot) => [slot, list()]),
  ) as unknown as MeasuredActivations['alone'];
  return { alone, output: null, together: null };
}
