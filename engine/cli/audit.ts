/** `palimpsest audit …` answers questions about the log from the log itself. Only `query` uses the SQL index, which is first compared with the log. */
import { currentFingerprint } from '../../memory/index.ts';
import { columnsOf, given, jsonText, KvError } from '../../native/index.ts';
import {
  type AuditIndex,
  type AuditIndexOptions,
  answerText,
  type DecisionFilter,
  decisionsText,
  type Entry,
  entryText,
  explain,
  explanationText,
  findSession,
  openAuditIndex,
  openLogQuery,
  parseEntryId,
  parseRange,
  parseTime,
  readEntry,
  readLog,
  replay,
  replayText,
  sessionsText,
  similarText,
  verifyLog,
  verifyText,
} from '../../witness/index.ts';
import { logDir, readBook, rebuildBook, sqlDir } from '../state.ts';
import { flag, number, qdrantOptions, type Settings, text } from './options.ts';
import { ProgressLine } from './progress.ts';

const stateDir = (settings: Settings): string => text(settings, 'state') ?? '.palimpsest';
const log = (settings: Settings): string => logDir(stateDir(settings));

function print(settings: Settings, value: unknown, plain: (columns: number) => string): void {
  process.stdout.write(`${flag(settings, 'json') ? jsonText(value) : plain(columnsOf(process.stdout))}\n`);
}

/** The filter that the flags describe. Times in them are relative to nowMs. */
export function decisionFilter(settings: Settings, nowMs: number): DecisionFilter {
  const since = text(settings, 'since');
  const until = text(settings, 'until');
  const step = parseRange(text(settings, 'step') ?? '0..');
  return given<DecisionFilter>({
    session: text(settings, 'session'),
    layer: number(settings, 'layer'),
    side: text(settings, 'side') as DecisionFilter['side'],
    reason: text(settings, 'reason'),
    fromMs: since === undefined ? undefined : parseTime(since, nowMs),
    toMs: until === undefined ? undefined : parseTime(until, nowMs),
    tokensMin: step.min,
    tokensMax: step.max,
    accepted: flag(settings, 'refused') ? false : undefined,
    limit: number(settings, 'limit') ?? 20,
  });
}

export async function list(settings: Settings): Promise<void> {
  const filter = decisionFilter(settings, Date.now());
  const { session } = filter;
  const named = session === undefined ? {} : { session: findSession(log(settings), session) };
  const rows = await openLogQuery(log(settings)).decisions({ ...filter, ...named });
  print(settings, rows, (columns) => decisionsText(rows, columns));
}

export async function sessions(settings: Settings): Promise<void> {
  const rows = await openLogQuery(log(settings)).sessions();
  print(settings, rows, (columns) => sessionsText(rows, columns));
}

/** Opens the SQL index, in memory if its folder cannot be written or is in use. On a terminal it shows a progress bar. */
async function openSql(settings: Settings, rebuild: boolean): Promise<AuditIndex> {
  const url = text(settings, 'database');
  const dir = sqlDir(stateDir(settings));
  const bar = new ProgressLine('bar');
  const options = given<AuditIndexOptions>({
    logDir: log(settings),
    url,
    rebuild,
    onNote: (line: string) => process.stderr.write(`${line}\n`),
    onProgress: (entries: number, total: number) => bar.share('SQL index', entries, total, 'entries'),
  });
  try {
    return await openAuditIndex({ ...options, dir }).catch((error: unknown) => {
      const isTaken = error instanceof KvError && (error.code === 'io' || error.code === 'locked');
      if (rebuild || url !== undefined || !isTaken) throw error;
      return openAuditIndex(options);
    });
  } finally {
    bar.done();
  }
}

/** Runs one SELECT on the SQL index. */
export async function query(settings: Settings, sql: string): Promise<void> {
  const index = await openSql(settings, false);
  try {
    const answer = await index.query(sql, number(settings, 'limit') ?? 1000);
    print(settings, answer, (columns) => answerText(answer, columns));
  } finally {
    await index.close();
  }
}

export async function show(settings: Settings, id: string): Promise<void> {
  const entry = readEntry(log(settings), parseEntryId(id));
  print(settings, entry, (columns) => entryText(entry, columns));
}

export async function explainCommand(settings: Settings, id: string): Promise<void> {
  const explanation = explain(log(settings), parseEntryId(id));
  print(settings, explanation, (columns) => explanationText(explanation, columns));
}

export async function verify(settings: Settings): Promise<void> {
  const report = verifyLog(log(settings));
  print(settings, report, (columns) => verifyText(report, columns));
  if (!report.ok) process.exitCode = 2;
}

export async function replayCommand(settings: Settings, typed: string): Promise<void> {
  const report = replay(log(settings), typed);
  print(settings, report, () => replayText(report));
  if (!report.equal || report.missing !== 0) process.exitCode = 2;
}

/** Lists the earlier sessions whose fingerprints are nearest to that of the entry's session. */
export async function similar(settings: Settings, id: string): Promise<void> {
  const dir = log(settings);
  const entry = readEntry(dir, parseEntryId(id));
  const fingerprint = fingerprintOf([...readLog(dir, { session: entry.session, kinds: ['evidence', 'close'] })]);
  if (fingerprint === null)
    throw new KvError(
      'not-found',
      `session ${entry.session} has no fingerprint: it was not closed and found nothing to compare with`,
      { values: { session: entry.session } },
    );
  const limit = number(settings, 'limit') ?? 5;
  const book = await readBook(stateDir(settings), qdrantOptions(settings));
  const all = await book.nearestSessions(fingerprint, limit + 1);
  await book.close();
  const near = all.filter(({ payload }) => payload.session !== entry.session).slice(0, limit);
  print(settings, near, (columns) => similarText(near, columns));
}

function fingerprintOf(entries: readonly Entry[]): readonly number[] | null {
  const last = entries.at(-1);
  return last === undefined ? null : currentFingerprint((last.body as { fingerprint: readonly number[] }).fingerprint);
}

export async function reindex(settings: Settings): Promise<void> {
  // The book comes first, because another process may keep it. In that case neither of the two is made again.
  const experiences = await rebuildBook(stateDir(settings), qdrantOptions(settings));
  const index = await openSql(settings, true);
  const { entries } = index.report;
  await index.close();
  print(
    settings,
    { entries, experiences, sql: index.where },
    () =>
      `SQL index: ${entries} entries; vector index: ${experiences} ${experiences === 1 ? 'experience' : 'experiences'}`,
  );
}
