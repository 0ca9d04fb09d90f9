// The table of options is the only place that says what an option may be: every number just outside of its range is
// refused by every function that takes the option, by its flag, its environment variable and its line in a file, in the
// same words, and both ends of the range are let through. A row that is added is a name, a check, a flag and a line of
// the help.
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Command } from 'commander';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { COMMANDS, SESSION_COMMANDS } from '../../../../engine/cli/commands.ts';
import { optionsOf, settingNames, settingsOf } from '../../../../engine/cli/option-settings.ts';
import type { Setting } from '../../../../engine/cli/setting.ts';
import {
  addSettings,
  environmentName,
  keyName,
  readSettings,
  SETTINGS,
  type SettingName,
} from '../../../../engine/cli/settings.ts';
import {
  type Chat,
  createEngine,
  type Engine,
  type EngineSession,
  openCache,
  serve,
} from '../../../../engine/index.ts';
import {
  CACHE_OPTIONS,
  CONTINUATION_OPTIONS,
  ENGINE_OPTIONS,
  GENERATE_OPTIONS,
  PARK_OPTIONS,
  RESUME_OPTIONS,
  SEND_OPTIONS,
  SESSION_OPTIONS,
} from '../../../../engine/options/table.ts';
import type { ParkOptions } from '../../../../engine/options/types.ts';
import { SERVE_OPTIONS, STREAM_OPTIONS } from '../../../../engine/serve/options.ts';
import { CHAT_OPTIONS, CONVERSATION_OPTIONS } from '../../../../engine/thread/chat-options.ts';
import {
  checkKeys,
  checkOptions,
  KvError,
  type Option,
  type Rows,
  refusalOf,
  whole,
} from '../../../../native/index.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { ids, MODEL, openEngine } from '../on-reference.ts';

type Table = Readonly<Record<string, Option>>;

const folder = scratchFolders();
const TEMPLATE = '{% for message in messages %}{{ message.content }}{% endfor %}';
const SHAPE = { layers: 1, queryHeads: 1, kvHeads: 1, headDim: 64 };

const isNumber = ({ rule }: Option): boolean => rule.kind === 'number';
const numbersOf = (table: Table): [string, Option][] => Object.entries(table).filter(([, row]) => isNumber(row));

/** Numbers just outside of what an option may be, and what is no number. */
function outside({ rule: { range, choices } }: Option): unknown[] {
  if (range === undefined) return (choices as number[]).flatMap((choice) => [choice - 1, choice + 1, choice + 0.5]);
  const { least, most, above = false, whole: isWhole } = range;
  const beside = (end: number): number => (isWhole ? 1 : Math.max(1e-9, Math.abs(end) * 1e-9));
  const below = above ? least : least - beside(least);
  return [below, most + beside(most), ...(isWhole ? [least + 0.5] : []), Number.NaN];
}

/** The numbers at both ends of what an option may be. */
function ends({ rule: { range, choices } }: Option): number[] {
  if (range === undefined) return [...(choices as number[])];
  return [range.above === true ? Number.MIN_VALUE : range.least, range.most];
}

const refusal = async (work: () => unknown): Promise<unknown> => {
  try {
    await work();
    return null;
  } catch (error) {
    return error;
  }
};

let engine: Engine;
let session: EngineSession;
let chat: Chat;
let parked: string;
let stateDir: string;
beforeAll(async () => {
  stateDir = join(folder(), 'state');
  engine = await openEngine(stateDir);
  session = await engine.openSession();
  chat = await engine.chat({ template: TEMPLATE });
  const waiting = await engine.openSession();
  await waiting.read(ids(8));
  parked = (await waiting.park()).path;
});
afterAll(() => engine.close());

/** Every function that takes options, with its table. */
const FACES: Readonly<Record<string, readonly [Table, (options: object) => Promise<unknown>]>> = {
  createEngine: [ENGINE_OPTIONS, (options) => createEngine({ model: MODEL, stateDir: null, ...options })],
  openSession: [SESSION_OPTIONS, (options) => engine.openSession(options)],
  resume: [RESUME_OPTIONS, (options) => engine.resume(parked, options)],
  openCache: [CACHE_OPTIONS, (options) => openCache({ ...SHAPE, ...options })],
  generate: [GENERATE_OPTIONS, (options) => session.generate('a', options).result],
  continuations: [CONTINUATION_OPTIONS, (options) => session.continuations('a', { n: 1, ...options })],
  chat: [CHAT_OPTIONS, (options) => engine.chat({ template: TEMPLATE, ...options })],
  send: [SEND_OPTIONS, (options) => chat.send('a', options).result],
  serve: [SERVE_OPTIONS, (options) => serve(stateDir, options)],
  'stream of serve': [STREAM_OPTIONS, (stream) => serve(stateDir, { stream })],
};

