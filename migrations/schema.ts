/**
 * The SQL schema of the index over witness logs, for both PGlite and PostgreSQL (15 or later). The index holds nothing
 * that could not be read from the logs again. Every row has the id of its log, so one server can hold the logs of many
 * machines. The columns of entries and sessions follow from `witness/entries/`. Times are milliseconds since the epoch,
 * bytes and tokens are whole numbers, and ε and prices are those of the log.
 */
import { bigint, customType, doublePrecision, index, integer, pgTable, primaryKey, text } from 'drizzle-orm/pg-core';
import { decisionColumns, sessionColumns, situationColumns } from './columns.gen.ts';

const whole = (name: string) => bigint(name, { mode: 'number' });
const bytea = customType<{ data: Uint8Array }>({ dataType: () => 'bytea' });

/** One row for each session, from its 'open' entry and, if it has ended, from its 'close' entry. */
export const sessions = pgTable(
  'sessions',
  {
    logId: text('log_id').notNull(),
    ...sessionColumns,
  },
  (t) => [primaryKey({ columns: [t.logId, t.session] }), index('sessions_by_time').on(t.logId, t.openedMs)],
);

/**
 * One row for each planned move, including refused ones. `because_*` says why it was planned and `verdict_*` why it was
 * accepted or refused.
 */
export const decisions = pgTable(
  'decisions',
  {
    logId: text('log_id').notNull(),
    ...decisionColumns,
  },
  // Lists are in order of time and seq, newest first, so what narrows them often is followed by these in its index.
  (t) => [
    primaryKey({ columns: [t.logId, t.seq, t.timeMs] }),
    index('decisions_by_time').on(t.logId, t.timeMs, t.seq),
    index('decisions_by_session').on(t.logId, t.session, t.timeMs, t.seq),
    index('decisions_by_layer').on(t.logId, t.layer, t.timeMs, t.seq),
    index('decisions_by_from').on(t.logId, t.from, t.timeMs, t.seq),
    index('decisions_by_to').on(t.logId, t.to, t.timeMs, t.seq),
    index('decisions_by_rule').on(t.logId, t.rule),
    index('decisions_by_threshold').on(t.logId, t.threshold),
    index('decisions_by_verdict_rule').on(t.logId, t.verdictRule),
    index('decisions_by_verdict_threshold').on(t.logId, t.verdictThreshold),
    index('decisions_by_epsilon_from').on(t.logId, t.epsilonFrom),
    index('decisions_by_epsilon_to').on(t.logId, t.epsilonTo),
    index('decisions_by_epsilon_now').on(t.logId, t.epsilonNow),
    index('decisions_by_bytes').on(t.logId, t.bytesFreed),
  ],
);

/**
 * One row for each situation in which a session decided: its numbers, but of its trials and outcomes only how many
 * there were.
 */
export const situations = pgTable(
  'situations',
  {
    logId: text('log_id').notNull(),
    ...situationColumns,
  },
  (t) => [
    primaryKey({ columns: [t.logId, t.seq, t.timeMs] }),
    index('situations_by_session').on(t.logId, t.session, t.seq),
  ],
);

/**
 * One row for each session that taught something. The vector index finds the nearest ones; their details are here.
 * `seq` is that of the 'close' entry.
 */
export const experiences = pgTable(
  'experiences',
  {
    logId: text('log_id').notNull(),
    seq: whole('seq').notNull(),
    session: text('session').notNull(),
    modelDigest: text('model_digest').notNull(),
    family: text('family').notNull(),
    fingerprint: doublePrecision('fingerprint').array().notNull(),
    priceThreshold: doublePrecision('price_threshold').notNull(),
    gainsK: doublePrecision('gains_k').array().notNull(),
    gainsV: doublePrecision('gains_v').array().notNull(),
    c: doublePrecision('c').notNull(),
    effectiveBits: doublePrecision('effective_bits').notNull(),
    meanKld: doublePrecision('mean_kld'),
    predictedKld: doublePrecision('predicted_kld').notNull(),
    tokens: whole('tokens').notNull(),
  },
  (t) => [primaryKey({ columns: [t.logId, t.seq] }), index('experiences_by_model').on(t.logId, t.modelDigest)],
);

/**
 * How far the tables hold a log: of each series the seq behind the last entry that was compared, and the hash of the
 * chain there.
 */
export const heads = pgTable(
  'heads',
  {
    logId: text('log_id').notNull(),
    series: integer('series').notNull(),
    nextSeq: whole('next_seq').notNull(),
    headHash: text('head_hash').notNull(),
  },
  (t) => [primaryKey({ columns: [t.logId, t.series] })],
);

/** What servers keep beyond one process: responses and conversations, each under a key, with SHA-256 of its bytes. */
export const kept = pgTable(
  'kept',
  {
    kind: text('kind').notNull(),
    key: text('key').notNull(),
    keptMs: whole('kept_ms').notNull(),
    bytes: whole('bytes').notNull(),
    digest: text('digest').notNull(),
    /** The sessions that it holds something of, with a blank between each two. */
    sessions: text('sessions'),
  },
  (t) => [primaryKey({ columns: [t.kind, t.key] }), index('kept_by_time').on(t.keptMs)],
);

/** Their bytes, a MiB in a row. */
export const keptChunks = pgTable(
  'kept_chunks',
  {
    kind: text('kind').notNull(),
    key: text('key').notNull(),
    place: integer('place').notNull(),
    bytes: bytea('bytes').notNull(),
  },
  (t) => [primaryKey({ columns: [t.kind, t.key, t.place] })],
);

/** Those of servers: nothing of them is in a log, and nothing of them is dropped. */
export const KEPT = [kept, keptChunks] as const;

/** Every table of the index, each with the log's id as its first column. */
export const TABLES = [sessions, decisions, situations, experiences, heads] as const;

/** Those whose rows tell of a session. */
export const OF_SESSIONS = [sessions, decisions, situations, experiences] as const;

/** Those that are partitioned by time (`time_ms`), one partition a month, because they grow without end. */
export const PARTITIONED = [decisions, situations] as const;
