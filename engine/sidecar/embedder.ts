/**
 * An embedder of a user's own: an ONNX sentence model that says where a text lies among texts. It takes the bytes of
 * the text, or the token ids that the tokenizer.json beside it makes of them, and answers with one vector, or one for
 * each token, whose mean counts. Of the vector only the signs of 64 fixed random projections are kept (Charikar 2002):
 * how many of them differ between two texts follows the angle between their vectors, and no text can be made of them.
 * Signs come with a digest of the model, since those of two models say nothing of each other.
 */
import { createHash } from 'node:crypto';
import { dirname, join } from 'node:path';
import { Tokenizer } from '@huggingface/tokenizers';
import { KvError, parseJson, readRegular } from '../../native/index.ts';
import { TOKENIZER_BYTES_MAX } from '../transformer/limits.ts';
import type { SentTensor } from './frames.ts';
import { HELPER_LIMITS, Helper, type HelperOptions } from './helper.ts';
import { ONNX_LIMITS, type OnnxDeclared, type OnnxFacts } from './onnx-scan.ts';

/** Where a text lies, as a hint has it. */
export interface Placed {
  readonly place: readonly number[];
  readonly by?: string;
}

/** Numbers of a place. All are 1/8 or −1/8, so that a place has the length 1. */
const SIGNS = 64;
const UNIT = 1 / Math.sqrt(SIGNS);
/** Numbers of a vector. */
const VECTOR_DIM_MAX = 8192;
/** Tokens that are looked at: what sentence models were usually trained on, and no fewer than their bytes hold. */
const TOKENS_MAX = 256;
const TOKENIZED_BYTES_MAX = 4096;
/** Hexadecimal digits of a digest. */
const DIGEST_LENGTH = 16;
/** onnxruntime holds a message with the model, its constants and what it makes of them. */
const COPIES = 4;
/** What models of token ids take, by the names that exporters give. */
const TOKEN_INPUTS: readonly string[] = ['input_ids', 'attention_mask', 'token_type_ids'];
const HINT =
  'it takes one uint8 [bytes] or int64 [1, tokens] named input_ids, attention_mask and token_type_ids, and answers with float32 [numbers], [1, numbers] or [1, tokens, numbers]';

const isFree = (length: number | null | undefined): boolean => length === null;
const isOne = (length: number | null | undefined): boolean => length === null || length === 1;
const shapeText = (shape: OnnxDeclared['shape']): string =>
  shape === null ? 'of no shape' : `[${shape.map((length) => length ?? '?').join(', ')}]`;
const declaredText = (all: readonly OnnxDeclared[]): string =>
  all.map(({ name, type, shape }) => `${name} ${type || 'of another type'} ${shapeText(shape)}`).join(', ') ||
  'nothing';

/** → bytes of SHA-256, one block after the other, that are the same everywhere */
function* noise(what: string): Generator<number, never, undefined> {
  for (let block = 0; ; block++) yield* createHash('sha256').update(`${what} ${block}`).digest();
}

/** Directions in a space of so many numbers, row by row. Sums of four bytes are nearly normal. */
function directionsOf(dim: number): Float32Array {
  const bytes = noise(`directions of ${dim}`);
  const next = (): number => bytes.next().value;
  return Float32Array.from({ length: SIGNS * dim }, () => next() + next() + next() + next() - 510);
}

/** On which side of each direction a vector lies. */
function signsOf(vector: Float32Array, directions: Float32Array): number[] {
  const dim = vector.length;
  return Array.from({ length: SIGNS }, (_, row) => {
    const product = vector.reduce((sum, x, i) => sum + x * directions[row * dim + i]!, 0);
    return product < 0 ? -UNIT : UNIT;
  });
}

/** The vector of an answer; null: it has none. */
function vectorOf({ type, dims, data }: SentTensor): Float32Array | null {
  const dim = dims.at(-1) ?? 0;
  const rows = dims.slice(0, -1).reduce((product, length) => product * length, 1);
  const isVector = dims.length <= 2 ? rows === 1 : dims.length === 3 && dims[0] === 1 && rows > 0;
  if (type !== 'float32' || !isVector || dim < 2 || dim > VECTOR_DIM_MAX) return null;
  const all = new Float32Array(data.buffer as ArrayBuffer);
  const vector = new Float32Array(dim);
  for (const [i, x] of all.entries()) vector[i % dim]! += x / rows;
  return vector.every(Number.isFinite) && vector.some((x) => x !== 0) ? vector : null;
}

type Tokenize = (text: string) => readonly number[];

export class Embedder {
  readonly helper: Helper;
  /** Of the file, and of its tokenizer. */
  readonly digest: string;
  readonly #path: string;
  readonly #output: string;
  /** null: it takes bytes. */
  readonly #tokenize: Tokenize | null;
  #directions: Float32Array | null = null;

  /** As readEmbedder does. */
  constructor(path: string, model: Uint8Array, options: HelperOptions) {
    const dataBytes = HELPER_LIMITS.dataBytes + COPIES * model.byteLength;
    this.helper = new Helper('places', model, { ...options, limits: { dataBytes, ...options.limits } });
    this.#path = path;
    const { facts } = this.helper;
    this.#output = this.#outputOf(facts);
    const hash = createHash('sha256').update(model);
    this.#tokenize = this.#isOfBytes(facts) ? null : tokenizerBeside(path, hash);
    this.digest = hash.digest('hex').slice(0, DIGEST_LENGTH);
  }

