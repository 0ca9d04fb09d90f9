/**
 * `palimpsest audit …` answers questions about the log from the log itself. Only `query` uses the SQL index, which is
 * first compared with the log.
 */
import { currentFingerprint, type Filter } from '../../memory/index.ts';
import { columnsOf, fields, given, jsonOf, jsonText, KvError, plural, type Side } from '../../native/index.ts';
import { createPolicy, policies } from '../../policy/index.ts';
import {
  type AuditIndex,
  type AuditIndexOptions,
  answerText,
  COUNT_FIELDS,
  type CountKey,
  checkReadable,
  countsText,
  csvText,
  DECISION_FIELDS,
  type DecisionFilter,
  type DecisionQuery,
  decideWithout,
  decisionsText,
  type Entry,
  EVENT_FIELDS,
  entryText,
  explain,
  explanationText,
  findSession,
  forgetEmbedded,
  isWrapped,
  meaningOfWords,
  newestOf,
  openAuditIndex,
  openLogQuery,
  type PackBody,
  type PolicyFactory,
  packsText,
  parseEntryId,
  parseRange,
  parseTime,
  type Range,
  readEntry,
  readEnvelope,
  readLog,
  readSeries,
  replay,
  replayText,
  SESSION_ROW_FIELDS,
  type SenselessEntry,
  type SessionFilter,
  SIMILAR_FIELDS,
  seriesOf,
  sessionsText,
  similarSession,
  similarText,
  timeline,
  timelineText,
  type Unopened,
  unopenedText,
  unreadable,
  verifyAgainst,
  verifyLog,
  verifyText,
  type Without,
  whyNot,
  whyNotText,
  withoutText,
} from '../../witness/index.ts';
import { type LoadedModule, loadPolicyModule } from '../options/policy-module.ts';
import { logDir, readBook, rebuildBook, sqlDir } from '../state/folder.ts';
import { checkpointsOf } from './anchor.ts';
import { explainEmpty, explainNoSessions } from './no-match.ts';
import { flag, number, policyModule, qdrantOptions, type Settings, stateDirOf, text } from './options.ts';
import { countPassedOver, tellPassedOver, tellSenseless } from './passed-over.ts';
import { ProgressLine } from './progress.ts';
import type { SettingName } from './settings.ts';

const log = (settings: Settings): string => logDir(stateDirOf(settings));

function print(settings: Settings, value: unknown, plain: (columns: number) => string): void {
  process.stdout.write(`${flag(settings, 'json') ? jsonText(value) : plain(columnsOf(process.stdout))}\n`);
}

/**
 * A listing: as a table, one JSON object a line, or CSV. `--json` is one line with all rows, as everywhere. Says by the
 * exit code, where it is asked to, that there are none.
 */
function printRows(
  settings: Settings,
  rows: readonly object[],
  fields: readonly string[],
  plain: (columns: number) => string,
  whole: unknown = rows,
): void {
  const form = flag(settings, 'json') ? 'json' : text(settings, 'format');
  if (form === 'jsonl') process.stdout.write(rows.map((row) => `${jsonText(row)}\n`).join(''));
  else if (form === 'csv') {
    const cells = rows.map((row) => fields.map((field) => (row as Readonly<Record<string, unknown>>)[field]));
    process.stdout.write(`${csvText(fields, cells)}\n`);
  } else print(settings, whole, plain);
  if (rows.length === 0 && flag(settings, 'exitStatus')) process.exitCode = NOTHING_FOUND;
}

/** The most rows of one listing. */
const ROWS_MAX = 100_000;

/**
 * How many rows a listing has at most: what was asked for, else what a person can read, else, for a program that reads
 * JSONL or CSV, all that one listing may have.
 */
const limitOf = (settings: Settings, shown: number): number =>
  number(settings, 'limit') ?? (isExport(settings) ? ROWS_MAX : shown);

const isExport = (settings: Settings): boolean =>
  !flag(settings, 'json') && ['jsonl', 'csv'].includes(text(settings, 'format') ?? '');

/** Says beside an export that it ends where there is more. */
function tellCut(settings: Settings, rows: number, limit: number): void {
  if (!isExport(settings) || rows < limit) return;
  process.stderr.write(
    `palimpsest: ${plural(limit, 'row')}, which is as many as were asked for; there may be more (--limit, --until)\n`,
  );
}

/** Exit code of a listing without rows, where `--exit-status` asks for it. */
const NOTHING_FOUND = 3;

/** A range that the settings have checked already; undefined: none was given. */
const range = (settings: Settings, name: SettingName, isReal = false): Range | undefined => {
  const typed = text(settings, name);
  return typed === undefined ? undefined : parseRange(typed, isReal);
};

