/**
 * The embedded vector index: hnswlib behind checks, with payloads beside it and a safe save. It is a cache of the log:
 * whatever is wrong with its files, they are refused before the library reads them, and the index is built again.
 *
 * A folder holds `manifest.json` and the two files that it names, `vectors.N.hnsw` and `payloads.N.jsonl`. A save writes
 * generation N+1 beside generation N and then replaces the manifest: a crash at any moment leaves one whole generation.
 */
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, unlinkSync } from 'node:fs';
import { join } from 'node:path';
import type { HierarchicalNSW } from 'hnswlib-node';
import { z } from 'zod';
import { KvError, parseJson, readRegular, replaceFile, syncFile, syncFolder, writeSynced } from '../native/index.ts';
import { checkHnswFile } from './hnsw-file.ts';
import type { Neighbour, VectorIndex } from './types.ts';
import {
  checkDim,
  checkK,
  checkLabel,
  checkVector,
  DIM_MAX,
  LABEL_MAX,
  nearestFirst,
  passes,
  squaredDistance,
} from './vector.ts';

const MANIFEST = 'manifest.json';
const MANIFEST_BYTES_MAX = 64 * 1024;
/** A million vectors of 64 numbers take 0.4 GB; larger files are not ours. */
const FILE_BYTES_MAX = 1024 ** 3;
const REINDEX = 'rebuild it with: palimpsest audit reindex';
/** Links per element and candidates while building: recall .99 at 100,000 clustered vectors of 64 numbers, 74 µs an insert (measured). */
const M = 16;
const EF_CONSTRUCTION = 100;
/** Candidates per search; recall .999 at 100,000 × 64 (measured). */
const EF_SEARCH = 64;
const SEED = 100;
/** Up to here a scan of everything costs under a millisecond or two and is exact. Chosen. */
const EXACT_BELOW = 512;
const CAPACITY_START = 256;

export interface HnswOptions<T = unknown> {
  /** Numbers in a vector. */
  readonly dim: number;
  /** Folder of the saved index, created by save(); null: memory only. */
  readonly dir: string | null;
  /** What the vectors were made from, e.g. the id of a log and the version of the fingerprint: another origin on disk is 'bad-index'. */
  readonly origin?: string;
  /** Payload as a saved file has it → payload that can be used. What it throws makes the file 'bad-index'. Default: whatever is there. */
  readonly check?: (payload: T) => T;
  /** save() changes nothing. */
  readonly readOnly?: boolean;
  /** Searches below this count look at every vector. Default 512. */
  readonly exactBelow?: number;
}

const manifestBody = z.strictObject({
  kind: z.literal('palimpsest-vector-index'),
  schemaVersion: z.literal(1),
  origin: z.string().max(1000),
  dim: z.int().min(1).max(DIM_MAX),
  space: z.literal('l2'),
  m: z.int().min(2).max(256),
  efConstruction: z.int().min(1).max(10_000),
  efSearch: z.int().min(1).max(10_000),
  generation: z.int().min(1),
  count: z
    .int()
    .min(0)
    .max(2 ** 32),
  vectors: z.strictObject({
    file: z.string(),
    bytes: z.int().min(0).max(FILE_BYTES_MAX),
    sha256: z.string().length(64),
  }),
  payloads: z.strictObject({
    file: z.string(),
    bytes: z.int().min(0).max(FILE_BYTES_MAX),
    sha256: z.string().length(64),
  }),
});
/** What a saved vector index says about itself. */
export type VectorIndexManifest = z.infer<typeof manifestBody>;

const sha256 = (bytes: Uint8Array | string): string => createHash('sha256').update(bytes).digest('hex');
const damaged = (dir: string, what: string, cause?: unknown): KvError =>
  new KvError('bad-index', `the vector index in ${dir} cannot be used: ${what}`, {
    values: { dir },
    hint: REINDEX,
    cause,
  });

async function loadLibrary(): Promise<typeof import('hnswlib-node')> {
  try {
    const module = await import('hnswlib-node');
    return module.default ?? module;
  } catch (cause) {
    throw new KvError(
      'missing-dependency',
      `the vector index needs the package hnswlib-node: ${(cause as Error).message}`,
      {
        cause,
        hint: 'install it again: npm ci',
      },
    );
  }
}

function manifestText(body: VectorIndexManifest): string {
  return `${JSON.stringify({ body, sha256: sha256(JSON.stringify(body)) })}\n`;
}

