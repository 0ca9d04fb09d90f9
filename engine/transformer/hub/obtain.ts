/** From the name of a model that others keep to a path on this machine, by download where it is not there. */
import { existsSync, mkdirSync, statfsSync, statSync } from 'node:fs';
import { basename, join } from 'node:path';
import { bytesText, KvError } from '../../../native/index.ts';
import { attempt } from '../bytes.ts';
import { READABLE_TYPES } from '../dequant.ts';
import { memoryNeed } from '../memory.ts';
import type { LoadProgress } from '../types.ts';
import { CachedRepository, findCached } from './cache.ts';
import { HubClient } from './client.ts';
import { type ModelFiles, modelFilesOf, urlOf } from './model-files.ts';
import { type HubName, parseRemoteName } from './name.ts';
import { findOllama } from './ollama.ts';
import { type HubSettings, hubSettings, type ObtainOptions } from './settings.ts';
import { surveyFiles } from './survey.ts';
import { transferFile } from './transfer.ts';

/** Words about progress come after at least so many bytes, or a hundredth of all. */
const TOLD_BYTES = 2 ** 20;

/**
 * The path of a model by name, which loadModel takes; null for what is no such name. Nothing is asked of the network:
 * throws KvError 'not-found' with what to do for a model that is not here or not whole.
 */
export function localModel(name: string, settings?: HubSettings): string | null {
  const parsed = parseRemoteName(name);
  if (parsed === null) return null;
  const { cacheDir, ollamaDirs } = settings ?? hubSettings();
  if (parsed.kind === 'ollama') return findOllama(parsed, ollamaDirs);
  const found = findCached(cacheDir, parsed);
  if (found !== null && found.missing.length === 0) return found.path;
  throw notHere(name, parsed, cacheDir, found?.missing ?? null);
}

/**
 * True if a model is on the Hub, not here whole, and may be asked for: then its headers can be read by ranges, and the
 * rest only after a download.
 */
export function isAway(name: string, { settings, offline }: ObtainOptions = {}): boolean {
  const parsed = parseRemoteName(name);
  if (parsed?.kind !== 'hf') return false;
  const { offline: isOffline, cacheDir } = settings ?? hubSettings(offline);
  return !isOffline && findCached(cacheDir, parsed)?.missing.length !== 0;
}

function notHere(name: string, { repo }: HubName, cacheDir: string, missing: readonly string[] | null): KvError {
  const what = missing === null ? `${repo} is not` : `not all of ${repo} is`;
  return new KvError('not-found', `${what} in the cache folder ${cacheDir}`, {
    values: { model: name, cacheDir, ...(missing === null ? {} : { missing: missing.slice(0, 20) }) },
    hint: `palimpsest fetch ${name}`,
  });
}

/**
 * The same, or the name itself where it is no such name, but what is not here is downloaded, unless this is offline
 * mode. What is here whole is used without asking the network.
 */
export async function obtainModel(name: string, options: ObtainOptions = {}): Promise<string> {
  const parsed = parseRemoteName(name);
  if (parsed === null) return name;
  const settings = options.settings ?? hubSettings(options.offline);
  try {
    return localModel(name, settings) ?? name;
  } catch (error) {
    if (!(error instanceof KvError) || error.code !== 'not-found' || parsed.kind !== 'hf') throw error;
    if (!settings.offline) return fetchFromHub(name, { ...options, settings });
    throw new KvError('not-found', `${error.message}, and this is offline mode`, {
      values: error.values,
      hint: `${error.hint} where there is a network; HF_HUB_OFFLINE and --offline switch offline mode on`,
      cause: error,
    });
  }
}

/**
 * Brings the newest of a revision into the cache: the Hub is asked even where an older one is here, and only files that
 * are not there are downloaded; before a large download headers are looked at, so that a model that cannot run here is
 * refused. Throws what modelFilesOf, surveyFiles and transferFile throw, and 'io' where the disk has no room.
 */
export async function fetchFromHub(name: string, options: ObtainOptions = {}): Promise<string> {
  const parsed = parseRemoteName(name);
  if (parsed === null) return name;
  const settings = options.settings ?? hubSettings(options.offline);
  // Ollama fetches for itself.
  if (parsed.kind !== 'hf') return localModel(name, settings) ?? name;
  const client = new HubClient(settings, options.signal);
  const model = await modelFilesOf(client, parsed);
  if (model.files.reduce((sum, { size }) => sum + size, 0) >= settings.lookBytes) await checkReadable(client, model);
  const cached = new CachedRepository(settings.cacheDir, model.repo);
  await transferAll(client, model, cached, options.onProgress ?? (() => {}));
  for (const { path, digest } of model.files) cached.show(model.commit, path, digest);
  cached.setRevision(parsed.revision, model.commit);
  const folder = cached.snapshot(model.commit);
  return model.gguf === null ? folder : join(folder, ...model.gguf.split('/'));
}

/** Refuses a model that could not run here before it is downloaded. */
async function checkReadable(client: HubClient, model: ModelFiles): Promise<void> {
  const { config, weights } = await surveyFiles(client, model);
  const { unreadable } = memoryNeed(config, weights, { name: 'native' }, 'auto');
  if (unreadable.length === 0) return;
  throw new KvError('unsupported', `${model.repo} has weights of the type ${unreadable.join(', ')}`, {
    values: { repo: model.repo, file: model.gguf, readable: READABLE_TYPES },
    hint: 'choose a file of another type',
  });
}

async function transferAll(
  client: HubClient,
  { repo, commit, files }: ModelFiles,
  cached: CachedRepository,
  onProgress: (progress: LoadProgress) => void,
): Promise<void> {
  const isHere = ({ digest, size }: ModelFiles['files'][number]): boolean =>
    statSync(cached.blob(digest), { throwIfNoEntry: false })?.size === size;
  const missing = files.filter((file) => !isHere(file));
  const total = missing.reduce((sum, { size }) => sum + size, 0);
  if (missing.length > 0) checkRoom(cached.dir, total);
  let before = 0;
  for (const file of missing) {
    let told = Number.NEGATIVE_INFINITY;
    let stageBefore = '';
    const tell = (stage: 'download' | 'verify', bytes: number): void => {
      const isNews = stage !== stageBefore || bytes < told || bytes - told >= Math.max(TOLD_BYTES, file.size / 100);
      if (!isNews && bytes !== file.size) return;
      [told, stageBefore] = [bytes, stage];
      const [done, of] = stage === 'download' ? [before + bytes, total] : [bytes, file.size];
      onProgress({ stage, file: basename(file.path), done, total: of });
    };
    const url = urlOf(client, repo, commit, file.path);
    await transferFile(client, { url, file, blob: cached.blob(file.digest), onBytes: tell });
    before += file.size;
  }
}

/**
 * Refuses before the first byte what the disk cannot hold. What an earlier try has brought counts as missing here,
 * which errs on the safe side.
 */
function checkRoom(dir: string, bytes: number): void {
  attempt(dir, () => mkdirSync(dir, { recursive: true }));
  if (!existsSync(dir)) return;
  const { bavail, bsize } = attempt(dir, () => statfsSync(dir));
  const free = bavail * bsize;
  if (bytes <= free) return;
  throw new KvError('io', `${dir} has no room for ${bytesText(bytes)}: ${bytesText(free)} are free`, {
    values: { dir, bytes, free },
    hint: 'make room, or name another folder with HF_HUB_CACHE',
  });
}
