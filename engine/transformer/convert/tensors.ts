/** Which tensors a GGUF file of a model has, in what types, and where their rows come from. */
import { KvError } from '../../../native/index.ts';
import { expectedShapes } from '../config.ts';
import { ELEMENT_TYPES } from '../dequant.ts';
import type { Family } from '../families/family.ts';
import { FUSED, ggufNames, STACKED } from '../names.ts';
import type { LoadedModel, ModelConfig, Tensor } from '../types.ts';
import type { DescribedTensor } from './gguf-writer.ts';
import { WRITTEN_TYPES, type WrittenType } from './quantize.ts';

/** A tensor of the file: these of ours, one behind the other. */
export interface TensorPlan extends DescribedTensor {
  readonly parts: readonly Tensor[];
  /** In which order rows of each head are written; null: as they are. */
  readonly rowOrder: readonly number[] | null;
}

/** type: null for each tensor as it is stored. */
export function planTensors(
  { config, weights }: Pick<LoadedModel, 'config' | 'weights'>,
  family: Family,
  type: WrittenType | null,
): TensorPlan[] {
  const names = ggufNames(family, config);
  const order = family.ggufInterleaved === true ? interleaved(config) : null;
  const plans = new Map<string, { parts: Tensor[]; rowOrder: readonly number[] | null; isStack: boolean }>();
  for (const ours of expectedShapes(config).keys()) {
    const [layer, part = '', kind] = /^\d+\./.test(ours) ? ours.split('.') : [null, ours];
    const bare = /^\d+$/.test(kind ?? '') ? part : ours.replace(/^\d+\./, '');
    const isStack = bare !== ours.replace(/^\d+\./, '');
    const name = layer === null ? names.top.get(ours) : fileName(names.layer, bare, isStack);
    if (name === undefined)
      throw new KvError('unsupported', `GGUF files of ${config.architecture} have no name for tensor ${ours}`, {
        values: { tensor: ours, architecture: config.architecture },
      });
    const full = layer === null ? name : `blk.${layer}.${name}`;
    const plan = plans.get(full) ?? { parts: [], rowOrder: /^[qk](\.bias)?$/.test(bare) ? order : null, isStack };
    plan.parts.push(weights.tensor(ours));
    plans.set(full, plan);
  }
  return [...plans].map(([name, { parts, rowOrder, isStack }]) => {
    const shape = shapeOf(parts, isStack);
    return { name, shape, parts, rowOrder, type: typeOf(name, shape, parts, type) };
  });
}

/** The name of a part, or of the tensor that holds it with others. */
function fileName(names: ReadonlyMap<string, string>, part: string, isStack: boolean): string | undefined {
  const groups = isStack ? STACKED : FUSED;
  const [bare = '', ...kind] = part.split('.');
  const full = (group: string): string => [group, ...kind].join('.');
  const group = Object.keys(groups).find((one) => groups[one]!.includes(bare) && names.has(full(one)));
  if (isStack) return group === undefined ? undefined : names.get(group);
  return names.get(group === undefined ? part : full(group));
}

function shapeOf(parts: readonly Tensor[], isStack: boolean): number[] {
  const [rows, ...rest] = parts[0]!.shape;
  if (isStack) return [parts.length, rows!, ...rest];
  return [parts.reduce((sum, { shape }) => sum + shape[0]!, 0), ...rest];
}

/**
 * Norms, biases and routers stay float32, as everywhere. Below eight bits the two ends of a model have eight, which is
 * what they lose least in. Rows that blocks do not divide are halves.
 */
function typeOf(
  name: string,
  shape: readonly number[],
  parts: readonly Tensor[],
  asked: WrittenType | null,
): WrittenType {
  if (shape.length === 1 || name.endsWith('ffn_gate_inp.weight')) return 'F32';
  const stored = parts[0]!.storedType as WrittenType;
  if (asked === null) {
    if (parts.every(({ storedType }) => storedType === stored) && WRITTEN_TYPES.includes(stored)) return stored;
    throw new KvError('unsupported', `tensor ${name} is stored in a type that is not written`, {
      values: { tensor: name, types: parts.map(({ storedType }) => storedType), written: WRITTEN_TYPES },
      hint: `give a type: ${WRITTEN_TYPES.join(', ')}`,
    });
  }
  const isEnd = name === 'token_embd.weight' || name === 'output.weight';
  const type = isEnd && /^Q[45]/.test(asked) ? 'Q8_0' : asked;
  return shape.at(-1)! % ELEMENT_TYPES.get(type)!.blockValues === 0 ? type : 'F16';
}

/** Row 2i + j of a head is row j·d/2 + i of its d rotated ones: pairs that stand side by side. */
function interleaved({ headDim, rotaryDim }: ModelConfig): number[] {
  return Array.from({ length: headDim }, (_, row) =>
    row < rotaryDim ? (row % 2) * (rotaryDim / 2) + Math.floor(row / 2) : row,
  );
}
