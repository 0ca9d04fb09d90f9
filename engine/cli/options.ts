/** Converts settings to the options of the library. */
import {
  checkQdrantOptions,
  checkTrust,
  type QdrantOptions,
  readThresholdFile,
  readTrustedKey,
  type TrustedKey,
} from '../../memory/index.ts';
import { type FormatPair, given, KvError, parseJson, parsePair, readRegular } from '../../native/index.ts';
import { type AnchorOptions, type LogRule, readMasterKey, useMasterKeys } from '../../witness/index.ts';
import type { LogLevel } from '../events/table.ts';
import { withPolicyFile } from '../options/policy-file.ts';
import { checkModule, type PolicyModule } from '../options/policy-module.ts';
import { ENGINE_OPTIONS, SESSION_OPTIONS } from '../options/table.ts';
import type { EngineOptions, SessionOptions } from '../options/types.ts';
import { originalsTerms } from '../originals/terms.ts';
import { defaultCacheDir } from '../transformer/cache-dir.ts';
import { eventLog } from './event-log.ts';
import { loraOf } from './lora.ts';
import { optionsOf } from './option-settings.ts';
import type { SettingName } from './settings.ts';
import { tiersOf } from './tier-settings.ts';

export type Settings = Partial<Record<SettingName, unknown>>;

export const text = (settings: Settings, name: SettingName): string | undefined => settings[name] as string | undefined;
export const number = (settings: Settings, name: SettingName): number | undefined =>
  settings[name] as number | undefined;
export const flag = (settings: Settings, name: SettingName): boolean => settings[name] === true;
/** The state folder. */
export const stateDirOf = (settings: Settings): string => text(settings, 'state') ?? '.palimpsest';
/** The folder of fetched models. */
export const cacheDirOf = (settings: Settings): string => text(settings, 'cache') ?? defaultCacheDir();

export function engineOptions(settings: Settings): EngineOptions {
  const model = text(settings, 'model');
  if (model === undefined)
    throw new KvError('bad-argument', 'no model was named', {
      hint: '--model PATH, or --model reference for the one that comes with the package',
    });
  // Before anything is loaded or made.
  thresholdsPathOf(settings);
  return given<EngineOptions>({
    ...optionsOf<EngineOptions>(settings, ENGINE_OPTIONS),
    model,
    logRules: logRules(settings),
    adapters: loraOf(settings)?.paths,
    anchor: anchorOf(settings),
    qdrant: qdrantOptions(settings),
    logger: eventLog(
      (text(settings, 'logLevel') ?? 'error') as LogLevel,
      // What reads progress as objects reads these as well.
      flag(settings, 'json') || text(settings, 'progress') === 'jsonl',
    ),
  });
}

/**
 * Where checkpoints are anchored; undefined: nowhere. Throws 'bad-argument' for places without a key, or a key without
 * places.
 */
function anchorOf(settings: Settings): AnchorOptions | undefined {
  const to = settings['anchor'] as string[] | undefined;
  const key = text(settings, 'anchorKey');
  if (to === undefined && key === undefined) return undefined;
  if (to === undefined || key === undefined)
    throw new KvError('bad-argument', 'checkpoints need places and the key that signs them', {
      hint: 'add both --anchor and --anchor-key; audit keygen makes a key',
    });
  return { key, to };
}

const RULES_BYTES_MAX = 2 ** 20;

/**
 * The rules in the file of --log-rules; undefined: none. What they say is checked when the log is opened. Throws
 * 'bad-config', 'not-found', 'io'.
 */
function logRules(settings: Settings): readonly LogRule[] | undefined {
  const path = text(settings, 'logRules');
  if (path === undefined) return undefined;
  const bytes = readRegular(path, { bytesMax: RULES_BYTES_MAX, code: 'bad-config' });
  const hint = 'a list such as [{"action": "mask", "path": "model.name"}]';
  const rules = parseJson(bytes, { code: 'bad-config', what: path, hint });
  if (!Array.isArray(rules)) throw new KvError('bad-config', `${path} is no list of rules`, { values: { path }, hint });
  return rules as LogRule[];
}

/** The server that the settings name; undefined: none. */
export function qdrantOptions(settings: Settings): QdrantOptions | undefined {
  const url = text(settings, 'qdrantUrl');
  if (url === undefined) return undefined;
  const options = given<QdrantOptions>({
    url,
    apiKey: text(settings, 'qdrantApiKey'),
    collection: text(settings, 'qdrantCollection'),
    prefixKey: text(settings, 'qdrantPrefixKey'),
  });
  checkQdrantOptions(options);
  return options;
}

