/**
 * The settings of the command line that are options of the library. Their flags, help, ranges and defaults are those of
 * the tables of options, and what they say of a value is what the library says of it.
 */
import { InvalidArgumentError } from 'commander';
import { allows, type Option, refusalOf } from '../../native/index.ts';
import type { Setting } from './setting.ts';

type Options = Readonly<Record<string, Option>>;

/** The names of the settings that the options of a table make. */
export type SettingOf<Table> = {
  [Name in keyof Table]: Table[Name] extends { readonly flags: infer Flags }
    ? keyof Flags
    : Table[Name] extends { readonly flag: string }
      ? Table[Name] extends { readonly setting: infer Own }
        ? Own
        : Name
      : never;
}[keyof Table] &
  string;

/** The names of the settings that these options make, in order. */
export const settingNames = <const Table extends Options>(table: Table): SettingOf<Table>[] =>
  Object.entries<Option>(table).flatMap(([name, { flag, flags, setting = name }]) =>
    flags !== undefined ? Object.keys(flags) : flag !== undefined ? [setting] : [],
  ) as SettingOf<Table>[];

/**
 * The settings that these options make. `readers`: how the texts of flags are read whose values are no plain texts,
 * numbers or choices.
 */
export const settingsOf = <const Table extends Options>(
  table: Table,
  readers?: Readonly<Partial<Record<SettingOf<Table>, (text: string) => unknown>>>,
): Readonly<Record<SettingOf<Table>, Setting>> =>
  Object.fromEntries(
    Object.entries<Option>(table).flatMap(([name, row]) =>
      flagsOf(name, row).map(([setting, made]) => {
        const parse = readers?.[setting as SettingOf<Table>];
        return [setting, parse === undefined ? made : { ...made, parse }];
      }),
    ),
  ) as Record<SettingOf<Table>, Setting>;

function flagsOf(name: string, row: Option): [string, Setting][] {
  if (row.flags !== undefined)
    return Object.entries(row.flags).map(([setting, { flag, ...rest }]) => [setting, { flags: flag, ...rest }]);
  if (row.flag === undefined) return [];
  const choices = row.choices ?? (row.rule.kind === 'choice' ? (row.rule.choices as readonly string[]) : undefined);
  const parse = choices === undefined ? readerOf(name, row) : undefined;
  const setting: Setting = {
    flags: row.flag,
    help: row.help,
    // What a switch is when it is left out is not said: it is off.
    ...(row.default === undefined || row.rule.kind === 'switch' ? {} : { default: row.default as string | number }),
    ...(choices === undefined ? {} : { choices }),
    ...(parse === undefined ? {} : { parse }),
  };
  return [[row.setting ?? name, setting]];
}

/** How the text of a flag becomes the value of its option; undefined: it is not one text. */
function readerOf(name: string, row: Option): ((text: string) => unknown) | undefined {
  const checked = (value: unknown): unknown => {
    if (!allows(row, value)) throw new InvalidArgumentError(`${refusalOf(name, row)}.`);
    return value;
  };
  if (row.rule.kind === 'number') return (text) => checked(text.trim() === '' ? Number.NaN : Number(text));
  if (row.rule.kind === 'text') return checked;
  return undefined;
}

/**
 * The options that settings give: those whose flag is the option itself. What takes several flags, or a file, is for
 * the caller.
 */
export const optionsOf = <Given>(settings: Readonly<Record<string, unknown>>, table: Options): Given =>
  Object.fromEntries(
    Object.entries<Option>(table).flatMap(([name, { flag, setting = name }]) =>
      flag === undefined || settings[setting] === undefined ? [] : [[name, settings[setting]]],
    ),
  ) as Given;
