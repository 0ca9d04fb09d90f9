/** Turns a path or a name into a model that can run: configuration, weights by name, tokenizer. */
import { createHash } from 'node:crypto';
import { existsSync, realpathSync, statSync } from 'node:fs';
import { basename, dirname, extname, join, resolve } from 'node:path';
import { KvError, packageVersion, plural, printable } from '../../native/index.ts';
import { attempt, FileBytes, namingFile } from './bytes.ts';
import { defaultCacheDir } from './cache-dir.ts';
import { ggufModel } from './config-gguf.ts';
import { readHfConfig } from './config-hf.ts';
import { checkFetched, fetchedPath, isFetchable } from './fetch.ts';
import { openGguf } from './gguf.ts';
import { NAME_FORMS } from './hub/name.ts';
import { localModel } from './hub/obtain.ts';
import { largeFiles } from './large-files.ts';
import { openLlama2c, readLlama2cTokenizer } from './llama2c.ts';
import { ggufNaming, hfNaming, type Naming, nameTensors, OWN_NAMES } from './names.ts';
import { openSafetensorsFolder } from './safetensors.ts';
import { type Checkpoint, elementCount, type StoredTensor } from './stored-tensor.ts';
import type { VocabularyTokenizer } from './tokenizer.ts';
import { ggufTokenizer } from './tokenizer-gguf.ts';
import { readHfTokenizer } from './tokenizer-hf.ts';
import type { LoadedModel, LoadProgress, ModelConfig } from './types.ts';

export interface LoadOptions {
  /** The folder of fetched models. Default: defaultCacheDir(). */
  readonly cacheDir?: string;
  /** Told while the digest of the weights is taken. */
  readonly onProgress?: (progress: LoadProgress) => void;
}

/** Names that are not paths. */
export const MODEL_NAMES: readonly string[] = ['reference', 'smollm2-135m'];

/**
 * Loads a Hugging Face folder, a GGUF file, a llama2.c .bin file, 'reference' (comes with the package), a fetched model
 * by name, or one that lies in the cache of the Hugging Face Hub ('hf:ORG/REPO') or in Ollama's folder ('ollama:NAME').
 * Nothing is downloaded. Files stay open until `weights.close()`. Throws KvError 'not-found', 'bad-file', 'bad-model',
 * 'bad-tokenizer', 'unsupported', 'checksum-mismatch', 'bad-argument', 'io'. Weights are decoded later, so a damaged
 * one is reported only then.
 */
export async function loadModel(pathOrName: string, options: LoadOptions = {}): Promise<LoadedModel> {
  const path = findModel(pathOrName, options);
  try {
    const promised = isFetchable(pathOrName) ? checkFetched(pathOrName, options.cacheDir ?? defaultCacheDir()) : null;
    return openLoaded(pathOrName, path, promised, options);
  } catch (error) {
    throw namingFile(path, error);
  }
}

/** promised: the digest that the file was found to have; it may have been written to since. */
function openLoaded(
  pathOrName: string,
  path: string,
  promised: string | null,
  { onProgress }: LoadOptions,
): LoadedModel {
  const { checkpoint, config, tokenizer, format, declared, naming, remarks } = openModel(path);
  const used = [...checkpoint.tensors.values()].filter(({ name }) => !naming.isLeftOut(name));
  try {
    const sha256 = digestOf(checkpoint, onProgress);
    if (promised !== null && promised !== sha256)
      throw new KvError('checksum-mismatch', `${path} was changed while it was opened`, {
        values: { path, expected: promised, actual: sha256 },
      });
    const weights = nameTensors(checkpoint, config, naming);
    const fileBytes = checkpoint.files.reduce((sum, file) => sum + file.size, 0);
    return {
      name: MODEL_NAMES.includes(pathOrName)
        ? pathOrName
        : modelName(declared, `${config.architecture}-${sha256.slice(0, 8)}`),
      path,
      digest: sha256,
      fileBytes,
      config,
      weights,
      tokenizer,
      summary: {
        format,
        architecture: config.architecture,
        parameters: used.reduce((sum, tensor) => sum + elementCount(tensor.shape, tensor.name), 0),
        storedTypes: storedTypes(used),
        tokenizer: tokenizer.kind,
        vocabulary: tokenizer.vocabSize,
        chatTemplate: tokenizer.chatTemplate !== null,
      },
      remarks: [...remarks, ...tokenizer.remarks, ...leftOut(checkpoint, naming)],
    };
  } catch (error) {
    checkpoint.close();
    throw error;
  }
}

