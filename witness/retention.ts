/**
 * Retention: how long and how much of a log is kept. Whole segments go, the oldest of a series first, and only those
 * whose sessions have ended and are not held. What goes is planned from the envelopes alone, so that a dry run says
 * exactly what would be done. Planning takes seconds on a large log, so what was written meanwhile is looked at again
 * while nobody else may begin a hold, and then it goes.
 */
import { KvError } from '../native/index.ts';
import { parseEnvelope } from './entry.ts';
import { type LogFiles, nodeFiles } from './files.ts';
import { forgetKeys } from './keys.ts';
import { openWitnessLog } from './log.ts';
import { isPool } from './pool-series.ts';
import { aloneAmongRemovals, askWriter } from './removals.ts';
import { SegmentFile } from './scan.ts';
import { listSeries, seriesDir } from './series.ts';
import { isRunning, type LoggedSegment, type LoggedSession, lockedSince, surveyLog } from './survey.ts';
import type { WitnessLog } from './types.ts';
import { walkSeries } from './walk.ts';

/** What is kept. At least one of the two is named. */
export interface RetentionPolicy {
  /** Segments whose sessions all ended before this time go, milliseconds since the epoch. */
  readonly beforeMs?: number;
  /** While the log takes more bytes, the oldest segments go. */
  readonly maxBytes?: number;
}

/** What goes of one writer's series. */
export interface RetainedSeries {
  /** Its number. */
  readonly series: number;
  /** First segment that stays. */
  readonly firstSegment: number;
  /** Segments that go. */
  readonly segments: number;
  /** Entries of these sessions. */
  readonly entries: number;
  /** Their bytes. */
  readonly bytes: number;
}

/** What a policy removes, or would remove. */
export interface RetentionReport {
  /** Series that lose segments. */
  readonly series: readonly RetainedSeries[];
  /** Sessions of which nothing is left. */
  readonly sessions: readonly string[];
  /** Bytes of all segments before it. */
  readonly bytesBefore: number;
  /** Bytes of all segments after it. */
  readonly bytesAfter: number;
  /** Held sessions that kept a segment from going. */
  readonly held: readonly string[];
  /** Series that another process writes, which did not do it: it was not asked, or did not answer. */
  readonly busy: readonly number[];
}

/** A plan, and what it was made from. */
export interface RetentionPlan {
  readonly report: RetentionReport;
  /** Sessions that something says of what goes. */
  readonly touched: ReadonlySet<string>;
  /** Series, and the seq behind the last entry that was seen of each. */
  readonly seen: ReadonlyMap<number, number>;
}

interface Candidate extends LoggedSegment {
  readonly bytes: number;
  /** True if a series may begin with it: in format 1 a segment follows all before it. */
  readonly mayBeFirst: boolean;
}

/** What the policy would remove of the log in `dir`. Throws 'not-found', 'bad-log', 'bad-argument'. */
export const planRetention = (dir: string, policy: RetentionPolicy, files: LogFiles = nodeFiles): RetentionReport =>
  planSegments(dir, policy, files).report;

/** The same with what it was made from. Throws the same. */
export function planSegments(dir: string, policy: RetentionPolicy, files: LogFiles = nodeFiles): RetentionPlan {
  const { beforeMs = Number.NEGATIVE_INFINITY, maxBytes = Number.POSITIVE_INFINITY } = policy;
  if (policy.beforeMs === undefined && policy.maxBytes === undefined)
    throw new KvError('bad-argument', 'retention needs an age or a size', { hint: 'name one, or both' });
  const { sessions, segments, seen } = surveyLog(files, dir);
  const kept = new Map<number, Candidate[]>();
  for (const segment of segments) {
    const row = kept.get(segment.series) ?? [];
    kept.set(segment.series, row);
    row.push({ ...segment, ...headOf(files, dir, segment) });
  }
  const since = new Map([...kept.keys()].map((series) => [series, lockedSince(seriesDir(dir, series))]));
  const heldSince = (series: number): number => since.get(series) ?? Number.POSITIVE_INFINITY;
  const running = new Set(
    [...sessions.values()].filter((one) => isRunning(dir, one, heldSince)).map(({ session }) => session),
  );
  const held = new Set<string>();
  const gone: Candidate[] = [];
  const bytesBefore = [...kept.values()].flat().reduce((sum, { bytes }) => sum + bytes, 0);
  let bytes = bytesBefore;
  const mayGo = (segment: Candidate, isOverSize: boolean): boolean =>
    [...segment.sessions].every((id) => {
      const session = sessions.get(id) as LoggedSession;
      if (session.isHeld && (isOverSize || session.lastMs < beforeMs)) held.add(id);
      // Entries of a pool say all that they need, and a pool lasts as long as its engine.
      return !session.isHeld && (isPool(id) || !running.has(id)) && (isOverSize || session.lastMs < beforeMs);
    });
  // The oldest of all series goes first, so that a size is kept by losing what is oldest.
  for (;;) {
    const isOverSize = bytes > maxBytes;
    const next = [...kept.values()]
      .filter((row) => row.length > 1 && row[1]!.mayBeFirst)
      .map((row) => row[0]!)
      .filter((segment) => (isOverSize || segment.lastMs < beforeMs) && mayGo(segment, isOverSize))
      .sort((a, b) => a.lastMs - b.lastMs)[0];
    if (next === undefined) break;
    kept.get(next.series)!.shift();
    gone.push(next);
    bytes -= next.bytes;
  }
  const left = new Set([...kept.values()].flatMap((row) => row.flatMap((segment) => [...segment.recorded])));
  const sum = (of: readonly Candidate[], value: (one: Candidate) => number): number =>
    of.reduce((total, one) => total + value(one), 0);
  const series = [...kept].flatMap(([number, row]): RetainedSeries[] => {
    const own = gone.filter((segment) => segment.series === number);
    if (own.length === 0) return [];
    const [entries, lost] = [sum(own, (one) => one.entries), sum(own, (one) => one.bytes)];
    return [{ series: number, firstSegment: row[0]!.number, segments: own.length, entries, bytes: lost }];
  });
  // The key of a pool that goes on is still needed.
  const isLost = (id: string): boolean => !left.has(id) && !running.has(id);
  const lostSessions = new Set(gone.flatMap((segment) => [...segment.recorded]).filter(isLost));
  const report = { series, sessions: [...lostSessions], bytesBefore, bytesAfter: bytes, held: [...held], busy: [] };
  return { report, touched: new Set(gone.flatMap((segment) => [...segment.sessions])), seen };
}

