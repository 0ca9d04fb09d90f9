/** The audit's questions asked in SQL. Same rows, same order as reading the log. */
import { and, desc, eq, gte, lt, lte, or, type SQL } from 'drizzle-orm';
import type { Experience } from '../../memory/index.ts';
import { decisions, experiences, sessions } from '../../migrations/schema.ts';
import { checkLimit } from '../query.ts';
import type { DecisionFilter, DecisionRow, SessionFilter, SessionRow } from '../types.ts';
import type { Database } from './database.ts';

/** A condition for a value that was given, none for one that was not. */
const given = <T>(value: T | undefined, condition: (value: T) => SQL | undefined): SQL | undefined =>
  value === undefined ? undefined : condition(value);

export async function selectDecisions(
  { orm }: Database,
  logId: string,
  filter: DecisionFilter,
): Promise<DecisionRow[]> {
  const t = decisions;
  const rows = await orm
    .select()
    .from(t)
    .where(
      and(
        eq(t.logId, logId),
        given(filter.session, (v) => eq(t.session, v)),
        given(filter.layer, (v) => eq(t.layer, v)),
        given(filter.page, (v) => eq(t.page, v)),
        given(filter.side, (v) => eq(t.side, v)),
        given(filter.reason, (v) =>
          or(eq(t.rule, v), eq(t.threshold, v), eq(t.verdictRule, v), eq(t.verdictThreshold, v)),
        ),
        given(filter.fromMs, (v) => gte(t.timeMs, v)),
        given(filter.toMs, (v) => lte(t.timeMs, v)),
        given(filter.tokensMin, (v) => gte(t.tokens, v)),
        given(filter.tokensMax, (v) => lte(t.tokens, v)),
        given(filter.accepted, (v) => eq(t.accepted, v)),
        given(filter.beforeSeq, (v) => lt(t.seq, v)),
      ),
    )
    .orderBy(desc(t.seq))
    .limit(checkLimit(filter.limit));
  return rows.map(({ logId: _log, ...row }) => row as DecisionRow);
}

export async function selectSessions({ orm }: Database, logId: string, filter: SessionFilter): Promise<SessionRow[]> {
  const t = sessions;
  const rows = await orm
    .select()
    .from(t)
    .where(
      and(
        eq(t.logId, logId),
        given(filter.fromMs, (v) => gte(t.openedMs, v)),
        given(filter.toMs, (v) => lte(t.openedMs, v)),
      ),
    )
    .orderBy(desc(t.seq))
    .limit(checkLimit(filter.limit));
  return rows.map(({ logId: _log, ending, ...row }) => ({ ...row, end: ending as SessionRow['end'] }));
}

export async function selectExperiences({ orm }: Database, logId: string, modelDigest?: string): Promise<Experience[]> {
  const t = experiences;
  const rows = await orm
    .select()
    .from(t)
    .where(
      and(
        eq(t.logId, logId),
        given(modelDigest, (v) => eq(t.modelDigest, v)),
      ),
    )
    .orderBy(t.seq);
  return rows.map(({ logId: _log, gainsK, gainsV, ...row }) => ({ ...row, gains: { k: gainsK, v: gainsV } }));
}