/** Says which tensors nobody reads. */
function leftOut({ tensors }: Checkpoint, naming: Naming): string[] {
  const names = [...tensors.keys()].filter((name) => naming.isLeftOut(name));
  if (names.length === 0) return [];
  return [`text alone is served: ${plural(names.length, 'tensor')} of other parts are left out (${names[0]} …)`];
}

function referenceModel(): string {
  const found = largeFiles('reference');
  if (found !== null) return found;
  throw new KvError('missing-dependency', 'the reference model is in the package palimpsest-models', {
    hint: `npm install palimpsest-models@${packageVersion()}, or name another model`,
  });
}

/** The path of a model. Throws KvError 'not-found' with a hint on what to do. */
function findModel(pathOrName: string, { cacheDir = defaultCacheDir() }: LoadOptions): string {
  if (typeof pathOrName !== 'string' || pathOrName === '')
    throw new KvError('bad-argument', 'a model is a path or a name', { values: { names: MODEL_NAMES } });
  if (pathOrName === 'reference') return referenceModel();
  const named = localModel(pathOrName);
  if (named !== null) return named;
  const path = isFetchable(pathOrName) ? fetchedPath(pathOrName, cacheDir) : resolve(pathOrName);
  if (existsSync(path)) return path;
  throw new KvError('not-found', `there is no model at ${path}`, {
    values: { model: pathOrName, path, names: MODEL_NAMES },
    hint: isFetchable(pathOrName)
      ? `palimpsest fetch ${pathOrName}`
      : `give a folder, a .gguf file, one of ${MODEL_NAMES.join(', ')}, or ${NAME_FORMS}`,
  });
}

/** Longer names are cut, because reports print them. */
const NAME_CHARACTERS_MAX = 80;

/**
 * What a model is called in logs and indexes: one of our names, or architecture and digest. What a file says of itself
 * may be anything.
 */
export const nameInLog = ({ name, config, digest }: Pick<LoadedModel, 'name' | 'config' | 'digest'>): string =>
  MODEL_NAMES.includes(name) ? name : `${config.architecture}-${digest.slice(0, 8)}`;

/**
 * What a model is called in reports, which must not contain paths of the user. It is the name that the file
 * declares, without folders, safe to print and bounded; or else `otherwise`.
 */
export function modelName(declared: unknown, otherwise: string): string {
  const name = typeof declared === 'string' ? printable(declared.split(/[/\\]/).at(-1)!.trim()) : '';
  return name === '' ? otherwise : name.slice(0, NAME_CHARACTERS_MAX);
}

interface OpenedModel {
  readonly format: string;
  /** The name that the file declares. */
  readonly declared?: unknown;
  readonly checkpoint: Checkpoint;
  readonly config: ModelConfig;
  readonly tokenizer: VocabularyTokenizer;
  readonly naming: Naming;
  /** What a person should know of its files, but for the tokenizer. */
  readonly remarks: readonly string[];
}

/** Opens whatever kind of model lies at a path; nothing stays open when it throws. */
function openModel(path: string): OpenedModel {
  if (attempt(path, () => statSync(path)).isDirectory()) return openFolder(path);
  switch (extname(path).toLowerCase()) {
    case '.gguf':
      return openGgufModel(path);
    case '.bin': {
      const { checkpoint, config } = openLlama2c(path);
      return closingOnError(checkpoint, () => ({
        format: 'llama2.c',
        checkpoint,
        config,
        tokenizer: readLlama2cTokenizer(path, config),
        naming: OWN_NAMES,
        remarks: [],
      }));
    }
    default:
      // Files that are named by their digest, as Ollama's are, have no extension.
      if (beginsAsGguf(path)) return openGgufModel(path);
      throw new KvError('unsupported', `${path} is not a supported kind of model file`, {
        values: { path },
        hint: 'give the folder of a safetensors checkpoint, a .gguf file or a llama2.c .bin file',
      });
  }
}