  /** Throws 'bad-model' where it answers nothing, or no vector. */
  async check(): Promise<void> {
    const answer = await this.#ask(Buffer.from('A palimpsest is a page that was written over.'), {});
    if (answer === null) this.#refuse(`gave no answer: ${this.helper.status.trouble}`, {});
    if (vectorOf(answer!) !== null) return;
    const { type, dims, name } = answer!;
    this.#refuse(`answers ${name} ${type} ${shapeText(dims)}, which is no vector of numbers other than 0`, {
      output: name,
      type,
      shape: dims.join('×'),
    });
  }

  /** → where a text lies; null: it cannot say. Throws 'closed'. */
  async placeOf(text: Uint8Array, options: { readonly deadlineMs?: number }): Promise<Placed | null> {
    const answer = await this.#ask(text, options);
    const vector = answer === null ? null : vectorOf(answer);
    if (vector === null) return null;
    if (this.#directions?.length !== SIGNS * vector.length) this.#directions = directionsOf(vector.length);
    return { place: signsOf(vector, this.#directions), by: this.digest };
  }

  async #ask(text: Uint8Array, options: { readonly deadlineMs?: number }): Promise<SentTensor | null> {
    const answers = await this.helper.ask(this.#tensors(text), options);
    return answers?.find(({ name }) => name === this.#output) ?? null;
  }

  #tensors(text: Uint8Array): readonly SentTensor[] {
    const [first] = this.helper.facts.inputs;
    if (this.#tokenize === null)
      return [{ name: first!.name, type: 'uint8', dims: [text.byteLength], data: Uint8Array.from(text) }];
    const ids = this.#tokenize(Buffer.from(text.subarray(0, TOKENIZED_BYTES_MAX)).toString('utf8'));
    const values: Readonly<Record<string, (id: number) => number>> = {
      input_ids: (id) => id,
      attention_mask: () => 1,
      token_type_ids: () => 0,
    };
    return this.helper.facts.inputs.map(({ name }) => ({
      name,
      type: 'int64',
      dims: [1, ids.length],
      data: new Uint8Array(BigInt64Array.from(ids, (id) => BigInt(values[name]!(id))).buffer),
    }));
  }

  /** Whether it takes bytes; otherwise it takes token ids. */
  #isOfBytes({ inputs }: OnnxFacts): boolean {
    const [first] = inputs;
    if (inputs.length === 1 && first!.type === 'uint8' && first!.shape?.length === 1 && isFree(first!.shape[0]))
      return true;
    const isTokens = ({ name, type, shape }: OnnxDeclared): boolean =>
      TOKEN_INPUTS.includes(name) && type === 'int64' && shape?.length === 2 && isOne(shape[0]) && isFree(shape[1]);
    if (inputs.every(isTokens) && inputs.some(({ name }) => name === 'input_ids')) return false;
    const takes = declaredText(inputs);
    return this.#refuse(`takes ${takes}`, { inputs: takes });
  }

  /** → name of the answer that has the vector */
  #outputOf({ outputs }: OnnxFacts): string {
    const fits = outputs.filter(
      ({ type, shape }) => type === 'float32' && (shape === null || (shape.length >= 1 && shape.length <= 3)),
    );
    // Exporters put the vector of the sentence behind those of its tokens, where a model has both.
    const chosen = fits.find(({ name }) => name === 'sentence_embedding') ?? fits[0];
    const gives = declaredText(outputs);
    return chosen?.name ?? this.#refuse(`answers with ${gives}`, { outputs: gives });
  }

  #refuse(what: string, values: Readonly<Record<string, unknown>>): never {
    throw new KvError('bad-model', `the embedder ${this.#path} ${what}`, {
      values: { path: this.#path, ...values },
      hint: HINT,
    });
  }
}

/** The tokenizer of a sentence model, which becomes part of its digest. */
function tokenizerBeside(path: string, hash: ReturnType<typeof createHash>): Tokenize {
  const file = join(dirname(path), 'tokenizer.json');
  const bytes = readRegular(file, { bytesMax: TOKENIZER_BYTES_MAX, code: 'bad-tokenizer' });
  hash.update(bytes);
  const json = parseJson(bytes, { what: file, code: 'bad-tokenizer', anyKey: true });
  let tokenizer: Tokenizer;
  const idsOf = (text: string): number[] => tokenizer.encode(text).ids;
  try {
    tokenizer = new Tokenizer(json as object, {});
    idsOf('a');
  } catch (cause) {
    throw new KvError('bad-tokenizer', `${file} is no tokenizer: ${(cause as Error).message}`, {
      values: { file },
      cause,
    });
  }
  return (text) => {
    const ids = idsOf(text);
    // The last one ends the text.
    return ids.length <= TOKENS_MAX ? ids : [...ids.slice(0, TOKENS_MAX - 1), ids.at(-1)!];
  };
}

/**
 * Reads an embedder; nothing is started. Throws 'not-found' or 'io' for the file and a tokenizer.json that it needs,
 * 'bad-tokenizer', and 'bad-model' for a file that scanOnnx refuses, or that takes or gives something else.
 */
export function readEmbedder(path: string, options: HelperOptions = {}): Embedder {
  const model = readRegular(path, { bytesMax: ONNX_LIMITS.bytesMax, code: 'bad-model' });
  return new Embedder(path, model, options);
}
