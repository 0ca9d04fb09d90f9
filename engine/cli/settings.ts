/**
 * Every setting of the command line with its name, type, default and help. The options of commander, the environment variables
 * (PALIMPSEST_ and the name in capitals) and the keys of a TOML or JSON file are all made from this table. A flag takes precedence over
 * the environment, the environment over the file, and the file over the default.
 */
import { type Command, InvalidArgumentError, Option } from 'commander';
import { parse as parseToml } from 'smol-toml';
import {
  FORMAT_NAMES,
  ISA_NAMES,
  isWindowTokens,
  KvError,
  LATENT_NAMES,
  parsePair,
  readRegular,
  unknownName,
  WINDOW_TOKENS,
  WINDOW_TOKENS_RULE,
} from '../../native/index.ts';
import { FORMS, policies } from '../../policy/index.ts';
import { COUNT_KEYS, parseRange } from '../../witness/index.ts';
import { parseBudget } from '../cache/budget.ts';
import { parseSample } from '../trace/sample.ts';
import { SAMPLING_SETTINGS } from './sampling-settings.ts';
import { real, type Setting, whole } from './setting.ts';

/** Throws if this is not a budget for any length of prompt. Its bytes are computed when the length is known. */
const budget = (text: string): string => {
  parseBudget(text, 2 ** 40);
  return text;
};

