/**
 * The embedded vector index: hnswlib behind checks, with payloads beside it and a safe save. It is a cache of the log:
 * whatever is wrong with its files, they are refused before the library reads them, and the index is built again.
 *
 * A folder holds `manifest.json` and the two files that it names, `vectors.N.hnsw` and `payloads.N.jsonl`. A save
 * writes generation N+1 beside generation N and then replaces the manifest: a crash at any moment leaves one whole
 * generation.
 */
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, unlinkSync } from 'node:fs';
import { join } from 'node:path';
import type { HierarchicalNSW } from 'hnswlib-node';
import { z } from 'zod';
import { KvError, parseJson, readRegular, replaceFile, syncFile, syncFolder, writeSynced } from '../native/index.ts';
import type { Fields, Filter } from './filter.ts';
import { checkHnswFile, type HnswShape, vectorsIn } from './hnsw-file.ts';
import { Rows } from './rows.ts';
import {
  checkEntries,
  checkK,
  checkShape,
  checkVector,
  Deadline,
  DIM_MAX,
  isVectorId,
  type Limits,
  type Listing,
  type Narrowed,
  Nearest,
  type Neighbour,
  squaredDistance,
  type VectorEntry,
  type VectorIndex,
} from './vector.ts';

const MANIFEST = 'manifest.json';
const MANIFEST_BYTES_MAX = 64 * 1024;
/** A million vectors of 64 numbers take 0.4 GB; larger files are not ours. */
const FILE_BYTES_MAX = 1024 ** 3;
const REINDEX = 'rebuild it with: palimpsest audit reindex';
/**
 * Links per element and candidates while building: recall .99 at 100,000 clustered vectors of 64 numbers, 74 µs an
 * insert (measured).
 */
const M = 16;
const EF_CONSTRUCTION = 100;
/** Candidates per search; recall .999 at 100,000 × 64 (measured). */
const efOf = (count: number): number => (count > 200_000 ? 128 : 64);
const SEED = 100;
/** Up to here a scan of everything costs under a millisecond or two and is exact. Chosen. */
const EXACT_BELOW = 512;
const CAPACITY_START = 256;
/** Under a filter so many times k candidates are asked for, and so many times more while too few of them pass. */
const OVERFETCH = 4;
/** Beyond this many candidates a scan takes no longer. */
const CANDIDATES_MAX = 4096;

export interface HnswOptions<T = unknown> {
  /** Numbers in a vector. */
  readonly dim: number;
  /** Payload fields that filters may name. Default: none. */
  readonly fields?: Fields;
  /** Folder of the saved index, created by save(); null: memory only. */
  readonly dir: string | null;
  /**
   * What the vectors were made from, e.g. the id of a log and the version of the fingerprint: another origin on disk is
   * 'bad-index'.
   */
  readonly origin?: string;
  /**
   * Payload as a saved file has it → payload that can be used. What it throws makes the file 'bad-index'. Default:
   * whatever is there.
   */
  readonly check?: (payload: T) => T;
  /** save() changes nothing. */
  readonly readOnly?: boolean;
  /** Searches below this count look at every vector. Default 512. */
  readonly exactBelow?: number;
}

