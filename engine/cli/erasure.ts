/**
 * `palimpsest audit erase`, `hold`, `retain` and `rewrap`: what may be done to the record of a session, what keeps it
 * from being done, and who can read it.
 */
import { createInterface } from 'node:readline/promises';
import {
  bytesText,
  columnsOf,
  given,
  jsonText,
  KvError,
  plural,
  printable,
  timeText,
  wrap,
} from '../../native/index.ts';
import { findSession, forgetEmbedded, type RetentionReport } from '../../witness/index.ts';
import { type EraseOptions, type Erasure, eraseSession, holdSession, rewrapKeys } from '../state/erase.ts';
import { logDir, sqlDir } from '../state/folder.ts';
import { type RetainOptions, retainLog } from '../state/retention.ts';
import { openStore } from '../store/open.ts';
import { KINDS } from '../store/store.ts';
import { flag, qdrantOptions, type Settings, stateDirOf, text } from './options.ts';

function print(settings: Settings, value: unknown, sentences: string): void {
  const plain = (): string => wrap(printable(sentences), columnsOf(process.stdout));
  process.stdout.write(`${flag(settings, 'json') ? jsonText(value) : plain()}\n`);
}

/** The session that --session names, by its whole id. */
function sessionOf(settings: Settings): string {
  const typed = text(settings, 'session');
  if (typed === undefined)
    throw new KvError('bad-argument', 'no session was named', { hint: '--session ID; audit sessions lists them' });
  return findSession(logDir(stateDirOf(settings)), typed);
}

/** Asks on a terminal; elsewhere --yes is the answer. Throws 'bad-argument', 'aborted'. */
async function confirm(settings: Settings, question: string): Promise<void> {
  if (flag(settings, 'yes')) return;
  if (!process.stdin.isTTY)
    throw new KvError('bad-argument', 'nobody is here to confirm this', { hint: 'add --yes to do it unasked' });
  const lines = createInterface({ input: process.stdin, output: process.stderr });
  try {
    const answer = await lines.question(`${question} Type yes: `);
    if (answer.trim().toLowerCase() !== 'yes') throw new KvError('aborted', 'nothing was done');
  } finally {
    lines.close();
  }
}

export async function erase(settings: Settings): Promise<void> {
  const session = sessionOf(settings);
  await confirm(settings, `Erase session ${session} for ever?`);
  const options = given<EraseOptions>({
    database: text(settings, 'database'),
    qdrant: qdrantOptions(settings),
    by: 'palimpsest audit erase',
  });
  const erasure = await eraseSession(stateDirOf(settings), session, options);
  const place = text(settings, 'store');
  const told = { ...erasure, stored: place === undefined ? null : await eraseStored(place, session) };
  print(settings, told, erasureText(told));
}

/** → how many responses and conversations with something of it servers had stored. Throws as the store does. */
async function eraseStored(place: string, session: string): Promise<number> {
  const store = await openStore(place);
  try {
    let stored = 0;
    for (const kind of KINDS) stored += await store.erase(kind, session);
    return stored;
  } finally {
    await store.close();
  }
}

function erasureText({
  session,
  entries,
  erasedMs,
  files,
  databaseRows,
  qdrantPoints,
  stored,
}: Erasure & { readonly stored: number | null }): string {
  const done =
    erasedMs === null
      ? `Session ${session} is erased: nobody can read its ${plural(entries, 'entry', 'entries')} any more, and it is in no table and no index of the state folder.`
      : `Session ${session} was erased ${timeText(erasedMs)}. What may have been left of it was looked for again.`;
  const named = files.length === 0 ? '' : ` Removed as well, because they named it: ${files.join(', ')}.`;
  const servers = [
    databaseRows === null ? '' : ` The PostgreSQL server had ${plural(databaseRows, 'row')} of it.`,
    qdrantPoints === null ? '' : ` The Qdrant server had ${plural(qdrantPoints, 'point')} of it.`,
    stored === null
      ? ''
      : ` Servers had stored ${plural(stored, 'response or conversation', 'responses or conversations')} with something of it.`,
  ].join('');
  const others = [
    ...(databaseRows === null ? ['PostgreSQL (--database)'] : []),
    ...(qdrantPoints === null ? ['Qdrant (--qdrant-url)'] : []),
    ...(stored === null ? ['what palimpsest serve stores (--store)'] : []),
  ];
  const asked =
    others.length === 0
      ? ''
      : ` Servers were not asked that were not named: ${others.join(', ')}. If one was told of this log, name it and erase again.`;
  return `${done}${named}${servers}${asked}`;
}

export async function hold(settings: Settings): Promise<void> {
  const release = flag(settings, 'release');
  const result = await holdSession(stateDirOf(settings), sessionOf(settings), { release, by: 'palimpsest audit hold' });
  const state = release ? 'not held any more' : 'held: neither erase nor retain touches it';
  print(
    settings,
    { ...result, held: !release },
    `Session ${result.session} is ${state}${result.changed ? '' : ' (it was so before)'}.`,
  );
}

export async function rewrap(settings: Settings): Promise<void> {
  const report = rewrapKeys(stateDirOf(settings));
  // Tables on the disk would go on saying in plain what the keys encrypt.
  await forgetEmbedded(sqlDir(stateDirOf(settings)));
  const { master, rewrapped, already } = report;
  const before = already === 0 ? '' : `, ${plural(already, 'key')} were so before`;
  print(
    settings,
    report,
    `Every key of the log is wrapped by master key ${master}: ${plural(rewrapped, 'key')} anew${before}. Nothing here needs an earlier master key any more.`,
  );
}

export async function retainCommand(settings: Settings): Promise<void> {
  const dryRun = flag(settings, 'dryRun');
  const options = given<RetainOptions>({
    olderThan: text(settings, 'olderThan'),
    maxSize: text(settings, 'maxSize'),
    dryRun,
  });
  const report = await retainLog(stateDirOf(settings), options);
  print(settings, { ...report, dryRun }, retentionText(report, dryRun));
}

function retentionText(report: RetentionReport, dryRun: boolean): string {
  const { series, sessions, bytesBefore, bytesAfter, held, busy } = report;
  const segments = series.reduce((sum, one) => sum + one.segments, 0);
  const went = dryRun ? 'would go' : 'went';
  const what =
    segments === 0
      ? 'Nothing goes: only whole segments do, never the newest, and none with a session that is newer, runs or is held'
      : `${plural(segments, 'segment')} ${went}, with ${plural(sessions.length, 'session')} of which nothing is left`;
  const sizes = `the log takes ${bytesText(bytesBefore)}${segments === 0 ? '' : `, then ${bytesText(bytesAfter)}`}`;
  const keeps = held.length === 0 ? '' : ` Held, and therefore kept: ${held.join(', ')}.`;
  const left =
    busy.length === 0
      ? ''
      : ` Series ${busy.join(', ')} is being written by another process, which was asked and did not do it within ten seconds; nothing of it went.`;
  return `${what}; ${sizes}.${keeps}${left}`;
}