/** Throws if this is not a sample. Whether a model has so many layers is seen when it is loaded. */
const sample = (text: string): string => {
  parseSample(text);
  return text;
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

function windowTokens(text: string): number {
  const tokens = Number(text);
  if (!isWindowTokens(tokens)) throw new InvalidArgumentError(`${WINDOW_TOKENS_RULE}.`);
  return tokens;
}

/** Parses a list of layers: '0,3-5' is [0, 3, 4, 5]. */
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

/** Throws if this is no range; the text stays, for it is read where it is used. */
const wholeRange = (text: string): string => {
  parseRange(text);
  return text;
};
const realRange = (text: string): string => {
  parseRange(text, true);
  return text;
};

/** The policies except `table`, because no flag can hold its formats for each layer. */
const POLICIES: readonly string[] = Object.keys(policies).filter((id) => id !== 'table');

export const SETTINGS = {
  config: { flags: '--config <file>', help: 'TOML or JSON file with these flags as keys' },
  model: {
    flags: '-m, --model <path|name>',
    help: "model folder, .gguf file, 'reference', 'smollm2-135m', hf:ORG/REPO[:FILE] or ollama:NAME[:TAG]",
  },
  prompt: { flags: '-p, --prompt <file|->', help: 'file with the prompt; - reads standard input' },
  kvBudget: {
    flags: '--kv-budget <bytes|%>',
    help: 'KV bytes (64MiB) or share of the f16 cache of prompt + max tokens (25%)',
    parse: budget,
  },
  kldBudget: {
    flags: '--kld-budget <nats>',
    help: 'mean divergence that may be spent instead of bytes',
    parse: real(0, 10),
  },
  stepLatencyBudget: {
    flags: '--step-latency-budget <ms>',
    help: 'p95 of decode steps above which pages move only when they must',
    parse: real(0.001, 1_000_000),
  },
  maxTokens: {
    flags: '-n, --max-tokens <n>',
    help: 'tokens to generate at most',
    default: 128,
    parse: whole(1, 1_000_000),
  },
  chat: { flags: '--chat', help: 'use the chat template; on a terminal, go on turn by turn' },
  system: { flags: '--system <text>', help: 'system message of a chat' },
  atContextEnd: {
    flags: '--at-context-end <choice>',
    help: 'a chat that fills its context: refuse the question, drop-oldest turns, or compress older pages within the same bytes',
    choices: ['refuse', 'drop-oldest', 'compress'],
  },
  contextTokens: {
    flags: '--context-tokens <n>',
    help: 'where the context of a chat ends (default: that of the model, or what the budget holds)',
    parse: whole(1, 1_000_000),
  },
  cacheTypeK: {
    flags: '--cache-type-k <type>',
    help: `fixed format of keys (${FORMAT_NAMES.join(' ')}), or a K:V pair`,
    parse: cacheType,
  },
  cacheTypeV: {
    flags: '--cache-type-v <type>',
    help: 'fixed format of values; of two, the one left out is f16',
    parse: cacheType,
  },
  skipLayers: {
    flags: '--kv-cache-dtype-skip-layers <list>',
    help: 'layers that stay in the window format, e.g. 0,28-29',
    parse: layerList,
  },
  openFormat: {
    flags: '--open-format <type>',
    help: 'format of the page that tokens are appended to: q8 or f16 (default: q8 under a budget of bytes, else f16)',
    choices: ['f16', 'q8'],
  },
  windowTokens: {
    flags: '--window-tokens <n>',
    help: `newer tokens that keep a sealed page in the window: ${WINDOW_TOKENS.join(' or ')} (default: 128, or 64 under a small budget)`,
    parse: windowTokens,
  },
  latents: {
    flags: '--latents <type>',
    help: 'keep layer inputs, which pages may become: xq8, xq4 or xq3 (pays where every query head has its own KV head)',
    choices: LATENT_NAMES,
  },
  policy: {
    flags: '--policy <id>',
    help: 'what moves pages (default: price under a budget)',
    choices: POLICIES,
  },
  ...SAMPLING_SETTINGS,
  completions: {
    flags: '--completions <n>',
    help: 'answers to one prompt, which is read once; each has the next seed',
    default: 1,
    parse: whole(1, 256),
  },
  stop: { flags: '--stop <text...>', help: 'end the answer at this text' },
  threads: { flags: '-t, --threads <n>', help: 'threads (default: all cores it may use)', parse: whole(1, 256) },
  isa: { flags: '--isa <name>', help: 'force an instruction set of the kernels', choices: ISA_NAMES },
  binding: {
    flags: '--binding <name>',
    help: 'force where the kernels come from (default: the first of these that is there)',
    choices: ['built', 'prebuilt', 'wasm'],
  },
  dense: {
    flags: '--dense <precision>',
    help: 'weights: auto (quantized ones as in the file, others in 8 bits; default) or exact (f32; default of evaluate)',
    choices: ['auto', 'exact'],
  },
  compare: { flags: '--compare', help: 'also run the exact cache on the same tokens and print the divergence' },
  report: { flags: '--report <file>', help: 'also write what the session did as a page of HTML' },
  state: {
    flags: '--state <dir>',
    help: 'folder of log, indexes and learned thresholds',
    default: '.palimpsest',
    parse: folder,
  },
  masterKey: {
    flags: '--master-key <key...>',
    help: 'file of the key that wraps the keys of sessions in the log (or its 64 hexadecimal digits, best in the environment); older ones behind it',
  },
  cache: { flags: '--cache <dir>', help: 'folder of fetched models', default: '.cache' },
  offline: { flags: '--offline', help: 'ask nothing of the network for a model (as HF_HUB_OFFLINE=1)' },
  qdrantUrl: {
    flags: '--qdrant-url <url>',
    help: 'Qdrant server where sessions are shared with other machines (default: none)',
  },
  qdrantApiKey: { flags: '--qdrant-api-key <key>', help: 'its key; better given in the environment or a file' },
  qdrantCollection: {
    flags: '--qdrant-collection <name>',
    help: 'what the names of its collections begin with (default: palimpsest)',
  },
  onLogFailure: {
    flags: '--on-log-failure <mode>',
    help: 'when the log cannot be written',
    default: 'block',
    choices: ['block', 'halt', 'drop'],
  },
  logRules: {
    flags: '--log-rules <file>',
    help: 'JSON list of what must not be written to the log: [{"action": "mask", "path": "model.name"}]',
  },
  thresholds: { flags: '--thresholds <file>', help: 'start from this threshold file instead of what was learned here' },
  anchor: {
    flags: '--anchor <where...>',
    help: 'where signed checkpoints of the log go: a file outside of the state folder, stdout, a URL of http, https or postgres',
  },
  anchorKey: { flags: '--anchor-key <file>', help: 'private key that signs them' },
  key: { flags: '--key <file>', help: 'private key that signs' },
  trustedKey: {
    flags: '--trusted-key <file...>',
    help: 'public keys; only files that one of them signed are taken',
  },
  against: { flags: '--against <file...>', help: 'files of checkpoints that were kept outside of the log' },
  progress: {
    flags: '--progress <kind>',
    help: 'bar, jsonl (one object a line on stderr) or none',
    default: 'bar',
    choices: ['bar', 'jsonl', 'none'],
  },
  host: {
    flags: '--host <address>',
    help: 'address to listen on (default: 127.0.0.1; others need --token-file)',
  },
  port: { flags: '--port <n>', help: 'port to listen on; 0: any that is free', default: 9470, parse: whole(0, 65_535) },
  metrics: { flags: '--metrics', help: 'serve /metrics for Prometheus' },
  tokenFile: { flags: '--token-file <file>', help: 'file with the token that whoever asks must send' },
  allowOrigin: {
    flags: '--allow-origin <origin>',
    help: 'the one origin whose pages may read answers (default: none)',
  },
  json: { flags: '--json', help: 'the last line of stdout is one line of JSON' },
  text: { flags: '--text <file...>', help: 'texts to evaluate or calibrate on' },
  tokens: { flags: '--tokens <n>', help: 'length of the document or window', parse: whole(256, 10_000_000) },
  windows: { flags: '--windows <n>', help: 'windows per text', default: 1, parse: whole(1, 1000) },
  caches: {
    flags: '--caches <list>',
    help: 'caches to evaluate: K:V pairs, policy@budget, and methods of palimpsest-lab, e.g. q8,rot4:rot2,price@25%,kvquant3',
  },
  park: { flags: '--park', help: 'park the session again when it has answered' },
  predict: {
    flags: '--predict',
    help: 'park pages predicted from layer to layer: far fewer bytes, and a small error (needs calibrate --predictor, except for the model reference)',
  },
  predictor: {
    flags: '--predictor',
    help: 'instead of measuring formats, fit what parked pages are predicted by; give texts of many kinds',
  },
  output: { flags: '-o, --output <file>', help: 'the file to write' },
  sample: {
    flags: '--sample <counts>',
    help: 'how many layers, KV heads and queries of a page to record (default: layers and heads as many as fit, queries=32), e.g. layers=10,heads=2,queries=64',
    parse: sample,
  },
  maxBytes: {
    flags: '--max-bytes <bytes>',
    help: 'most bytes of the trace (256MiB)',
    default: '256MiB',
    parse: budget,
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
  to: { flags: '--to <format>', help: 'only moves to this format', choices: FORMS },
  side: { flags: '--side <k|v|kv>', help: 'only keys, only values, or only latents', choices: ['k', 'v', 'kv'] },
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
  maxSize: { flags: '--max-size <bytes>', help: 'while the log takes more than this: 1GB, 500MiB' },
  dryRun: { flags: '--dry-run', help: 'only say what would be done' },
  yes: { flags: '--yes', help: 'do it without asking' },
  release: { flags: '--release', help: 'end the hold instead of beginning it' },
  by: { flags: '--by <what>', help: 'what decisions are counted by', default: 'layer', choices: COUNT_KEYS },
  format: {
    flags: '--format <form>',
    help: 'table, jsonl (one object a line) or csv',
    default: 'table',
    choices: ['table', 'jsonl', 'csv'],
  },
  exitStatus: { flags: '--exit-status', help: 'exit with 3 when nothing was found' },
  limit: { flags: '--limit <n>', help: 'how many (default: 20; similar: 5; query: 1000)', parse: whole(1, 100_000) },
} as const satisfies Record<string, Setting>;

export type SettingName = keyof typeof SETTINGS;

/** The name of a setting's flag, without the dashes, and of its key in a file: 'kv-budget' for 'kvBudget'. */
export const keyName = (name: SettingName): string => /--([a-z-]+)(?!.*--)/.exec(SETTINGS[name].flags)![1]!;
export const environmentName = (name: SettingName): string =>
  `PALIMPSEST_${keyName(name).replaceAll('-', '_').toUpperCase()}`;
/** How the variables of the project's own tests begin. */
const OTHER_VARIABLES = /^PALIMPSEST_(TEST_\w+|SIM_SEED|KILL_ROUNDS)$/;

/** Throws KvError 'bad-config' for a variable that begins like ours but is not a setting, because a misspelt one would have no effect. */
function checkEnvironment(environment: Readonly<Record<string, string | undefined>>): void {
  const known = (Object.keys(SETTINGS) as SettingName[]).map(environmentName);
  for (const name of Object.keys(environment))
    if (name.startsWith('PALIMPSEST_') && !known.includes(name) && !OTHER_VARIABLES.test(name))
      throw unknownName('bad-config', 'there is no setting for the environment variable', name, known);
}

const attribute = (key: string): string => key.replaceAll(/-([a-z])/g, (_, letter: string) => letter.toUpperCase());

export function addSettings(command: Command, names: readonly SettingName[]): Command {
  for (const name of names) {
    const setting: Setting = SETTINGS[name];
    const option = new Option(setting.flags, setting.help);
    if (setting.default !== undefined) option.default(setting.default);
    if (setting.choices !== undefined) option.choices([...setting.choices]);
    else if (setting.parse !== undefined) option.argParser(setting.parse);
    command.addOption(option);
  }
  return command;
}

/**
 * The values of a command's settings: from the flag, else the environment, else the file of --config, else the default. The file may contain
 * keys of other commands. An empty variable counts as not set. Throws KvError 'bad-config', 'not-found', 'io'.
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
  try {
    return checked(name, where, JSON.parse(text));
  } catch (cause) {
    if (cause instanceof KvError) throw cause;
    throw new KvError('bad-config', `${where} is not a JSON array: ${(cause as Error).message}`, {
      values: { value: text },
      cause,
    });
  }
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
  const table = parseTable(path, content.toString('utf8'));
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

function parseTable(path: string, text: string): Record<string, unknown> {
  try {
    const plain = text.replace(/^\uFEFF/, '');
    const value: unknown = path.endsWith('.json') ? JSON.parse(plain) : parseToml(plain);
    if (typeof value !== 'object' || value === null || Array.isArray(value)) throw new Error('not a table');
    return value as Record<string, unknown>;
  } catch (cause) {
    throw new KvError(
      'bad-config',
      `${path} is not ${path.endsWith('.json') ? 'JSON' : 'TOML'}: ${(cause as Error).message.split('\n')[0]}`,
      { values: { path }, hint: 'a TOML file, or a JSON file whose name ends in .json', cause },
    );
  }
}
