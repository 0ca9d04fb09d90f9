/** Decisions summed up by what they have in common, one after the other. */
import { KvError } from '../native/index.ts';
import { COUNT_KEYS, type CountKey, type CountRow, type DecisionRow } from './types.ts';

export const HOUR_MS = 3_600_000;

/** Throws 'bad-argument' for what decisions cannot be counted by. */
export function checkCountKey(by: string): asserts by is CountKey {
  if (!(COUNT_KEYS as readonly string[]).includes(by))
    throw new KvError('bad-argument', `decisions cannot be counted by '${by}'`, {
      values: { by },
      hint: `count by ${COUNT_KEYS.join(', ')}`,
    });
}

/** What a decision has in common with others. `model`: name of the model of its session. */
function keyOf(by: CountKey, row: DecisionRow, model: string): string | number {
  switch (by) {
    case 'layer':
      return row.layer;
    case 'reason':
      return row.accepted ? row.rule : row.verdictRule;
    case 'hour':
      return Math.floor(row.timeMs / HOUR_MS) * HOUR_MS;
    case 'format':
      return `${row.from}→${row.to}`;
    case 'session':
      return row.session;
    case 'model':
      return model;
  }
}

type Sums = { -readonly [K in keyof Omit<CountRow, 'epsilonMean'>]: CountRow[K] } & {
  epsilonSum: number;
  tried: number;
};

/** Sums of decisions. */
export class Counts {
  readonly #by: CountKey;
  readonly #sums = new Map<string | number, Sums>();

  constructor(by: CountKey) {
    this.#by = by;
  }

  add(row: DecisionRow, model: string): void {
    const key = keyOf(this.#by, row, model);
    let sums = this.#sums.get(key);
    if (sums === undefined) {
      const { timeMs } = row;
      sums = {
        ...{ key, decisions: 0, refused: 0, bytesFreed: 0, epsilonMax: null },
        ...{ firstMs: timeMs, lastMs: timeMs, epsilonSum: 0, tried: 0 },
      };
      this.#sums.set(key, sums);
    }
    sums.decisions++;
    if (!row.accepted) sums.refused++;
    sums.bytesFreed += row.bytesBefore - row.bytesAfter;
    sums.firstMs = Math.min(sums.firstMs, row.timeMs);
    sums.lastMs = Math.max(sums.lastMs, row.timeMs);
    const epsilon = row.epsilonNow ?? row.epsilonTo;
    if (epsilon === null) return;
    sums.epsilonSum += epsilon;
    sums.tried++;
    sums.epsilonMax = Math.max(sums.epsilonMax ?? epsilon, epsilon);
  }

  rows(): CountRow[] {
    const rows = [...this.#sums.values()].map(
      ({ epsilonSum, tried, key, decisions, refused, bytesFreed, epsilonMax, firstMs, lastMs }): CountRow => ({
        ...{ key, decisions, refused, bytesFreed },
        epsilonMean: tried === 0 ? null : epsilonSum / tried,
        ...{ epsilonMax, firstMs, lastMs },
      }),
    );
    return inOrder(rows);
  }
}

/** Numbers ascending; names by how many decisions they have, then by name. */
export function inOrder(rows: readonly CountRow[]): CountRow[] {
  return [...rows].sort((a, b) => {
    if (typeof a.key === 'number' && typeof b.key === 'number') return a.key - b.key;
    return b.decisions - a.decisions || (String(a.key) < String(b.key) ? -1 : 1);
  });
}
