/** The audit's questions answered by reading the log itself: nothing to build first, nothing to trust but the log. */
import { given, KvError } from '../native/index.ts';
import { type ReadOptions, readLog } from './read.ts';
import { seriesOf } from './series.ts';
import type { DecisionFilter, DecisionQuery, DecisionRow, Entry, SessionRow } from './types.ts';

const LIMIT_DEFAULT = 100;

/**
 * Questions to the log in `dir` (`report.logPath` of a session, `log` in a state folder). Each reads the whole log, front to back, and
 * keeps no more than `limit` rows; nothing is written, and somebody may be writing the log meanwhile.
 */
export function openLogQuery(dir: string): DecisionQuery {
  return {
    decisions: async (filter = {}) => {
      const { session } = filter;
      const rows = new Newest<DecisionRow>(checkLimit(filter.limit));
      for (const entry of readLog(dir, given<ReadOptions>({ kinds: ['decision'], session }))) {
        // Entries come in order of time: once the writer of `beforeSeq` is there, everything else that is read is younger.
        if (filter.beforeSeq !== undefined && sameSeries(entry.seq, filter.beforeSeq) && entry.seq >= filter.beforeSeq)
          break;
        const row = decisionRow(entry as Entry<'decision'>);
        if (matches(row, filter)) rows.add(row);
      }
      return rows.newestFirst();
    },
    sessions: async (filter = {}) => {
      const limit = checkLimit(filter.limit);
      const totals = new SessionTotals();
      for (const entry of readLog(dir)) totals.add(entry);
      return totals
        .rows()
        .filter((row) => inSpan(row.openedMs, filter))
        .slice(0, limit);
    },
  };
}

/** One decision entry, flat. The SQL index stores exactly these fields. */
export function decisionRow(entry: Entry<'decision'>): DecisionRow {
  const { situation, order, decision, epsilonNow, verdict, bytesBefore, bytesAfter, tokens } = entry.body;
  const { layer, page, side, from, to, epsilonFrom, epsilonTo, price, bytesFreed, because } = decision;
  return {
    seq: entry.seq,
    timeMs: entry.timeMs,
    session: entry.session,
    situation,
    order,
    tokens,
    layer,
    page,
    side,
    from,
    to,
    accepted: verdict.accepted,
    rule: because.rule,
    threshold: because.threshold,
    measured: because.measured,
    bound: because.bound,
    unit: because.unit,
    origin: because.origin,
    verdictRule: verdict.because.rule,
    verdictThreshold: verdict.because.threshold,
    verdictMeasured: verdict.because.measured,
    verdictBound: verdict.because.bound,
    epsilonFrom,
    epsilonTo,
    epsilonNow,
    price,
    bytesFreed,
    bytesBefore,
    bytesAfter,
  };
}

/** What a filter means, for one row; `limit` aside. */
function matches(row: DecisionRow, filter: DecisionFilter): boolean {
  const { session, layer, page, side, reason, tokensMin, tokensMax, accepted, beforeSeq } = filter;
  return (
    (session === undefined || row.session === session) &&
    (layer === undefined || row.layer === layer) &&
    (page === undefined || row.page === page) &&
    (side === undefined || row.side === side) &&
    (reason === undefined || [row.rule, row.threshold, row.verdictRule, row.verdictThreshold].includes(reason)) &&
    (tokensMin === undefined || row.tokens >= tokensMin) &&
    (tokensMax === undefined || row.tokens <= tokensMax) &&
    (accepted === undefined || row.accepted === accepted) &&
    (beforeSeq === undefined || !sameSeries(row.seq, beforeSeq) || row.seq < beforeSeq) &&
    inSpan(row.timeMs, filter)
  );
}

const sameSeries = (a: number, b: number): boolean => seriesOf(a) === seriesOf(b);

function inSpan(timeMs: number, span: { readonly fromMs?: number; readonly toMs?: number }): boolean {
  return (span.fromMs === undefined || timeMs >= span.fromMs) && (span.toMs === undefined || timeMs <= span.toMs);
}

/** Sessions as their entries tell them, one entry after the other. */
export class SessionTotals {
  readonly #rows = new Map<string, { -readonly [K in keyof SessionRow]: SessionRow[K] }>();

  add(entry: Entry): void {
    if (entry.kind === 'open') {
      const { session, seq, timeMs, body } = entry as Entry<'open'>;
      this.#rows.set(session, {
        session,
        seq,
        openedMs: timeMs,
        closedMs: null,
        model: body.model.name,
        modelDigest: body.model.digest,
        policy: body.policy.id,
        tokens: 0,
        kvBytes: 0,
        kvBytesF16: null,
        meanKld: null,
        decisions: 0,
        refused: 0,
        end: 'open',
      });
    }
    const row = this.#rows.get(entry.session);
    if (row === undefined) return;
    if (entry.kind === 'situation') {
      const { tokens, bytes } = (entry as Entry<'situation'>).body.situation;
      Object.assign(row, { tokens, kvBytes: bytes });
    } else if (entry.kind === 'decision') {
      row.decisions++;
      if (!(entry as Entry<'decision'>).body.verdict.accepted) row.refused++;
    } else if (entry.kind === 'close') {
      const { tokens, kvBytes, kvBytesF16, meanKld, reason } = (entry as Entry<'close'>).body;
      Object.assign(row, { closedMs: entry.timeMs, tokens, kvBytes, kvBytesF16, meanKld, end: reason });
    }
  }

  /** One row per 'open' entry, newest first. */
  rows(): SessionRow[] {
    return [...this.#rows.values()].sort((a, b) => b.openedMs - a.openedMs || b.seq - a.seq);
  }
}

function checkLimit(limit: number | undefined): number {
  if (limit === undefined) return LIMIT_DEFAULT;
  if (!Number.isSafeInteger(limit) || limit < 1)
    throw new KvError('bad-argument', `a limit of ${limit} rows is not possible`, {
      values: { limit },
      hint: 'give a whole number of 1 or more',
    });
  return limit;
}

/** Keeps the last `limit` of a long row of things. */
class Newest<T> {
  readonly #limit: number;
  #rows: T[] = [];

  constructor(limit: number) {
    this.#limit = limit;
  }

  add(row: T): void {
    this.#rows.push(row);
    if (this.#rows.length >= 2 * this.#limit) this.#rows = this.#rows.slice(-this.#limit);
  }

  newestFirst(): T[] {
    return this.#rows.slice(-this.#limit).reverse();
  }
}
