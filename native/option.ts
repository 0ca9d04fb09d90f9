/**
 * What an option is. Every option of the library and of its command line is described once, in a table whose rows are
 * these: what it may be, its default, a line for people, and its flag. Names, checks, their words, flags with their
 * help, and docs/options.md are made from the tables.
 */
import { z } from 'zod';
import { show } from './arguments.ts';
import { KvError } from './error.ts';

/** The numbers that a rule lets through. */
export interface NumberRange {
  readonly least: number;
  readonly most: number;
  /** `least` itself is refused. */
  readonly above?: boolean;
  /** Fractions are refused. */
  readonly whole: boolean;
}

/** What a value may be: as a check, and in words. */
export interface Rule<T> {
  readonly schema: z.ZodType<T>;
  /** What the value must be, as said when another is refused: 'a whole number from 1 to 64'. */
  readonly says: string;
  /** How the text of a flag becomes such a value. 'own': by a function that the command line has for this option. */
  readonly kind: 'number' | 'switch' | 'text' | 'choice' | 'own';
  /** Of numbers, where all between two bounds are let through. */
  readonly range?: NumberRange;
  /** Of values that are listed. */
  readonly choices?: readonly T[];
}

/**
 * A flag of the command line that is not the option itself: one of several that make it, or one with a file that holds
 * it.
 */
export interface Flag {
  /** In the notation of commander: '--anchor-key <file>'. */
  readonly flag: string;
  readonly help: string;
  /** The only texts that it takes. */
  readonly choices?: readonly string[];
}

/** One option. */
export interface Option<T = unknown> {
  readonly rule: Rule<T>;
  /** One line for people: the help of the flag, and of docs/options.md. */
  readonly help: string;
  /** What counts where it is left out; none where that depends on something. */
  readonly default?: T;
  /** The hint of a refusal. Default: to leave it out. */
  readonly hint?: string;
  /** The whole sentence of a refusal, where "name must be …" is not said. */
  readonly refusal?: string;
  /** Its flag, in the notation of commander; the value's placeholder stands in angle brackets. */
  readonly flag?: string;
  /** The name of the setting that its flag makes, where that is not the option's. */
  readonly setting?: string;
  /** The texts that its flag takes, where these are fewer than the rule lets through. */
  readonly choices?: readonly string[];
  /** Flags that make the option together, by the names of their settings. */
  readonly flags?: Readonly<Record<string, Flag>>;
  /**
   * Where it is false, the file of a parked session does not hold the option: it names a file, is an object of the
   * caller's, or says what this process may leave out, so that only the caller of this process gives it.
   */
  readonly parked?: false;
}

/**
 * A row for every option of an interface, and none beside: what an option is added to, and where its type is checked.
 */
export type Rows<Options> = { readonly [Name in keyof Options]-?: Option<Exclude<Options[Name], undefined>> };

/** A whole number from `least` to `most`. */
export const whole = (
  least: number,
  most: number = Number.MAX_SAFE_INTEGER,
  says = `a whole number from ${least} to ${most}`,
): Rule<number> => ({
  schema: z.int().min(least).max(most),
  says,
  kind: 'number',
  range: { least, most, whole: true },
});

/** A number from `least` to `most`; infinity never is one. */
export const real = (
  least: number,
  most: number = Number.MAX_VALUE,
  says = `a number from ${least} to ${most}`,
): Rule<number> => ({
  schema: z.number().min(least).max(most),
  says,
  kind: 'number',
  range: { least, most, whole: false },
});

/** A number above `least`, up to `most`. */
export const above = (least: number, most: number, says: string): Rule<number> => ({
  schema: z.number().gt(least).max(most),
  says,
  kind: 'number',
  range: { least, most, above: true, whole: false },
});

/** One of few numbers. */
export const oneNumber = (choices: readonly number[]): Rule<number> => ({
  schema: z.literal([...choices]),
  says: choices.join(' or '),
  kind: 'number',
  choices,
});

/** One of few names. */
export const oneName = <const Name extends string>(...choices: readonly Name[]): Rule<Name> => ({
  schema: z.enum(choices) as unknown as z.ZodType<Name>,
  says: choices
    .map((name) => `'${name}'`)
    .join(', ')
    .replace(/, ([^,]*)$/, ' or $1'),
  kind: 'choice',
  choices,
});

/** True or false: on the command line a flag without a value. */
export const truth: Rule<boolean> = { schema: z.boolean(), says: 'true or false', kind: 'switch' };

/** A text, such as a path. */
export const anyText = (says = 'a text', least = 0): Rule<string> => ({
  schema: z.string().min(least),
  says,
  kind: 'text',
});

/** A text of a certain form. */
export const textLike = (pattern: RegExp, says: string): Rule<string> => ({
  schema: z.string().regex(pattern),
  says,
  kind: 'text',
});

/** A value that `holds` says yes to. */
export const suchThat = <T>(holds: (value: unknown) => boolean, says: string): Rule<T> => ({
  schema: z.custom<T>(holds),
  says,
  kind: 'own',
});

/** What takes more than the value to check, such as the layers of a model: refused where that is known. */
export const seenLater = <T>(says: string): Rule<T> => suchThat<T>(() => true, says);

/** What is said when an option is refused. */
export const refusalOf = (name: string, { rule, refusal }: Option): string => refusal ?? `${name} must be ${rule.says}`;

/** True if an option may have this value. */
export const allows = ({ rule }: Option, value: unknown): boolean => rule.schema.safeParse(value).success;

/** Throws KvError 'bad-argument' where an option may not have this value. */
export function checkOption(name: string, row: Option, value: unknown): void {
  if (allows(row, value)) return;
  const hint = row.hint ?? (row.default === undefined ? undefined : `leave it out for ${show(row.default)}`);
  throw new KvError('bad-argument', refusalOf(name, row), {
    values: { [name]: typeof value === 'number' ? value : show(value) },
    hint,
  });
}

/**
 * Throws KvError 'bad-argument' for the first option that is given and may not be what it is. Names that have no row
 * are for checkKeys.
 */
export function checkOptions<Options extends object>(
  options: Options,
  rows: { readonly [Name in keyof Options]?: Option },
): void {
  for (const [name, row] of Object.entries<Option | undefined>(rows)) {
    const value = (options as Readonly<Record<string, unknown>>)[name];
    if (row !== undefined && value !== undefined) checkOption(name, row, value);
  }
}

/** The defaults of options that all have one. */
export const defaultsOf = <Options extends object>(rows: Rows<Options>): Required<Options> =>
  Object.fromEntries(Object.entries<Option>(rows).map(([name, row]) => [name, row.default])) as Required<Options>;

/** The field of a file that holds an option. */
export const fieldOf = <T>(name: string, row: Option<T>): z.ZodType<T> =>
  z.custom<T>((value) => allows(row, value), refusalOf(name, row));
