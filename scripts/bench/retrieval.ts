/**
 * Measures looking up earlier sessions among many: time and recall of the embedded index against a scan of everything, time of a Qdrant server on
 * loopback, and what building and keeping them costs. The sessions are made up, seeded, and lie as real ones do: many of one model and budget,
 * which are the same on those axes, and around each kind of text on the others.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { seeded } from '../../engine/evaluate/recall.ts';
import {
  createExactIndex,
  FINGERPRINT_DIM,
  type Fields,
  type Filter,
  openHnswIndex,
  openQdrantIndex,
  type VectorEntry,
  type VectorIndex,
} from '../../memory/index.ts';
import { HAS_BINARY, QdrantProcess } from '../../test/suite/qdrant-server.ts';
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

interface Row {
  readonly index: string;
  readonly count: number;
  readonly dim: number;
  readonly buildMs: number;
  readonly megabytes: number | null;
  readonly filter: string;
  readonly p50Ms: number;
  readonly p95Ms: number;
  readonly recall: number;
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

/** As a book asks: sessions that taught something, of one model. */
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
): Promise<Pick<Row, 'p50Ms' | 'p95Ms' | 'recall'>> {
  const spent: number[] = [];
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
  return { p50Ms: at(spent, 0.5), p95Ms: at(spent, 0.95), recall: hits / wanted };
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

/** `npm run bench -- retrieval`: prints the rows, and writes them to the file `json`. */
export async function retrieval(say: (line: string) => void, count: number, json: string | null): Promise<void> {
  const dim = FINGERPRINT_DIM;
  const about = machine();
  say(
    `${about.cpu}, ${about.cores} cores, node ${about.node}; ${thousands(count)} sessions of ${dim} axes, seed ${SEED}`,
  );
  const rows: Row[] = [];
  const queries = [...sessions(TIMED, dim, SEED + 2)];
  const truth = new Map<string, number>();
  const mb = (bytes: number): number => Math.round(bytes / 2 ** 20);
  const tell = (row: Row): void => {
    rows.push(row);
    const memory = row.megabytes === null ? '' : `, ${thousands(row.megabytes)} MB`;
    say(
      `${row.index.padEnd(7)} ${row.filter.padEnd(8)} p50 ${row.p50Ms.toFixed(2)} ms, p95 ${row.p95Ms.toFixed(2)} ms, recall@${K} ${row.recall.toFixed(4)}; built in ${(row.buildMs / 1000).toFixed(0)} s${memory}`,
    );
  };
  const both = async (
    index: VectorIndex<Payload>,
    asked: typeof queries,
    built: Pick<Row, 'buildMs' | 'megabytes'>,
  ) => {
    for (const isNarrowed of [false, true]) {
      const measured = await measure(index, truth, asked, isNarrowed);
      tell({ index: index.kind, count, dim, filter: isNarrowed ? 'model' : 'none', ...built, ...measured });
    }
  };

  const before = residentBytes();
  const exact = createExactIndex<Payload>(dim, FIELDS);
  const exactMs = await fill(exact, count);
  const exactMb = mb(residentBytes() - before);
  for (const [i, { vector, payload }] of queries.slice(0, COMPARED).entries())
    for (const isNarrowed of [false, true]) {
      const found = await exact.search(vector, K, isNarrowed ? { filter: ofModel(payload.modelDigest) } : {});
      truth.set(`${i} ${isNarrowed}`, found[K - 1]!.distance);
    }
  await both(exact, queries.slice(0, COMPARED), { buildMs: exactMs, megabytes: exactMb });
  await exact.close();

  const dir = mkdtempSync(join(tmpdir(), 'palimpsest-bench-'));
  const between = residentBytes();
  const hnsw = await openHnswIndex<Payload>({ dim, fields: FIELDS, dir });
  const hnswMs = await fill(hnsw, count);
  await both(hnsw, queries, { buildMs: hnswMs, megabytes: mb(Math.max(0, residentBytes() - between)) });
  const saving = performance.now();
  await hnsw.save();
  const loading = performance.now();
  await (await openHnswIndex<Payload>({ dim, fields: FIELDS, dir })).close();
  say(
    `        saved in ${((loading - saving) / 1000).toFixed(1)} s, loaded with all checks in ${((performance.now() - loading) / 1000).toFixed(1)} s`,
  );
  await hnsw.close();
  rmSync(dir, { recursive: true });

  const given = process.env['QDRANT_URL'];
  if (given === undefined && !HAS_BINARY) say('qdrant  not measured: it needs QDRANT_URL or ../shared/bin/qdrant');
  else {
    const server =
      given === undefined
        ? await QdrantProcess.start({ environment: { QDRANT__STORAGE__PERFORMANCE__MAX_SEARCH_THREADS: '0' } })
        : null;
    const url = given ?? server!.url;
    const apiKey = process.env['QDRANT_API_KEY'];
    const collection = `bench-${process.pid}`;
    const key = given === undefined || apiKey === undefined ? {} : { apiKey };
    const qdrant = await openQdrantIndex<Payload>({ url, ...key, collection, dim, fields: FIELDS, version: 1 });
    const sentMs = await fill(qdrant, count);
    const waitedMs = server === null ? 0 : await settled(url, `${collection}-v1-d${dim}`);
    say(
      `        sent in ${(sentMs / 1000).toFixed(0)} s, its indexes were ready ${(waitedMs / 1000).toFixed(0)} s later`,
    );
    await both(qdrant, queries, {
      buildMs: sentMs + waitedMs,
      megabytes: server === null ? null : mb(server.residentBytes()),
    });
    await qdrant.remove({}, { deadlineMs: 60_000 });
    await server?.remove();
  }
  const goals: readonly (readonly [string, boolean])[] = [
    ['hnsw p95 < 5 ms', rows.filter(({ index }) => index === 'hnsw').every(({ p95Ms }) => p95Ms < 5)],
    ['hnsw recall@10 >= 0.98', rows.filter(({ index }) => index === 'hnsw').every(({ recall }) => recall >= 0.98)],
    ['qdrant p95 < 10 ms', rows.filter(({ index }) => index === 'qdrant').every(({ p95Ms }) => p95Ms < 10)],
  ];
  for (const [goal, isMet] of goals) say(`${isMet ? 'met   ' : 'MISSED'} ${goal}`);
  if (json !== null) writeFileSync(json, `${JSON.stringify({ machine: about, seed: SEED, rows }, null, 1)}\n`);
}
