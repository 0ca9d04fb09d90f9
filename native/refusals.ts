/** The errors for numbers that the binary has refused. */
import { KvError } from './error.ts';
import { ROW_MOST } from './format.ts';
import type { Beside } from './types.ts';

/** Of a logarithm beside attention. */
const LSE_MOST = 1e30;

/** Says which number of the keys or values is wrong. */
export function badValue(arrays: { k: Float32Array; v: Float32Array }, layer: number, row: number): KvError {
  for (const [name, array] of Object.entries(arrays)) {
    const at = array.findIndex((x) => !(Math.abs(x) <= ROW_MOST));
    if (at >= 0) {
      return new KvError('bad-value', `${name} holds ${array[at]} at row ${Math.floor(at / row)}, column ${at % row}`, {
        values: { layer, side: name, row: Math.floor(at / row), column: at % row, value: String(array[at]) },
        hint: `keys and values must be finite and at most ${ROW_MOST} in size; nothing has been appended`,
      });
    }
  }
  return new KvError('bad-value', 'keys or values changed while they were appended', { values: { layer } });
}

/** Says which number of the queries is wrong, or that a norm is, or what was given beside attention. */
export function badQuery(cause: KvError, q: Float32Array, layer: number, row: number, beside?: Beside): KvError {
  const at = q.findIndex((x) => !(Math.abs(x) <= ROW_MOST));
  if (at < 0 && beside?.out.some((x) => !(Math.abs(x) <= 2 * ROW_MOST)))
    return new KvError('bad-value', 'beside.out must be finite, and means of values', { values: cause.values });
  if (at < 0 && beside?.lse.some((x) => !(x <= LSE_MOST)))
    return new KvError('bad-value', 'beside.lse must be logarithms, or minus infinity', { values: cause.values });
  if (at < 0) return new KvError('bad-value', 'xNorms must be finite and not negative', { values: cause.values });
  return new KvError('bad-value', `q holds ${q[at]} at row ${Math.floor(at / row)}, column ${at % row}`, {
    values: { layer, row: Math.floor(at / row), column: at % row, value: String(q[at]) },
    hint: `like keys and values, queries must be finite and at most ${ROW_MOST} in size; nothing has been counted`,
  });
}
