/** The four models whose logits were computed independently, opened for a test, or null where a file is not on this machine. */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { loadModel } from '../../engine/model/load.ts';
import type { LoadedModel, ModelConfig, Tensor, WeightSource } from '../../engine/model/types.ts';

export type GoldenModel = Pick<LoadedModel, 'config' | 'weights'>;

const root = join(import.meta.dirname, '..', '..');
/** Test data beside the repository. */
const data = join(root, '..', 'shared', 'data');
const fetched = join(root, '.cache', 'models');

function smollm2Path(): string | null {
  const file =
    existsSync(fetched) &&
    readdirSync(fetched, { recursive: true, encoding: 'utf8' }).find((name) => name.endsWith('.gguf'));
  return file ? join(fetched, file) : null;
}

const present = (path: string): string | null => (existsSync(path) ? path : null);

/** Name → where its weights are; null: not here. */
export const GOLDEN_MODELS: Readonly<Record<string, string | null>> = {
  reference: join(root, 'models', 'reference'),
  'tinystories-656k': present(join(data, 'tinystories656k')),
  stories260k: present(join(data, 'stories260k')),
  smollm2: smollm2Path(),
};

export async function openGoldenModel(name: string): Promise<GoldenModel> {
  const path = GOLDEN_MODELS[name]!;
  return name === 'stories260k' ? readLlama2c(join(path, 'stories260K.bin')) : loadModel(path);
}

/** A llama2.c checkpoint: seven integers, then float32 tensors in a fixed order (see PROVENANCE.md beside it). */
function readLlama2c(path: string): GoldenModel {
  const file = readFileSync(path);
  const [m, f, layers, queryHeads, kvHeads, vocabSize, contextLength] = Array.from({ length: 7 }, (_, i) =>
    file.readInt32LE(4 * i),
  ) as [number, number, number, number, number, number, number];
  const values = new Float32Array(Uint8Array.from(file.subarray(28)).buffer);
  const headDim = m / queryHeads;
  const tensors = new Map<string, Tensor>();
  let offset = 0;
  const take = (name: string, ...shape: number[]): void => {
    const start = offset;
    const row = shape.slice(1).reduce((product, size) => product * size, 1);
    offset += shape[0]! * row;
    const readFloat32 = (from = 0, to = shape[0]!): Float32Array => values.slice(start + from * row, start + to * row);
    tensors.set(name, { name, shape, storedType: 'F32', readFloat32 });
  };
  const takeLayers = (name: string, ...shape: number[]): void => {
    for (let l = 0; l < layers; l++) take(`${l}.${name}`, ...shape);
  };
  take('embed', vocabSize, m);
  takeLayers('attnNorm', m);
  takeLayers('q', m, m);
  takeLayers('k', kvHeads * headDim, m);
  takeLayers('v', kvHeads * headDim, m);
  takeLayers('o', m, m);
  takeLayers('mlpNorm', m);
  takeLayers('gate', f, m);
  takeLayers('down', m, f);
  takeLayers('up', f, m);
  take('norm', m);
  const config: ModelConfig = {
    ...{
      architecture: 'llama',
      layers,
      hiddenSize: m,
      intermediateSize: f,
      queryHeads,
      kvHeads,
      headDim,
      vocabSize,
      contextLength,
    },
    ...{ normEpsilon: 1e-5, ropeTheta: 1e4, ropeScaling: { kind: 'none' }, rotaryDim: headDim, ropeInterleaved: true },
    ...{ slidingWindow: Array(layers).fill(null), qkvBias: false, outputBias: false, mlpBias: false, qkNorm: false },
    ...{ tiedEmbeddings: true, bosId: 1, eosIds: [] },
  };
  const weights: WeightSource = { has: (name) => tensors.has(name), tensor: (name) => tensors.get(name)!, close() {} };
  return { config, weights };
}
