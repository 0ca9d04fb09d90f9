/**
 * Measures the questions of an audit over a log of a million entries: lists read from the log, lists and counts
 * answered by the SQL tables (PGlite, and the PostgreSQL server that scripts/with-postgres.mjs starts), bringing the
 * tables up to the log, and sessions like another.
 */
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { loadavg, tmpdir } from 'node:os';
import { join } from 'node:path';
import { seeded } from '../../engine/evaluate/recall.ts';
import { openThresholdBook } from '../../memory/index.ts';
import { writeSessions } from '../../test/suite/store-data.ts';
import {
  type AuditIndexOptions,
  type CountKey,
  type DecisionFilter,
  type DecisionQuery,
  type DecisionRow,
  openAuditIndex,
  openLogQuery,
  readLog,
} from '../../witness/index.ts';
import { thousands } from './bench.ts';
import { machine } from './machine.ts';

const SEED = 20261122;
/** Decisions of a session, and entries: four decisions to a situation, a beginning and an end. */
const DECISIONS = 400;
const ENTRIES = DECISIONS + DECISIONS / 4 + 2;
/** Rows that a list shows. */
const LIMIT = 20;
/** Questions of each kind. */
const ASKED = 30;

interface Row {
  readonly from: string;
  readonly question: string;
  readonly p50Ms: number;
  readonly p95Ms: number;
  readonly load: number;
}

const at = (sorted: readonly number[], share: number): number => sorted[Math.floor(share * (sorted.length - 1))]!;

/** Questions by name: a filter made of a decision that there is. */
const QUESTIONS: Readonly<Record<string, (row: DecisionRow) => DecisionFilter>> = {
  newest: () => ({}),
  'older than one': ({ seq }) => ({ beforeSeq: seq }),
  'a session': ({ session }) => ({ session }),
  'a layer and side': ({ layer, side }) => ({ layer, side }),
  'a page of a layer': ({ layer, page }) => ({ layer, page }),
  'from and to': ({ from, to }) => ({ from, to }),
  refused: () => ({ accepted: false }),
  'a reason': ({ rule }) => ({ reason: rule }),
  'a threshold': ({ verdictThreshold }) => ({ threshold: verdictThreshold }),
  'a reason that nothing has': () => ({ reason: 'quality-gives-way' }),
  'an hour': ({ timeMs }) => ({ fromMs: timeMs - 3_600_000, toMs: timeMs }),
  'a model': ({ seq }) => ({ model: `sha256:${seq % 2}` }),
  'large errors': () => ({ epsilonTo: { min: 0.00999 } }),
  'many bytes': () => ({ bytesFreed: { min: 6995 } }),
  'a model, a layer and an hour': ({ timeMs, layer, seq }) => ({
    model: `sha256:${seq % 2}`,
    layer,
    fromMs: timeMs - 3_600_000,
    toMs: timeMs,
  }),
};

const COUNTS: readonly CountKey[] = ['layer', 'reason', 'hour', 'format', 'session', 'model'];

class Audit {
  readonly rows: Row[] = [];
  readonly #say: (line: string) => void;
  readonly #known: readonly DecisionRow[];

  constructor(known: readonly DecisionRow[], say: (line: string) => void) {
    this.#known = known;
    this.#say = say;
  }

