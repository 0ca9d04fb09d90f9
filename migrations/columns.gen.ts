// Written by scripts/generate-entries.ts from witness/entries/. Change these, not this file.
import { bigint, boolean, doublePrecision, integer, text } from 'drizzle-orm/pg-core';

const whole = (name: string) => bigint(name, { mode: 'number' });

/** Columns of DecisionRow. */
export const decisionColumns = {
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
};

/** Columns of SituationRow. */
export const situationColumns = {
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
};

/** Columns of SessionRow. */
export const sessionColumns = {
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
  end: text('ending').notNull(),
};