/**
 * The pair of formats of --cache-type-k and -v. If only one is given, the other is f16, as in other programs with these
 * flags. The first may also be a K:V pair.
 */
export function cacheTypes(settings: Settings): FormatPair | undefined {
  const k = text(settings, 'cacheTypeK');
  const v = text(settings, 'cacheTypeV');
  if (k === undefined && v === undefined) return undefined;
  if (v?.includes(':') || (v !== undefined && k?.includes(':'))) {
    throw new KvError('bad-argument', `cache types ${k ?? '(none)'} for keys and ${v} for values are not one pair`, {
      values: { cacheTypeK: k, cacheTypeV: v },
      hint: 'give one format to each of --cache-type-k and --cache-type-v, or a pair such as rot4:rot2 to --cache-type-k alone',
    });
  }
  if (k?.includes(':')) return parsePair(k);
  return { k: parsePair(k ?? 'f16').k, v: parsePair(v ?? 'f16').v };
}

export function sessionOptions(settings: Settings, tokensExpected: number): SessionOptions {
  const types = cacheTypes(settings);
  if (settings['policy'] === 'fixed' && types === undefined) {
    throw new KvError('bad-argument', '--policy fixed needs to know the formats', {
      hint: 'add --cache-type-k and --cache-type-v, or leave out --policy: with cache types and no budget it is fixed anyway',
    });
  }
  return given<SessionOptions>({
    ...optionsOf<SessionOptions>(settings, SESSION_OPTIONS),
    policy: policyOf(settings),
    adapters: loraOf(settings)?.adapters,
    tokensExpected,
    cacheTypes: types,
    tiers: tiersOf(settings),
    thresholdsPath: thresholdsPathOf(settings),
  });
}

/**
 * Refuses what can be refused of a session before a model is loaded or a folder is created. Throws what sessionOptions
 * and the reading of a policy file throw.
 */
export function checkSessionSettings(settings: Settings): void {
  originalsTerms(withPolicyFile(sessionOptions(settings, 1)));
}

/** The policy that is named, or the module of one. Throws 'bad-argument' for both, and for parts of no module. */
function policyOf(settings: Settings): string | PolicyModule | undefined {
  const [named, module] = [text(settings, 'policy'), policyModule(settings)];
  if (module === undefined || named === undefined) return module ?? named;
  throw new KvError('bad-argument', 'a session has one policy: one of this package, or that of a module', {
    values: { policy: named, policyModule: module.module },
    hint: 'leave out --policy, or --policy-module',
  });
}

/** The module of a policy that the settings name; undefined: none. Throws 'bad-argument'. */
export function policyModule(settings: Settings): PolicyModule | undefined {
  const module = text(settings, 'policyModule');
  const [name, json] = [text(settings, 'policyExport'), text(settings, 'policyOptions')];
  if (module === undefined && name === undefined && json === undefined) return undefined;
  if (module === undefined)
    throw new KvError('bad-argument', '--policy-export and --policy-options are of a module, and none is named', {
      hint: 'add --policy-module FILE',
    });
  const options =
    json === undefined
      ? undefined
      : (parseJson(Buffer.from(json), { code: 'bad-argument', what: '--policy-options' }) as PolicyModule['options']);
  const asked = given<PolicyModule>({ module, export: name, options });
  checkModule(asked);
  return asked;
}

/** From here on the log is encrypted and opened with these keys. Throws 'bad-config', 'not-found', 'io'. */
export function applyMasterKeys(settings: Settings): void {
  useMasterKeys(((settings['masterKey'] as string[] | undefined) ?? []).map(readMasterKey));
}

export const trustedKeys = (settings: Settings): TrustedKey[] =>
  ((settings['trustedKey'] as string[] | undefined) ?? []).map(readTrustedKey);

/**
 * The threshold file to start from; if keys are named, one of them must have signed it. Throws 'bad-signature',
 * 'bad-thresholds', 'bad-argument'.
 */
export function thresholdsPathOf(settings: Settings): string | undefined {
  const path = text(settings, 'thresholds');
  const trusted = trustedKeys(settings);
  if (trusted.length === 0) return path;
  if (path === undefined)
    throw new KvError('bad-argument', '--trusted-key says who may have signed a threshold file, and no file is named', {
      hint: 'add --thresholds FILE, or leave out --trusted-key',
    });
  checkTrust(readThresholdFile(path), trusted, path);
  return path;
}
