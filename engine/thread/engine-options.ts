/** Checks the options of createEngine, and makes of them what the model's thread is given. */
import { resolve } from 'node:path';
import { checkKeys, KvError, show } from '../../native/index.ts';
import { masterKeysInUse } from '../../witness/index.ts';
import { idlePlaceOf } from '../cache/away.ts';
import { parseBudget } from '../cache/budget.ts';
import { ENGINE_OPTIONS } from '../options/names.ts';
import type { EngineOptions } from '../options/types.ts';
import { policyOf } from '../state/retention.ts';
import type { HostOptions } from './host.ts';

/** Throws KvError 'bad-argument', before anything is fetched or loaded. */
export function checkEngineOptions(options: EngineOptions): void {
  checkKeys(options, ENGINE_OPTIONS, 'createEngine');
  const { model, stateDir, offline, onProgress } = options;
  const isFolder = stateDir === undefined || stateDir === null || (typeof stateDir === 'string' && stateDir !== '');
  if (typeof model !== 'string' || !isFolder) {
    throw new KvError('bad-argument', 'an engine needs the name of a model, and a folder or null for its state', {
      values: { model: show(model), stateDir: show(stateDir) },
      hint: "createEngine({ model: 'reference' })",
    });
  }
  if (options.qdrant !== undefined && stateDir === null)
    throw new KvError('bad-argument', 'sessions are shared from a state folder', {
      hint: 'name one, or leave out qdrant',
    });
  if (offline !== undefined && typeof offline !== 'boolean')
    throw new KvError('bad-argument', 'offline is true or false', { values: { offline: show(offline) } });
  if (onProgress !== undefined && typeof onProgress !== 'function')
    throw new KvError('bad-argument', 'onProgress is a function', { values: { onProgress: show(onProgress) } });
  // What is wrong with the others is said before a download, not after it.
  hostOptions(options);
}

export function hostOptions(options: EngineOptions): HostOptions {
  const { model, stateDir } = options;
  return {
    model,
    dense: options.dense,
    threads: options.threads,
    isa: options.isa,
    binding: options.binding,
    cacheDir: options.cacheDir,
    offline: options.offline,
    stateDir: stateDir === null ? null : resolve(stateDir ?? '.palimpsest'),
    onLogFailure: options.onLogFailure ?? 'block',
    qdrant: options.qdrant,
    masterKeys: masterKeysInUse(),
    logRules: options.logRules ?? [],
    logRetention: options.logRetention && policyOf(options.logRetention, Date.now()),
    anchor: options.anchor,
    kvBudgetBytes: options.kvBudget === undefined ? undefined : parseBudget(options.kvBudget, null),
    idleSessions: idlePlaceOf(options.idleSessions),
  };
}
