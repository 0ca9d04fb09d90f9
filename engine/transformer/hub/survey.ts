/**
 * What a model on the Hub is, from its headers alone, asked for by ranges: configuration, tensors and their types,
 * without the download.
 */
import { KvError, parseJson } from '../../../native/index.ts';
import type { ByteSource } from '../bytes.ts';
import { ggufModel } from '../config-gguf.ts';
import { hfModel } from '../config-hf.ts';
import { readGguf } from '../gguf.ts';
import { CONFIG_BYTES_MAX, GGUF_HEADER_BYTES_MAX } from '../limits.ts';
import { ggufNaming, hfNaming, nameTensors } from '../names.ts';
import { readSafetensors } from '../safetensors.ts';
import type { StoredTensor } from '../stored-tensor.ts';
import type { ModelConfig, WeightSource } from '../types.ts';
import { HubClient, Interruption } from './client.ts';
import type { RemoteFile } from './listing.ts';
import { type ModelFiles, modelFilesOf, smallFile, urlOf } from './model-files.ts';
import { parseRemoteName } from './name.ts';
import { hubSettings, type ObtainOptions } from './settings.ts';

export interface Survey {
  readonly repo: string;
  readonly commit: string;
  /** What would be downloaded. */
  readonly files: readonly string[];
  readonly downloadBytes: number;
  /** Bytes of headers that were read for this. */
  readonly readBytes: number;
  readonly format: string;
  readonly config: ModelConfig;
  /** Shapes and types; their values are not there. */
  readonly weights: WeightSource;
}

/** The first request for a header. */
const HEAD_BYTES = 2 ** 19;

/**
 * Throws KvError 'bad-argument' for another name, what modelFilesOf throws, and what reading these headers from a file
 * would throw.
 */
export async function surveyModel(name: string, options: ObtainOptions = {}): Promise<Survey> {
  const parsed = parseRemoteName(name);
  if (parsed?.kind !== 'hf') throw new KvError('bad-argument', `'${name}' is not on the Hub`, { values: { name } });
  const client = new HubClient(options.settings ?? hubSettings(options.offline), options.signal);
  return surveyFiles(client, await modelFilesOf(client, parsed));
}

/** Throws what reading these headers from a file would throw, above all 'unsupported'. */
export async function surveyFiles(client: HubClient, { repo, commit, gguf, files }: ModelFiles): Promise<Survey> {
  const heads: Prefix[] = [];
  const head = async <T>(file: RemoteFile, read: (source: ByteSource) => T): Promise<T> => {
    const prefix = new Prefix(client, urlOf(client, repo, commit, file.path), file);
    heads.push(prefix);
    return prefix.reading(read);
  };
  const checkpointOf = (tensors: ReadonlyMap<string, StoredTensor>) => ({ tensors, files: [], close: () => {} });
  const done = (format: string, config: ModelConfig, weights: WeightSource): Survey => ({
    ...{ repo, commit, format, config, weights },
    files: files.map(({ path }) => path),
    downloadBytes: files.reduce((sum, { size }) => sum + size, 0),
    readBytes: heads.reduce((sum, { known }) => sum + known, 0),
  });
  if (gguf !== null) {
    const { version, metadata, tensors } = await head(files[0]!, readGguf);
    const { family, config } = ggufModel({ metadata, tensors });
    return done(`GGUF ${version}`, config, nameTensors(checkpointOf(tensors), config, ggufNaming(family, config)));
  }
  const json = async (path: string): Promise<unknown> => {
    const file = files.find((one) => one.path === path);
    if (file === undefined) return {};
    const bytes = await smallFile(client, urlOf(client, repo, commit, path), file, CONFIG_BYTES_MAX);
    return parseJson(bytes, { what: path, code: 'bad-model' });
  };
  const { family, config } = hfModel(await json('config.json'), await json('generation_config.json'));
  const tensors = new Map<string, StoredTensor>();
  for (const file of files.filter(({ path }) => path.endsWith('.safetensors')))
    for (const [tensor, stored] of await head(file, readSafetensors)) tensors.set(tensor, stored);
  return done('safetensors', config, nameTensors(checkpointOf(tensors), config, hfNaming(family)));
}

/** Is thrown through a reader that wants bytes which have not been asked for yet. */
class Beyond extends Error {
  readonly end: number;

  constructor(end: number) {
    super('beyond the bytes that are known');
    this.end = end;
  }
}

/** The first bytes of a file on a server, more of them when a reader wants more; the reader then begins anew. */
class Prefix implements ByteSource {
  readonly path: string;
  readonly size: number;
  readonly #client: HubClient;
  readonly #url: string;
  #bytes: Uint8Array = new Uint8Array(0);

  constructor(client: HubClient, url: string, { path, size }: RemoteFile) {
    this.path = path;
    this.size = size;
    this.#client = client;
    this.#url = url;
  }

  get known(): number {
    return this.#bytes.length;
  }

  async reading<T>(read: (source: ByteSource) => T): Promise<T> {
    for (let wanted = HEAD_BYTES; ; ) {
      await this.#grow(Math.min(this.size, wanted));
      try {
        return read(this);
      } catch (error) {
        if (!(error instanceof Beyond)) throw error;
        // Readers bound what they read; this holds in any case.
        if (error.end > 2 * GGUF_HEADER_BYTES_MAX)
          throw new KvError('bad-file', `${this.path}: the header is longer than ${GGUF_HEADER_BYTES_MAX} bytes`);
        wanted = Math.max(error.end, 2 * this.known);
      }
    }
  }

  read(offset: number, length: number): Uint8Array {
    this.checkRange(offset, length);
    if (offset + length > this.known) throw new Beyond(offset + length);
    return this.#bytes.slice(offset, offset + length);
  }

  readInto(offset: number, target: Uint8Array): void {
    target.set(this.read(offset, target.length));
  }

  checkRange(offset: number, length: number): void {
    const sound = Number.isSafeInteger(offset) && Number.isSafeInteger(length) && offset >= 0 && length >= 0;
    if (!sound || length > this.size - offset)
      throw new KvError('bad-file', `${this.path} ends before the data it announces`, {
        values: { path: this.path, offset, length, size: this.size },
      });
  }

  async #grow(end: number): Promise<void> {
    if (end <= this.known) return;
    const grown = new Uint8Array(end);
    grown.set(this.#bytes);
    let at = this.known;
    const bring = async (): Promise<void> => {
      if (at >= end) return;
      const range = `bytes=${at}-${end - 1}`;
      const { response, body, close } = await this.#client.open(this.#url, { headers: { range } });
      const said = response.headers.get('content-range') ?? '';
      if (response.status === 416 || (response.status === 206 && !said.startsWith(`bytes ${at}-`))) {
        close();
        throw new KvError(
          'network',
          `the server was asked for ${range} of ${this.path} and answers ${response.status} with '${said.slice(0, 80)}'`,
          {
            values: { path: this.path, range, bytes: this.size },
          },
        );
      }
      // A server without ranges sends the file from its beginning.
      let skip = response.status === 206 ? 0 : at;
      for await (const chunk of body) {
        const part = chunk.subarray(Math.min(skip, chunk.length));
        skip -= chunk.length - part.length;
        grown.set(part.subarray(0, end - at), at);
        at = Math.min(end, at + part.length);
        if (at === end) break;
      }
      if (at < end) throw new Interruption(`the server ended at byte ${at} of the first ${end}`, { url: this.#url });
    };
    await this.#client.patiently(this.path, bring, () => at);
    this.#bytes = grown;
  }
}