function openGgufModel(path: string): OpenedModel {
  const file = openGguf(path);
  return closingOnError(file, () => {
    const { family, config } = ggufModel(file);
    return {
      format: `GGUF ${file.version}`,
      declared: file.metadata.get('general.name'),
      // The metadata is left out, since it holds the vocabulary once more.
      checkpoint: { tensors: file.tensors, files: file.files, close: file.close },
      config,
      tokenizer: ggufTokenizer(file.metadata, config.vocabSize),
      naming: ggufNaming(family, config),
      remarks: file.remarks,
    };
  });
}

function beginsAsGguf(path: string): boolean {
  const file = FileBytes.open(path);
  try {
    return file.size >= 4 && Buffer.from(file.read(0, 4)).toString('latin1') === 'GGUF';
  } finally {
    file.close();
  }
}

function openFolder(path: string): OpenedModel {
  if (!existsSync(join(path, 'config.json')))
    throw new KvError('not-found', `${path} has no config.json`, {
      values: { path },
      hint: 'give the folder of a Hugging Face checkpoint',
    });
  const hasWeights = ['model.safetensors', 'model.safetensors.index.json'].some((name) => existsSync(join(path, name)));
  if (!hasWeights) {
    const torch = ['pytorch_model.bin', 'pytorch_model.bin.index.json'].some((name) => existsSync(join(path, name)));
    throw new KvError(torch ? 'unsupported' : 'not-found', `${path} has no model.safetensors`, {
      values: { path },
      hint: torch ? 'convert the PyTorch weights to safetensors' : undefined,
    });
  }
  const { family, config } = readHfConfig(path);
  const checkpoint = openSafetensorsFolder(path);
  return closingOnError(checkpoint, () => {
    const tokenizer = readHfTokenizer(path, config);
    return { format: 'safetensors', checkpoint, config, tokenizer, naming: hfNaming(family), remarks: [] };
  });
}

function closingOnError<T>(checkpoint: Checkpoint, rest: () => T): T {
  try {
    return rest();
  } catch (error) {
    checkpoint.close();
    throw error;
  }
}

/**
 * SHA-256 of the weights file, with its names, shapes and bytes; of several files, that of their digests in the order
 * of names.
 */
function digestOf({ files }: Checkpoint, onProgress: LoadOptions['onProgress']): string {
  const digests = files.map((file) => {
    const tell = (done: number): void =>
      onProgress?.({ stage: 'verify', file: basename(file.path), done, total: file.size });
    const digest = file.digest(tell);
    checkPromised(file.path, digest);
    return digest;
  });
  return digests.length === 1 ? digests[0]! : createHash('sha256').update(digests.join('\n')).digest('hex');
}

/**
 * The caches of the Hub and of Ollama name a file of weights by its SHA-256: blobs/DIGEST, blobs/sha256-DIGEST. One
 * that is another was damaged, or never whole.
 */
function checkPromised(path: string, actual: string): void {
  const blob = attempt(path, () => realpathSync(path));
  const [, expected] = /^(?:sha256-)?([0-9a-f]{64})$/.exec(basename(blob)) ?? [];
  if (expected === undefined || expected === actual || basename(dirname(blob)) !== 'blobs') return;
  throw new KvError('checksum-mismatch', `${blob} does not have the SHA-256 that it is named by`, {
    values: { path, blob, expected, actual },
    hint: 'it is damaged: remove it, and fetch the model again',
  });
}

function storedTypes(tensors: readonly StoredTensor[]): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const { storedType } of tensors) counts[storedType] = (counts[storedType] ?? 0) + 1;
  return counts;
}
