/** Describes what a model or vocabulary file contains, as plain data for `palimpsest inspect`. */
import { existsSync } from 'node:fs';
import { extname } from 'node:path';
import { namingFile } from './bytes.ts';
import { expectedShapes } from './config.ts';
import { chooseDense } from './dense-choice.ts';
import { ELEMENT_TYPES } from './dequant.ts';
import { openGguf } from './gguf.ts';
import type { ObtainOptions } from './hub/settings.ts';
import { surveyModel } from './hub/survey.ts';
import { type LoadOptions, loadModel, modelName } from './load.ts';
import { type MemoryNeed, memoryNeed } from './memory.ts';
import { elementCount } from './stored-tensor.ts';
import { ggufTokenizer } from './tokenizer-gguf.ts';
import type { ModelConfig, Tokenizer, WeightSource } from './types.ts';

export interface ModelInspection {
  readonly kind: 'model';
  readonly name: string;
  readonly path: string;
  readonly format: string;
  /** SHA-256, hex; for a single weights file, that of the file itself. */
  readonly digest: string;
  readonly fileBytes: number;
  readonly config: ModelConfig;
  readonly parameters: number;
  /** Counted by type in the file. */
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
  /** What it takes beside its cache. */
  readonly memory: MemoryNeed;
  /** What its files do not say, and what of them is left out. */
  readonly remarks: readonly string[];
}

/** A model on the Hub that is not here: what its headers say. */
export interface RemoteInspection
  extends Pick<ModelInspection, 'kind' | 'format' | 'config' | 'parameters' | 'tensors' | 'memory'> {
  readonly name: string;
  readonly repo: string;
  readonly commit: string;
  readonly files: readonly string[];
  /** What fetching it would bring. */
  readonly downloadBytes: number;
  /** What was read of it for this. */
  readonly readBytes: number;
}

/** Throws what surveyModel throws. */
export async function inspectRemote(name: string, options: ObtainOptions = {}): Promise<RemoteInspection> {
  const { weights, config, ...survey } = await surveyModel(name, options);
  const dense = await chooseDense('auto', undefined, config);
  return {
    kind: 'model',
    name,
    ...survey,
    config,
    ...tensorTypes(config, weights),
    memory: memoryNeed(config, weights, dense, 'auto'),
  };
}

/** A GGUF file with a vocabulary and no weights, the form in which tokenizers are distributed. */
export interface VocabularyInspection {
  readonly kind: 'vocabulary';
  readonly name: string;
  readonly path: string;
  readonly format: string;
  readonly fileBytes: number;
  readonly architecture: string | null;
  readonly tokenizer: ModelInspection['tokenizer'];
  readonly remarks: readonly string[];
}

/**
 * Returns null for a file that is not GGUF or has weights. Throws what openGguf and the reader of the vocabulary throw.
 */
export function inspectVocabulary(path: string): VocabularyInspection | null {
  if (extname(path).toLowerCase() !== '.gguf' || !existsSync(path)) return null;
  const file = openGguf(path);
  try {
    const { metadata, tensors, version, files } = file;
    const words = metadata.get('tokenizer.ggml.tokens');
    if (tensors.size > 0 || !Array.isArray(words)) return null;
    const tokenizer = ggufTokenizer(metadata, words.length);
    const architecture = metadata.get('general.architecture');
    return {
      kind: 'vocabulary',
      name: modelName(metadata.get('general.name'), 'vocabulary'),
      path,
      format: `GGUF ${version}`,
      fileBytes: files.reduce((sum, { size }) => sum + size, 0),
      architecture: typeof architecture === 'string' ? modelName(architecture, '') : null,
      tokenizer: describeTokenizer(tokenizer, tokenizer.kind),
      remarks: [...file.remarks, ...tokenizer.remarks],
    };
  } catch (error) {
    throw namingFile(path, error);
  } finally {
    file.close();
  }
}

/** What `work` makes of the tokenizer of a model, or of a vocabulary without one. Throws what loadModel throws. */
export async function withTokenizer<T>(
  pathOrName: string,
  options: LoadOptions,
  work: (tokenizer: Tokenizer) => T,
): Promise<T> {
  if (inspectVocabulary(pathOrName) !== null) {
    const file = openGguf(pathOrName);
    const words = file.metadata.get('tokenizer.ggml.tokens') as readonly string[];
    try {
      return work(ggufTokenizer(file.metadata, words.length));
    } finally {
      file.close();
    }
  }
  const { tokenizer, weights } = await loadModel(pathOrName, options);
  try {
    return work(tokenizer);
  } finally {
    weights.close();
  }
}

function describeTokenizer(tokenizer: Tokenizer, kind: string): ModelInspection['tokenizer'] {
  return {
    kind,
    vocabulary: tokenizer.vocabSize,
    bosId: tokenizer.bosId,
    eosIds: tokenizer.eosIds,
    addBos: tokenizer.addBos,
    chatTemplate: tokenizer.chatTemplate !== null,
  };
}

/** Types of all tensors that a configuration asks for. */
export function tensorTypes(
  config: ModelConfig,
  weights: WeightSource,
): Pick<ModelInspection, 'parameters' | 'tensors'> {
  const tensors: Record<string, { count: number; parameters: number; bytes: number }> = {};
  let parameters = 0;
  for (const tensorName of expectedShapes(config).keys()) {
    const tensor = weights.tensor(tensorName);
    const { blockValues, blockBytes } = ELEMENT_TYPES.get(tensor.storedType)!;
    const values = elementCount(tensor.shape, tensorName);
    const sum = (tensors[tensor.storedType] ??= { count: 0, parameters: 0, bytes: 0 });
    sum.count++;
    sum.parameters += values;
    sum.bytes += (values / blockValues) * blockBytes;
    parameters += values;
  }
  return { parameters, tensors };
}

/** Throws what loadModel throws. */
export async function inspectModel(pathOrName: string, options: LoadOptions = {}): Promise<ModelInspection> {
  const model = await loadModel(pathOrName, options);
  try {
    const { name, path, digest, fileBytes, config, tokenizer, summary, remarks } = model;
    const { weights } = model;
    const dense = await chooseDense('auto', undefined, config);
    return {
      kind: 'model',
      name,
      path,
      format: String(summary.format),
      digest,
      fileBytes,
      config,
      ...tensorTypes(config, weights),
      tokenizer: describeTokenizer(tokenizer, String(summary.tokenizer)),
      memory: memoryNeed(config, weights, dense, 'auto'),
      remarks,
    };
  } finally {
    model.weights.close();
  }
}
