/**
 * A Hugging Face folder → one GGUF file. The file is laid out at its full length first, with its header, and read back
 * as any other: only if it says of model and vocabulary what the folder says are the weights written. It gets its name
 * when it is complete and synced.
 */
import { closeSync, fsyncSync, ftruncateSync, openSync, renameSync, rmSync, statSync } from 'node:fs';
import { basename, dirname, join, resolve } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { KvError, readJson, syncFolder, temporaryFor, writeWhole } from '../../../native/index.ts';
import { ggufModel } from '../config-gguf.ts';
import { familyOfArchitecture } from '../families/index.ts';
import { openGguf } from '../gguf.ts';
import { type GgufEntry, text, u32 } from '../gguf-entries.ts';
import { TOKENIZER_BYTES_MAX } from '../limits.ts';
import { type LoadOptions, loadModel } from '../load.ts';
import { elementCount } from '../stored-tensor.ts';
import { ggufTokenizer } from '../tokenizer-gguf.ts';
import type { LoadedModel, ModelConfig, Tensor, Tokenizer } from '../types.ts';
import { layGguf, type Placed } from './gguf-writer.ts';
import { architectureOf, modelKeys, ropeTensors } from './metadata.ts';
import { quantize, WRITTEN_TYPES, type WrittenType } from './quantize.ts';
import { planTensors, type TensorPlan } from './tensors.ts';
import { vocabularyKeys } from './vocabulary.ts';

export interface ConvertOptions extends LoadOptions {
  /** What matrices are written as. Default: each as the folder has it. */
  readonly type?: WrittenType | undefined;
  /** Told now and then how many bytes of the file are written, of how many. */
  readonly onWritten?: (bytes: number, fileBytes: number) => void;
  readonly signal?: AbortSignal;
}

export interface Converted {
  readonly path: string;
  readonly bytes: number;
  /** How many tensors there are of each type. */
  readonly types: Readonly<Record<string, number>>;
  /** What the file cannot say. */
  readonly remarks: readonly string[];
}

/** The numbers by which llama.cpp knows what most matrices of a file are. */
const FILE_TYPES: Readonly<Record<WrittenType, number>> = {
  ...{ F32: 0, F16: 1, BF16: 32 },
  ...{ Q4_0: 2, Q4_1: 3, Q8_0: 7, Q5_0: 8, Q5_1: 9 },
};
const QUANTIZATION_VERSION = 2;
/** About this many weights are in memory at once. */
const VALUES_AT_ONCE = 1 << 20;

/**
 * Throws what loadModel throws of the folder; 'unsupported' for what GGUF cannot say, naming it; 'aborted'; 'io'. What
 * was at the path before stays until the file is complete.
 */
export async function convertModel(
  folder: string,
  path: string,
  { type, onWritten = () => {}, signal, ...load }: ConvertOptions = {},
): Promise<Converted> {
  const model = await loadModel(folder, load);
  try {
    if (!statSync(model.path).isDirectory())
      throw new KvError('unsupported', `${folder} is no folder of a Hugging Face checkpoint`, {
        values: { path: model.path },
        hint: 'convert takes a folder with config.json, safetensors and tokenizer.json',
      });
    return await write(model, resolve(path), { type: type ?? null, onWritten, signal });
  } finally {
    model.weights.close();
  }
}

interface Writing {
  readonly type: WrittenType | null;
  readonly onWritten: (bytes: number, fileBytes: number) => void;
  readonly signal: AbortSignal | undefined;
}

