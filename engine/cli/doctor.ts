/**
 * `palimpsest doctor` shows which settings were requested, which are in effect, and what a context length would cost.
 */
import { existsSync, statSync } from 'node:fs';
import { cpus, totalmem } from 'node:os';
import { basename, resolve } from 'node:path';
import { QdrantServer } from '../../memory/index.ts';
import {
  type BindingName,
  bytesText,
  type Column,
  columnsOf,
  grouped,
  heldBytesMost,
  type Isa,
  jsonText,
  KvError,
  nativeInfo,
  percent,
  plural,
  printable,
  servedFormats,
  setIsa,
  table,
  useBinding,
  wrap,
} from '../../native/index.ts';
import { type Forecast, forecast } from '../cache/budget.ts';
import { parseBudget } from '../options/parse-budget.ts';
import { checkHelpers, type HelperCheck } from '../sidecar/check.ts';
import { chooseDense } from '../transformer/dense-choice.ts';
import { isAway, obtainModel } from '../transformer/hub/obtain.ts';
import { surveyModel } from '../transformer/hub/survey.ts';
import { loadModel } from '../transformer/load.ts';
import { memoryNeed } from '../transformer/memory.ts';
import { defaultThreads } from '../transformer/runtime/runtime.ts';
import type { LoadedModel } from '../transformer/types.ts';
import { type Accelerator, accelerators } from './accelerators.ts';
import { fitRows, remarkRows } from './fit-text.ts';
import { type Fit, fitOf, type SessionsFit, sessionsFit } from './machine-fit.ts';
import { cacheDirOf, flag, number, qdrantOptions, type Settings, stateDirOf, text } from './options.ts';

export async function doctor(settings: Settings): Promise<void> {
  const asked = kernelsAsked(settings);
  const name = text(settings, 'model') ?? 'reference';
  const state = resolve(stateDirOf(settings));
  if (existsSync(state) && !statSync(state).isDirectory())
    throw new KvError('bad-argument', `the state folder ${state} is a file`, {
      values: { state },
      hint: 'name another with --state',
    });
  const model = await lookAt(name, settings);
  try {
    const machine = { ...machineFacts(settings, asked), helpers: await checkHelpers() };
    const facts = { ...machine, ...(await modelFacts(settings, model, state)) };
    if (flag(settings, 'json')) {
      process.stdout.write(`${jsonText(facts)}\n`);
      return;
    }
    const rows = [...machineRows(facts), ...modelRows(facts, model)];
    process.stdout.write(`${rows.map(([key, value]) => `${key.padEnd(11)} ${printable(value)}`).join('\n')}\n\n`);
    process.stdout.write(forecastText(facts.forecast));
    if (facts.sessions !== null) process.stdout.write(sessionsText(facts.sessions));
  } finally {
    model.weights.close();
  }
}

interface KernelsAsked {
  readonly binding: BindingName | undefined;
  readonly isa: Isa | undefined;
}

/** Takes the kernels that are asked for into use. */
function kernelsAsked(settings: Settings): KernelsAsked {
  const binding = text(settings, 'binding') as BindingName | undefined;
  if (binding !== undefined) useBinding(binding);
  const isa = text(settings, 'isa') as Isa | undefined;
  if (isa !== undefined) setIsa(isa);
  return { binding, isa };
}

function machineFacts(settings: Settings, { binding, isa }: KernelsAsked) {
  const native = nativeInfo();
  return {
    node: process.version,
    cpu: cpus()[0]?.model ?? 'unknown',
    cores: cpus().length,
    memoryBytes: totalmem(),
    acceleratorsFound: accelerators({ processor: cpus()[0]?.model ?? '' }),
    acceleratorEffective: null,
    isaRequested: isa ?? 'best',
    isaEffective: native.isa,
    isaAvailable: native.available,
    bindingRequested: binding ?? 'best',
    bindingEffective: native.binding,
    bindingFile: native.file,
    bindingPassedOver: native.passedOver,
    compiler: native.compiler,
    threadsRequested: number(settings, 'threads') ?? null,
    threadsEffective: number(settings, 'threads') ?? defaultThreads(),
    formats: servedFormats(),
  };
}

