/**
 * Every setting of the command line with its name, type, default and help: those that are options of the library come
 * from the tables of options, the others are here. The options of commander, the environment variables (PALIMPSEST_ and
 * the name in capitals) and the keys of a TOML or JSON file are all made from this. A flag takes precedence over the
 * environment, the environment over the file, and the file over the default.
 */
import { type Command, Option } from 'commander';
import { checkOption, KvError, parseJson, parsePair, readRegular, unknownName } from '../../native/index.ts';
import { FORMS } from '../../policy/index.ts';
import { COUNT_KEYS, parseRange, WITHOUT } from '../../witness/index.ts';
import { LEVELS } from '../events/table.ts';
import { ANSWERS_OPTIONS } from '../openai/options.ts';
import { parseBudget, parseBytes } from '../options/parse-budget.ts';
import {
  CONTINUATION_OPTIONS,
  ENGINE_OPTIONS,
  GENERATE_OPTIONS,
  PARK_OPTIONS,
  SESSION_OPTIONS,
} from '../options/table.ts';
import { parseTable } from '../options/table-file.ts';
import { SERVE_OPTIONS } from '../serve/options.ts';
import { CONVERSATION_OPTIONS } from '../thread/chat-options.ts';
import { parseSample } from '../trace/sample.ts';
import { WRITTEN_TYPES } from '../transformer/convert/quantize.ts';
import { layerList } from './layer-list.ts';
import { settingsOf } from './option-settings.ts';
import { type Setting, whole } from './setting.ts';
import { TIER_READERS } from './tier-settings.ts';

/** Throws if this is not a budget for any length of prompt. Its bytes are computed when the length is known. */
const budget = (text: string): string => {
  parseBudget(text, 2 ** 40);
  return text;
};

/** Throws if this is not a size for the option of this name. */
const size =
  (option: string) =>
  (text: string): string => {
    parseBytes(text, option);
    return text;
  };

/** Throws if this is not a sample. Whether a model has so many layers is seen when it is loaded. */
const sample = (text: string): string => {
  parseSample(text);
  return text;
};

/** What the library takes: a number or a word. */
const activations = (text: string): 16 | 'auto' => {
  const bits = text === 'auto' ? text : Number(text);
  checkOption('activations', ENGINE_OPTIONS.activations, bits);
  return bits as 16 | 'auto';
};

/** Refuses an empty path, which would be the current folder and most likely comes from a variable that is not set. */
const folder = (text: string): string => {
  if (text === '') throw new KvError('bad-config', 'a folder needs a name', { values: { given: text } });
  return text;
};

/** Throws if this is not one of our formats. options.ts combines those of K and V. */
const cacheType = (text: string): string => {
  parsePair(text);
  return text;
};

/** Throws if this is no range; the text stays, for it is read where it is used. */
const wholeRange = (text: string): string => {
  parseRange(text);
  return text;
};
const realRange = (text: string): string => {
  parseRange(text, true);
  return text;
};

