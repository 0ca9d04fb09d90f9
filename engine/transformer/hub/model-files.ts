/**
 * What has to be fetched of a model on the Hub: its files, decided from the listing and, for weights in several files,
 * from their index.
 */
import { gathered, KvError, parseJson } from '../../../native/index.ts';
import { TENSOR_INDEX_BYTES_MAX } from '../limits.ts';
import { shardsIn } from '../safetensors.ts';
import { chooseFiles } from './choose.ts';
import { type HubClient, Interruption } from './client.ts';
import { listRepository, type RemoteFile } from './listing.ts';
import type { HubName } from './name.ts';

export interface ModelFiles {
  readonly repo: string;
  readonly commit: string;
  /** The GGUF file; null: the folder of a checkpoint. */
  readonly gguf: string | null;
  readonly files: readonly RemoteFile[];
}

/** Throws what listRepository and chooseFiles throw, 'not-found' for an index that names files that are not there. */
export async function modelFilesOf(client: HubClient, name: HubName): Promise<ModelFiles> {
  const { repo, commit, files } = await listRepository(client, name);
  const choice = chooseFiles(repo, [...files.keys()], name.file);
  if (choice.kind === 'gguf') return { repo, commit, gguf: choice.file, files: [files.get(choice.file)!] };
  const weights = files.get(choice.weights)!;
  const shards = choice.weights.endsWith('.index.json') ? await shardsOfIndex(client, repo, commit, weights) : [];
  const missing = shards.filter((shard) => !files.has(shard));
  if (missing.length > 0)
    throw new KvError('not-found', `${repo} lacks files that its ${weights.path} names`, {
      values: { repo, missing: missing.slice(0, 20) },
      hint: 'the repository is not complete: name another revision or repository',
    });
  const paths = [...choice.beside, choice.weights, ...shards];
  return { repo, commit, gguf: null, files: paths.map((path) => files.get(path)!) };
}

export const urlOf = ({ settings }: HubClient, repo: string, commit: string, path: string): string =>
  `${settings.endpoint}/${repo}/resolve/${commit}/${path.split('/').map(encodeURIComponent).join('/')}`;

/**
 * A small file whole, unverified: what is decided by it is decided again from the verified file when that is loaded.
 */
export async function smallFile(
  client: HubClient,
  url: string,
  file: RemoteFile,
  bytesMax: number,
): Promise<Uint8Array> {
  if (file.size > bytesMax)
    throw new KvError('bad-file', `${file.path} has ${file.size} bytes; at most ${bytesMax} are plausible`, {
      values: { file: file.path, bytes: file.size, bytesMax },
    });
  return client.patiently(file.path, async () => {
    const bytes = await gathered((await client.open(url)).body, file.size, file.path);
    if (bytes.length === file.size) return bytes;
    throw new Interruption(`the server ended after ${bytes.length} of ${file.size} bytes`, { url });
  });
}

async function shardsOfIndex(client: HubClient, repo: string, commit: string, file: RemoteFile): Promise<string[]> {
  const bytes = await smallFile(client, urlOf(client, repo, commit, file.path), file, TENSOR_INDEX_BYTES_MAX);
  return shardsIn(file.path, parseJson(bytes, { what: file.path, code: 'bad-file' }));
}
