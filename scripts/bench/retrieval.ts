/**
 * Measures looking up earlier sessions among many: time and recall of the embedded index against a scan of everything,
 * time of a Qdrant server on loopback, what building and keeping them costs, and whether an index made again from the
 * log answers as before. The sessions are made up, seeded, and lie as real ones do: many of one model and budget, which
 * are the same on those axes, and around each kind of text on the others.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { loadavg, tmpdir } from 'node:os';
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { seeded } from '../../engine/evaluate/recall.ts';
import {
  createExactIndex,
  FINGERPRINT_DIM,
  type Fields,
  type Filter,
  openHnswIndex,
  openQdrantIndex,
  openThresholdBook,
  type ThresholdBook,
  type VectorEntry,
  type VectorIndex,
} from '../../memory/index.ts';
import { HAS_BINARY, QdrantProcess } from '../../test/suite/qdrant-server.ts';
import { writeSessions } from '../../test/suite/store-data.ts';
import { readLog } from '../../witness/index.ts';
import { thousands } from './bench.ts';
import { machine } from './machine.ts';
import { residentBytes } from './memory.ts';

const SEED = 20261122;
const K = 10;
const MODELS = 40;
const KINDS = 25;
const BUDGETS = 12;
/** Queries whose answers are compared with a scan, and queries that are timed. */
const COMPARED = 100;
const TIMED = 2000;
const BATCH = 4096;
/** An indexer that is still busy after ten minutes is measured busy, and that is said. */
const SETTLE_MS = 600_000;
/** Sessions that a log holds from which an index is made again, and times that a book is opened while they end. */
const REBUILT = 20_000;
const OPENINGS = 20;

interface Row {
  readonly index: string;
  readonly count: number;
  readonly dim: number;
  readonly buildMs: number;
  readonly megabytes: number | null;
  readonly filter: string;
  readonly p50Ms: number;
  readonly p95Ms: number;
  /** CPU time of this process for a query. */
  readonly cpuMs: number;
  readonly recall: number;
  /** Programs that ran or waited for a core meanwhile: above the number of cores, times are theirs too. */
  readonly load: number;
}

/** What a filter may name of a session, and a name; the rest of a session's record takes no part in a search. */
interface Payload {
  readonly session: string;
  readonly modelDigest: string;
  readonly family: string;
  readonly tokens: number;
  readonly teaches: boolean;
}
const FIELDS = {
  modelDigest: 'keyword',
  family: 'keyword',
  tokens: 'integer',
  teaches: 'bool',
} as const satisfies Fields;

/** A third of the axes is a model's, one is the budget's, the rest scatters around a kind of text. */
function* sessions(count: number, dim: number, seed: number): Generator<VectorEntry<Payload>, void, undefined> {
  const place = seeded(SEED);
  const next = seeded(seed);
  const centres = (n: number): number[][] => Array.from({ length: n }, () => Array.from({ length: dim }, place));
  const [models, kinds] = [centres(MODELS), centres(KINDS)];
  const own = Math.max(1, Math.floor(dim / 3));
  const bell = (): number => next() + next() + next() + next() - 2;
  for (let seq = 0; seq < count; seq++) {
    const model = Math.floor(next() ** 2 * MODELS);
    const kind = kinds[Math.floor(next() * KINDS)]!;
    const budget = Math.floor(next() * BUDGETS) / BUDGETS;
    const vector = Array.from({ length: dim }, (_, axis) => {
      if (axis < own) return models[model]![axis]!;
      return axis === own ? 2 * budget : kind[axis]! + 0.08 * bell();
    });
    yield {
      id: { log: 'bench', seq },
      vector,
      payload: {
        session: `s${seq}`,
        modelDigest: `m${model}`,
        family: `f${model % 5}`,
        tokens: 128 * Math.floor(1 + next() * 64),
        teaches: next() < 0.9,
      },
    };
  }
}

const mb = (bytes: number): number => Math.round(bytes / 2 ** 20);
const since = (startMs: number): number => performance.now() - startMs;
const seconds = (ms: number): string => `${(ms / 1000).toFixed(1)} s`;
const at = (sorted: readonly number[], share: number): number => sorted[Math.floor(share * (sorted.length - 1))]!;

async function fill(index: VectorIndex<Payload>, count: number): Promise<number> {
  const start = performance.now();
  let batch: VectorEntry<Payload>[] = [];
  for (const session of sessions(count, index.dim, SEED + 1)) {
    if (batch.push(session) < BATCH) continue;
    await index.add(batch, { deadlineMs: 60_000 });
    batch = [];
  }
  await index.add(batch, { deadlineMs: 60_000 });
  return performance.now() - start;
}

/** Asks as a book does: for sessions of one model that taught something. */
const ofModel = (model: string): Filter => ({
  must: [
    { field: 'teaches', equals: true },
    { field: 'modelDigest', equals: model },
  ],
});

