/**
 * The SQL schema of the index over witness logs, for both PGlite and PostgreSQL (15 or later). The index holds nothing that could not be
 * read from the logs again. Every row has the id of its log, so one server can hold the logs of many machines.
 * Times are milliseconds since the epoch, bytes and tokens are whole numbers, and ε and prices are those of the log.
 */
import { bigint, boolean, doublePrecision, index, integer, pgTable, primaryKey, text } from 'drizzle-orm/pg-core';

const whole = (name: string) => bigint(name, { mode: 'number' });

/** One row for each session, from its 'open' entry and, if it has ended, from its 'close' entry. */
export const sessions = pgTable(
  'sessions',
  {
    logId: text('log_id').notNull(),
    session: text('session').notNull(),
    seq: whole('seq').notNull(),
    openedMs: whole('opened_ms').notNull(),
    closedMs: whole('closed_ms'),
    model: text('model').notNull(),
    modelDigest: text('model_digest').notNull(),
    policy: text('policy').notNull(),
    tokens: whole('tokens').notNull(),
    kvBytes: whole('kv_bytes').notNull(),
    kvBytesF16: whole('kv_bytes_f16'),
    meanKld: doublePrecision('mean_kld'),
    decisions: integer('decisions').notNull(),
    refused: integer('refused').notNull(),
    ending: text('ending').notNull(),
  },
  (t) => [primaryKey({ columns: [t.logId, t.session] }), index('sessions_by_time').on(t.logId, t.openedMs)],
);

/** One row for each planned move, including refused ones. `because_*` says why it was planned and `verdict_*` why it was accepted or refused. */
export const decisions = pgTable(
  'decisions',
  {
    logId: text('log_id').notNull(),
    seq: whole('seq').notNull(),
    timeMs: whole('time_ms').notNull(),
    session: text('session').notNull(),
    situation: integer('situation').notNull(),
    order: integer('plan_order').notNull(),
    tokens: whole('tokens').notNull(),
    layer: integer('layer').notNull(),
    page: integer('page').notNull(),
    side: text('side').notNull(),
    from: text('format_from').notNull(),
    to: text('format_to').notNull(),
    accepted: boolean('accepted').notNull(),
    rule: text('because_rule').notNull(),
    threshold: text('because_threshold').notNull(),
    measured: doublePrecision('because_measured').notNull(),
    bound: doublePrecision('because_bound').notNull(),
    unit: text('because_unit').notNull(),
    origin: text('because_origin').notNull(),
    verdictRule: text('verdict_rule').notNull(),
    verdictThreshold: text('verdict_threshold').notNull(),
    verdictMeasured: doublePrecision('verdict_measured').notNull(),
    verdictBound: doublePrecision('verdict_bound').notNull(),
    epsilonFrom: doublePrecision('epsilon_from'),
    epsilonTo: doublePrecision('epsilon_to'),
    epsilonNow: doublePrecision('epsilon_now'),
    price: doublePrecision('price'),
    bytesFreed: whole('bytes_freed').notNull(),
    bytesBefore: whole('bytes_before').notNull(),
    bytesAfter: whole('bytes_after').notNull(),
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

/** One row for each situation in which a session decided: its numbers, but of its trials and outcomes only how many there were. */
export const situations = pgTable(
  'situations',
  {
    logId: text('log_id').notNull(),
    seq: whole('seq').notNull(),
    timeMs: whole('time_ms').notNull(),
    session: text('session').notNull(),
    situation: integer('situation').notNull(),
    tokens: whole('tokens').notNull(),
    bytes: whole('bytes').notNull(),
    budgetBytes: whole('budget_bytes'),
    kldBudget: doublePrecision('kld_budget'),
    urgent: boolean('urgent').notNull(),
    lowMemory: boolean('low_memory').notNull(),
    trials: integer('trials').notNull(),
    outcomes: integer('outcomes').notNull(),
  },
  (t) => [
    primaryKey({ columns: [t.logId, t.seq, t.timeMs] }),
    index('situations_by_session').on(t.logId, t.session, t.seq),
  ],
);

/** One row for each session that taught something. The vector index finds the nearest ones; their details are here. `seq` is that of the 'close' entry. */
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

/** How far the tables hold a log: of each series the seq behind the last entry that was compared, and the hash of the chain there. */
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

/** Every table, each with the log's id as its first column. */
export const TABLES = [sessions, decisions, situations, experiences, heads] as const;

/** Those whose rows tell of a session. */
export const OF_SESSIONS = [sessions, decisions, situations, experiences] as const;

/** Those that are partitioned by time (`time_ms`), one partition a month, because they grow without end. */
export const PARTITIONED = [decisions, situations] as const;
