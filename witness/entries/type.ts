/**
 * What values may be, as data. Everything that must know what a field holds reads it here: the check of whoever reads a
 * log, the tables of the binary, the spelling, SQL columns, answers over HTTP, and the TypeScript types.
 */

type Form =
  | { readonly is: 'anything' | 'plain' | 'real' | 'flag' }
  | { readonly is: 'object'; readonly fields: readonly (readonly [name: string, type: Type])[] }
  | { readonly is: 'record'; readonly name: Type; readonly inside: Type }
  | { readonly is: 'list'; readonly inside: Type; readonly min: number; readonly max: number }
  | { readonly is: 'integer'; readonly min: number; readonly max: number }
  | { readonly is: 'text'; readonly max: number }
  /** `expected` is what a fault says that was expected; `alias` is the name that a room has for the TypeScript type. */
  | { readonly is: 'one'; readonly of: readonly unknown[]; readonly expected: string; readonly alias: Alias | null }
  | { readonly is: 'nullable' | 'optional'; readonly inside: Type };

/** A type of values. T is what it is in TypeScript: `ts` stands for it, and no value has that field. */
export type Type<T = unknown> = Form & { readonly ts?: T };

/** The name of a TypeScript type, and the room that exports it. */
export type Alias = readonly [room: 'native' | 'policy', name: string];

/** A type of something that may be left out. */
type MayBeAbsent = { readonly is: 'optional' };

/** The TypeScript type of a type. */
export type TypeOf<X> = X extends { readonly ts?: infer T } ? T : never;

/** The same object type, written out as one. */
export type Flat<T> = { [K in keyof T]: T[K] };

type Absent<F> = { [K in keyof F]: F[K] extends MayBeAbsent ? K : never }[keyof F];

/** The TypeScript type of an object with fields of these types. */
export type ObjectOf<F> = Flat<
  { readonly [K in Exclude<keyof F, Absent<F>>]: TypeOf<F[K]> } & { readonly [K in Absent<F>]?: TypeOf<F[K]> }
>;

/** True if two types are the same, down to what may be left out. */
export type Same<A, B> = (<G>() => G extends A ? 1 : 2) extends <G>() => G extends B ? 1 : 2 ? true : false;

/** Does not compile where something is not certain. */
export type Certain<T extends true> = T;

type Types = Readonly<Record<string, Type>>;

/** Whatever a caller has put there. */
export const anything: Type = { is: 'anything' };

/** An object with whatever a caller has put there. */
export const plain: Type<Readonly<Record<string, unknown>>> = { is: 'plain' };

/** A number that is finite. */
export const real: Type<number> = { is: 'real' };

export const flag: Type<boolean> = { is: 'flag' };

export const integer = (min: number, max: number): Type<number> => ({ is: 'integer', min, max });

/** Columns of the SQL index and typed arrays hold no more. */
export const count = integer(0, 2 ** 31 - 1);
export const whole = integer(0, Number.MAX_SAFE_INTEGER);
export const difference = integer(Number.MIN_SAFE_INTEGER, Number.MAX_SAFE_INTEGER);

export const text: Type<string> = { is: 'text', max: 4096 };

/** One of some values. */
export const one = <const T>(
  of: readonly T[],
  { expected = `one of ${of.join(', ')}`, alias = null as Alias | null } = {},
): Type<T> => ({
  is: 'one',
  of,
  expected,
  alias,
});

/** An object with these fields; others may stand beside them. */
export const object = <F extends Types>(fields: F): Type<ObjectOf<F>> => ({
  is: 'object',
  fields: Object.entries(fields),
});

/** The object that another room declares as T. Does not compile where the two differ. */
export const noun =
  <T>() =>
  <F extends Types>(
    fields: F & (Same<ObjectOf<F>, Flat<T>> extends true ? unknown : 'not the fields of T'),
  ): Type<T> => ({
    is: 'object',
    fields: Object.entries(fields),
  });

/** An object of any number of fields with such names. */
export const record = <K extends string, T>(
  name: Type<K>,
  inside: Type<T>,
): Type<string extends K ? Readonly<Record<string, T>> : Readonly<Partial<Record<K, T>>>> => ({
  is: 'record',
  name,
  inside,
});

export const list = <T>(inside: Type<T>, min = 0, max = 65_536): Type<readonly T[]> => ({
  is: 'list',
  inside,
  min,
  max,
});

export const nullable = <T>(inside: Type<T>): Type<T | null> => ({ is: 'nullable', inside });

/** What may be left out. */
export const optional = <T>(inside: Type<T>): Type<T> & MayBeAbsent => ({ is: 'optional', inside });

/** The same type, for a TypeScript type that says more than can be checked. */
export const known = <T>(type: Type): Type<T> => type as Type<T>;

/** The type without `nullable` and `optional` around it. */
export function coreOf(type: Type): Type {
  return type.is === 'nullable' || type.is === 'optional' ? coreOf(type.inside) : type;
}

/** True if null is a value of it. */
export function mayBeNull(type: Type): boolean {
  return type.is === 'nullable' || (type.is === 'optional' && mayBeNull(type.inside));
}

/** Fields of an object in the order in which they are spelled: by UTF-16 code units. */
export const inOrder = <T>(fields: readonly (readonly [string, T])[]): (readonly [string, T])[] =>
  [...fields].sort(([a], [b]) => (a < b ? -1 : 1));