/** The bounds of time that the flags describe, relative to nowMs. */
function span(settings: Settings, nowMs: number): { fromMs?: number; toMs?: number } {
  const since = text(settings, 'since');
  const until = text(settings, 'until');
  return given<{ fromMs?: number; toMs?: number }>({
    fromMs: since === undefined ? undefined : parseTime(since, nowMs),
    toMs: until === undefined ? undefined : parseTime(until, nowMs),
  });
}

/** The filter that the flags describe. Times in them are relative to nowMs. */
export function decisionFilter(settings: Settings, nowMs: number): DecisionFilter {
  const step = range(settings, 'step');
  return {
    ...span(settings, nowMs),
    ...given<DecisionFilter>({
      session: text(settings, 'session'),
      model: text(settings, 'ofModel'),
      layer: number(settings, 'layer'),
      page: number(settings, 'page'),
      side: text(settings, 'side') as DecisionFilter['side'],
      from: text(settings, 'from') as DecisionFilter['from'],
      to: text(settings, 'to') as DecisionFilter['to'],
      reason: text(settings, 'reason'),
      threshold: text(settings, 'threshold'),
      tokensMin: step?.min,
      tokensMax: step?.max,
      epsilonFrom: range(settings, 'epsilonFrom', true),
      epsilonTo: range(settings, 'epsilonTo', true),
      epsilonNow: range(settings, 'epsilonNow', true),
      bytesFreed: range(settings, 'bytes'),
      accepted: flag(settings, 'refused') ? false : undefined,
      limit: limitOf(settings, 20),
    }),
  };
}

/** Asks the log, or the tables on the server that `--database` names, and says what it passed over. */
async function asked<T>(settings: Settings, ask: (query: DecisionQuery) => Promise<T>): Promise<T> {
  if (text(settings, 'database') === undefined) {
    const passed = new Map<string, Unopened>();
    const senseless = new Map<number, SenselessEntry>();
    const rows = await ask(
      openLogQuery(log(settings), {
        onPassedOver: (session, why) => passed.set(session, why),
        onSenseless: (entry) => senseless.set(entry.seq, entry),
      }),
    );
    tellPassedOver(countPassedOver(passed));
    tellSenseless([...senseless.values()]);
    return rows;
  }
  const index = await openSql(settings, false);
  try {
    return await ask(index);
  } finally {
    await index.close();
    // Tables do not have them, and so cannot say which of them an answer lacks.
    if (text(settings, 'session') === undefined) tellPassedOver(unreadable(log(settings)));
  }
}

/** The filter with the whole id of its session. */
function named(settings: Settings, filter: DecisionFilter): DecisionFilter {
  const { session: typed } = filter;
  if (typed === undefined) return filter;
  const session = findSession(log(settings), typed);
  // The tables of a database would only have no rows of it.
  checkReadable(log(settings), session);
  return { ...filter, session };
}

/** The rows of an answer; an empty one is explained first. */
async function found<Row>(asked: Promise<Row[]>, explain: () => Promise<void>): Promise<Row[]> {
  const rows = await asked;
  if (rows.length === 0) await explain();
  return rows;
}

export async function list(settings: Settings): Promise<void> {
  const filter = named(settings, decisionFilter(settings, Date.now()));
  const rows = await asked(settings, (query) => found(query.decisions(filter), () => explainEmpty(query, filter)));
  printRows(settings, rows, DECISION_FIELDS, (columns) => decisionsText(rows, columns));
  tellCut(settings, rows.length, filter.limit!);
}

export async function count(settings: Settings): Promise<void> {
  const by = (text(settings, 'by') ?? 'layer') as CountKey;
  const filter = named(settings, decisionFilter(settings, Date.now()));
  const rows = await asked(settings, (query) => found(query.counts(by, filter), () => explainEmpty(query, filter)));
  const shown = rows.slice(0, number(settings, 'limit'));
  printRows(settings, shown, COUNT_FIELDS, (columns) => countsText(by, shown, columns));
}

export async function sessions(settings: Settings): Promise<void> {
  const filter: SessionFilter = {
    ...span(settings, Date.now()),
    ...given<SessionFilter>({ model: text(settings, 'ofModel') }),
    limit: limitOf(settings, 100),
  };
  const rows = await asked(settings, (query) => found(query.sessions(filter), () => explainNoSessions(query, filter)));
  printRows(settings, rows, SESSION_ROW_FIELDS, (columns) => sessionsText(rows, columns));
  tellCut(settings, rows.length, filter.limit!);
}

/** True if somebody else has the folder, or it cannot be written. */
const isTaken = (error: unknown): boolean =>
  error instanceof KvError && (error.code === 'io' || error.code === 'locked');

