/**
 * A policy file: how a cache is to be governed, for sessions and the command line. What it may hold is described once,
 * in `SECTIONS`; each field is an option of the library under the option's own rule. It is read before a session opens,
 * and what it says counts as if it had been given: the log has it, and replaying needs no file.
 */
import { statSync } from 'node:fs';
import { dirname, resolve } from 'node:path';
import {
  allows,
  given,
  KvError,
  type Option,
  parsePair,
  readRegular,
  refusalOf,
  show,
  unknownName,
} from '../../native/index.ts';
import { checkThresholdValue, tiersAsked } from '../../policy/index.ts';
import { layersIn } from './layer-list.ts';
import { parseBudget } from './parse-budget.ts';
import { checkModule, type PolicyModule } from './policy-module.ts';
import { GOVERNING_OPTIONS, SESSION_OPTIONS } from './table.ts';
import { parseTable } from './table-file.ts';
import type { GoverningOptions, KvBudget } from './types.ts';

/** What a file can say. */
export type FromFile = Omit<GoverningOptions, 'policyFile' | 'thresholds' | 'thresholdsPath'> & {
  readonly policy?: string | PolicyModule;
};

/** The version of this layout, which a file begins with. */
const VERSION = 1;
/** A file with everything in it has some kilobytes. */
const BYTES_MAX = 2 ** 20;
/** What a share of a budget is a share of, where nothing but its spelling is looked at. */
const F16_BYTES = 2 ** 40;
/** Far more layers than any model has. */
const LAYERS_MAX = 4096;
const EXAMPLE = 'docs/guide.md, A policy file, has an example';

const { kvBudget, kldBudget, stepLatencyBudgetMs, openFormat, windowTokens, skipLayers, cacheTypes } =
  GOVERNING_OPTIONS;

/** Sections of a file, and the options that they hold by name; '' is the file itself. */
export const SECTIONS = {
  '': { policy: SESSION_OPTIONS.policy, cacheTypes, skipLayers },
  window: { openFormat, windowTokens },
  triggers: { kvBudget, kldBudget, stepLatencyBudgetMs },
} as const satisfies Readonly<Record<string, Readonly<Record<string, Option>>>>;

/**
 * What is no plain option: `policyModule` stands for `policy`, `layers` and `tiers` have a shape of their own,
 * `thresholds` any id.
 */
const OTHERS = ['policyVersion', 'policyModule', 'layers', 'tiers', 'thresholds'];

type Table = Readonly<Record<string, unknown>>;

/** Throws 'bad-config' with the place, what stands there, and what to do. */
function refuse(where: string, value: unknown, says: string, hint: string = EXAMPLE): never {
  const values = { at: where, ...(value === undefined ? {} : { given: show(value) }) };
  throw new KvError('bad-config', `${where}: ${says}`, { values, hint });
}

/** Does work whose refusals are told with the place in the file. */
function at<T>(where: string, work: () => T): T {
  try {
    return work();
  } catch (error) {
    if (!(error instanceof KvError)) throw error;
    const { message, values, hint = EXAMPLE } = error;
    throw new KvError('bad-config', `${where}: ${message}`, { values: { at: where, ...values }, hint });
  }
}

function tableAt(where: string, value: unknown): Table {
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Table;
  return refuse(where, value, 'must be a table');
}

function checkNames(where: string, table: Table, known: readonly string[]): void {
  for (const name of Object.keys(table))
    if (!known.includes(name)) throw unknownName('bad-config', `${where} has no field`, name, known);
}

/** The formats of every layer, in order. Each layer must be named once. */
function formatsOf(where: string, value: unknown): NonNullable<GoverningOptions['cacheTypes']> {
  if (!Array.isArray(value) || value.length === 0)
    return refuse(where, value, 'must be a list such as [{ layers = "0-5", types = "trellis4:trellis2" }]');
  const types: (string | undefined)[] = [];
  for (const [i, row] of value.entries()) {
    const here = `${where}[${i}]`;
    const table = tableAt(here, row);
    checkNames(here, table, ['layers', 'types']);
    const pair = table['types'];
    if (typeof pair !== 'string') return refuse(`${here}.types`, pair, 'must be formats such as "trellis4:trellis2"');
    at(`${here}.types`, () => parsePair(pair));
    for (const layer of layersOf(`${here}.layers`, table['layers'])) {
      if (types[layer] !== undefined) refuse(`${here}.layers`, table['layers'], `layer ${layer} has formats already`);
      types[layer] = pair;
    }
  }
  for (let layer = 0; layer < types.length; layer++)
    if (types[layer] === undefined)
      refuse(where, value.length, `layer ${layer} has no formats`, 'name every layer once');
  return types as string[];
}

