/** The two factors of each matrix of an adapter file, before they are compared with a model. */
import { KvError } from '../../native/index.ts';
import type { Naming } from '../transformer/names.ts';
import type { StoredTensor } from '../transformer/stored-tensor.ts';

/** What a file adds to one matrix: b·(a·x), times `scale`. */
export interface Factors {
  /** What the file calls the matrix, for messages. */
  readonly file: string;
  readonly a: StoredTensor;
  readonly b: StoredTensor;
  readonly scale: number;
  /** Of DoRA: the length that each row of the sum of matrix and adapter is brought to, [outputs]. */
  readonly magnitudes?: StoredTensor | undefined;
  /** The same as AdapterMatrix has it, where that was computed before. */
  readonly gains?: StoredTensor | undefined;
}

export interface AdapterFile {
  readonly format: 'PEFT' | 'GGUF';
  readonly path: string;
  /** By the name that the weight has in a checkpoint of this format. */
  readonly factors: ReadonlyMap<string, Factors>;
  /** How these names become the engine's. */
  readonly naming: Pick<Naming, 'nameOf'>;
  /** True if rows of q and k are in the order of rotary pairs (2i, 2i + 1). */
  readonly interleaved: boolean;
  /** Token ids that activate it; absent: it needs none. */
  readonly invocation?: readonly number[] | undefined;
  close(): void;
}

/** The halves of a pair that were found so far. */
type Half = 'a' | 'b' | 'magnitudes';
export type Halves = Map<string, Partial<Record<Half, StoredTensor>>>;

export function addHalf(halves: Halves, weight: string, half: Half, tensor: StoredTensor): void {
  const pair = halves.get(weight) ?? {};
  pair[half] = tensor;
  halves.set(weight, pair);
}

/** A number for each output of a pair, where there are any. Throws 'bad-file'. */
export function checkPerOutput(path: string, weight: string, b: StoredTensor, given: StoredTensor | undefined): void {
  if (given !== undefined && (given.shape.length !== 1 || given.shape[0] !== b.shape[0]))
    throw badAdapter(path, `${weight}: B is [${b.shape}] and ${given.name} is [${given.shape}]`, {
      tensor: given.name,
    });
}

/** The rank of a pair, which its two tensors must agree on. Throws 'bad-file'. */
export function rankOf(path: string, weight: string, { a, b }: Partial<Record<Half, StoredTensor>>): number {
  if (a === undefined || b === undefined)
    throw badAdapter(path, `${weight} has ${a === undefined ? 'no A' : 'no B'}`, { tensor: (a ?? b)?.name });
  const [rank, inputs] = a.shape;
  const isPair = a.shape.length === 2 && b.shape.length === 2 && b.shape[1] === rank && rank! >= 1 && inputs! >= 1;
  if (!isPair)
    throw badAdapter(path, `${weight}: A is [${a.shape}] and B is [${b.shape}]`, {
      tensor: a.name,
      a: a.shape,
      b: b.shape,
    });
  return rank!;
}

export const badAdapter = (path: string, what: string, values: Record<string, unknown>): KvError =>
  new KvError('bad-file', `${path}: ${what}`, { values: { path, ...values } });

export const unservedAdapter = (path: string, field: string, value: unknown, hint?: string): KvError =>
  new KvError(
    'unsupported',
    `${path}: ${field} ${(JSON.stringify(value) ?? 'undefined').slice(0, 120)} is not served`,
    {
      values: { path, field },
      hint,
    },
  );