async function modelFacts(settings: Settings, model: LookedAt, state: string) {
  const { layers, queryHeads, kvHeads, headDim, contextLength } = model.config;
  const tokens = number(settings, 'tokens') ?? contextLength;
  const precision = (text(settings, 'dense') as 'auto' | 'exact' | undefined) ?? 'auto';
  const dense = await chooseDense(precision, undefined, model.config);
  const fit = fitOf(model.config, memoryNeed(model.config, model.weights, dense, precision), { tokens });
  return {
    dense: dense.name,
    denseWhy: dense.why,
    model: model.name,
    modelPath: model.path,
    modelSummary: model.summary,
    modelRemarks: model.remarks,
    fit,
    sessions: sessionsAsked(settings, fit),
    stateDir: state,
    stateExists: existsSync(state),
    experience: await experienceOf(settings),
    forecast: forecast({ layers, queryHeads, kvHeads, headDim }, tokens),
  };
}

function machineRows(facts: ReturnType<typeof machineFacts> & { helpers: HelperCheck }): [string, string][] {
  return [
    ['node', facts.node],
    ['processor', `${facts.cpu}, ${facts.cores} cores, ${bytesText(facts.memoryBytes)}`],
    ...acceleratorRows(facts.acceleratorsFound),
    ['kernels', `${facts.isaEffective} (asked for: ${facts.isaRequested}), ${facts.compiler}`],
    ['', `this machine runs ${facts.isaAvailable.join(' ')}`],
    ['binding', `${facts.bindingEffective} (asked for: ${facts.bindingRequested})`],
    ...(facts.bindingPassedOver === null ? [] : [['', facts.bindingPassedOver] as [string, string]]),
    ['threads', `${facts.threadsEffective} (asked for: ${facts.threadsRequested ?? 'all cores it may use'})`],
    ['helpers', helpersText(facts.helpers)],
  ];
}

function helpersText({ trouble, wardens }: HelperCheck): string {
  if (trouble !== null) return `do not run here: ${trouble}`;
  const found = Object.values(wardens).flatMap((path) => (path === null ? [] : [basename(path)]));
  const bounds =
    wardens.prlimit === null ? 'their memory is watched, not limited' : 'memory and processor time limited';
  return `run here: ${bounds}${found.length === 0 ? '' : ` (${found.join(', ')})`}`;
}

function acceleratorRows(found: readonly Accelerator[]): [string, string][] {
  const used = 'everything is computed on the processor';
  if (found.length === 0) return [['accelerator', `none found; ${used}`]];
  const rows = found.map(({ kind, name, place, driver }, i): [string, string] => [
    i === 0 ? 'accelerator' : '',
    `${kind.toUpperCase()} ${name} at ${place}, ${driver === null ? 'without a driver' : `driver ${driver}`}`,
  ]);
  return [...rows, ['', `${found.length === 1 ? 'it is not used' : 'none of them is used'}: ${used}`]];
}

function modelRows(
  facts: ReturnType<typeof machineFacts> & Awaited<ReturnType<typeof modelFacts>>,
  { path, downloadBytes, config }: LookedAt,
): [string, string][] {
  const { layers, queryHeads, kvHeads, headDim, contextLength } = config;
  return [
    ['dense half', `${facts.dense}: ${facts.denseWhy}`],
    ['formats', facts.formats.join(' ')],
    [
      'model',
      `${facts.model}: ${plural(layers, 'layer')}, ${queryHeads}/${kvHeads} heads of ${headDim}, context ${contextLength}`,
    ],
    ...(path === null
      ? [['', `not here: ${bytesText(downloadBytes)} to fetch; this is from its headers`] as [string, string]]
      : []),
    ...remarkRows(facts.modelRemarks),
    ...fitRows(facts.fit),
    ['state', `${facts.stateDir}${facts.stateExists ? '' : ' (not there yet)'}`],
    ['experience', experienceText(facts.experience)],
  ];
}

function forecastText({ tokens, f16Bytes, fixedBytes, pairs }: Forecast): string {
  const columns: Column<Forecast['pairs'][number]>[] = [
    { title: 'K:V', align: 'left', value: ({ pair }) => pair },
    { title: 'bytes', value: ({ bytes }) => bytesText(bytes) },
    { title: 'held at most', value: ({ bytes }) => bytesText(heldBytesMost(bytes)) },
    { title: 'of f16', value: ({ bytes }) => percent(bytes / Math.max(1, f16Bytes)) },
    { title: 'bits', value: ({ effectiveBits }) => effectiveBits.toFixed(2) },
  ];
  const title = `KV memory for ${plural(tokens, 'token')} (f16: ${bytesText(f16Bytes)}; window and sinks: ${bytesText(fixedBytes)})`;
  return `${title}\n${table(columns, pairs, columnsOf(process.stdout))}\n`;
}

