/** The audit's questions answered by reading the log itself: nothing to build first, nothing to trust but the log. */
import { given } from '../native/index.ts';
import { checkBounds, checkLimit, conditionsOf, meets } from './condition.ts';
import { Counts, checkCountKey } from './count.ts';
import { decisionRow } from './entries/rows.gen.ts';
import { nodeFiles } from './files.ts';
import { newestOf } from './newest.ts';
import { type ReadOptions, readLog, readSeries } from './read.ts';
import { checkSeq, listSeries, seriesOf } from './series.ts';
import type {
  DecisionFilter,
  DecisionQuery,
  DecisionRow,
  Entry,
  SenselessEntry,
  SessionFilter,
  SessionRow,
} from './types.ts';

/** Options of openLogQuery. */
export interface LogQueryOptions {
  /**
   * Told of a session, perhaps several times, whose entries stand among those that were looked at in the time that was
   * asked for, but cannot be opened: it was erased, its key is not here ('missing'), or the file of its key is
   * damaged. What else was asked for cannot be known of it.
   */
  readonly onPassedOver?: (session: string, why: 'erased' | 'missing' | 'damaged') => void;
  /** Told of an entry, perhaps several times, that was looked at likewise and makes no sense. */
  readonly onSenseless?: (entry: SenselessEntry) => void;
}

/** Whom reading tells. */
type Told = Pick<ReadOptions, 'onUnopened' | 'onSenseless'>;

/** What reading tells, within the times of a filter. */
const within = (
  span: { readonly fromMs?: number; readonly toMs?: number },
  { onPassedOver, onSenseless }: LogQueryOptions,
): Told => ({
  onUnopened: (session, why, timeMs) => {
    if (inSpan(timeMs, span)) onPassedOver?.(session, why);
  },
  onSenseless: (entry) => {
    if (inSpan(entry.timeMs, span)) onSenseless?.(entry);
  },
});

/**
 * Questions to the log in `dir` (`report.logPath` of a session, `log` in a state folder). Lists begin at the newest
 * entry and read no further back than they must; nothing is written, and somebody may be writing the log meanwhile.
 * Sessions that cannot be read are passed over; `onPassedOver` is told of them.
 */
export function openLogQuery(dir: string, told: LogQueryOptions = {}): DecisionQuery {
  return {
    decisions: async (filter = {}) => decisionsOf(dir, filter, told),
    sessions: async (filter = {}) => sessionsIn(dir, filter, told),
    counts: async (by, filter = {}) => {
      checkCountKey(by);
      const conditions = conditionsOf(filter);
      const counts = new Counts(by);
      const isByModel = filter.model !== undefined || by === 'model';
      const models = new Map<string, OpenModel>();
      const kinds = isByModel ? (['open', 'decision'] as const) : (['decision'] as const);
      const options = { kinds, session: filter.session, ...within(filter, told) };
      for (const entry of readLog(dir, given<ReadOptions>(options))) {
        if (entry.kind === 'open') models.set(entry.session, (entry as Entry<'open'>).body.model);
        if (entry.kind !== 'decision') continue;
        const row = decisionRow(entry as Entry<'decision'>);
        const model = models.get(row.session);
        if (isOfModel(model, filter.model) && meets(row, conditions)) counts.add(row, model?.name ?? 'unknown');
      }
      return counts.rows();
    },
  };
}

type OpenModel = Entry<'open'>['body']['model'];

const isOfModel = (model: OpenModel | undefined, wanted: string | undefined): boolean =>
  wanted === undefined || model?.name === wanted || model?.digest === wanted;