export const SETTINGS = {
  config: { flags: '--config <file>', help: 'TOML or JSON file with these flags as keys' },
  ...settingsOf(ENGINE_OPTIONS, { state: folder, activations }),
  ...settingsOf(SESSION_OPTIONS, {
    kvBudget: budget,
    cacheTypeK: cacheType,
    cacheTypeV: cacheType,
    skipLayers: layerList,
    originalsBytes: size('originalsBytes'),
    ...TIER_READERS,
  }),
  ...settingsOf(GENERATE_OPTIONS),
  ...settingsOf(CONTINUATION_OPTIONS),
  ...settingsOf(CONVERSATION_OPTIONS),
  ...settingsOf(PARK_OPTIONS),
  ...settingsOf(SERVE_OPTIONS),
  ...settingsOf(ANSWERS_OPTIONS),
  view: { flags: '--view', help: 'show the log of the state folder that others write, and load no model' },
  prompt: { flags: '-p, --prompt <file|->', help: 'file with the prompt; - reads standard input' },
  chat: { flags: '--chat', help: 'use the chat template; on a terminal, go on turn by turn' },
  messages: {
    flags: '--chat, --messages <file>',
    help: 'JSON of a conversation, as an OpenAI server takes it: print its prompt and token ids',
  },
  compare: { flags: '--compare', help: 'also run the exact cache on the same tokens and print the divergence' },
  report: { flags: '--report <file>', help: 'also write what the session did as a page of HTML' },
  receiptFile: { flags: '--receipt <file>', help: 'also write a receipt of the answer, which `verify` proves' },
  log: { flags: '--log <dir>', help: 'the log that a receipt names (default: that of the state folder)' },
  request: { flags: '--request <file>', help: 'what was asked, where the file of the receipt does not have it' },
  masterKey: {
    flags: '--master-key <key...>',
    help: 'file of the key that wraps the keys of sessions in the log (or its 64 hexadecimal digits, best in the environment); older ones behind it',
  },
  key: { flags: '--key <file>', help: 'private key that signs' },
  trustedKey: {
    flags: '--trusted-key <file...>',
    help: 'public keys; only files that one of them signed are taken',
  },
  disclose: { flags: '--disclose', help: 'the proof also gives the plain body of an encrypted entry, and of no other' },
  against: { flags: '--against <file...>', help: 'files of checkpoints that were kept outside of the log' },
  progress: {
    flags: '--progress <kind>',
    help: 'bar, jsonl (one object a line on stderr) or none',
    default: 'bar',
    choices: ['bar', 'jsonl', 'none'],
  },
  logLevel: {
    flags: '--log-level <level>',
    help: 'events of the engine on stderr from this level on; with --json or --progress jsonl as objects',
    default: 'error',
    choices: LEVELS,
  },
  json: { flags: '--json', help: 'the last line of stdout is one line of JSON' },
  text: { flags: '--text <file...>', help: 'texts to evaluate or calibrate on' },
  tokens: { flags: '--tokens <n>', help: 'length of the document or window', parse: whole(256, 10_000_000) },
  sessions: { flags: '--sessions <n>', help: 'sessions at once', parse: whole(1, 1_000_000) },
  windows: { flags: '--windows <n>', help: 'windows per text', default: 1, parse: whole(1, 1000) },
  longTokens: {
    flags: '--long-tokens <n>',
    help: 'length of the windows that show how divergence grows with it; 0: none (default: 4096, or the context)',
    parse: whole(0, 10_000_000),
  },
  caches: {
    flags: '--caches <list>',
    help: 'caches to evaluate: K:V pairs, policy@budget, and methods of palimpsest-lab, e.g. q8,rot4:rot2,price@25%,kvquant3',
  },
  park: { flags: '--park', help: 'park the session again when it has answered' },
  predictor: {
    flags: '--predictor',
    help: 'instead of measuring formats, fit what parked pages are predicted by; give texts of many kinds',
  },
  output: { flags: '-o, --output <file>', help: 'the file to write' },
  type: {
    flags: '--type <type>',
    help: 'the type of matrices in the file (default: each as the folder has it)',
    choices: WRITTEN_TYPES,
  },
  sample: {
    flags: '--sample <counts>',
    help: 'how many layers, KV heads and queries of a page to record (default: layers and heads as many as fit, queries=32), e.g. layers=10,heads=2,queries=64',
    parse: sample,
  },
  maxBytes: {
    flags: '--max-bytes <bytes>',
    help: 'most bytes of the trace (256MiB)',
    default: '256MiB',
    parse: size('maxBytes'),
  },
  measure: {
    flags: '--measure <list>',
    help: 'caches that really run over the same tokens, for comparison with simulations, e.g. price@25%,uniform@25%',
  },
  trace: { flags: '--trace <file...>', help: 'traces to simulate over' },
  recall: {
    flags: '--recall <documents>',
    help: 'recall documents (five questions each) per cache',
    default: 0,
    parse: whole(0, 1000),
  },
  database: {
    flags: '--database <url>',
    help: 'postgres:// URL of the SQL tables (default: embedded, in the state folder)',
  },
  checkRows: { flags: '--check-rows', help: 'compare every row of the tables with the log before they answer' },
  session: { flags: '--session <id>', help: 'only this session; simulate: compare with what it measured' },
  layer: { flags: '--layer <n>', help: 'only this layer', parse: whole(0, 9999) },
  page: { flags: '--page <n>', help: 'only this page', parse: whole(0, 1_000_000) },
  ofModel: { flags: '--of-model <name>', help: 'only sessions of this model, by its name or digest' },
  from: { flags: '--from <format>', help: 'only pages that were in this format', choices: FORMS },
  to: {
    flags: '--to <format>',
    help: 'only moves to this format; freed: pages that were let go',
    choices: [...FORMS, 'freed'],
  },
  side: {
    flags: '--side <k|v|kv>',
    help: 'only keys, only values, or only whole pages: latents, and pages let go',
    choices: ['k', 'v', 'kv'],
  },
  reason: { flags: '--reason <rule>', help: 'only this rule or threshold, e.g. deficit, price' },
  threshold: { flags: '--threshold <id>', help: 'only this threshold, e.g. pressure.critical' },
  epsilonFrom: {
    flags: '--epsilon-from <range>',
    help: 'predicted error in the format before: 0.01, 1e-3..0.02, 0.05..',
    parse: realRange,
  },
  epsilonTo: { flags: '--epsilon-to <range>', help: 'predicted error in the format after', parse: realRange },
  epsilonNow: { flags: '--epsilon-now <range>', help: 'error measured just before the move', parse: realRange },
  bytes: { flags: '--bytes <range>', help: 'bytes that the move was to free: 4096.., ..8192', parse: wholeRange },
  since: { flags: '--since <time>', help: '30m, 2h or 7d ago, or a date: 2026-01-31T13:05' },
  until: { flags: '--until <time>', help: 'the same' },
  step: { flags: '--step <range>', help: 'only at these token counts: 384, 100..200, 100..', parse: wholeRange },
  refused: { flags: '--refused', help: 'only moves that their trial refused' },
  olderThan: { flags: '--older-than <age>', help: 'sessions that ended longer ago: 90d, 12h, or before a date' },
  maxSize: {
    flags: '--max-size <bytes>',
    help: 'while the log takes more than this: 1GB, 500MiB',
    parse: size('maxSize'),
  },
  dryRun: { flags: '--dry-run', help: 'only say what would be done' },
  yes: { flags: '--yes', help: 'do it without asking' },
  canary: { flags: '--canary', help: 'only for sessions that ask for it' },
  release: { flags: '--release', help: 'end the hold instead of beginning it' },
  by: { flags: '--by <what>', help: 'what decisions are counted by', default: 'layer', choices: COUNT_KEYS },
  without: {
    flags: '--without <what>',
    help: 'decide as if the session had not known this of others',
    choices: WITHOUT,
  },
  format: {
    flags: '--format <form>',
    help: 'table, jsonl (one object a line) or csv',
    default: 'table',
    choices: ['table', 'jsonl', 'csv'],
  },
  once: { flags: '--once', help: 'print it once and end' },
  intervalSeconds: {
    flags: '--interval <seconds>',
    help: 'how often it is looked at',
    default: 2,
    parse: whole(1, 3600),
  },
  url: {
    flags: '--url <url>',
    help: 'where an engine or palimpsest serve --metrics answers, for what only a running engine knows',
  },
  exitStatus: { flags: '--exit-status', help: 'exit with 3 when nothing was found' },
  limit: {
    flags: '--limit <n>',
    help: 'how many (default: 20, with --format jsonl or csv all; similar: 5; query: 1000)',
    parse: whole(1, 100_000),
  },
} as const satisfies Record<string, Setting>;