/** How the oldest segments go. */
export interface RetainHow {
  /** The caller's own writer, for its series. Default: none. */
  readonly open?: WitnessLog | null;
  /** How long the writer of another series is asked to do it, milliseconds. Default 0: it is not asked. */
  readonly askMs?: number;
}

/**
 * Removes what the policy says. An entry of each series says so first, then the segments go, then the keys of sessions
 * of which nothing is left. Throws what planning and writing throw, and 'locked' when others hold and erase without an
 * end.
 */
export const retain = (dir: string, policy: RetentionPolicy, how: RetainHow = {}): Promise<RetentionReport> =>
  retainPlanned(dir, async () => planSegments(dir, policy), how);

/** The same where `planSegments` is asked elsewhere, in a thread of its own. */
export async function retainPlanned(
  dir: string,
  planned: () => Promise<RetentionPlan>,
  how: RetainHow = {},
): Promise<RetentionReport> {
  let plan = await planned();
  if (plan.report.series.length === 0) return plan.report;
  return aloneAmongRemovals(dir, async () => {
    while (isOutdated(dir, plan)) plan = await planned();
    const busy: number[] = [];
    for (const one of plan.report.series) if (!(await removeIn(dir, one, how))) busy.push(one.series);
    if (busy.length === 0) {
      forgetKeys(nodeFiles, dir, plan.report.sessions);
      return plan.report;
    }
    // What is left says what was done.
    const { report: still } = await planned();
    const sessions = plan.report.sessions.filter((id) => !still.sessions.includes(id));
    forgetKeys(nodeFiles, dir, sessions);
    const series = plan.report.series.filter((one) => !busy.includes(one.series));
    return { ...plan.report, series, sessions, bytesAfter: still.bytesBefore, busy };
  });
}

/** True if something was written since of a session that something goes of: it is held, or it goes on. */
function isOutdated(dir: string, { touched, seen }: RetentionPlan): boolean {
  return listSeries(nodeFiles, dir).some((series) => {
    const from = seen.get(series) ?? 0;
    for (const { seq, payload } of walkSeries(nodeFiles, dir, series, from))
      if (seq >= from && touched.has(parseEnvelope(payload).session)) return true;
    return false;
  });
}

/** false: another process writes this series, and was not asked or did not do it. */
async function removeIn(
  dir: string,
  { series, firstSegment }: RetainedSeries,
  { open = null, askMs = 0 }: RetainHow,
): Promise<boolean> {
  if (open?.series === series) {
    await open.removeSegments(firstSegment);
    return true;
  }
  if (await removeUnwritten(dir, series, firstSegment)) return true;
  if (askMs === 0) return false;
  // A writer that ends while it is asked leaves the series to whoever comes.
  return (await askWriter(dir, series, firstSegment, askMs)) || (await removeUnwritten(dir, series, firstSegment));
}

/** false: another process writes this series. */
async function removeUnwritten(dir: string, series: number, firstSegment: number): Promise<boolean> {
  let log: WitnessLog;
  try {
    log = await openWitnessLog({ dir, series });
  } catch (error) {
    if (error instanceof KvError && error.code === 'locked') return false;
    throw error;
  }
  try {
    await log.removeSegments(firstSegment);
    return true;
  } finally {
    await log.close();
  }
}

function headOf(
  files: LogFiles,
  dir: string,
  { series, number }: LoggedSegment,
): { readonly bytes: number; readonly mayBeFirst: boolean } {
  const segment = new SegmentFile(files, seriesDir(dir, series), number);
  try {
    const header = segment.header();
    return { bytes: segment.size, mayBeFirst: typeof header !== 'string' && header.version > 1 };
  } finally {
    segment.close();
  }
}