describe('a number just outside of its range', () => {
  it.each(Object.keys(FACES))('is refused by %s, in the words of the table', async (face) => {
    const [table, ask] = FACES[face]!;
    expect(numbersOf(table).length).toBeGreaterThan(0);
    for (const [name, row] of numbersOf(table))
      for (const value of outside(row)) {
        const error = await refusal(() => ask({ [name]: value }));
        expect(error, `${face} ${name} ${value}: ${String(error)}`).toBeInstanceOf(KvError);
        expect([(error as KvError).code, (error as KvError).message]).toEqual(['bad-argument', refusalOf(name, row)]);
      }
  });
});

describe('a number at an end of its range', () => {
  // Where another rule refuses it, such as what the model or the memory can hold, it is not said that it must be in a
  // range.
  it.each(Object.keys(FACES).filter((face) => !['createEngine', 'serve', 'stream of serve'].includes(face)))(
    'is let through by %s',
    async (face) => {
      const [table, ask] = FACES[face]!;
      for (const [name, row] of numbersOf(table))
        for (const value of ends(row)) {
          const short = Object.hasOwn(table, 'maxTokens') ? { maxTokens: 1 } : {};
          const error = await refusal(async () => {
            const made = (await ask({ ...short, [name]: value })) as { close?: () => Promise<void> } | undefined;
            await made?.close?.();
          });
          expect((error as Error | null)?.message ?? '', `${face} ${name} ${value}`).not.toMatch(
            new RegExp(`^${name} (must|is)\\b.*(whole|integer|number|above)(?!.*of the model)`),
          );
        }
    },
  );

  it('of threads opens an engine whose sessions have as many as a cache takes', async () => {
    const { most } = ENGINE_OPTIONS.threads.rule.range!;
    const many = await createEngine({ model: MODEL, stateDir: null, threads: most });
    const open = await many.openSession();
    expect((await open.generate('a', { maxTokens: 1 }).result).tokens).toBe(1);
    await many.close();
  });
});

const TABLES: readonly Table[] = [
  ENGINE_OPTIONS,
  SESSION_OPTIONS,
  CONTINUATION_OPTIONS,
  CONVERSATION_OPTIONS,
  PARK_OPTIONS,
  SERVE_OPTIONS,
];

function given(setting: SettingName, ...args: string[]): unknown {
  let seen: unknown;
  const root = new Command().exitOverride().configureOutput({ writeErr: () => {} });
  addSettings(root.command('x').exitOverride(), ['config', setting]).action((...parameters: unknown[]) => {
    seen = readSettings(parameters.at(-1) as Command, process.env)[setting];
  });
  root.parse(['node', 'palimpsest', 'x', ...args]);
  return seen;
}

/** What a setting is, given by its flag, by its environment variable and in a file. */
function ways(setting: SettingName, value: number): (() => unknown)[] {
  const file = join(folder(), 'settings.toml');
  return [
    () => given(setting, `--${keyName(setting)}=${value}`),
    () => {
      process.env[environmentName(setting)] = String(value);
      try {
        return given(setting);
      } finally {
        delete process.env[environmentName(setting)];
      }
    },
    () => {
      writeFileSync(file, `${keyName(setting)} = "${value}"\n`);
      return given(setting, '--config', file);
    },
  ];
}

const flagged = TABLES.flatMap((table) => numbersOf(table)).filter(([, { flag }]) => flag !== undefined);
const settingOf = ([name, { setting }]: readonly [string, Option]): SettingName => (setting ?? name) as SettingName;

describe('the command line', () => {
  it('refuses what the library refuses, from flag, environment and file, in the same words', async () => {
    expect(flagged.length).toBeGreaterThan(15);
    for (const [name, row] of flagged)
      for (const value of outside(row))
        for (const way of ways(settingOf([name, row]), value as number)) {
          const error = await refusal(way);
          expect((error as Error | null)?.message, `${name} ${value}`).toContain(refusalOf(name, row));
        }
  });

  it('takes what the library takes', () => {
    for (const [name, row] of flagged)
      for (const value of ends(row))
        for (const way of ways(settingOf([name, row]), value)) expect(way(), `${name} ${value}`).toBe(value);
  });

  it('offers no name that the library refuses, and all that it takes', () => {
    for (const [name, row] of TABLES.flatMap((table) => Object.entries(table)))
      if (row.rule.kind === 'choice' && row.flag !== undefined)
        expect(SETTINGS[settingOf([name, row])], name).toMatchObject({ choices: row.rule.choices });
  });

  it('can read every flag: what is no text, number or name has a reader of its own', () => {
    for (const [name, row] of TABLES.flatMap((table) => Object.entries(table))) {
      if (row.flag === undefined || row.rule.kind === 'switch' || row.flag.includes('...')) continue;
      const setting: Setting = SETTINGS[settingOf([name, row])];
      expect(setting.parse ?? setting.choices, name).toBeDefined();
    }
  });

  it('has the flags of sessions and answers where sessions are opened and answers are written', () => {
    const settingsFor = (usage: string): readonly SettingName[] =>
      [...COMMANDS, ...SESSION_COMMANDS].find((command) => command.usage.split(' ')[0] === usage)!.settings;
    expect(settingsFor('run')).toEqual(
      expect.arrayContaining([
        ...settingNames(SESSION_OPTIONS),
        ...settingNames(CONTINUATION_OPTIONS),
        ...settingNames(CONVERSATION_OPTIONS),
        // It has one session, which does not wait for others.
        ...settingNames(ENGINE_OPTIONS).filter((name) => name !== 'idleSessions'),
      ]),
    );
    expect(settingsFor('serve')).toEqual(expect.arrayContaining(settingNames(ENGINE_OPTIONS)));
    for (const usage of ['start', 'park'])
      expect(settingsFor(usage)).toEqual(expect.arrayContaining(settingNames(SESSION_OPTIONS)));
  });
});

