/** Lists as text, 80 columns wide. The same rows are the JSON output as they are. */

import type { ReplayReport } from './replay.ts';
import { bytesText, COLUMNS, type Column, plural, table, timeText, wrap } from './text.ts';
import type { DecisionRow, Entry, SessionRow, VerifyReport } from './types.ts';

// Widths and gaps add up to 80 at most: see the test that lists the longest possible row.
const DECISION_COLUMNS: readonly Column<DecisionRow>[] = [
  { title: 'id', right: true, widthMax: 8, value: (row) => String(row.seq) },
  { title: 'time', widthMax: 8, value: (row) => timeText(row.timeMs).slice(11, 19) },
  { title: 'session', widthMax: 8, value: (row) => row.session },
  { title: 'token', right: true, widthMax: 7, value: (row) => String(row.tokens) },
  { title: 'lay', right: true, widthMax: 3, value: (row) => String(row.layer) },
  { title: 'page', right: true, widthMax: 6, value: (row) => `${row.page}${row.side}` },
  { title: 'move', widthMax: 9, value: (row) => `${row.from}→${row.to}` },
  { title: 'verdict', widthMax: 7, value: (row) => (row.accepted ? 'made' : 'refused') },
  { title: 'reason', widthMax: 8, value: (row) => (row.accepted ? row.rule : row.verdictRule) },
  { title: 'freed', right: true, widthMax: 7, value: (row) => shortBytes(row.bytesBefore - row.bytesAfter) },
];

/** `audit list`. Dates stand above the rows they belong to, so that the times fit. */
export function decisionsText(rows: readonly DecisionRow[]): string {
  if (rows.length === 0) return 'No decision matches.';
  const lines = table(DECISION_COLUMNS, rows).split('\n');
  const text = [lines[0] as string];
  let day = '';
  for (const [index, row] of rows.entries()) {
    const today = timeText(row.timeMs).slice(0, 10);
    if (today !== day) text.push(`-- ${today} UTC --`);
    day = today;
    text.push(lines[index + 1] as string);
  }
  return text.join('\n');
}

const SESSION_COLUMNS: readonly Column<SessionRow>[] = [
  { title: 'session', widthMax: 8, value: (row) => row.session },
  { title: 'opened (UTC)', widthMax: 16, value: (row) => timeText(row.openedMs).slice(0, 16) },
  { title: 'model', widthMax: 12, value: (row) => row.model },
  { title: 'policy', widthMax: 7, value: (row) => row.policy },
  { title: 'tokens', right: true, widthMax: 7, value: (row) => String(row.tokens) },
  { title: 'kv', right: true, widthMax: 7, value: (row) => shortBytes(row.kvBytes) },
  { title: 'moves', right: true, widthMax: 6, value: (row) => String(row.decisions) },
  { title: 'ref.', right: true, widthMax: 5, value: (row) => String(row.refused) },
  { title: 'end', widthMax: 5, value: (row) => (row.end === 'aborted' ? 'abort' : row.end) },
];

export function sessionsText(rows: readonly SessionRow[]): string {
  return rows.length === 0 ? 'The log has no sessions.' : table(SESSION_COLUMNS, rows);
}

export function verifyText(report: VerifyReport): string {
  const { problem, entries, segments, logId, headHash, tornBytes } = report;
  if (problem !== null) {
    return [`DAMAGED after ${plural(entries, 'sound entry', 'sound entries')}.`, wrap(problem.what)].join('\n');
  }
  const torn =
    tornBytes === 0
      ? []
      : [`${plural(tornBytes, 'byte')} behind it never finished (a crash): the next writer sets them aside.`];
  return [
    `Sound: ${plural(entries, 'entry', 'entries')} in ${plural(segments, 'segment')} of log ${logId ?? '(not begun)'}.`,
    `Head ${headHash}`,
    ...torn,
    'Keep the head elsewhere: entries cut off at the end leave no trace in the log.',
  ].join('\n');
}

export function replayText(report: ReplayReport): string {
  const { session, policy, situations, decisions, firstDifference } = report;
  const scope = `${plural(decisions, 'decision')} on ${plural(situations, 'situation')} of session ${session} (${policy})`;
  if (firstDifference === null)
    return `Replayed ${scope}: every byte is the same.${report.complete ? '' : ' The last plan was cut off.'}`;
  const { seq, what, logged, replayed } = firstDifference;
  return [
    `Replayed ${scope}, then entry ${seq} differs (${what}).`,
    `  logged:   ${logged}`,
    `  replayed: ${replayed}`,
  ].join('\n');
}

/** '12.3K': seven characters at most. */
function shortBytes(bytes: number): string {
  if (bytes === 0) return '0';
  return bytesText(bytes)
    .replace(/ ?bytes?$/, 'B')
    .replace(/ ([KMG])iB$/, '$1');
}

/** `audit show`: any entry. What fits on a line stands on one, and thresholds as built in are counted; --json has every one. */
export function entryText(entry: Entry): string {
  const head = `Entry ${entry.seq}: ${entry.kind}${entry.session === '' ? '' : ` of session ${entry.session}`}, ${timeText(entry.timeMs)}`;
  return `${head}\n${folded(withoutDefaults(entry.body), 0, 0)}`;
}

/** Thresholds of origin 'default' as one line that says how many there are, wherever a set of them stands. */
function withoutDefaults(value: unknown): unknown {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return value;
  const fields = Object.entries(value).map(([key, field]): [string, unknown] => {
    if (key !== 'thresholds' || typeof field !== 'object' || field === null) return [key, withoutDefaults(field)];
    const all = Object.entries(field as Readonly<Record<string, unknown>>);
    const own = all.filter(([, one]) => (one as { origin?: unknown } | null)?.origin !== 'default');
    const count = all.length - own.length;
    if (count === 0) return [key, withoutDefaults(field)];
    return [key, { ...Object.fromEntries(own), [`${count} more`]: 'as built in (--json shows them)' }];
  });
  return Object.fromEntries(fields);
}

/** JSON with two spaces per level; what fits into the rest of its line (after `used` characters) stands there, numbers share lines. */
function folded(value: unknown, indent: number, used: number): string {
  const flat = JSON.stringify(value) ?? 'null';
  const isPlain = typeof value !== 'object' || value === null;
  if (isPlain || indent + used + flat.length < COLUMNS) return flat;
  const inside = ' '.repeat(indent + 2);
  const close = `\n${' '.repeat(indent)}`;
  if (!Array.isArray(value)) {
    const fields = Object.entries(value).map(([key, field]) => {
      const name = `${JSON.stringify(key)}: `;
      return `${inside}${name}${folded(field, indent + 2, name.length)}`;
    });
    return `{\n${fields.join(',\n')}${close}}`;
  }
  if (value.every((one) => typeof one === 'number')) {
    return `[\n${inside}${wrap(value.join(', '), inside, COLUMNS - 1)}${close}]`;
  }
  return `[\n${value.map((one) => inside + folded(one, indent + 2, 0)).join(',\n')}${close}]`;
}