/** Recall counts what is no farther than the true tenth, because many sessions may be equally far. */
async function measure(
  index: VectorIndex<Payload>,
  truth: ReadonlyMap<string, number>,
  queries: readonly VectorEntry<Payload>[],
  isNarrowed: boolean,
): Promise<Pick<Row, 'p50Ms' | 'p95Ms' | 'cpuMs' | 'recall' | 'load'>> {
  const spent: number[] = [];
  const before = process.cpuUsage();
  let hits = 0;
  let wanted = 0;
  for (const [i, { vector, payload }] of queries.entries()) {
    const start = performance.now();
    const found = await index.search(vector, K, isNarrowed ? { filter: ofModel(payload.modelDigest) } : {});
    spent.push(performance.now() - start);
    const limit = truth.get(`${i} ${isNarrowed}`);
    if (limit === undefined) continue;
    wanted += K;
    hits += found.filter(({ distance }) => distance <= limit * (1 + 1e-5) + 1e-9).length;
  }
  spent.sort((a, b) => a - b);
  const { user, system } = process.cpuUsage(before);
  const cpuMs = (user + system) / 1000 / queries.length;
  return { p50Ms: at(spent, 0.5), p95Ms: at(spent, 0.95), cpuMs, recall: hits / wanted, load: loadavg()[0]! };
}

async function settled(url: string, collection: string): Promise<number> {
  const start = performance.now();
  for (;;) {
    const answer = await fetch(`${url}/collections/${collection}`);
    const { result } = (await answer.json()) as { result: { status: string } };
    if (result.status === 'green' || performance.now() - start > SETTLE_MS) return performance.now() - start;
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
}

/** What is measured, and where it is told. */
class Retrieval {
  readonly count: number;
  readonly rows: Row[] = [];
  readonly say: (line: string) => void;
  readonly #queries = [...sessions(TIMED, FINGERPRINT_DIM, SEED + 2)];
  readonly #truth = new Map<string, number>();

  constructor(count: number, say: (line: string) => void) {
    this.count = count;
    this.say = say;
  }

  /** Every index, and a scan first: it says what is right. */
  async exact(): Promise<void> {
    const before = residentBytes();
    const exact = createExactIndex<Payload>(FINGERPRINT_DIM, FIELDS);
    const buildMs = await fill(exact, this.count);
    const megabytes = mb(residentBytes() - before);
    const compared = this.#queries.slice(0, COMPARED);
    for (const [i, { vector, payload }] of compared.entries())
      for (const isNarrowed of [false, true]) {
        const found = await exact.search(vector, K, isNarrowed ? { filter: ofModel(payload.modelDigest) } : {});
        this.#truth.set(`${i} ${isNarrowed}`, found[K - 1]!.distance);
      }
    await this.#both(exact, { buildMs, megabytes }, compared);
    await exact.close();
  }

  async hnsw(): Promise<void> {
    const dir = mkdtempSync(join(tmpdir(), 'palimpsest-bench-'));
    const before = residentBytes();
    const hnsw = await openHnswIndex<Payload>({ dim: FINGERPRINT_DIM, fields: FIELDS, dir });
    const buildMs = await fill(hnsw, this.count);
    await this.#both(hnsw, { buildMs, megabytes: mb(Math.max(0, residentBytes() - before)) });
    const saving = performance.now();
    await hnsw.save();
    const loading = performance.now();
    await (await openHnswIndex<Payload>({ dim: FINGERPRINT_DIM, fields: FIELDS, dir })).close();
    this.say(`        saved in ${seconds(loading - saving)}, loaded with all checks in ${seconds(since(loading))}`);
    await hnsw.close();
    rmSync(dir, { recursive: true });
  }

  async qdrant(): Promise<void> {
    const given = process.env['QDRANT_URL'];
    if (given === undefined && !HAS_BINARY)
      return this.say('qdrant  not measured: it needs QDRANT_URL or ../shared/bin/qdrant');
    const server =
      given === undefined
        ? await QdrantProcess.start({ environment: { QDRANT__STORAGE__PERFORMANCE__MAX_SEARCH_THREADS: '0' } })
        : null;
    const url = given ?? server!.url;
    const apiKey = process.env['QDRANT_API_KEY'];
    const collection = `bench-${process.pid}`;
    const key = given === undefined || apiKey === undefined ? {} : { apiKey };
    const dim = FINGERPRINT_DIM;
    const qdrant = await openQdrantIndex<Payload>({ url, ...key, collection, dim, fields: FIELDS, version: 1 });
    const sentMs = await fill(qdrant, this.count);
    const waitedMs = server === null ? 0 : await settled(url, `${collection}-v1-d${dim}`);
    this.say(`        sent in ${seconds(sentMs)}, its indexes were ready ${seconds(waitedMs)} later`);
    await this.#both(qdrant, {
      buildMs: sentMs + waitedMs,
      megabytes: server === null ? null : mb(server.residentBytes()),
    });
    if (server === null) await qdrant.remove({}, { deadlineMs: 60_000 });
    await server?.remove();
  }

  /**
   * A book that took in a log bit by bit, as sessions ended, and one that is made from the whole log must answer alike.
   */
  async rebuild(): Promise<void> {
    const count = Math.min(this.count, REBUILT);
    const dir = mkdtempSync(join(tmpdir(), 'palimpsest-bench-'));
    const logDir = join(dir, 'log');
    const book = (name: string): Promise<ThresholdBook> =>
      openThresholdBook({
        dir: join(dir, name),
        logId: 'bench',
        entries: (known) => readLog(logDir, { from: known, kinds: ['open', 'close'] }),
      });
    const vectors = Array.from(sessions(count, FINGERPRINT_DIM, SEED + 1), ({ vector }) => vector);
    const each = Math.ceil(count / OPENINGS);
    for (let from = 0; from < count; from += each) {
      await writeSessions(logDir, {
        seed: SEED + from,
        sessions: Math.min(each, count - from),
        decisionsPerSession: 0,
        prefix: `s${from}-`,
        fingerprintOf: (session) => vectors[from + session]!,
      });
      await (await book('grown')).close();
    }
    const start = performance.now();
    const made = await book('made');
    const madeMs = since(start);
    const grown = await book('grown');
    let same = 0;
    for (const { vector } of this.#queries)
      if (isDeepStrictEqual(await grown.nearestSessions(vector, K), await made.nearestSessions(vector, K))) same++;
    this.say(
      `rebuild ${thousands(count)} sessions that were taken in at ${OPENINGS} openings, and again from the log in ${seconds(madeMs)}: ${same} of ${this.#queries.length} answers are the same`,
    );
    this.isRebuiltAlike = same === this.#queries.length && grown.rebuilt === null;
    for (const one of [made, grown]) await one.close();
    rmSync(dir, { recursive: true });
  }

  isRebuiltAlike: boolean | null = null;

  async #both(index: VectorIndex<Payload>, built: Pick<Row, 'buildMs' | 'megabytes'>, asked = this.#queries) {
    for (const isNarrowed of [false, true]) {
      const measured = await measure(index, this.#truth, asked, isNarrowed);
      const filter = isNarrowed ? 'model' : 'none';
      const row: Row = { index: index.kind, count: this.count, dim: FINGERPRINT_DIM, filter, ...built, ...measured };
      this.rows.push(row);
      const memory = row.megabytes === null ? '' : `, ${thousands(row.megabytes)} MB`;
      this.say(
        `${row.index.padEnd(7)} ${row.filter.padEnd(8)} p50 ${row.p50Ms.toFixed(2)} ms, p95 ${row.p95Ms.toFixed(2)} ms, own CPU ${row.cpuMs.toFixed(2)} ms, recall@${K} ${row.recall.toFixed(4)}; built in ${seconds(row.buildMs)}${memory}; load ${row.load.toFixed(1)}`,
      );
    }
  }
}

