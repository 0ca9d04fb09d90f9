/** What the price policy says when a budget cannot be kept. */
import { KvError } from '../../native/index.ts';
import type { Layers } from '../layers.ts';
import type { PolicyContext, Situation } from '../types.ts';

/** No legal move is left that frees what lacks. */
export function nothingLeft(
  { layers, context }: { readonly layers: Layers; readonly context: PolicyContext },
  situation: Situation,
  deficitBytes: number,
): KvError {
  const { budgetBytes, bytes, sealBytes, tokens } = situation;
  const layersStopped = layers.stopped.reduce((sum, one) => sum + one, 0);
  const { floor, skipLayers } = context;
  return new KvError(
    'budget-too-small',
    `the KV budget of ${budgetBytes} bytes lacks ${deficitBytes} at ${tokens} tokens and no legal move is left`,
    {
      values: {
        budgetBytes,
        bytes,
        sealBytes,
        deficitBytes,
        tokens,
        layersStopped,
        layersSkipped: skipLayers.length,
        floor: floor === null ? null : `${floor.k}:${floor.v}`,
      },
      hint:
        layersStopped > 0
          ? 'raise the budget: layers have reached the error they may bear, and pressure does not override that'
          : 'raise the budget, allow lower formats, or shorten the context',
    },
  );
}

/** A budget in bytes and one in divergence contradict each other, and neither was ranked first. */
export function bothBind(
  { budgetBytes, kldBudget, tokens }: Situation,
  deficitBytes: number,
  predictedKld: number,
): KvError {
  return new KvError(
    'budget-too-small',
    `at ${tokens} tokens the KV budget of ${budgetBytes} bytes and the divergence budget of ${kldBudget} cannot both be kept`,
    {
      values: { budgetBytes, kldBudget, deficitBytes, predictedKld, tokens },
      hint: 'raise one of the two',
    },
  );
}
