/**
 * A field of an entry, told in one line: what it holds, and where it is seen. Fields of objects inside an object have a
 * path, with points between the names.
 */
import { KvError } from '../../native/index.ts';
import { count, nullable, type ObjectOf, object, type Type, type TypeOf, text, whole } from './type.ts';

/** Filters of lists that look at several fields at once. */
export type AskedTogether = 'reason' | 'threshold';

export interface Field {
  readonly type: Type;
  /** What its number counts or measures, where its name does not say so. */
  readonly unit?: string;
  /**
   * The first version of the package that writes it. Logs of earlier ones lack it, so it may be absent. Left out: all
   * have it.
   */
  readonly since?: string;
  /**
   * Its name in the flat row of the entry: in lists, CSV, answers over HTTP and SQL. Of a list the row has the number
   * of items. Left out: the entry alone has it.
   */
  readonly row?: string;
  /** A sentence about it, for the declarations of the package and the OpenAPI document. */
  readonly means?: string;
  /** Its SQL column, where that is not the name in the row with underscores. */
  readonly column?: string;
  /**
   * How lists are narrowed by it: it equals something, or lies within bounds; or the filters that look at it among
   * others.
   */
  readonly asked?: 'equal' | 'range' | readonly AskedTogether[];
  /** Its column in the report of a session; with a + behind its name the differences between neighbours are kept. */
  readonly report?: string;
}

/** The fields of an entry by their paths, in the order of its flat row. */
export type Fields = Readonly<Record<string, Field>>;

type Heads<Path> = Path extends `${infer Head}.${string}` ? Head : Path;
type Under<F, Head extends string> = { [K in keyof F as K extends `${Head}.${infer Rest}` ? Rest : never]: F[K] };
type TypeIn<F> = F extends { readonly type: infer T } ? T : never;
/** The names at the beginning of the paths, and which of them may be absent. */
type Shape<F> = ObjectOf<{ [Head in Heads<keyof F> & string]: Head extends keyof F ? TypeIn<F[Head]> : Type }>;

/** The TypeScript type of what has these fields. */
export type BodyOf<F> = {
  readonly [Head in keyof Shape<F>]: Head extends keyof F ? TypeOf<TypeIn<F[Head]>> : BodyOf<Under<F, Head & string>>;
};

/**
 * The type of what has these fields. Throws 'bad-argument' for a field that earlier versions did not write and that
 * must be there.
 */
export function bodyType(fields: Fields): Type {
  const types: Record<string, Type> = {};
  const inside: Record<string, Record<string, Field>> = {};
  for (const [path, field] of Object.entries(fields)) {
    if (field.since !== undefined && field.type.is !== 'optional')
      throw new KvError('bad-argument', `logs from before ${field.since} lack ${path}, so it must be optional`);
    const [head, ...rest] = path.split('.') as [string, ...string[]];
    if (rest.length === 0) types[head] = field.type;
    else {
      const group = (inside[head] ??= {});
      group[rest.join('.')] = field;
      // Its place among the others is that of its first field.
      types[head] ??= field.type;
    }
  }
  for (const [head, group] of Object.entries(inside)) types[head] = bodyType(group);
  return object(types);
}

/** What stands around every body. It is readable without keys. */
export const ENVELOPE: Fields = {
  seq: { type: whole, row: 'seq', report: 'seq+', means: 'Id of the entry: what `explain` takes.' },
  timeMs: { type: whole, row: 'timeMs', report: 'timeMs+', means: 'Milliseconds since the epoch.' },
  session: { type: text, row: 'session', asked: 'equal', means: 'Id of the session.' },
};

/** A field of a flat row. */
export interface RowField extends Field {
  readonly name: string;
  /** Where it stands in the entry: `body.decision.layer`. */
  readonly path: string;
  readonly column: string;
  /**
   * What the entry has there: a list, of which the row has the number of items, or what may be absent, which is null in
   * the row.
   */
  readonly source: Type;
}

const snake = (name: string): string => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);

function typeInRow(type: Type): Type {
  if (type.is === 'list') return count;
  return type.is === 'optional' ? nullable(typeInRow(type.inside)) : type;
}

/** The flat row of an entry: of what stands around its body, and of the fields of the body. */
export function rowOf(around: Fields, fields: Fields): RowField[] {
  const outside = Object.entries(around).map(([path, field]) => ({ ...field, path }));
  const inBody = Object.entries(fields).map(([path, field]) => ({ ...field, path: `body.${path}` }));
  return [...outside, ...inBody].flatMap((field) => {
    const { row: name, column = snake(name ?? ''), type } = field;
    return name === undefined ? [] : [{ ...field, name, column, type: typeInRow(type), source: type }];
  });
}
