/**
 * Retention: how long and how much of a log is kept. Whole segments go, the oldest of a series first, and only those
 * whose sessions have ended and are not held. What goes is planned from the envelopes alone, so that a dry run says
 * exactly what would be done.
 */
import { KvError } from '../native/index.ts';
import { type LogFiles, nodeFiles } from './files.ts';
import { forgetKeys } from './keys.ts';
import { openWitnessLog } from './log.ts';
import { SegmentFile } from './scan.ts';
import { seriesDir } from './series.ts';
import { isRunning, type LoggedSegment, type LoggedSession, lockedSince, surveyLog } from './survey.ts';
import type { WitnessLog } from './types.ts';

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
  /** Series that another process writes: it has to do this itself. */
  readonly busy: readonly number[];
}

interface Candidate extends LoggedSegment {
  readonly bytes: number;
  /** True if a series may begin with it: in format 1 a segment follows all before it. */
  readonly mayBeFirst: boolean;
}

/** What the policy would remove of the log in `dir`. Throws 'not-found', 'bad-log', 'bad-argument'. */
export function planRetention(dir: string, policy: RetentionPolicy, files: LogFiles = nodeFiles): RetentionReport {
  const { beforeMs = Number.NEGATIVE_INFINITY, maxBytes = Number.POSITIVE_INFINITY } = policy;
  if (policy.beforeMs === undefined && policy.maxBytes === undefined)
    throw new KvError('bad-argument', 'retention needs an age or a size', { hint: 'name one, or both' });
  const { sessions, segments } = surveyLog(files, dir);
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
      return !session.isHeld && !running.has(id) && (isOverSize || session.lastMs < beforeMs);
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
  const lostSessions = new Set(gone.flatMap((segment) => [...segment.recorded]).filter((id) => !left.has(id)));
  return { series, sessions: [...lostSessions], bytesBefore, bytesAfter: bytes, held: [...held], busy: [] };
}

/**
 * Removes what the policy says. An entry of each series says so first, then the segments go, then the keys of sessions
 * of which nothing is left. `open`: the caller's own writer, for its series. Series of other writers are left to them.
 * Throws what planning and writing throw.
 */
export const retain = (
  dir: string,
  policy: RetentionPolicy,
  open: WitnessLog | null = null,
): Promise<RetentionReport> => retainPlanned(dir, async () => planRetention(dir, policy), open);

/** The same where `planRetention` is asked elsewhere, in a thread of its own. */
export async function retainPlanned(
  dir: string,
  planned: () => Promise<RetentionReport>,
  open: WitnessLog | null,
): Promise<RetentionReport> {
  const plan = await planned();
  const busy: number[] = [];
  for (const { series, firstSegment } of plan.series) {
    if (open?.series === series) await open.removeSegments(firstSegment);
    else if (!(await removeIn(dir, series, firstSegment))) busy.push(series);
  }
  if (busy.length === 0) {
    forgetKeys(nodeFiles, dir, plan.sessions);
    return plan;
  }
  // What is left says what was done.
  const still = await planned();
  const sessions = plan.sessions.filter((id) => !still.sessions.includes(id));
  forgetKeys(nodeFiles, dir, sessions);
  const series = plan.series.filter((one) => !busy.includes(one.series));
  return { ...plan, series, sessions, bytesAfter: still.bytesBefore, busy };
}

/** false: another process writes this series. */
async function removeIn(dir: string, series: number, firstSegment: number): Promise<boolean> {
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