export const INDEXES = ['hnsw', 'qdrant', 'rebuild'] as const;
export type IndexName = (typeof INDEXES)[number];

/** `npm run bench -- retrieval`: prints the rows, and writes them to the file `json`. */
export async function retrieval(
  say: (line: string) => void,
  { count, indexes, json }: { count: number; indexes: readonly IndexName[]; json: string | null },
): Promise<void> {
  const about = machine();
  say(
    `${about.cpu}, ${about.cores} cores, node ${about.node}; ${thousands(count)} sessions of ${FINGERPRINT_DIM} axes, seed ${SEED}`,
  );
  const all = new Retrieval(count, say);
  if (indexes.some((name) => name !== 'rebuild')) await all.exact();
  for (const name of indexes) await all[name]();
  const of = (name: string, is: (row: Row) => boolean): boolean | null =>
    indexes.includes(name as IndexName) ? all.rows.filter(({ index }) => index === name).every(is) : null;
  const goals: readonly (readonly [string, boolean | null])[] = [
    ['hnsw p95 < 5 ms', of('hnsw', ({ p95Ms }) => p95Ms < 5)],
    ['hnsw recall@10 >= 0.98', of('hnsw', ({ recall }) => recall >= 0.98)],
    ['qdrant p95 < 10 ms', of('qdrant', ({ p95Ms }) => p95Ms < 10)],
    ['a rebuild from the log gives the same answers', all.isRebuiltAlike],
  ];
  for (const [goal, isMet] of goals) if (isMet !== null) say(`${isMet ? 'met   ' : 'MISSED'} ${goal}`);
  if (json !== null)
    writeFileSync(json, `${JSON.stringify({ machine: about, seed: SEED, rows: all.rows }, null, 1)}\n`);
}