export type SettingName = keyof typeof SETTINGS;

/** The name of a setting's flag, without the dashes, and of its key in a file: 'kv-budget' for 'kvBudget'. */
export const keyName = (name: SettingName): string => /--([a-z-]+)(?!.*--)/.exec(SETTINGS[name].flags)![1]!;
export const environmentName = (name: SettingName): string =>
  `PALIMPSEST_${keyName(name).replaceAll('-', '_').toUpperCase()}`;
/** How the variables of the project's own tests begin. */
const OTHER_VARIABLES = /^PALIMPSEST_(TEST_\w+|SIM_SEED|KILL_ROUNDS)$/;

/**
 * Throws KvError 'bad-config' for a variable that begins like ours but is not a setting, because a misspelt one would
 * have no effect.
 */
function checkEnvironment(environment: Readonly<Record<string, string | undefined>>): void {
  const known = (Object.keys(SETTINGS) as SettingName[]).map(environmentName);
  for (const name of Object.keys(environment))
    if (name.startsWith('PALIMPSEST_') && !known.includes(name) && !OTHER_VARIABLES.test(name))
      throw unknownName('bad-config', 'there is no setting for the environment variable', name, known);
}

const attribute = (key: string): string => key.replaceAll(/-([a-z])/g, (_, letter: string) => letter.toUpperCase());

/** Defaults of one command that are not those of the settings. */
export type OwnDefaults = Readonly<Partial<Record<SettingName, string | number>>>;

/** repeats: settings that may be given several times, whose value is then a list. */
export function addSettings(
  command: Command,
  names: readonly SettingName[],
  own: OwnDefaults = {},
  repeats: readonly SettingName[] = [],
): Command {
  for (const name of names) {
    const setting: Setting = SETTINGS[name];
    const option = new Option(setting.flags, setting.help);
    const value = own[name] ?? setting.default;
    if (value !== undefined) option.default(value);
    if (setting.choices !== undefined) option.choices([...setting.choices]);
    else if (setting.parse !== undefined) option.argParser(setting.parse);
    if (repeats.includes(name)) option.argParser<string[] | undefined>((one, before) => [...(before ?? []), one]);
    command.addOption(option);
  }
  return command;
}