  async #ask(
    from: string,
    question: string,
    count: number,
    ask: (row: DecisionRow) => Promise<unknown>,
  ): Promise<void> {
    const next = seeded(SEED);
    const spent: number[] = [];
    for (let i = 0; i < count; i++) {
      const row = this.#known[Math.floor(next() * this.#known.length)]!;
      const start = performance.now();
      await ask(row);
      spent.push(performance.now() - start);
    }
    spent.sort((a, b) => a - b);
    const row = { from, question, p50Ms: at(spent, 0.5), p95Ms: at(spent, 0.95), load: loadavg()[0]! };
    this.rows.push(row);
    this.#say(
      `${from.padEnd(9)} ${question.padEnd(30)} p50 ${row.p50Ms.toFixed(1)} ms, p95 ${row.p95Ms.toFixed(1)} ms; load ${row.load.toFixed(1)}`,
    );
  }

  async lists(from: string, query: DecisionQuery, asked: number): Promise<void> {
    for (const [question, filterOf] of Object.entries(QUESTIONS))
      await this.#ask(from, question, asked, (row) => query.decisions({ ...filterOf(row), limit: LIMIT }));
    await this.#ask(from, 'newest sessions', asked, () => query.sessions({ limit: LIMIT }));
  }

  async counts(from: string, query: DecisionQuery, asked: number): Promise<void> {
    for (const by of COUNTS) await this.#ask(from, `count by ${by}`, asked, () => query.counts(by));
  }

  async similar(logDir: string, dir: string): Promise<void> {
    const book = await openThresholdBook({
      dir,
      logId: 'bench',
      entries: (known) => readLog(logDir, { from: known, kinds: ['open', 'close'] }),
    });
    const vectors = [...readLog(logDir, { kinds: ['close'] })].map(
      ({ body }) => (body as { fingerprint: number[] }).fingerprint,
    );
    const next = seeded(SEED);
    await this.#ask('vectors', `similar among ${thousands(vectors.length)} sessions`, 10 * ASKED, () =>
      book.nearestSessions(vectors[Math.floor(next() * vectors.length)]!, 5),
    );
    await book.close();
  }

  /** Makes the tables, asks them, and opens them once more by their head. */
  async tables(from: string, options: AuditIndexOptions): Promise<void> {
    const seconds = async <T>(what: string, work: Promise<T>): Promise<T> => {
      const start = performance.now();
      const result = await work;
      this.#say(`${from.padEnd(9)} ${what} in ${((performance.now() - start) / 1000).toFixed(1)} s`);
      return result;
    };
    const index = await seconds('brought up to the log', openAuditIndex({ ...options, check: 'head' }));
    await this.lists(from, index, ASKED);
    await this.counts(from, index, 3);
    await index.close();
    const again = await seconds('opened and compared by the head', openAuditIndex({ ...options, check: 'head' }));
    await this.#ask(from, 'brought up to the log again', 10, () => again.sync());
    await again.close();
  }
}

/** What is asked: the log itself, the vectors of its sessions, and its tables in either database. */
export const PARTS: readonly string[] = ['log', 'vectors', 'pglite', 'postgres'];

/** `npm run bench -- audit`: prints the rows, and writes them to the file `json`. */
export async function audit(
  say: (line: string) => void,
  { entries, over, keep, json }: { entries: number; over: readonly string[]; keep: string | null; json: string | null },
): Promise<void> {
  const about = machine();
  if (keep !== null) mkdirSync(keep, { recursive: true });
  const dir = keep ?? mkdtempSync(join(tmpdir(), 'palimpsest-bench-'));
  const logDir = join(dir, 'log');
  try {
    const sessions = Math.max(1, Math.round(entries / ENTRIES));
    if (!existsSync(logDir)) await writeSessions(logDir, { seed: SEED, sessions, decisionsPerSession: DECISIONS });
    say(
      `${about.cpu}, ${about.cores} cores, node ${about.node}; ${thousands(sessions * ENTRIES)} entries of ${thousands(sessions)} sessions, seed ${SEED}`,
    );
    const log = openLogQuery(logDir);
    const all = new Audit(await log.decisions({ limit: 100_000 }), say);
    if (over.includes('log')) await all.lists('log', log, 3);
    if (over.includes('vectors')) await all.similar(logDir, join(dir, 'memory'));
    if (over.includes('pglite')) await all.tables('pglite', { logDir, dir: join(dir, 'sql') });
    const url = process.env['PALIMPSEST_TEST_POSTGRES_URL'];
    if (!over.includes('postgres')) say('postgres  not asked');
    else if (url === undefined)
      say('postgres  not measured: it needs PALIMPSEST_TEST_POSTGRES_URL (scripts/with-postgres.mjs)');
    else await all.tables('postgres', { logDir, url });
    const below = (ms: number, of: (row: Row) => boolean): boolean | null => {
      const rows = all.rows.filter(of);
      return rows.length === 0 ? null : rows.every(({ p95Ms }) => p95Ms < ms);
    };
    const isList = ({ from, question }: Row): boolean => from !== 'log' && Object.hasOwn(QUESTIONS, question);
    const goals = [
      ['filters p95 < 100 ms by the tables', below(100, isList)],
      ['similar p95 < 50 ms', below(50, ({ from }) => from === 'vectors')],
    ] as const;
    for (const [goal, isMet] of goals)
      say(`${isMet === null ? 'not asked' : isMet ? 'met      ' : 'MISSED   '} ${goal}`);
    if (json !== null)
      writeFileSync(json, `${JSON.stringify({ machine: about, seed: SEED, rows: all.rows }, null, 1)}\n`);
  } finally {
    if (keep === null) rmSync(dir, { recursive: true, force: true });
  }
}