function decisionsOf(dir: string, filter: DecisionFilter, told: LogQueryOptions): DecisionRow[] {
  const limit = checkLimit(filter.limit);
  const conditions = conditionsOf(filter);
  const { session, fromMs, model } = filter;
  const cut = filter.beforeSeq === undefined ? null : cutAt(dir, filter.beforeSeq);
  const isBefore = (row: DecisionRow): boolean =>
    cut === null || row.timeMs < cut.timeMs || (row.timeMs === cut.timeMs && row.seq < cut.seq);
  const sessions = model === undefined ? null : sessionsOfModel(dir, model);
  return newestOf<DecisionRow>(dir, {
    ...given<Pick<ReadOptions, 'session'>>({ session }),
    kinds: session === undefined ? ['decision'] : ['open', 'decision'],
    ...within(filter, told),
    isFirst: (entry) => entry.kind === 'open',
    pick: (entry) => {
      if (entry.kind !== 'decision') return null;
      const row = decisionRow(entry as Entry<'decision'>);
      return isBefore(row) && (sessions?.has(row.session) ?? true) && meets(row, conditions) ? row : null;
    },
    limit,
    fromMs,
    toMs: cut === null ? filter.toMs : Math.min(cut.timeMs, filter.toMs ?? cut.timeMs),
  });
}

/** The first decision from this seq on in its series: everything before it is older. null: there is none. */
function cutAt(dir: string, seq: number): DecisionRow | null {
  checkSeq(seq);
  if (!listSeries(nodeFiles, dir).includes(seriesOf(seq))) return null;
  for (const entry of readSeries(dir, seriesOf(seq), { from: seq, kinds: ['decision'] }))
    return decisionRow(entry as Entry<'decision'>);
  return null;
}

function sessionsOfModel(dir: string, model: string): ReadonlySet<string> {
  const sessions = new Set<string>();
  for (const entry of readLog(dir, { kinds: ['open'] }))
    if (isOfModel((entry as Entry<'open'>).body.model, model)) sessions.add(entry.session);
  return sessions;
}

/** The newest sessions first, then their entries, from the first of their beginnings on. */
function sessionsIn(dir: string, filter: SessionFilter, told: LogQueryOptions): SessionRow[] {
  const { fromMs, toMs, model } = filter;
  checkBounds('timeMs', [fromMs, toMs]);
  const opens = newestOf<Entry<'open'>>(dir, {
    kinds: ['open'],
    ...within(filter, told),
    pick: (entry) => {
      const open = entry as Entry<'open'>;
      const isWanted = isOfModel(open.body.model, model) && inSpan(open.timeMs, filter);
      return isWanted ? open : null;
    },
    limit: checkLimit(filter.limit),
    fromMs,
    toMs,
  });
  const wanted = new Set(opens.map(({ session }) => session));
  const totals = new SessionTotals();
  for (const series of listSeries(nodeFiles, dir)) {
    const own = opens.filter(({ seq }) => seriesOf(seq) === series);
    if (own.length === 0) continue;
    const from = Math.min(...own.map(({ seq }) => seq));
    for (const entry of readSeries(dir, series, { from })) if (wanted.has(entry.session)) totals.add(entry);
  }
  return totals.rows();
}

function inSpan(timeMs: number, span: { readonly fromMs?: number; readonly toMs?: number }): boolean {
  return (span.fromMs === undefined || timeMs >= span.fromMs) && (span.toMs === undefined || timeMs <= span.toMs);
}

/** Sessions as their entries tell them, one entry after the other. */
export class SessionTotals {
  readonly #rows = new Map<string, { -readonly [K in keyof SessionRow]: SessionRow[K] }>();

  has(session: string): boolean {
    return this.#rows.has(session);
  }

  /** Goes on from a row that was made of earlier entries. */
  restore(row: SessionRow): void {
    this.#rows.set(row.session, { ...row });
  }

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

  /** Forgets a session that was erased. */
  forget(session: string): void {
    this.#rows.delete(session);
  }

  /** One row per 'open' entry, newest first. */
  rows(): SessionRow[] {
    return [...this.#rows.values()].sort((a, b) => b.openedMs - a.openedMs || b.seq - a.seq);
  }
}
