/**
 * What a repository of the Hub holds: commit, paths, sizes and digests, asked for with the library @huggingface/hub,
 * whose answers are checked here.
 */
import { asRecord, KvError, show } from '../../../native/index.ts';
import type { HubClient } from './client.ts';
import { type HubName, isPlainPath } from './name.ts';
import type { HubSettings } from './settings.ts';

export interface RemoteFile {
  readonly path: string;
  readonly size: number;
  /** What its blob is called in the cache: SHA-256 of the content, or for small files the SHA-1 that git gives it. */
  readonly digest: string;
}

export interface Listing {
  readonly repo: string;
  /** 40 hexadecimal digits. */
  readonly commit: string;
  readonly files: ReadonlyMap<string, RemoteFile>;
}

/** What is needed of a HubClient. */
export type Asked = Pick<HubClient, 'checkOnline' | 'answer'> & { readonly settings: Pick<HubSettings, 'endpoint'> };

const FILES_MAX = 100_000;
const PAGES_MAX = 200;
const FILE_BYTES_MAX = 2 ** 42;

type Library = typeof import('@huggingface/hub');

async function openLibrary(): Promise<Library> {
  try {
    return await import('@huggingface/hub');
  } catch (cause) {
    throw new KvError('missing-dependency', 'what the Hub holds is asked for with the package @huggingface/hub', {
      hint: 'npm install @huggingface/hub@2.17.5; models that are in the cache already need no package',
      cause,
    });
  }
}

/**
 * Throws KvError 'missing-dependency', 'not-found' where there is no such repository or revision, and what HubClient
 * throws.
 */
export async function listRepository(client: Asked, { repo, revision }: HubName): Promise<Listing> {
  client.checkOnline(`hf:${repo}`);
  const library = await openLibrary();
  let pages = 0;
  const ask: typeof fetch = (input, init) => {
    if (++pages > PAGES_MAX) throw badAnswer(repo, `more than ${PAGES_MAX} pages`);
    return client.answer(input as URL, init);
  };
  const where = { hubUrl: client.settings.endpoint, fetch: ask };
  try {
    const { sha } = await library.modelInfo({ name: repo, revision, additionalFields: ['sha'], ...where });
    if (typeof sha !== 'string' || !/^[0-9a-f]{40}$/.test(sha))
      throw badAnswer(repo, `the commit ${show(sha).slice(0, 80)}`);
    const files = new Map<string, RemoteFile>();
    for await (const entry of library.listFiles({
      repo: { type: 'model', name: repo },
      recursive: true,
      revision: sha,
      ...where,
    })) {
      const file = fileOf(repo, entry);
      if (file !== null) files.set(file.path, file);
      if (files.size > FILES_MAX) throw badAnswer(repo, `more than ${FILES_MAX} files`);
    }
    return { repo, commit: sha, files };
  } catch (error) {
    if (!(error instanceof KvError)) throw badAnswer(repo, (error as Error).message.slice(0, 200), error);
    if (error.code !== 'not-found') throw error;
    throw new KvError('not-found', `${client.settings.endpoint} has no model ${repo} with the revision ${revision}`, {
      values: { ...error.values, repo, revision },
      hint: 'check the name and the revision; a repository that is private also needs HF_TOKEN',
      cause: error,
    });
  }
}

/** An entry of a listing; null for a folder, and for a file whose path could not be a file of a model here. */
function fileOf(repo: string, value: unknown): RemoteFile | null {
  const entry = asRecord(value);
  const { type, path, size, oid } = entry ?? {};
  if (typeof path !== 'string' || typeof type !== 'string') throw badAnswer(repo, 'an entry without type or path');
  if (type !== 'file' || !isPlainPath(path)) return null;
  const lfs = asRecord(entry?.['lfs']);
  const [bytes, digest] = lfs === undefined ? [size, oid] : [lfs['size'], lfs['oid']];
  if (typeof bytes !== 'number' || !Number.isSafeInteger(bytes) || bytes < 0 || bytes > FILE_BYTES_MAX)
    throw badAnswer(repo, `${path} of ${show(bytes).slice(0, 40)} bytes`);
  if (typeof digest !== 'string' || !(lfs === undefined ? /^[0-9a-f]{40}$/ : /^[0-9a-f]{64}$/).test(digest))
    throw badAnswer(repo, `${path} without a digest`);
  return { path, size: bytes, digest };
}

function badAnswer(repo: string, what: string, cause?: unknown): KvError {
  return new KvError('network', `the answer about ${repo} is none of a hub: ${what}`, {
    values: { repo },
    hint: 'is HF_ENDPOINT the address of a hub?',
    cause,
  });
}