/** Reads and checks the manifest alone. → null when there is none. Throws 'bad-index'. */
export function readVectorIndexManifest(dir: string): VectorIndexManifest | null {
  const path = join(dir, MANIFEST);
  if (!existsSync(path)) return null;
  try {
    const bytes = readRegular(path, { bytesMax: MANIFEST_BYTES_MAX, code: 'bad-index' });
    const parsed = z
      .strictObject({ body: manifestBody, sha256: z.string() })
      .safeParse(parseJson(bytes, { code: 'bad-index', what: path, hint: REINDEX }));
    if (!parsed.success) {
      // Report only the first problem, because a manifest of another kind differs in everything.
      const { path: where, message } = parsed.error.issues[0]!;
      throw damaged(dir, `its manifest is not one of ours (${[...where.map(String), message].join(': ')})`);
    }
    const body = parsed.data.body;
    // The text must be what we would write, to the byte: that makes the digest cover every byte of it.
    if (bytes.toString('utf8') !== manifestText(body)) throw damaged(dir, 'its manifest does not have its digest');
    const { generation } = body;
    if (body.vectors.file !== vectorsFile(generation) || body.payloads.file !== payloadsFile(generation)) {
      throw damaged(dir, 'its manifest names foreign files');
    }
    return body;
  } catch (cause) {
    if (cause instanceof KvError && cause.code === 'bad-index') throw cause;
    throw damaged(dir, (cause as Error).message, cause);
  }
}

const vectorsFile = (generation: number): string => `vectors.${generation}.hnsw`;
const payloadsFile = (generation: number): string => `payloads.${generation}.jsonl`;
const OWN_FILE = /^(?:vectors\.\d+\.hnsw|payloads\.\d+\.jsonl|manifest\.json\.\d+\.tmp|.*\.part)$/;

function readNamed(dir: string, part: VectorIndexManifest['vectors']): Uint8Array {
  const path = join(dir, part.file);
  let bytes: Uint8Array;
  try {
    bytes = readRegular(path, { bytesMax: part.bytes, code: 'bad-index' });
    if (bytes.length !== part.bytes) throw damaged(dir, `${part.file} does not have its ${part.bytes} bytes`);
  } catch (cause) {
    if (cause instanceof KvError && cause.code === 'bad-index') throw cause;
    throw damaged(dir, `${part.file} cannot be read`, cause);
  }
  if (sha256(bytes) !== part.sha256) throw damaged(dir, `${part.file} does not have its digest`);
  return bytes;
}

/** A digest says that the file is the one that was written, not that it was written by us: every line is checked as well. */
function readPayloads<T>(
  dir: string,
  bytes: Uint8Array,
  count: number,
  check: HnswOptions<T>['check'],
): Map<number, T> {
  const payloads = new Map<number, T>();
  try {
    for (const line of new TextDecoder('utf-8', { fatal: true }).decode(bytes).split('\n')) {
      if (line === '') continue;
      const [label, payload] = payloadLine.parse(JSON.parse(line));
      payloads.set(label, check === undefined ? (payload as T) : check(payload as T));
    }
  } catch (cause) {
    throw damaged(dir, 'its payloads cannot be read', cause);
  }
  if (payloads.size !== count) throw damaged(dir, `${payloads.size} payloads for ${count} vectors`);
  return payloads;
}

const payloadLine = z.tuple([z.int().min(0).max(LABEL_MAX), z.unknown()]);

interface Contents<T> {
  readonly manifest: VectorIndexManifest;
  readonly payloads: Map<number, T>;
}

/** Checks everything about a saved index before the library sees it. Throws 'bad-index'. */
function checkFiles<T>(dir: string, manifest: VectorIndexManifest, check?: HnswOptions<T>['check']): Contents<T> {
  const vectors = readNamed(dir, manifest.vectors);
  const payloads = readPayloads(dir, readNamed(dir, manifest.payloads), manifest.count, check);
  const labels = checkHnswFile(vectors, { ...manifest, capacityMax: Math.max(CAPACITY_START, 2 * manifest.count) });
  if (!labels.every((label) => payloads.has(label))) throw damaged(dir, 'a vector without a payload');
  return { manifest, payloads };
}

/** What a saved index says about itself, after every check but without loading it. Throws 'not-found', 'bad-index'. */
export function inspectIndex(dir: string): VectorIndexManifest {
  const manifest = readVectorIndexManifest(dir);
  if (manifest === null) throw new KvError('not-found', `there is no vector index in ${dir}`, { values: { dir } });
  return checkFiles(dir, manifest).manifest;
}

