/**
 * What the body of each kind of entry may say. A hash proves that bytes were not changed, not that they make sense:
 * whoever can write files can write a log with right hashes. So every entry that is read passes here, and what follows
 * may rely on its types. The checks are plain functions because a log has tens of thousands of entries: a schema
 * library, which copies what it checks, took a third of the time that it takes to verify a log.
 */
import { KvError } from '../native/index.ts';
import { ENTRIES } from './entries/index.ts';
import { anything, type Type } from './entries/type.ts';
import type { EntryKind } from './types.ts';

/** The first thing that is wrong, and the names of the fields that lead to it. */
interface Fault {
  readonly path: readonly string[];
  readonly what: string;
}

/** Looks at a value. */
type Check = (value: unknown) => Fault | null;

const wrong = (expected: string): Fault => ({ path: [], what: `expected ${expected}` });
const at = (key: string | number, { path, what }: Fault): Fault => ({ path: [String(key), ...path], what });

const when =
  (isSound: (value: unknown) => boolean, expected: string): Check =>
  (value) =>
    isSound(value) ? null : wrong(expected);

const isPlain = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

const AN_OBJECT = wrong('an object');

function objectCheck(fields: readonly (readonly [string, Type])[]): Check {
  const checks = fields.map(([key, type]) => [key, checkOf(type)] as const);
  return (value) => {
    if (!isPlain(value)) return AN_OBJECT;
    for (const [key, checkField] of checks) {
      const fault = checkField(value[key]);
      if (fault !== null) return at(key, fault);
    }
    return null;
  };
}

function recordCheck(name: Check, inside: Check): Check {
  return (value) => {
    if (!isPlain(value)) return AN_OBJECT;
    for (const key of Object.keys(value)) {
      const fault = name(key) ?? inside(value[key]);
      if (fault !== null) return at(key, fault);
    }
    return null;
  };
}

function listCheck(inside: Check, min: number, max: number): Check {
  return (value) => {
    if (!Array.isArray(value) || value.length < min || value.length > max)
      return wrong(`a list of ${min} to ${max} items`);
    for (let index = 0; index < value.length; index++) {
      const fault = inside(value[index]);
      if (fault !== null) return at(index, fault);
    }
    return null;
  };
}

function isInteger(value: unknown, min: number, max: number): boolean {
  return Number.isSafeInteger(value) && (value as number) >= min && (value as number) <= max;
}

function made(type: Type): Check {
  switch (type.is) {
    case 'anything':
      return () => null;
    case 'plain':
      return when(isPlain, 'an object');
    case 'real':
      return when(Number.isFinite, 'a number');
    case 'flag':
      return when((value) => typeof value === 'boolean', 'true or false');
    case 'integer': {
      const { min, max } = type;
      return when((value) => isInteger(value, min, max), `a whole number from ${min} to ${max}`);
    }
    case 'text': {
      const { max } = type;
      return when((value) => typeof value === 'string' && value.length <= max, `a text of at most ${max} characters`);
    }
    case 'one': {
      const { of, expected } = type;
      return when((value) => of.includes(value), expected);
    }
    case 'object':
      return objectCheck(type.fields);
    case 'record':
      return recordCheck(checkOf(type.name), checkOf(type.inside));
    case 'list':
      return listCheck(checkOf(type.inside), type.min, type.max);
    case 'nullable': {
      const check = checkOf(type.inside);
      return (value) => (value === null ? null : check(value));
    }
    case 'optional': {
      const check = checkOf(type.inside);
      return (value) => (value === undefined ? null : check(value));
    }
  }
}

const checks = new Map<Type, Check>();

/** The check of a type. Each is made once. */
export function checkOf(type: Type): Check {
  let check = checks.get(type);
  if (check === undefined) {
    check = made(type);
    checks.set(type, check);
  }
  return check;
}

/** What is wrong with a value of a type, in words; null: nothing. */
export function faultIn(type: Type, value: unknown): string | null {
  const fault = checkOf(type)(value);
  return fault === null ? null : [...fault.path, fault.what].join(': ');
}

/** Types of what stands under a name in a value of this type; under '*', of everything inside. */
function inside(type: Type, name: string): readonly Type[] {
  switch (type.is) {
    case 'anything':
    case 'plain':
      return [anything];
    case 'object':
      return type.fields.filter(([key]) => name === '*' || name === key).map(([, field]) => field);
    case 'record':
      return [type.inside];
    case 'list':
      return name === '*' ? [type.inside] : [];
    case 'nullable':
    case 'optional':
      return inside(type.inside, name);
    default:
      return [];
  }
}

/**
 * True if a value of this type may have something under these names, one inside the other; '*' is any field or item.
 */
export function mayHold(type: Type, path: readonly string[]): boolean {
  return path.reduce<readonly Type[]>((types, name) => types.flatMap((one) => inside(one, name)), [type]).length > 0;
}

/** True if the body of a kind may have it. */
export const hasField = (kind: EntryKind, path: readonly string[]): boolean => mayHold(ENTRIES[kind].type, path);

const BODIES = Object.fromEntries(Object.entries(ENTRIES).map(([kind, { type }]) => [kind, checkOf(type)])) as Readonly<
  Record<EntryKind, Check>
>;

/** The first field of a body that does not fit the kind, with what would; null: there is none. */
function misfit(kind: EntryKind, body: unknown): { readonly path: string; readonly text: string } | null {
  const fault = BODIES[kind](body);
  if (fault === null) return null;
  const path = fault.path.join('.');
  return { path, text: path === '' ? fault.what : `${path}: ${fault.what}` };
}

/**
 * An entry that was written as it stands, and whose body makes no sense: earlier versions wrote some, and so can
 * anybody who writes files. It spoils nothing but itself, so readers pass it over by name.
 */
export class SenselessBody extends KvError {
  constructor(kind: EntryKind, { path, text }: { readonly path: string; readonly text: string }) {
    super('bad-log', `the ${kind} entry makes no sense: ${text}`, { values: { kind, path } });
  }
}

/** Throws SenselessBody, a 'bad-log' that names the first field that does not fit the kind. */
export function checkBody(kind: EntryKind, body: unknown): void {
  const fault = misfit(kind, body);
  if (fault !== null) throw new SenselessBody(kind, fault);
}

/**
 * The same check before an entry is written, so that no log holds what its own readers refuse. Throws 'bad-value'
 * naming the field.
 */
export function checkWritten(kind: EntryKind, body: unknown): void {
  const fault = misfit(kind, body);
  if (fault === null) return;
  throw new KvError('bad-value', `the log has no ${kind} entry that says this: ${fault.text}`, {
    values: { kind, path: fault.path },
    hint: 'nothing was written; give what the field can hold',
  });
}
