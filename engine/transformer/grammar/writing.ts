/** What parts of a schema are written with: the rules of a grammar, and what the parts have in common. */
import { KvError, show } from '../../../native/index.ts';
import type { Repetitions } from './options.ts';
import type { Node } from './references.ts';
import type { Rules } from './rules.ts';

export interface Writing {
  readonly rules: Rules;
  readonly repetitions: Repetitions;
  /** The expression of a schema within. */
  node(schema: unknown, where: string, depth: number): string;
  /** All that a schema within comes to, where that is a list of values; null: it is none. */
  values(schema: unknown, where: string): readonly unknown[] | null;
  /** Whether a value is one of the schema. */
  fulfils(value: unknown, schema: unknown): boolean;
  /** What the grammar allows here has to be looked at when the text is complete. */
  leave(): void;
}

/** undefined: not given. Throws 'bad-argument'. */
function count(node: Node, name: string, where: string): number | undefined {
  const value = node[name];
  if (value === undefined) return undefined;
  if (Number.isSafeInteger(value) && Number(value) >= 0) return Number(value);
  throw new KvError('bad-argument', `${name} at ${where} must be a whole number of 0 or more`, {
    values: { [name]: show(value).slice(0, 40), where },
  });
}

/** Throws 'bad-argument' where no length is within both. */
export function lengths(node: Node, names: readonly [string, string], where: string): { least: number; most: number } {
  const least = count(node, names[0], where) ?? 0;
  const most = count(node, names[1], where) ?? Number.POSITIVE_INFINITY;
  if (least <= most) return { least, most };
  throw new KvError('bad-argument', `what is at ${where} can have no length`, { values: { where, least, most } });
}
