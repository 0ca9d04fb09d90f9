/**
 * Models that Ollama has pulled: a manifest names the blobs, and the blob of weights is a GGUF file. It is read where
 * it lies.
 */
import { existsSync, readdirSync, statSync } from 'node:fs';
import { join, sep } from 'node:path';
import { asRecord, KvError, parseJson, readRegular } from '../../../native/index.ts';
import type { OllamaName } from './name.ts';

const MANIFEST_BYTES_MAX = 2 ** 18;
const WEIGHTS = 'application/vnd.ollama.image.model';
const ADAPTER = 'application/vnd.ollama.image.adapter';
/** Installed models that a message names. */
const NAMED_MAX = 30;

/**
 * The path of the GGUF file. dirs: folders to look in. Throws KvError 'not-found' with the models that there are,
 * 'bad-file', 'unsupported', 'io'.
 */
export function findOllama({ host, namespace, model, tag }: OllamaName, dirs: readonly string[]): string {
  for (const dir of dirs) {
    const path = join(dir, 'manifests', host.replace(':', sep === '\\' ? '_' : ':'), namespace, model, tag);
    if (!existsSync(path)) continue;
    const manifest = readRegular(path, { bytesMax: MANIFEST_BYTES_MAX, code: 'bad-file' });
    const { digest, size } = weightsOf(manifest, path);
    const blob = join(dir, 'blobs', `sha256-${digest}`);
    const actual = statSync(blob, { throwIfNoEntry: false })?.size;
    if (actual === size) return blob;
    throw new KvError(
      'bad-file',
      `${path} names ${blob}, which ${actual === undefined ? 'is not there' : `has ${actual} bytes instead of ${size}`}`,
      {
        values: { path, blob, bytes: size, actual },
        hint: `ollama pull ${model}:${tag} fetches what is missing`,
      },
    );
  }
  const installed = dirs.flatMap(installedIn);
  throw new KvError('not-found', `Ollama has no model ${model}:${tag} here`, {
    values: { dirs, installed: installed.slice(0, NAMED_MAX) },
    hint: `ollama pull ${model}:${tag}, or set OLLAMA_MODELS to the folder that has it`,
  });
}

/** What a manifest says of its weights. Throws KvError 'bad-file', 'unsupported'. */
export function weightsOf(content: Uint8Array, path: string): { readonly digest: string; readonly size: number } {
  const bad = (what: string): KvError => new KvError('bad-file', `${path}: ${what}`, { values: { path } });
  const layers = asRecord(parseJson(content, { what: path, code: 'bad-file' }))?.['layers'];
  if (!Array.isArray(layers)) throw bad('a manifest has a list of layers');
  const found = layers.map(asRecord).filter((layer) => layer?.['mediaType'] === WEIGHTS);
  if (layers.some((layer) => asRecord(layer)?.['mediaType'] === ADAPTER))
    throw new KvError('unsupported', `${path} is a model with an adapter`, {
      values: { path },
      hint: 'name the model that it adapts, or merge the two',
    });
  if (found.length !== 1)
    throw new KvError('unsupported', `${path} has ${found.length} layers of weights`, {
      values: { path },
      hint: 'a model in one GGUF file is read',
    });
  const { digest, size } = found[0]!;
  const [, hex] = /^sha256:([0-9a-f]{64})$/.exec(typeof digest === 'string' ? digest : '') ?? [];
  if (hex === undefined) throw bad('the digest of its weights is no SHA-256');
  if (typeof size !== 'number' || !Number.isSafeInteger(size) || size < 1) throw bad('its weights have no size');
  return { digest: hex, size };
}

/** Names as one would write them behind 'ollama:'. */
function installedIn(dir: string): string[] {
  const manifests = join(dir, 'manifests');
  if (!existsSync(manifests)) return [];
  try {
    return (readdirSync(manifests, { recursive: true }) as string[])
      .map((path) => path.split(sep))
      .filter((parts) => parts.length === 4)
      .map(([host, namespace, model, tag]) => `${host}/${namespace}/${model}:${tag}`)
      .map((name) => name.replace(/^registry\.ollama\.ai\/(library\/)?/, ''))
      .sort();
  } catch {
    return []; // It may not be read by this user.
  }
}
