/** What a model file contains, as plain data: the answer of `palimpsest inspect`. */
import { expectedShapes } from './config.ts';
import { ELEMENT_TYPES } from './dequant.ts';
import { type LoadOptions, loadModel } from './load.ts';
import { elementCount } from './stored-tensor.ts';
import type { ModelConfig } from './types.ts';

export interface ModelInspection {
  readonly kind: 'model';
  readonly name: string;
  readonly path: string;
  readonly format: string;
  /** SHA-256, hex; of a single weights file it is the file's own. */
  readonly digest: string;
  readonly fileBytes: number;
  readonly config: ModelConfig;
  readonly parameters: number;
  /** By type in the file. */
  readonly tensors: Readonly<
    Record<string, { readonly count: number; readonly parameters: number; readonly bytes: number }>
  >;
  readonly tokenizer: {
    readonly kind: string;
    readonly vocabulary: number;
    readonly bosId: number | null;
    readonly eosIds: readonly number[];
    readonly addBos: boolean;
    readonly chatTemplate: boolean;
  };
  /** Whether every weight was read and found finite; null when that was not asked for. */
  readonly weightsFinite: true | null;
}

export interface InspectOptions extends LoadOptions {
  /** Read and check every weight, which takes a second per 100 million. Default false. */
  readonly readWeights?: boolean;
}

/** Throws what loadModel throws, and with `readWeights` KvError 'bad-model' for a weight that is not finite. */
export async function inspectModel(pathOrName: string, options: InspectOptions = {}): Promise<ModelInspection> {
  const model = await loadModel(pathOrName, options);
  try {
    const { name, path, digest, fileBytes, config, tokenizer, summary } = model;
    const tensors: Record<string, { count: number; parameters: number; bytes: number }> = {};
    let parameters = 0;
    for (const tensorName of expectedShapes(config).keys()) {
      const tensor = model.weights.tensor(tensorName);
      const { blockValues, blockBytes } = ELEMENT_TYPES.get(tensor.storedType)!;
      const values = elementCount(tensor.shape, tensorName);
      const sum = (tensors[tensor.storedType] ??= { count: 0, parameters: 0, bytes: 0 });
      sum.count++;
      sum.parameters += values;
      sum.bytes += (values / blockValues) * blockBytes;
      parameters += values;
      if (options.readWeights === true) tensor.readFloat32();
    }
    return {
      kind: 'model',
      name,
      path,
      format: String(summary.format),
      digest,
      fileBytes,
      config,
      parameters,
      tensors,
      tokenizer: {
        kind: String(summary.tokenizer),
        vocabulary: tokenizer.vocabSize,
        bosId: tokenizer.bosId,
        eosIds: tokenizer.eosIds,
        addBos: tokenizer.addBos,
        chatTemplate: tokenizer.chatTemplate !== null,
      },
      weightsFinite: options.readWeights === true ? true : null,
    };
  } finally {
    model.weights.close();
  }
}