/**
 * Opens the SQL index, in memory if its folder cannot be written or is in use, and where a master key wraps the log:
 * tables on the disk would say in plain what it encrypts. On a terminal it shows a progress bar.
 */
async function openSql(settings: Settings, rebuild: boolean): Promise<AuditIndex> {
  const url = text(settings, 'database');
  const dir = sqlDir(stateDirOf(settings));
  const bar = new ProgressLine('bar');
  const options = given<AuditIndexOptions>({
    logDir: log(settings),
    url,
    rebuild,
    check: flag(settings, 'checkRows') ? 'rows' : 'head',
    onNote: (line: string) => process.stderr.write(`${line}\n`),
    onProgress: (entries: number, total: number) => bar.share('SQL index', entries, total, 'entries'),
  });
  try {
    if (url === undefined && isWrapped(log(settings))) {
      await forgetEmbedded(dir).catch((error: unknown) => {
        if (!isTaken(error)) throw error;
      });
      return await openAuditIndex(options);
    }
    return await openAuditIndex({ ...options, dir }).catch((error: unknown) => {
      if (rebuild || url !== undefined || !isTaken(error)) throw error;
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
    const limit = limitOf(settings, 1000);
    const answer = await index.query(sql, limit);
    const rows = answer.rows.map((row) => Object.fromEntries(answer.columns.map((column, at) => [column, row[at]])));
    const passedOver = unreadable(log(settings));
    tellPassedOver(passedOver);
    printRows(settings, rows, answer.columns, (columns) => answerText(answer, columns), { ...answer, passedOver });
    tellCut(settings, rows.length, limit);
  } finally {
    await index.close();
  }
}

export async function show(settings: Settings, id: string): Promise<void> {
  const seq = parseEntryId(id);
  try {
    const entry = readEntry(log(settings), seq);
    print(settings, entry, (columns) => entryText(entry, columns));
  } catch (error) {
    if (!(error instanceof KvError) || (error.code !== 'sealed' && error.code !== 'bad-file')) throw error;
    const envelope = readEnvelope(log(settings), seq);
    print(settings, envelope, () => unopenedText(envelope));
  }
}

/** As many as other lists show. */
const ARROWS_SHOWN = 20;

/** Arrows of packs, the newest first. */
export async function packs(settings: Settings): Promise<void> {
  const rows = newestOf(log(settings), {
    kinds: ['pack'],
    limit: number(settings, 'limit') ?? ARROWS_SHOWN,
    pick: ({ seq, timeMs, body }) => ({ seq, timeMs, ...(body as PackBody) }),
  });
  print(settings, rows, (columns) => packsText(rows, columns));
}

export async function explainCommand(settings: Settings, id: string): Promise<void> {
  const { create } = await policiesOf(settings);
  const explanation = explain(log(settings), parseEntryId(id), { create });
  print(settings, explanation, (columns) => explanationText(explanation, columns));
}

export async function timelineCommand(settings: Settings, typed: string): Promise<void> {
  const session = findSession(log(settings), typed);
  const events = timeline(log(settings), session);
  printRows(settings, events, EVENT_FIELDS, (columns) => timelineText(session, events, columns));
}

export async function verify(settings: Settings): Promise<void> {
  const checkpoints = checkpointsOf(settings);
  const report = checkpoints === null ? verifyLog(log(settings)) : verifyAgainst(log(settings), checkpoints);
  print(settings, report, (columns) => verifyText(report, columns));
  if (!report.ok) process.exitCode = 2;
}

/** What makes the policy of a session again: the built-in ones, and that of the module that was named. */
async function policiesOf(settings: Settings): Promise<{ create: PolicyFactory; loaded: LoadedModule | null }> {
  const module = policyModule(settings);
  const loaded = module === undefined ? null : await loadPolicyModule(module);
  const create: PolicyFactory = (id, options, version) =>
    loaded === null || Object.hasOwn(policies, id) ? createPolicy(id, options, version) : loaded.make(options);
  return { create, loaded };
}

export async function replayCommand(settings: Settings, typed: string): Promise<void> {
  const { create, loaded } = await policiesOf(settings);
  const without = text(settings, 'without') as Without | undefined;
  if (without !== undefined) {
    const [report] = decideWithout(log(settings), typed, [without], create);
    print(settings, report, () => withoutText(report!));
    return;
  }
  const report = replay(log(settings), typed, create);
  const given = loaded?.sha256 ?? null;
  const isOther = given !== null && report.policyModule !== undefined && report.policyModule !== given;
  const remark = isOther ? `\nThe module given is not the file that decided: its SHA-256 is ${given}.` : '';
  print(
    settings,
    loaded === null ? report : { ...report, policyModuleGiven: given },
    () => replayText(report) + remark,
  );
  if (!report.equal || report.missing !== 0) process.exitCode = 2;
}

/** What to look for: the session of an entry, a fingerprint as a JSON list, or words. */
interface Sought {
  readonly fingerprint: readonly number[];
  readonly filter: Filter;
  /** A session that is not to be found, since it is the one that was named. */
  readonly session: string | null;
}

/**
 * Sessions whose fingerprints are nearest to that of an entry's session, to one given as JSON, or to what a few words
 * mean.
 */
export async function similar(settings: Settings, words: readonly string[]): Promise<void> {
  const sought = soughtBy(log(settings), words.join(' '));
  const limit = number(settings, 'limit') ?? 5;
  const book = await readBook(stateDirOf(settings), qdrantOptions(settings));
  const all = await book.nearestSessions(sought.fingerprint, limit + 1, sought.filter);
  await book.close();
  const others = all.filter(({ payload }) => payload.session !== sought.session);
  const near = others.slice(0, limit).map(similarSession);
  tellPassedOver({ ...unreadable(log(settings)), missing: 0 });
  const rows = near.map(({ id, distance, payload }) => ({ ...id, distance, ...payload }));
  printRows(settings, rows, SIMILAR_FIELDS, (columns) => similarText(near, columns), near);
}

function soughtBy(dir: string, text: string): Sought {
  if (text.trimStart().startsWith('['))
    return { fingerprint: currentFingerprint(numbersIn(text)), filter: {}, session: null };
  if (/^(\d{1,4}:)?\d{1,16}$/.test(text)) return soughtByEntry(dir, parseEntryId(text));
  return { ...meaningOfWords(text, modelsOf(dir)), session: null };
}

/** A list of numbers in JSON. Throws 'bad-argument'; how many there must be is for the index to say. */
function numbersIn(text: string): readonly number[] {
  const value = jsonOf(text);
  if (Array.isArray(value) && value.every((one) => typeof one === 'number')) return value;
  throw new KvError('bad-argument', 'a fingerprint is a list of numbers in JSON', {
    values: { given: text.slice(0, 80) },
    hint: 'the close entry of a session has one: audit show ID --json',
  });
}

function soughtByEntry(dir: string, seq: number): Sought {
  const { session } = readEntry(dir, seq);
  // The session's end mostly follows soon behind any of its entries; what it knew before is looked for only where there
  // is no end.
  const found =
    firstOf(readSeries(dir, seriesOf(seq), { from: seq, session, kinds: ['close'] })) ??
    [...readLog(dir, { session, kinds: ['evidence', 'close'] })].at(-1);
  if (found === undefined)
    throw new KvError(
      'not-found',
      `session ${session} has no fingerprint: it was not closed and found nothing to compare with`,
      { values: { session } },
    );
  const { fingerprint } = found.body as { fingerprint: readonly number[] };
  return { fingerprint: currentFingerprint(fingerprint), filter: {}, session };
}

function firstOf<T>(all: Iterable<T>): T | undefined {
  for (const one of all) return one;
  return undefined;
}

/** Names of the models of a log, in lower case, and their digests; of one name the newest. */
function modelsOf(dir: string): ReadonlyMap<string, string> {
  const models = new Map<string, string>();
  for (const entry of readLog(dir, { kinds: ['open'] })) {
    const { name, digest } = (entry as Entry<'open'>).body.model;
    models.set(name.toLowerCase(), digest);
  }
  return models;
}

export async function whyNotCommand(settings: Settings): Promise<void> {
  const [session, layer, page] = [text(settings, 'session'), number(settings, 'layer'), number(settings, 'page')];
  if (session === undefined || layer === undefined || page === undefined)
    throw new KvError('bad-argument', 'a page is named by its session, layer and number', {
      hint: 'give --session, --layer and --page, and --side for keys or values alone',
    });
  const side = text(settings, 'side');
  if (side === 'kv')
    throw new KvError('bad-argument', 'a page has keys and values; which of them is asked for with --side k or v', {});
  const found = whyNot(log(settings), findSession(log(settings), session), {
    ...{ layer, page },
    ...given<{ side?: Side }>({ side: side as Side | undefined }),
  });
  print(settings, found, (columns) => fields(whyNotText(found), columns));
}

export async function reindex(settings: Settings): Promise<void> {
  // The book comes first, because another process may keep it. In that case neither of the two is made again.
  const experiences = await rebuildBook(stateDirOf(settings), qdrantOptions(settings));
  const index = await openSql(settings, true);
  const { entries } = index.report;
  await index.close();
  const passedOver = unreadable(log(settings));
  tellPassedOver(passedOver);
  print(
    settings,
    { entries, experiences, sql: index.where, passedOver },
    () => `SQL index: ${plural(entries, 'entry', 'entries')}; vector index: ${plural(experiences, 'experience')}`,
  );
}
