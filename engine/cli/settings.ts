/**
 * Every flag of the command line, once: name, type, default, help. From this table come the commander options, the environment
 * variables (PALIMPSEST_ + name in capitals) and the keys of a TOML or JSON file. Precedence: flag, environment, file, default.
 */
import { readFileSync } from 'node:fs';
import { type Command, InvalidArgumentError, Option } from 'commander';
import { parse as parseToml } from 'smol-toml';
import { ISA_NAMES, KvError } from '../../native/index.ts';

export interface Setting {
  readonly flags: string;
  readonly help: string;
  readonly default?: string | number | boolean;
  readonly choices?: readonly string[];
  readonly parse?: (text: string) => unknown;
}

const bounded = (least: number, most: number, whole: boolean) => (text: string) => {
  const value = Number(text);
  if (text.trim() === '' || !Number.isFinite(value) || value < least || value > most || (whole && !Number.isInteger(value))) {
    throw new InvalidArgumentError(`expected ${whole ? 'a whole number' : 'a number'} from ${least} to ${most}.`);
  }
  return value;
};
export const whole = (least: number, most: number) => bounded(least, most, true);
export const real = (least: number, most: number) => bounded(least, most, false);

/** '0,3-5' → [0, 3, 4, 5] */
export function layerList(text: string): number[] {
  const layers = new Set<number>();
  for (const part of text.split(/[\s,]+/).filter((piece) => piece !== '')) {
    const match = /^(\d{1,4})(?:-(\d{1,4}))?$/.exec(part);
    const from = Number(match?.[1]);
    const to = Number(match?.[2] ?? match?.[1]);
    if (match === null || to < from) throw new InvalidArgumentError(`'${part}' is not a layer or a range such as 0-3.`);
    for (let layer = from; layer <= to; layer++) layers.add(layer);
  }
  return [...layers].sort((a, b) => a - b);
}

export const SETTINGS = {
  config: { flags: '--config <file>', help: 'TOML or JSON file with these flags as keys' },
  model: { flags: '-m, --model <path|name>', help: "model folder, .gguf file, or 'reference', 'smollm2-135m'" },
  prompt: { flags: '-p, --prompt <file|->', help: 'file with the prompt; - reads standard input' },
  kvBudget: { flags: '--kv-budget <bytes|%>', help: 'KV bytes (64MiB) or share of the f16 cache of prompt + max tokens (25%)' },
  kldBudget: { flags: '--kld-budget <nats>', help: 'mean divergence that may be spent instead of bytes', parse: real(0, 10) },
  maxTokens: { flags: '-n, --max-tokens <n>', help: 'tokens to generate at most', default: 128, parse: whole(1, 1_000_000) },
  chat: { flags: '--chat', help: 'use the chat template; on a terminal, go on turn by turn' },
  system: { flags: '--system <text>', help: 'system message of a chat' },
  cacheTypeK: { flags: '--cache-type-k <type>', help: 'fixed format of keys: f16 q8 rot4 rot3 rot2' },
  cacheTypeV: { flags: '--cache-type-v <type>', help: 'fixed format of values' },
  skipLayers: { flags: '--kv-cache-dtype-skip-layers <list>', help: 'layers that stay in the window format, e.g. 0,28-29', parse: layerList },
  policy: { flags: '--policy <id>', help: 'price (default), uniform, age, table, fixed, none' },
  seed: { flags: '--seed <n>', help: 'seed of sampling and of generated documents', default: 0, parse: whole(0, 2 ** 31) },
  temperature: { flags: '--temperature <t>', help: '0 = greedy', default: 0, parse: real(0, 10) },
  topP: { flags: '--top-p <p>', help: 'nucleus of the sampling', default: 1, parse: real(0, 1) },
  stop: { flags: '--stop <text...>', help: 'end the answer at this text' },
  threads: { flags: '-t, --threads <n>', help: 'threads (default: all cores)', parse: whole(1, 256) },
  isa: { flags: '--isa <name>', help: 'force an instruction set of the kernels', choices: ISA_NAMES },
  dense: { flags: '--dense <precision>', help: 'weights: auto (8-bit where represented well; default) or exact (f32; default of evaluate)', choices: ['auto', 'exact'] },
  compare: { flags: '--compare', help: 'also run the exact cache on the same tokens and print the divergence' },
  state: { flags: '--state <dir>', help: 'folder of log, indexes and learned thresholds', default: '.palimpsest' },
  cache: { flags: '--cache <dir>', help: 'folder of fetched models', default: '.cache' },
  onLogFailure: { flags: '--on-log-failure <mode>', help: 'when the log cannot be written: block, halt, drop', default: 'block', choices: ['block', 'halt', 'drop'] },
  thresholds: { flags: '--thresholds <file>', help: 'start from this threshold file instead of what was learned here' },
  progress: { flags: '--progress <kind>', help: 'bar, jsonl (one object a line on stderr) or none', default: 'bar', choices: ['bar', 'jsonl', 'none'] },
  json: { flags: '--json', help: 'last line of stdout is one JSON object' },
  text: { flags: '--text <file...>', help: 'texts to evaluate on' },
  tokens: { flags: '--tokens <n>', help: 'length of the document or window', parse: whole(256, 10_000_000) },
  windows: { flags: '--windows <n>', help: 'windows per text', default: 1, parse: whole(1, 1000) },
  caches: { flags: '--caches <list>', help: 'caches to evaluate: K:V pairs and policy@budget, e.g. q8,rot4:rot2,price@25%' },
  recall: { flags: '--recall <documents>', help: 'recall documents (five questions each) per cache', default: 0, parse: whole(0, 1000) },
  database: { flags: '--database <url>', help: 'postgres:// URL of the audit index (default: embedded, in the state folder)' },
} as const satisfies Record<string, Setting>;

