/** Checks the options of createEngine, and makes of them what the model's thread is given. */
import { resolve } from 'node:path';
import { checkKeys, checkOption, checkOptions, KvError } from '../../native/index.ts';
import { masterKeysInUse } from '../../witness/index.ts';
import { parseBudget } from '../options/parse-budget.ts';
import { ENGINE_OPTIONS } from '../options/table.ts';
import type { EngineOptions, LogRetention } from '../options/types.ts';
import { policyOf } from '../state/retention-policy.ts';
import type { CommonsOptions } from './commons.ts';
import type { HostOptions, ModelOptions } from './host.ts';

const { model, dense, activations, adapters, threads, cacheDir, offline, onProgress, signal, ...others } =
  ENGINE_OPTIONS;
/** Options of engines that are about one model. */
export const MODEL_OPTIONS = { model, dense, activations, adapters, threads, cacheDir, offline, onProgress, signal };
/** The others, which several models have in common. */
export const RUNTIME_OPTIONS = others;

/** Throws KvError 'bad-argument', before anything is fetched or loaded. */
export function checkEngineOptions(options: EngineOptions): void {
  checkKeys(options, ENGINE_OPTIONS, 'createEngine');
  checkOption('model', ENGINE_OPTIONS.model, options.model);
  checkOptions(options, ENGINE_OPTIONS);
  checkShared(options);
  // What is wrong with the others is said before a download, not after it.
  hostOptions(options);
}

/** The same of createRuntime. */
export function checkRuntimeOptions(options: Omit<EngineOptions, keyof typeof MODEL_OPTIONS>): void {
  checkKeys(options, RUNTIME_OPTIONS, 'createRuntime');
  checkOptions(options, RUNTIME_OPTIONS);
  checkShared(options);
  commonsOptions(options);
}

interface AskedHelpers {
  readonly helpers?: boolean | undefined;
  readonly embedder?: string | undefined;
}

/** Whether helpers are asked. Throws 'bad-argument' for options that contradict each other. */
export function asksHelpers({ helpers, embedder }: AskedHelpers): boolean {
  if (helpers === false && embedder !== undefined)
    throw new KvError('bad-argument', 'an embedder is a helper, and helpers: false asks none', {
      values: { embedder },
      hint: 'leave out helpers or the embedder',
    });
  return helpers ?? (embedder !== undefined || ENGINE_OPTIONS.helpers.default);
}

function checkShared(options: Pick<EngineOptions, 'qdrant' | 'stateDir' | 'helpers' | 'embedder'>): void {
  asksHelpers(options);
  if (options.qdrant !== undefined && options.stateDir === null)
    throw new KvError('bad-argument', 'sessions are shared from a state folder', {
      hint: 'name one, or leave out qdrant',
    });
}

export const hostOptions = (options: EngineOptions): HostOptions => ({
  ...modelOptions(options),
  ...commonsOptions(options),
});

export function modelOptions(options: EngineOptions): ModelOptions {
  return {
    model: options.model,
    dense: options.dense,
    adapters:
      options.adapters === undefined
        ? null
        : Object.entries(options.adapters).map(([name, path]) => ({ name, path: resolve(path) })),
    activations: options.activations ?? ENGINE_OPTIONS.activations.default,
    threads: options.threads,
    isa: options.isa,
    binding: options.binding,
    cacheDir: options.cacheDir,
    offline: options.offline,
  };
}

export function commonsOptions(options: Omit<EngineOptions, 'model'>): CommonsOptions {
  const { stateDir } = options;
  return {
    stateDir: stateDir === null ? null : resolve(stateDir ?? ENGINE_OPTIONS.stateDir.default),
    onLogFailure: options.onLogFailure ?? ENGINE_OPTIONS.onLogFailure.default,
    qdrant: options.qdrant,
    masterKeys: masterKeysInUse(),
    logRules: options.logRules ?? [],
    logRetention: checkedRetention(options.logRetention),
    anchor: options.anchor,
    kvBudgetBytes: options.kvBudget === undefined ? undefined : parseBudget(options.kvBudget, null),
    onPressure: options.onPressure,
    maxConcurrent: options.maxConcurrent,
    interTokenTargetMs: options.interTokenTargetMs,
    idleSessions: options.idleSessions ?? ENGINE_OPTIONS.idleSessions.default,
    prefixCaching: options.prefixCaching ?? ENGINE_OPTIONS.prefixCaching.default,
    helpers: asksHelpers(options),
    embedder: options.embedder === undefined ? undefined : resolve(options.embedder),
  };
}

/** As it was given, if it can be kept. */
function checkedRetention(retention: LogRetention | undefined): LogRetention | undefined {
  if (retention !== undefined) policyOf(retention, Date.now());
  return retention;
}