const manifestBody = z.strictObject({
  kind: z.literal('palimpsest-vector-index'),
  schemaVersion: z.literal(2),
  origin: z.string().max(1000),
  dim: z.int().min(1).max(DIM_MAX),
  space: z.literal('l2'),
  m: z.int().min(2).max(256),
  efConstruction: z.int().min(1).max(10_000),
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

/**
 * A digest says that the file is the one that was written, not that it was written by us: every line is checked as
 * well.
 */
function readPayloads<T extends object>(
  dir: string,
  bytes: Uint8Array,
  count: number,
  { check, fields = {} }: Pick<HnswOptions<T>, 'check' | 'fields'>,
): Rows<T> {
  const rows = new Rows<T>(fields);
  try {
    for (const line of new TextDecoder('utf-8', { fatal: true }).decode(bytes).split('\n')) {
      if (line === '') continue;
      const [log, seq, payload] = JSON.parse(line) as [string, number, T];
      const row = rows.size;
      if (!isVectorId({ log, seq }) || typeof payload !== 'object' || payload === null) throw new Error('no payload');
      if (rows.put({ log, seq }, check === undefined ? payload : check(payload)) !== row)
        throw new Error('an id twice');
    }
  } catch (cause) {
    throw damaged(dir, 'its payloads cannot be read', cause);
  }
  if (rows.size !== count) throw damaged(dir, `${rows.size} payloads for ${count} vectors`);
  return rows;
}

const shapeIn = (manifest: VectorIndexManifest): HnswShape => ({
  ...manifest,
  capacityMax: Math.max(CAPACITY_START, 2 * manifest.count),
});

/**
 * Checks everything about a saved index before the library sees it. A label is the number of a payload's line. Throws
 * 'bad-index'.
 */
function checkFiles<T extends object>(
  dir: string,
  manifest: VectorIndexManifest,
  options: Pick<HnswOptions<T>, 'check' | 'fields'> = {},
): { rows: Rows<T>; vectors: Uint8Array } {
  const vectors = readNamed(dir, manifest.vectors);
  const rows = readPayloads(dir, readNamed(dir, manifest.payloads), manifest.count, options);
  const labels = checkHnswFile(vectors, shapeIn(manifest));
  if (!labels.every((label) => label < rows.size)) throw damaged(dir, 'a vector without a payload');
  return { rows, vectors };
}

/** The manifest of an index that was saved with these options; null: there is none. Throws 'bad-index'. */
function manifestFor<T>({ dir, dim, origin = '' }: HnswOptions<T>): VectorIndexManifest | null {
  const manifest = dir === null ? null : readVectorIndexManifest(dir);
  if (dir === null || manifest === null) return null;
  if (manifest.dim !== dim) throw damaged(dir, `it holds vectors of ${manifest.dim} numbers, wanted ${dim}`);
  if (manifest.origin !== origin) throw damaged(dir, `it was made from '${manifest.origin}', wanted '${origin}'`);
  return manifest;
}

/** What a saved index holds, read without the library; null: none was saved. Throws 'bad-index'. */
export function savedEntries<T extends object>(options: HnswOptions<T>): VectorEntry<T>[] | null {
  const manifest = manifestFor(options);
  if (manifest === null) return null;
  const { rows, vectors } = checkFiles(options.dir!, manifest, options);
  const byRow = vectorsIn(vectors, shapeIn(manifest));
  return Array.from({ length: rows.size }, (_, row) => ({
    id: rows.id(row),
    vector: byRow.get(row)!,
    payload: rows.payload(row),
  }));
}

/** Removes what was saved, first what names the rest. Throws 'io'. */
export function removeSaved(dir: string): void {
  try {
    if (!existsSync(dir)) return;
    rmSync(join(dir, MANIFEST), { force: true });
    for (const name of readdirSync(dir)) if (OWN_FILE.test(name)) rmSync(join(dir, name), { force: true });
    syncFolder(dir);
  } catch (cause) {
    throw new KvError('io', `cannot remove the vector index in ${dir}: ${(cause as Error).message}`, {
      values: { dir },
      cause,
    });
  }
}

/** What a saved index says about itself, after every check but without loading it. Throws 'not-found', 'bad-index'. */
export function inspectIndex(dir: string): VectorIndexManifest {
  const manifest = readVectorIndexManifest(dir);
  if (manifest === null) throw new KvError('not-found', `there is no vector index in ${dir}`, { values: { dir } });
  checkFiles(dir, manifest);
  return manifest;
}

class HnswIndex<T extends object> implements VectorIndex<T> {
  readonly kind = 'hnsw';
  readonly dim: number;
  readonly fields: Fields;
  readonly #library: typeof import('hnswlib-node');
  readonly #options: HnswOptions<T>;
  /** The library knows a vector by the number of its row. */
  #graph: HierarchicalNSW;
  #rows: Rows<T>;
  #closed = false;

  constructor(library: typeof import('hnswlib-node'), options: HnswOptions<T>) {
    this.dim = options.dim;
    this.fields = options.fields ?? {};
    checkShape(this.dim, this.fields);
    this.#library = library;
    this.#options = options;
    this.#graph = this.#emptyGraph();
    this.#rows = new Rows(this.fields);
  }

  #live(): void {
    if (this.#closed) throw new KvError('closed', 'the vector index was closed');
  }

  #emptyGraph(): HierarchicalNSW {
    const graph = new this.#library.HierarchicalNSW('l2', this.dim);
    graph.initIndex({ maxElements: CAPACITY_START, m: M, efConstruction: EF_CONSTRUCTION, randomSeed: SEED });
    return graph;
  }

  /** Takes over what is on disk. Throws 'bad-index' and leaves this index as it was. */
  load(): void {
    const manifest = manifestFor(this.#options);
    if (manifest === null) return;
    const dir = this.#options.dir!;
    const { rows } = checkFiles(dir, manifest, this.#options);
    const graph = new this.#library.HierarchicalNSW('l2', this.dim);
    try {
      graph.readIndexSync(join(dir, manifest.vectors.file));
    } catch (cause) {
      throw damaged(dir, 'the library refuses it', cause);
    }
    // A loaded graph has room for exactly what it holds.
    if (graph.getMaxElements() < CAPACITY_START) graph.resizeIndex(CAPACITY_START);
    this.#graph = graph;
    this.#rows = rows;
  }

  async add(entries: readonly VectorEntry<T>[], limits?: Limits): Promise<void> {
    this.#live();
    new Deadline(limits).check();
    for (const { id, vector, payload } of checkEntries(entries, this.dim)) {
      const row = this.#rows.put(id, payload);
      const capacity = this.#graph.getMaxElements();
      if (row >= capacity) this.#graph.resizeIndex(capacity * 2);
      this.#graph.addPoint(vector as number[], row);
    }
  }

  async search(vector: readonly number[], k: number, options: Narrowed = {}): Promise<Neighbour<T>[]> {
    this.#live();
    checkK(k);
    const query = checkVector(vector, this.dim);
    const { filter } = options;
    const deadline = new Deadline(options);
    const rows = this.#rows;
    const passes = filter === undefined ? null : rows.asks(filter);
    const { exactBelow = EXACT_BELOW } = this.#options;
    // Filters run here, on ever more candidates: inside the library one that throws would end the process.
    for (
      let wanted = filter === undefined ? k : OVERFETCH * k;
      rows.size >= exactBelow && wanted < rows.size / OVERFETCH && wanted <= CANDIDATES_MAX;
      wanted *= OVERFETCH
    ) {
      deadline.check();
      this.#graph.setEf(Math.max(efOf(rows.size), wanted));
      const found = this.#graph.searchKnn(query, wanted);
      const nearest = new Nearest<T>(k);
      let kept = 0;
      for (let i = 0; i < found.neighbors.length; i++) {
        const row = found.neighbors[i]!;
        if (passes !== null && !passes(row)) continue;
        kept++;
        const distance = found.distances[i]!;
        nearest.offer(distance, () => ({ id: rows.id(row), distance, payload: rows.payload(row) }));
      }
      if (kept >= k) return nearest.sorted();
    }
    return this.#scan(query, k, options);
  }

  /** Looks at everything: few vectors, or a filter that few of them pass. */
  #scan(query: number[], k: number, options: Narrowed): Neighbour<T>[] {
    const nearest = new Nearest<T>(k);
    this.#rows.visit(options, (row) => {
      const distance = squaredDistance(query, this.#graph.getPoint(row));
      nearest.offer(distance, () => ({ id: this.#rows.id(row), distance, payload: this.#rows.payload(row) }));
    });
    return nearest.sorted();
  }

  async list(options?: Parameters<VectorIndex<T>['list']>[0]): Promise<Listing<T>> {
    this.#live();
    return this.#rows.list(options, (row) => this.#graph.getPoint(row));
  }

  async count(options?: Narrowed): Promise<number> {
    this.#live();
    return this.#rows.count(options);
  }

  /** A graph without them is made from the rest: what the library only marks as deleted would stay in its files. */
  async remove(filter: Filter, limits?: Limits): Promise<void> {
    this.#live();
    const { rows, kept } = this.#rows.without(filter, limits);
    const graph = this.#graph;
    this.#rows = new Rows(this.fields);
    this.#graph = this.#emptyGraph();
    await this.add(kept.map((row, i) => ({ id: rows.id(i), vector: graph.getPoint(row), payload: rows.payload(i) })));
  }

  async save(): Promise<void> {
    this.#live();
    const { dir, readOnly = false, origin = '' } = this.#options;
    if (dir === null || readOnly) return;
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
      const lines: string[] = [];
      for (let row = 0; row < this.#rows.size; row++) {
        const { log, seq } = this.#rows.id(row);
        lines.push(`${JSON.stringify([log, seq, this.#rows.payload(row)])}\n`);
      }
      const payloads = Buffer.from(lines.join(''));
      writeSynced(`${payloadsPath}.part`, payloads);
      renameSync(`${vectorsPath}.part`, vectorsPath);
      renameSync(`${payloadsPath}.part`, payloadsPath);
      syncFolder(dir);

      const body: VectorIndexManifest = {
        kind: 'palimpsest-vector-index',
        schemaVersion: 2,
        origin,
        dim: this.dim,
        space: 'l2',
        m: M,
        efConstruction: EF_CONSTRUCTION,
        generation,
        count: this.#rows.size,
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

  async close(): Promise<void> {
    this.#closed = true;
    this.#rows = new Rows(this.fields);
    this.#graph = this.#emptyGraph();
  }
}

/**
 * Opens what is saved in `dir`, or an empty index. Throws 'bad-index' when the files cannot be trusted,
 * 'missing-dependency'.
 */
export async function openHnswIndex<T extends object>(options: HnswOptions<T>): Promise<VectorIndex<T>> {
  const index = new HnswIndex<T>(await loadLibrary(), options);
  index.load();
  return index;
}

export interface OpenedIndex<T extends object> {
  readonly index: VectorIndex<T>;
  /** Why it was built again, one sentence; null when the saved one was good. */
  readonly rebuilt: string | null;
}

/**
 * Opens the saved index; when it cannot be trusted (or there is none), fills an empty one by `rebuild` and saves it.
 * Throws what `rebuild` throws, and 'missing-dependency'.
 */
export async function openOrRebuildHnswIndex<T extends object>(
  options: HnswOptions<T>,
  rebuild: (index: VectorIndex<T>) => Promise<void>,
): Promise<OpenedIndex<T>> {
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