export type SettingName = keyof typeof SETTINGS;

/** 'kvBudget' → --kv-budget's attribute in commander and its file key 'kv-budget'. */
const longName = (name: SettingName): string => /--([a-z-]+)/.exec(SETTINGS[name].flags)![1]!;
export const environmentName = (name: SettingName): string => `PALIMPSEST_${longName(name).replaceAll('-', '_').toUpperCase()}`;

/** Adds settings to a command; each says its environment variable in the help. */
export function addSettings(command: Command, names: readonly SettingName[]): Command {
  for (const name of names) {
    const setting: Setting = SETTINGS[name];
    const option = new Option(setting.flags, setting.help).env(environmentName(name));
    if (setting.default !== undefined) option.default(setting.default);
    if (setting.choices !== undefined) option.choices([...setting.choices]);
    else if (setting.parse !== undefined) option.argParser(setting.parse);
    command.addOption(option);
  }
  return command;
}

/** Values of a command by setting name, with the file of --config underneath flags and environment. */
export function readSettings(command: Command): Partial<Record<SettingName, unknown>> {
  const given = command.optsWithGlobals() as Record<string, unknown>;
  const file = typeof given['config'] === 'string' ? readFile(given['config']) : {};
  const result: Partial<Record<SettingName, unknown>> = {};
  const known = new Map((Object.keys(SETTINGS) as SettingName[]).map((name) => [longName(name), name]));
  const attribute = (long: string): string => long.replaceAll(/-([a-z])/g, (_, letter: string) => letter.toUpperCase());
  for (const [long, name] of known) {
    const key = attribute(long);
    if (given[key] !== undefined) result[name] = given[key];
  }
  for (const [key, value] of Object.entries(file)) {
    const name = known.get(key);
    if (name === undefined) {
      throw new KvError('bad-config', `unknown setting '${key}'`, { values: { file: given['config'], known: [...known.keys()].join(' ') }, hint: 'use the names of the flags without the dashes' });
    }
    const source = command.getOptionValueSourceWithGlobals(attribute(key));
    if (source === 'cli' || source === 'env') continue;
    result[name] = checked(name, key, value);
  }
  return result;
}

function checked(name: SettingName, key: string, value: unknown): unknown {
  const setting: Setting = SETTINGS[name];
  const bad = (why: string): never => {
    throw new KvError('bad-config', `setting '${key}': ${why}`, { values: { value }, hint: setting.help });
  };
  if (setting.choices !== undefined && !setting.choices.includes(String(value))) return bad(`must be one of ${setting.choices.join(', ')}`);
  if (!setting.flags.includes('<')) return typeof value === 'boolean' ? value : bad('must be true or false');
  if (setting.flags.includes('...')) return Array.isArray(value) ? value.map(String) : [String(value)];
  if (setting.parse === undefined) return typeof value === 'string' || typeof value === 'number' ? String(value) : bad('must be text');
  try {
    return setting.parse(Array.isArray(value) ? value.join(',') : String(value));
  } catch (error) {
    return bad((error as Error).message);
  }
}

function readFile(path: string): Record<string, unknown> {
  let text: string;
  try {
    text = readFileSync(path, 'utf8');
  } catch (cause) {
    throw new KvError('not-found', `cannot read the settings file ${path}`, { values: { path }, cause });
  }
  try {
    const value: unknown = path.endsWith('.json') ? JSON.parse(text) : parseToml(text);
    if (typeof value !== 'object' || value === null || Array.isArray(value)) throw new Error('not a table');
    return value as Record<string, unknown>;
  } catch (cause) {
    throw new KvError('bad-config', `${path} is neither TOML nor JSON: ${(cause as Error).message.split('\n')[0]}`, { values: { path }, cause });
  }
}
