/**
 * What a report carries: facts of one session, in a form that is small as JSON. Written by `collect.ts` and read by the
 * page.
 */

/**
 * Numbers in a row, as text: values are joined by commas, nothing stands for the value before, and `~` for none. A
 * column whose name ends in `+` holds the differences between neighbours instead of the values themselves.
 */
export type Columns = Readonly<Record<string, string>>;

/** A threshold that moves were compared with: rule, id, unit and origin of the value. */
export type Reason = readonly [rule: string, threshold: string, unit: string, origin: string];

/** The quality of a layer has changed, or something else that is told in a sentence. */
export interface Happening {
  readonly seq: number;
  readonly tokens: number;
  /** null: of the whole session. */
  readonly layer: number | null;
  /** The quality of a layer from here on. */
  readonly state: string | null;
  readonly text: string;
}

/** The memory that the session shared. */
export interface ReportPool {
  /** Columns: ms+ since the session was opened; bytes of all sessions, of this one, and what all may take. */
  readonly rows: Columns;
}

export interface ReportData {
  readonly session: string;
  readonly model: string;
  readonly policy: string;
  readonly layers: number;
  readonly tokens: number;
  readonly pageTokens: number;
  /** What one token takes in f16, all layers. */
  readonly f16BytesPerToken: number;
  /** Names of the formats and latents, best first, then of pages that were freed, and the bits of a number in each. */
  readonly forms: readonly string[];
  readonly formBits: readonly number[];
  /** Bytes of a page side in each; of a latent, of the page. null where there is none. */
  readonly formBytes: readonly (number | null)[];
  /** How many of `forms` are formats; latents follow. */
  readonly formats: number;
  /** In `forms`, the last: that of pages of which nothing is left. */
  readonly freedForm: number;
  /** In `forms`: that of sealed pages and that of the page that tokens are appended to. */
  readonly windowForm: number;
  readonly openForm: number;
  /** What rules of policies and origins of thresholds mean. */
  readonly rules: Readonly<Record<string, string>>;
  readonly origins: Readonly<Record<string, string>>;
  readonly reasons: readonly Reason[];
  /** Value and origin of the thresholds that the session began with. */
  readonly starts: Readonly<Record<string, { readonly value: number; readonly unit: string; readonly source: string }>>;
  /** Columns: those that fields of a situation name (`entries/situation.ts`), and budget, canaryBytes, p95. */
  readonly situations: Columns;
  /** Columns: those that fields of a decision name (`entries/decision.ts`), and because, verdict, freed. */
  readonly decisions: Columns;
  /** Decisions of the session. Those that the columns lack came last. */
  readonly decisionCount: number;
  /** Columns: seq+, layer, page, side, from, and one of ε per form, by its name. */
  readonly trials: Columns;
  /** Columns: seq+, tokens+, layer, page, side, from, to, promised, now, age. */
  readonly canaries: Columns;
  /** Columns: seq+, tokens+, layer, page, side, from, to. */
  readonly changes: Columns;
  readonly happenings: readonly Happening[];
  /** null: nobody asked for bytes while it was open. */
  readonly pool: ReportPool | null;
}

/** 0 keys, 1 values, 2 both. */
export const SIDE_NAMES: readonly string[] = ['keys', 'values', 'keys and values'];
export const SIDE_LETTERS: readonly string[] = ['k', 'v', 'kv'];

/** Values of one column by row; NaN for none. */
export type Column = Float64Array;

/** The values of a column, of which there are `length` in all. */
export function unpack(text: string, length: number, isDifference: boolean): Column {
  const values = new Float64Array(length);
  let last = 0;
  let sum = 0;
  let from = 0;
  for (let row = 0; row < length; row++) {
    let to = text.indexOf(',', from);
    if (to < 0) to = text.length;
    if (to > from) last = text.charCodeAt(from) === 126 ? Number.NaN : Number(text.slice(from, to));
    from = to + 1;
    sum += last;
    values[row] = isDifference ? sum : last;
  }
  return values;
}

/** Columns by name, without the sign of differences. */
export class Table {
  readonly length: number;
  readonly #columns: Readonly<Record<string, Column>>;

  constructor(columns: Columns) {
    const first = Object.values(columns)[0] ?? '';
    this.length = first === '' ? 0 : first.split(',').length;
    this.#columns = Object.fromEntries(
      Object.entries(columns).map(([name, text]) => [
        name.replace('+', ''),
        unpack(text, this.length, name.endsWith('+')),
      ]),
    );
  }

  has(name: string): boolean {
    return this.#columns[name] !== undefined;
  }

  /** The column of this name. */
  of(name: string): Column {
    const column = this.#columns[name];
    if (column === undefined) throw new Error(`no column ${name}`);
    return column;
  }
}