/** null: nobody asked how many sessions fit. */
function sessionsAsked(settings: Settings, fit: Fit): SessionsFit | null {
  const sessions = number(settings, 'sessions');
  const budget = text(settings, 'kvBudget');
  if (sessions === undefined && budget === undefined) return null;
  const count = sessions ?? 1;
  return sessionsFit(fit, count, budget === undefined ? null : parseBudget(budget, count * fit.cache.f16Bytes));
}

function sessionsText({ sessions, tokens, roomBytes, budgetBytes, pairs }: SessionsFit): string {
  const columns: Column<SessionsFit['pairs'][number]>[] = [
    { title: 'K:V', align: 'left', value: ({ pair }) => pair },
    { title: 'one', value: ({ bytes }) => bytesText(bytes) },
    { title: `all ${grouped(sessions)}`, value: ({ bytesOfAll }) => bytesText(bytesOfAll) },
    { title: 'fit at most', value: ({ sessionsMost }) => grouped(sessionsMost) },
  ];
  const best = pairs.find(({ sessionsMost }) => sessionsMost >= sessions);
  const room =
    budgetBytes === null
      ? `the ${bytesText(roomBytes)} that are free beside the weights and the work`
      : `a budget of ${bytesText(roomBytes)}`;
  const verdict =
    best === undefined
      ? `do not fit into ${room}, not even with all pages in the lowest formats: fewer, or shorter ones`
      : `fit into ${room} with all pages in ${best.pair} or lower`;
  const title = `${plural(sessions, 'session')} of ${plural(tokens, 'token')} ${verdict}. Sessions under one budget begin better and go there as they grow.`;
  return `\n${wrap(title, columnsOf(process.stdout))}\n${table(columns, pairs, columnsOf(process.stdout))}\n`;
}

interface LookedAt extends Pick<LoadedModel, 'name' | 'config' | 'weights' | 'summary' | 'remarks'> {
  /** null: it is not here. */
  readonly path: string | null;
  readonly downloadBytes: number;
}

/** A model that is here, or what the headers of one on the Hub say of it. */
async function lookAt(name: string, settings: Settings): Promise<LookedAt> {
  const offline = flag(settings, 'offline');
  if (!isAway(name, { offline })) {
    // Nothing is fetched: what is not here is refused, because this is offline mode.
    await obtainModel(name, { offline });
    const model = await loadModel(name, { cacheDir: cacheDirOf(settings) });
    return { ...model, downloadBytes: 0 };
  }
  const { config, weights, downloadBytes, readBytes, format, commit, files } = await surveyModel(name, { offline });
  const summary = { format, architecture: config.architecture, commit, files, readBytes };
  return { name, config, weights, summary, remarks: [], path: null, downloadBytes };
}

interface SharedFacts {
  /** Address of the Qdrant server; null: none was asked for. */
  readonly url: string | null;
  readonly version: string | null;
  /** Why it cannot be used; null: it can. */
  readonly trouble: string | null;
  /** True if a key would cross the network readable by anybody. */
  readonly keyInTheOpen: boolean;
}

async function experienceOf(settings: Settings): Promise<SharedFacts> {
  const options = qdrantOptions(settings);
  if (options === undefined) return { url: null, version: null, trouble: null, keyInTheOpen: false };
  const server = await QdrantServer.open(options);
  const { protocol, hostname } = new URL(server.url);
  const isHere = /^(localhost|127\.\d+\.\d+\.\d+|\[::1\])$/.test(hostname);
  const keyInTheOpen = options.apiKey !== undefined && protocol === 'http:' && !isHere;
  try {
    return { url: server.url, version: await server.version(), trouble: null, keyInTheOpen };
  } catch (error) {
    if (!(error instanceof KvError)) throw error;
    return { url: server.url, version: null, trouble: error.message, keyInTheOpen };
  }
}

function experienceText({ url, version, trouble, keyInTheOpen }: SharedFacts): string {
  if (url === null) return 'of this state folder alone (--qdrant-url shares it with other machines)';
  if (trouble !== null) return `of this state folder alone: ${trouble}`;
  const warning = keyInTheOpen ? '; its key crosses the network readable: use https' : '';
  return `shared through Qdrant ${version} at ${url}${warning}`;
}