/** '0-3, 7' or 5 → its layers. */
function layersOf(where: string, value: unknown): readonly number[] {
  const wrong = (): never => refuse(where, value, 'must be layers such as "0-3, 7"');
  const parts = String(value).split(',');
  const layers = layersIn(
    parts.map((part) => part.trim()),
    wrong,
  );
  return layers.every((layer) => layer < LAYERS_MAX) ? layers : wrong();
}

/** Options of one section, each as its row says. */
function sectionOf(path: string, name: keyof typeof SECTIONS, table: Table): Table {
  const rows: Readonly<Record<string, Option>> = SECTIONS[name];
  const where = (field: string): string => `${path}: ${name === '' ? field : `${name}.${field}`}`;
  for (const [field, row] of Object.entries(rows)) {
    const value = table[field];
    if (value === undefined) continue;
    if (!allows(row, value)) refuse(where(field), value, refusalOf(field, row), row.help);
    if (field === 'policy' && !SESSION_OPTIONS.policy.choices.includes(String(value)))
      refuse(where(field), value, 'is no policy', `use one of ${SESSION_OPTIONS.policy.choices.join(', ')}`);
    if (field === 'cacheTypes') at(where(field), () => parsePair(String(value)));
    if (field === 'kvBudget') at(where(field), () => parseBudget(value as KvBudget, F16_BYTES));
  }
  return Object.fromEntries(Object.keys(rows).flatMap((field) => (field in table ? [[field, table[field]]] : [])));
}

/** A module as a policy names it, from the folder of the file that does. It is not loaded: that is for who opens. */
function moduleOf(path: string, value: unknown): PolicyModule {
  const where = `${path}: policyModule`;
  const said = typeof value === 'string' ? { module: value } : tableAt(where, value);
  at(where, () => checkModule(said as unknown as PolicyModule));
  const { module, ...rest } = said as unknown as PolicyModule;
  return { module: /^\.{1,2}[\\/]/.test(module) ? resolve(dirname(path), module) : module, ...rest };
}

/**
 * What a policy file says, as options. Throws 'bad-config' for what is unknown or out of range, with the place in the
 * file; 'not-found', 'io'.
 */
export function readPolicyFile(path: string): FromFile {
  const table = parseTable(path, readRegular(path, { bytesMax: BYTES_MAX, code: 'bad-config' }));
  if (table['policyVersion'] !== VERSION)
    refuse(`${path}: policyVersion`, table['policyVersion'], `must be ${VERSION}: it makes a table a policy file`);
  const sections = Object.keys(SECTIONS).filter((name) => name !== '');
  checkNames(path, table, [...OTHERS, ...Object.keys(SECTIONS['']), ...sections]);
  const options = (['', 'window', 'triggers'] as const).map((name) => {
    const here = name === '' ? table : tableAt(`${path}: ${name}`, table[name] ?? {});
    if (name !== '') checkNames(`${path}: ${name}`, here, Object.keys(SECTIONS[name]));
    return sectionOf(path, name, here);
  });
  const { layers, tiers, thresholds, cacheTypes: pair } = table;
  if (layers !== undefined && pair !== undefined)
    refuse(`${path}: cacheTypes`, pair, 'formats of all layers and formats of each do not go together');
  const module = table['policyModule'];
  if (module !== undefined && table['policy'] !== undefined)
    refuse(`${path}: policyModule`, module, 'a policy of this package and that of a module do not go together');
  if (tiers !== undefined) at(`${path}: tiers`, () => tiersAsked(tiers));
  const values = thresholds === undefined ? undefined : tableAt(`${path}: thresholds`, thresholds);
  for (const [id, value] of Object.entries(values ?? {}))
    at(`${path}: thresholds.${id}`, () => checkThresholdValue(id, value));
  return given<FromFile>({
    ...Object.assign({}, ...options),
    ...(module === undefined ? {} : { policy: moduleOf(path, module) }),
    tiers: tiers as FromFile['tiers'],
    thresholdValues: values as FromFile['thresholdValues'],
    ...(layers === undefined ? {} : { cacheTypes: formatsOf(`${path}: layers`, layers) }),
  });
}

/** True of a TOML or JSON file that says it is a policy file. */
export function isPolicyFile(path: string): boolean {
  if (!/\.(toml|json)$/.test(path) || statSync(path).size > BYTES_MAX) return false;
  return readRegular(path, { bytesMax: BYTES_MAX, code: 'bad-config' }).includes('policyVersion');
}

/** Options with what their policy file says where they say nothing. Throws what readPolicyFile throws. */
export function withPolicyFile<Options extends { readonly policyFile?: string }>(options: Options): Options {
  const { policyFile, ...rest } = options;
  if (policyFile === undefined) return options;
  const asked = Object.entries(rest).filter(([, value]) => value !== undefined);
  return { ...readPolicyFile(policyFile), ...Object.fromEntries(asked) } as Options;
}