/**
 * The values of a command's settings: from the flag, else the environment, else the file of --config, else the default.
 * The file may contain keys of other commands. An empty variable counts as not set. Throws KvError 'bad-config',
 * 'not-found', 'io'.
 */
export function readSettings(
  command: Command,
  environment: Readonly<Record<string, string | undefined>>,
): Partial<Record<SettingName, unknown>> {
  checkEnvironment(environment);
  const own = new Set(command.options.map((option) => option.long));
  const given = command.opts() as Record<string, unknown>;
  const fromEnvironment = (name: SettingName): string | undefined => environment[environmentName(name)] || undefined;
  const path = (given['config'] as string | undefined) ?? (own.has('--config') ? fromEnvironment('config') : undefined);
  const file = path === undefined ? new Map<SettingName, unknown>() : readFile(path);
  const result: Partial<Record<SettingName, unknown>> = {};
  for (const name of Object.keys(SETTINGS) as SettingName[]) {
    const key = keyName(name);
    if (!own.has(`--${key}`)) continue;
    const variable = fromEnvironment(name);
    if (command.getOptionValueSource(attribute(key)) === 'cli') result[name] = given[attribute(key)];
    else if (variable !== undefined) result[name] = fromVariable(name, variable);
    else if (file.has(name)) result[name] = checked(name, `setting '${key}' of ${path}`, file.get(name));
    else if (given[attribute(key)] !== undefined) result[name] = given[attribute(key)];
  }
  return result;
}

const TRUTH: Readonly<Record<string, boolean>> = {
  '1': true,
  true: true,
  yes: true,
  on: true,
  '0': false,
  false: false,
  no: false,
  off: false,
};

/** Parses the text of an environment variable. A switch is 1 or 0, and a list is one value or a JSON array. */
function fromVariable(name: SettingName, text: string): unknown {
  const where = `environment variable ${environmentName(name)}`;
  const { flags }: Setting = SETTINGS[name];
  if (!flags.includes('<')) return checked(name, where, TRUTH[text.toLowerCase()] ?? text);
  if (!flags.includes('...') || !text.startsWith('[')) return checked(name, where, text);
  return checked(name, where, parseJson(Buffer.from(text), { what: where, code: 'bad-config' }));
}

function checked(name: SettingName, where: string, value: unknown): unknown {
  const setting: Setting = SETTINGS[name];
  const bad = (why: string): never => {
    throw new KvError('bad-config', `${where}: ${why}`, {
      values: { value },
      hint: `--${keyName(name)}: ${setting.help}`,
    });
  };
  const scalar = (item: unknown): item is string | number =>
    typeof item === 'string' || typeof item === 'number' || typeof item === 'bigint';
  if (!setting.flags.includes('<')) return typeof value === 'boolean' ? value : bad('must be true or false');
  const list = setting.flags.includes('...') || setting.flags.includes('<list>');
  if (!(list && Array.isArray(value) ? value.every(scalar) : scalar(value)))
    return bad(list ? 'must be text, or a list of texts' : 'must be text or a number');
  if (setting.flags.includes('...')) return Array.isArray(value) ? value.map(String) : [String(value)];
  const text = Array.isArray(value) ? value.join(',') : String(value);
  if (setting.choices !== undefined)
    return setting.choices.includes(text) ? text : bad(`must be one of ${setting.choices.join(', ')}`);
  if (setting.parse === undefined) return text;
  try {
    return setting.parse(text);
  } catch (error) {
    return bad((error as Error).message);
  }
}

/** The largest settings file. A file with all settings has 3 KB. */
const FILE_BYTES_MAX = 2 ** 20;

function readFile(path: string): Map<SettingName, unknown> {
  const content = readRegular(path, { bytesMax: FILE_BYTES_MAX, code: 'bad-config' });
  const table = parseTable(path, content);
  const known = new Map(
    (Object.keys(SETTINGS) as SettingName[]).filter((name) => name !== 'config').map((name) => [keyName(name), name]),
  );
  const result = new Map<SettingName, unknown>();
  for (const [key, value] of Object.entries(table)) {
    const name = known.get(key);
    if (name === undefined) throw unknownName('bad-config', `${path} has an unknown setting`, key, [...known.keys()]);
    result.set(name, value);
  }
  return result;
}
