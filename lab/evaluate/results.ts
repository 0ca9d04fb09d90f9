/** Rows in a JSON file that a later run goes on from: a row that stands there is not computed again. */
import { existsSync, readFileSync } from 'node:fs';
import { cpus } from 'node:os';
import { isDeepStrictEqual } from 'node:util';
import type { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { KvError, replaceFile } from '../../native/index.ts';
import type { Arrows } from '../../policy/index.ts';

/** What rows of one file have in common, or they could not be compared: plain data. */
export type Conditions = Readonly<Record<string, unknown>>;

/** The conditions of rows of one kind with one model. */
export const conditionsOf = (
  kind: string,
  { model, dense, native }: Runtime,
  precision: 'auto' | 'exact',
): Conditions => ({
  kind,
  model: model.name,
  digest: model.digest,
  dense: `${dense.name}, ${precision}`,
  isa: native.isa,
});

export class Results<Row extends object> {
  readonly rows: Row[];
  readonly #path: string | null;
  readonly #conditions: Conditions;
  readonly #keyOf: (row: Row) => string;
  readonly #known: Map<string, Row>;

  private constructor(path: string | null, conditions: Conditions, rows: Row[], keyOf: (row: Row) => string) {
    this.#path = path;
    this.#conditions = conditions;
    this.rows = rows;
    this.#keyOf = keyOf;
    this.#known = new Map(rows.map((row) => [keyOf(row), row]));
  }

  /**
   * Opens the file, or begins one; null keeps the rows in memory only. Throws 'bad-config' for a file of other
   * conditions, such as another model, dense half or kind of rows.
   */
  static open<Row extends object>(
    path: string | null,
    conditions: Conditions,
    keyOf: (row: Row) => string,
  ): Results<Row> {
    if (path === null || !existsSync(path)) return new Results(path, conditions, [], keyOf);
    const file = JSON.parse(readFileSync(path, 'utf8')) as Record<string, unknown> & { rows?: Row[] };
    for (const [name, value] of Object.entries(conditions)) {
      if (!isDeepStrictEqual(file[name], value))
        throw new KvError('bad-config', `${path} holds rows of another ${name}`, {
          values: { there: JSON.stringify(file[name]), here: JSON.stringify(value) },
          hint: 'name another file, or remove this one',
        });
    }
    return new Results(path, conditions, file.rows ?? [], keyOf);
  }

  find(key: string): Row | undefined {
    return this.#known.get(key);
  }

  /** Adds a row and writes the file, whole or not at all. */
  add(row: Row): void {
    this.rows.push(row);
    this.#known.set(this.#keyOf(row), row);
    if (this.#path === null) return;
    const machine = { machine: cpus()[0]?.model, node: process.version };
    replaceFile(
      this.#path,
      Buffer.from(`${JSON.stringify({ ...this.#conditions, ...machine, rows: this.rows }, null, 1)}\n`),
    );
  }
}

/** Geometric mean; NaN of nothing. */
export const geometricMean = (values: readonly number[]): number =>
  Math.exp(values.reduce((sum, value) => sum + Math.log(value), 0) / values.length);

/**
 * The arrows of the machines that sessions took, layers and sides of pages counted apart; nothing where no session ran.
 */
export function arrowTable(arrows: Arrows, forms: ReadonlyMap<string, number>): string {
  return [['layers', arrows.counts] as const, ['page sides', forms] as const]
    .map(([what, counts]) => {
      const taken = [...counts].filter(([, count]) => count > 0);
      if (taken.length === 0) return '';
      const rows = taken.map(([arrow, count]) => `  ${arrow}  ${count}`).join('\n');
      return `\n${taken.length} of ${counts.size} arrows of ${what} were taken by the sessions computed now\n${rows}\n`;
    })
    .join('');
}