class HnswIndex<T> implements VectorIndex<T> {
  readonly kind = 'hnsw';
  readonly dim: number;
  readonly #library: typeof import('hnswlib-node');
  readonly #dir: string | null;
  readonly #origin: string;
  readonly #check: HnswOptions<T>['check'];
  readonly #readOnly: boolean;
  readonly #exactBelow: number;
  #graph: HierarchicalNSW;
  #payloads: Map<number, T>;
  #closed = false;

  constructor(library: typeof import('hnswlib-node'), options: HnswOptions<T>) {
    this.dim = options.dim;
    this.#library = library;
    this.#dir = options.dir;
    this.#origin = options.origin ?? '';
    this.#check = options.check;
    this.#readOnly = options.readOnly ?? false;
    this.#exactBelow = options.exactBelow ?? EXACT_BELOW;
    this.#graph = this.#emptyGraph();
    this.#payloads = new Map();
  }

  get count(): number {
    return this.#payloads.size;
  }

  #live(): void {
    if (this.#closed) throw new KvError('closed', 'the vector index was closed');
  }

  #emptyGraph(): HierarchicalNSW {
    const graph = new this.#library.HierarchicalNSW('l2', this.dim);
    graph.initIndex({ maxElements: CAPACITY_START, m: M, efConstruction: EF_CONSTRUCTION, randomSeed: SEED });
    graph.setEf(EF_SEARCH);
    return graph;
  }

  /** Takes over what is on disk. Throws 'bad-index' and leaves this index as it was. */
  load(): void {
    const dir = this.#dir;
    const manifest = dir === null ? null : readVectorIndexManifest(dir);
    if (dir === null || manifest === null) return;
    if (manifest.dim !== this.dim)
      throw damaged(dir, `it holds vectors of ${manifest.dim} numbers, wanted ${this.dim}`);
    if (manifest.origin !== this.#origin) {
      throw damaged(dir, `it was made from '${manifest.origin}', wanted '${this.#origin}'`);
    }
    const { payloads } = checkFiles(dir, manifest, this.#check);
    const graph = new this.#library.HierarchicalNSW('l2', this.dim);
    try {
      graph.readIndexSync(join(dir, manifest.vectors.file));
    } catch (cause) {
      throw damaged(dir, 'the library refuses it', cause);
    }
    // A loaded graph has room for exactly what it holds.
    if (graph.getMaxElements() < CAPACITY_START) graph.resizeIndex(CAPACITY_START);
    graph.setEf(manifest.efSearch);
    this.#graph = graph;
    this.#payloads = payloads;
  }

  async add(label: number, vector: readonly number[], payload: T): Promise<void> {
    this.#live();
    checkLabel(label);
    const plain = checkVector(vector, this.dim);
    const isNew = !this.#payloads.has(label);
    const capacity = this.#graph.getMaxElements();
    if (isNew && this.#graph.getCurrentCount() >= capacity) this.#graph.resizeIndex(capacity * 2);
    this.#graph.addPoint(plain, label);
    this.#payloads.set(label, payload);
  }

  async search(vector: readonly number[], k: number, filter?: (payload: T) => boolean): Promise<Neighbour<T>[]> {
    this.#live();
    checkK(k);
    const query = checkVector(vector, this.dim);
    if (this.count === 0) return [];
    if (this.count < this.#exactBelow) return this.#scan(query, k, filter);
    // Filters run here, on ever more candidates: inside the library one that throws would end the process.
    for (let wanted = filter === undefined ? k : 4 * k; wanted < this.count / 4; wanted *= 4) {
      this.#graph.setEf(Math.max(EF_SEARCH, wanted));
      const found = this.#graph.searchKnn(query, wanted);
      const kept: Neighbour<T>[] = [];
      for (let i = 0; i < found.neighbors.length; i++) {
        const label = found.neighbors[i]!;
        const payload = this.#payloads.get(label)!;
        if (filter !== undefined && !passes(filter, payload)) continue;
        kept.push({ label, distance: found.distances[i]!, payload });
      }
      if (kept.length >= k) return kept.sort(nearestFirst).slice(0, k);
    }
    return this.#scan(query, k, filter);
  }

  #scan(query: number[], k: number, filter?: (payload: T) => boolean): Neighbour<T>[] {
    const rounded = query.map(Math.fround);
    const found: Neighbour<T>[] = [];
    for (const [label, payload] of this.#payloads) {
      if (filter !== undefined && !passes(filter, payload)) continue;
      found.push({ label, distance: squaredDistance(rounded, this.#graph.getPoint(label)), payload });
    }
    return found.sort(nearestFirst).slice(0, k);
  }

  entries(): Iterable<readonly [number, T]> {
    return this.#payloads;
  }

  async save(): Promise<void> {
    this.#live();
    const dir = this.#dir;
    if (dir === null || this.#readOnly) return;
    try {
      mkdirSync(dir, { recursive: true });
      let last = 0;
      for (const name of readdirSync(dir)) {
        const generation = /^(?:vectors|payloads)\.(\d+)\./.exec(name)?.[1];
        if (generation !== undefined) last = Math.max(last, Number(generation));
      }
      const generation = last + 1;
      const vectorsPath = join(dir, vectorsFile(generation));
      const payloadsPath = join(dir, payloadsFile(generation));

      // writeIndexSync, not writeIndex: the asynchronous one races with addPoint.
      this.#graph.writeIndexSync(`${vectorsPath}.part`);
      syncFile(`${vectorsPath}.part`);
      const vectors = readFileSync(`${vectorsPath}.part`);
      const lines = [...this.#payloads].map(([label, payload]) => `${JSON.stringify([label, payload])}\n`);
      const payloads = Buffer.from(lines.join(''));
      writeSynced(`${payloadsPath}.part`, payloads);
      renameSync(`${vectorsPath}.part`, vectorsPath);
      renameSync(`${payloadsPath}.part`, payloadsPath);
      syncFolder(dir);

      const body: VectorIndexManifest = {
        kind: 'palimpsest-vector-index',
        schemaVersion: 1,
        origin: this.#origin,
        dim: this.dim,
        space: 'l2',
        m: M,
        efConstruction: EF_CONSTRUCTION,
        efSearch: EF_SEARCH,
        generation,
        count: this.count,
        vectors: { file: vectorsFile(generation), bytes: vectors.length, sha256: sha256(vectors) },
        payloads: { file: payloadsFile(generation), bytes: payloads.length, sha256: sha256(payloads) },
      };
      replaceFile(join(dir, MANIFEST), Buffer.from(manifestText(body)));
      // Only now is the former generation, and whatever a killed save left, of no use to anybody.
      for (const name of readdirSync(dir)) {
        if (OWN_FILE.test(name) && name !== body.vectors.file && name !== body.payloads.file)
          unlinkSync(join(dir, name));
      }
    } catch (cause) {
      if (cause instanceof KvError) throw cause;
      throw new KvError('io', `cannot save the vector index in ${dir}: ${(cause as Error).message}`, {
        values: { dir },
        cause,
      });
    }
  }

  async clear(): Promise<void> {
    this.#live();
    this.#graph = this.#emptyGraph();
    this.#payloads = new Map();
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.#payloads = new Map();
  }
}

/** Opens what is saved in `dir`, or an empty index. Throws 'bad-index' when the files cannot be trusted, 'missing-dependency'. */
export async function openHnswIndex<T>(options: HnswOptions<T>): Promise<VectorIndex<T>> {
  checkDim(options.dim);
  const index = new HnswIndex<T>(await loadLibrary(), options);
  index.load();
  return index;
}

export interface OpenedIndex<T> {
  readonly index: VectorIndex<T>;
  /** Why it was built again, one sentence; null when the saved one was good. */
  readonly rebuilt: string | null;
}

/**
 * Opens the saved index; when it cannot be trusted (or there is none), fills an empty one by `rebuild` and saves it.
 * Throws what `rebuild` throws, and 'missing-dependency'.
 */
export async function openOrRebuildHnswIndex<T>(
  options: HnswOptions<T>,
  rebuild: (index: VectorIndex<T>) => Promise<void>,
): Promise<OpenedIndex<T>> {
  checkDim(options.dim);
  const index = new HnswIndex<T>(await loadLibrary(), options);
  let reason: string | null = null;
  try {
    const isThere = options.dir !== null && readVectorIndexManifest(options.dir) !== null;
    if (isThere) index.load();
    else reason = 'there was no saved vector index';
  } catch (error) {
    if (!(error instanceof KvError) || error.code !== 'bad-index') throw error;
    reason = error.message;
  }
  if (reason !== null) {
    await rebuild(index);
    await index.save();
  }
  return { index, rebuilt: reason };
}