async function write(model: LoadedModel, path: string, { type, onWritten, signal }: Writing): Promise<Converted> {
  const { metadata, tensors, remarks } = describe(model, type);
  const { header, placed, fileBytes } = layGguf(metadata, tensors);
  const temporary = temporaryFor(path);
  const fd = guarded(path, () => openSync(temporary, 'wx'));
  try {
    guarded(path, () => ftruncateSync(fd, fileBytes));
    guarded(path, () => writeWhole(fd, header, 0));
    const small = placed.filter(({ tensor }) => tensor.name.startsWith('rope_'));
    for (const one of small) guarded(path, () => writeTensor(fd, one, () => {}));
    checkReadBack(temporary, model);
    for (const one of placed.filter((each) => !small.includes(each))) {
      // Between two tensors others get a turn, so that an abort is heard.
      await new Promise((next) => setImmediate(next));
      if (signal?.aborted === true) throw new KvError('aborted', `the conversion to ${path} was aborted`);
      guarded(path, () => writeTensor(fd, one, (end) => onWritten(end, fileBytes)));
    }
    guarded(path, () => fsyncSync(fd));
    closeSync(fd);
    guarded(path, () => renameSync(temporary, path));
    guarded(path, () => syncFolder(dirname(path)));
  } catch (error) {
    abandon(fd, temporary);
    throw error;
  }
  const types: Record<string, number> = {};
  for (const tensor of tensors) types[tensor.type] = (types[tensor.type] ?? 0) + 1;
  return { path, bytes: fileBytes, types, remarks };
}

function abandon(fd: number, temporary: string): void {
  try {
    closeSync(fd);
  } catch {
    // It was closed before its name could be given.
  }
  rmSync(temporary, { force: true });
}

/** Makes a KvError of an error of the disk. */
function guarded<T>(path: string, work: () => T): T {
  try {
    return work();
  } catch (cause) {
    if (cause instanceof KvError) throw cause;
    throw new KvError('io', `cannot write ${path}: ${(cause as Error).message}`, { values: { path }, cause });
  }
}

interface Described {
  readonly metadata: ReadonlyMap<string, GgufEntry>;
  readonly tensors: readonly TensorPlan[];
  readonly remarks: readonly string[];
}

function describe(model: LoadedModel, type: WrittenType | null): Described {
  const architecture = architectureOf(model.config);
  const json = readJson(join(model.path, 'tokenizer.json'), {
    code: 'bad-tokenizer',
    bytesMax: TOKENIZER_BYTES_MAX,
    anyKey: true,
  });
  const { keys, remarks } = vocabularyKeys(json, model);
  const planned = planTensors(model, familyOfArchitecture(architecture), type);
  const rope = [...ropeTensors(model.config)].map(([name, values]): TensorPlan => {
    const shape = [values.length];
    const tensor: Tensor = { name, shape, storedType: 'F32', readFloat32: (from, to) => values.slice(from, to) };
    return { name, shape, type: 'F32', parts: [tensor], rowOrder: null };
  });
  const metadata = new Map<string, GgufEntry>([
    ['general.architecture', text(architecture)],
    ['general.name', text(basename(model.path))],
    ['general.file_type', u32(FILE_TYPES[type ?? mostOf(planned)])],
    ['general.quantization_version', u32(QUANTIZATION_VERSION)],
    ...[...modelKeys(model.config)].map(([key, entry]): [string, GgufEntry] => [`${architecture}.${key}`, entry]),
    ...keys,
  ]);
  return { metadata, tensors: [...rope, ...planned], remarks: [...remarks, ...model.remarks] };
}

/** The type that most weights are written as. */
function mostOf(tensors: readonly TensorPlan[]): WrittenType {
  const counts = new Map<WrittenType, number>(WRITTEN_TYPES.map((type) => [type, 0]));
  for (const { type, shape, name } of tensors) counts.set(type, counts.get(type)! + elementCount(shape, name));
  return [...counts].reduce((a, b) => (b[1] > a[1] ? b : a))[0];
}