describe('docs/library.md', () => {
  it('tells the defaults that the table has', () => {
    const text = readFileSync(join(import.meta.dirname, '../../../../docs/library.md'), 'utf8');
    const rows: Table = { ...GENERATE_OPTIONS, ...CONVERSATION_OPTIONS };
    const told = new Map<string, string>();
    for (const [, names, defaults] of text.matchAll(/^\| ((?:`\w+`(?:, )?)+) \| ([^|]*) \|/gm)) {
      const all = names!.replaceAll('`', '').split(', ');
      const values = defaults!.split(', ');
      for (const [at, name] of all.entries()) told.set(name, values[values.length === all.length ? at : 0]!);
    }
    const numbers = numbersOf(rows).filter(([, row]) => row.default !== undefined);
    const named = numbers.filter(([name]) => told.has(name));
    expect(named.length).toBeGreaterThan(12);
    for (const [name, row] of named) expect(told.get(name), name).toBe(String(row.default));
    expect(told.get('atContextEnd')).toBe(`\`'${CONVERSATION_OPTIONS.atContextEnd.default}'\``);
  });
});

describe('a row that is added to a table', () => {
  const ROWS = {
    ...SESSION_OPTIONS,
    pagesAhead: {
      rule: whole(1, 8),
      default: 2,
      help: 'how many pages room is made for',
      flag: '--pages-ahead <n>',
      setting: 'ahead',
    },
  } as const;

  it('is a name that is known, and suggested', () => {
    const options = { pagesAhead: 3 };
    expect(() => checkKeys(options, ROWS, 'openSession')).not.toThrow();
    const error = refusalFrom(() => checkKeys({ pagesAhaed: 3 }, ROWS as never, 'openSession'));
    expect(error).toMatchObject({
      message: "openSession has no option 'pagesAhaed'",
      hint: 'did you mean pagesAhead?',
    });
  });

  it('is checked', () => {
    expect(refusalFrom(() => checkOptions({ pagesAhead: 9 }, ROWS))).toMatchObject({
      code: 'bad-argument',
      message: 'pagesAhead must be a whole number from 1 to 8',
      values: { pagesAhead: 9 },
      hint: 'leave it out for 2',
    });
    expect(() => checkOptions({ pagesAhead: 8 }, ROWS)).not.toThrow();
    expect(() => checkOptions({ pagesAhead: undefined }, ROWS)).not.toThrow();
  });

  it('is a flag with its range, its default and its line of the help, and comes back as the option', () => {
    const setting = settingsOf(ROWS).ahead;
    expect(settingNames(ROWS)).toContain('ahead');
    expect(setting).toMatchObject({ flags: '--pages-ahead <n>', default: 2, help: 'how many pages room is made for' });
    expect(setting.parse!('8')).toBe(8);
    for (const text of ['0', '9', '1.5', '', 'x'])
      expect(() => setting.parse!(text)).toThrow('pagesAhead must be a whole number from 1 to 8.');
    expect(optionsOf({ ahead: 8, kldBudget: 1, other: 3 }, ROWS)).toEqual({ pagesAhead: 8, kldBudget: 1 });
  });

  it('must be an option of its interface, and every option must have a row', () => {
    // @ts-expect-error: an option without a row
    const missing: Rows<ParkOptions> = {};
    // @ts-expect-error: a row without an option
    const unknown: Rows<ParkOptions> = { ...PARK_OPTIONS, more: PARK_OPTIONS.predict };
    // @ts-expect-error: a rule for values that the option cannot have
    const other: Rows<ParkOptions> = { predict: { rule: whole(0, 1), help: 'a number' } };
    expect([missing, unknown, other].map((rows) => Object.keys(rows).length)).toEqual([0, 2, 1]);
  });
});

function refusalFrom(work: () => void): unknown {
  try {
    work();
    return null;
  } catch (error) {
    return error;
  }
}
