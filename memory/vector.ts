/** What every vector index checks before anything reaches its core: the embedded one is C++ and trusts its caller. */
import { KvError } from '../native/index.ts';
import type { Neighbour } from './types.ts';

/** Labels are uint32 in the embedded index; larger or negative ones would be cut silently. */
export const LABEL_MAX = 2 ** 32 - 1;
/** Squares of this, summed over any dim allowed, stay finite in float32. */
const COORDINATE_MAX = 1e15;
export const DIM_MAX = 4096;
/** Most results of one search. */
export const K_MAX = 10_000;

export function checkDim(dim: number): void {
  if (!Number.isInteger(dim) || dim < 1 || dim > DIM_MAX) {
    throw new KvError('bad-argument', `dim must be a whole number from 1 to ${DIM_MAX}`, { values: { dim } });
  }
}

export function checkLabel(label: number): void {
  if (!Number.isInteger(label) || label < 0 || label > LABEL_MAX) {
    throw new KvError('bad-argument', `a label must be a whole number from 0 to ${LABEL_MAX}`, { values: { label } });
  }
}

/** → the same numbers as a plain array (the embedded index takes no typed arrays). */
export function checkVector(vector: readonly number[], dim: number): number[] {
  if (!Array.isArray(vector) && !ArrayBuffer.isView(vector)) {
    throw new KvError('bad-argument', 'a vector must be an array of numbers', { values: { type: typeof vector } });
  }
  if (vector.length !== dim) {
    throw new KvError('bad-shape', `the vector has ${vector.length} numbers, the index ${dim}`, {
      values: { length: vector.length, dim },
    });
  }
  const plain = Array.from(vector);
  const wrong = plain.findIndex((x) => typeof x !== 'number' || !(Math.abs(x) <= COORDINATE_MAX));
  if (wrong >= 0) {
    throw new KvError('bad-value', `number ${wrong} of the vector is not finite or beyond ±${COORDINATE_MAX}`, {
      values: { position: wrong, value: String(plain[wrong]) },
    });
  }
  return plain;
}

export function checkK(k: number): void {
  if (!Number.isInteger(k) || k < 1 || k > K_MAX) {
    throw new KvError('bad-argument', `k must be a whole number from 1 to ${K_MAX}`, { values: { k } });
  }
}

/** Runs a caller's filter; what it throws becomes the caller's error, never the process's end. */
export function passes<T>(filter: (payload: T) => boolean, payload: T): boolean {
  try {
    return filter(payload) === true;
  } catch (cause) {
    throw new KvError('bad-argument', `the filter of a search threw: ${String((cause as Error)?.message ?? cause)}`, {
      cause,
      hint: 'correct the filter; the index is unharmed',
    });
  }
}

/** Squared Euclidean distance. */
export function squaredDistance(a: readonly number[], b: readonly number[]): number {
  let sum = 0;
  for (let i = 0; i < a.length; i++) {
    const difference = a[i]! - b[i]!;
    sum += difference * difference;
  }
  return sum;
}

/** Nearest first; equal distances by label, so that an answer does not depend on the order of insertion. */
export function nearestFirst<T>(a: Neighbour<T>, b: Neighbour<T>): number {
  return a.distance - b.distance || a.label - b.label;
}
