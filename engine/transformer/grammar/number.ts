/** Numbers of a schema: within bounds, and in steps. */
import { KvError, show } from '../../../native/index.ts';
import { multiples, stepWithin } from './multiples.ts';
import { type Bound, numberRange } from './number-range.ts';
import type { Node } from './references.ts';
import { cannot } from './refusals.ts';
import type { Writing } from './writing.ts';

const KEYWORDS = ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum', 'multipleOf'];
/** Numbers have 15 digits before the point where a bound does not say less. */
const WRITTEN_MAX = 1e15;
/** Those without bounds have an exponent of two digits. */
const FREE_MAX = 1e115;

export function numberExpression(type: string, node: Node, where: string, writing: Writing): string {
  for (const name of KEYWORDS)
    if (node[name] !== undefined && !Number.isFinite(node[name]))
      throw new KvError('bad-argument', `${name} at ${where} must be a number`, {
        values: { [name]: show(node[name]).slice(0, 40), where },
      });
  const { minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf: step } = node as Record<string, number>;
  const given = [boundOf(minimum, exclusiveMinimum, Math.max), boundOf(maximum, exclusiveMaximum, Math.min)] as const;
  const isFree = given.every((bound, side) => bound === null || bound.value * (side === 0 ? -1 : 1) >= FREE_MAX);
  const [least, most] = given.map((bound, side) => within(bound, side, where)) as [Bound | null, Bound | null];
  if (step !== undefined && !(step > 0))
    throw new KvError('bad-argument', `multipleOf at ${where} must be more than 0`, { values: { where, step } });
  const isWhole = type === 'integer';
  const isStepped = step !== undefined && !(isWhole && step === 1);
  if (!isStepped) {
    if (isFree) return type;
    return written(isWhole ? numberRange(least, most, 0) : numberRange(least, most));
  }
  const unit = stepWithin(step, isWhole);
  if (unit === null) throw cannot(`'multipleOf' of ${step}`, where);
  return written(multiples({ least, most }, unit, writing));

  function written(range: string | null): string {
    if (range !== null) return writing.rules.add(range);
    const values = { where, minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf: step };
    throw new KvError('bad-argument', `no number at ${where} that could be written is within its bounds`, { values });
  }
}

/** The stricter of two bounds. */
function boundOf(
  closed: number | undefined,
  open: number | undefined,
  stricter: (...values: number[]) => number,
): Bound | null {
  if (open === undefined) return closed === undefined ? null : { value: closed, isOpen: false };
  return closed === undefined || closed === open || stricter(closed, open) === open
    ? { value: open, isOpen: true }
    : { value: closed, isOpen: false };
}

/** null: nothing that is written is beyond it. Throws 'unsupported' where all that is written is. */
function within(bound: Bound | null, side: number, where: string): Bound | null {
  if (bound === null || Math.abs(bound.value) < WRITTEN_MAX) return bound;
  if (bound.value < 0 === (side === 0)) return null;
  throw cannot(`the bound ${bound.value}`, where);
}