/** onBytes: told how much of the file is written up to here. */
function writeTensor(fd: number, { tensor, offset }: Placed<TensorPlan>, onBytes: (end: number) => void): void {
  const { type, rowOrder } = tensor;
  let at = offset;
  for (const part of tensor.parts) {
    const [rows = 1] = part.shape;
    const width = elementCount(part.shape.slice(1), part.name);
    const unit = rowOrder?.length ?? 1;
    const rowsAtOnce = Math.max(1, Math.floor(VALUES_AT_ONCE / (width * unit))) * unit;
    for (let from = 0; from < rows; from += rowsAtOnce) {
      const values = part.readFloat32(from, Math.min(rows, from + rowsAtOnce));
      const bytes = quantize(type, rowOrder === null ? values : reordered(values, rowOrder, width));
      writeWhole(fd, bytes, at);
      at += bytes.length;
      onBytes(at);
    }
    part.giveBack?.();
  }
}

function reordered(values: Float32Array, order: readonly number[], width: number): Float32Array {
  const moved = new Float32Array(values.length);
  for (let row = 0; row * width < values.length; row++) {
    const head = row - (row % order.length);
    const from = head + order[row % order.length]!;
    moved.set(values.subarray(from * width, (from + 1) * width), row * width);
  }
  return moved;
}

/** The name of the family, how rows of q and k lie, and ends, which vocabularies are compared by. */
const NAMED_OTHERWISE: ReadonlySet<string> = new Set(['architecture', 'ropeInterleaved', 'eosIds']);

/** Throws 'unsupported', naming what the file does not say as the folder says it. */
function checkReadBack(path: string, { config, tokenizer }: LoadedModel): void {
  const file = openGguf(path);
  try {
    // The gains of the final norm have the scale of logits in them.
    const expected: Partial<ModelConfig> = { ...config, logitScale: 1 };
    for (const [key, value] of Object.entries(ggufModel(file).config))
      if (!NAMED_OTHERWISE.has(key) && !isAlike(value, expected[key as keyof ModelConfig]))
        throw lost(key, expected[key as keyof ModelConfig]);
    checkTokenizer(ggufTokenizer(file.metadata, config.vocabSize), tokenizer);
  } finally {
    file.close();
  }
}

const isSubset = (some: readonly number[], all: readonly number[]): boolean => some.every((id) => all.includes(id));

/** Letters of several scripts, numbers, marks, spaces and lines: what pre-tokenizers cut in different places. */
const PROBE =
  "It's 1234567 o'clock,\n\n  and I'LL say: \"Grüße, naïve café\" (x_1 += 0.5)!\r\n\tПривет мир, 你好世界。 안녕 🙂 \u00a0 end ";

function checkTokenizer(written: Tokenizer, given: Tokenizer): void {
  if (!isSubset(given.eosIds, written.eosIds) || !isSubset(written.eosIds, given.eosIds))
    throw lost('eos_token_id', given.eosIds);
  if (written.bosId !== given.bosId || written.addBos !== given.addBos) throw lost('bos_token_id', given.bosId);
  if (written.chatTemplate !== given.chatTemplate) throw lost('chat_template', given.chatTemplate?.slice(0, 40));
  for (let id = 0; id < given.vocabSize; id++)
    if (Buffer.compare(written.bytes(id), given.bytes(id)) !== 0) throw lost(`token ${id}`, given.decode([id]));
  const normal = PROBE.normalize('NFC');
  if (!isDeepStrictEqual(written.encode(normal), given.encode(normal))) throw lost('tokens of a text', normal);
}

/** Numbers are float32 in the file. */
function isAlike(a: unknown, b: unknown): boolean {
  if (typeof a === 'number' && typeof b === 'number') return Math.abs(a - b) <= 2 ** -22 * Math.abs(b);
  if (typeof a !== 'object' || typeof b !== 'object' || a === null || b === null) return a === b;
  const keys = Object.keys(a);
  if (keys.length !== Object.keys(b).length) return false;
  return keys.every((key) => isAlike((a as Record<string, unknown>)[key], (b as Record<string, unknown>)[key]));
}

function lost(key: string, value: unknown): KvError {
  const shown = (JSON.stringify(value) ?? 'nothing').slice(0, 120);
  return new KvError('unsupported', `a GGUF file cannot say that ${key} is ${shown}`, { values: { key, value } });
}
