/**
 * Lists as text, as wide as the terminal (`columns`; Infinity cuts nothing). JSON output is the same rows, unchanged.
 */

import type { Neighbour, SessionRecord } from '../memory/index.ts';
import {
  brief,
  bytesText,
  type Column,
  grouped,
  jsonText,
  legend,
  percent,
  plural,
  printable,
  table,
  timeText,
  wrap,
} from '../native/index.ts';
import { predictedBy } from '../policy/index.ts';
import type { WithoutReport } from './counterfactual.ts';
import { DECISION_ROW, SESSION_ROW } from './entries/index.ts';
import { shortId } from './id.ts';
import { WITHOUT_NAMES } from './known-before.ts';
import { isPool } from './pool-series.ts';
import type { readEnvelope } from './read.ts';
import type { ReplayReport } from './replay-report.ts';
import { entryId } from './series.ts';
import type { SqlAnswer } from './sql/index.ts';
import type {
  CountKey,
  CountRow,
  DecisionRow,
  Entry,
  PackBody,
  SenselessEntry,
  SessionRow,
  VerifyReport,
} from './types.ts';

/** Fields of a row of decisions, in order: the columns of its CSV. */
export const DECISION_FIELDS = DECISION_ROW.map(({ name }) => name as keyof DecisionRow);

/** Fields of a row of sessions. */
export const SESSION_ROW_FIELDS = SESSION_ROW.map(({ name }) => name as keyof SessionRow);

/** Fields of a row of counts. */
export const COUNT_FIELDS = [
  ...['key', 'decisions', 'refused', 'bytesFreed', 'epsilonMean', 'epsilonMax', 'firstMs', 'lastMs'],
] as const satisfies readonly (keyof CountRow)[];

/** Fields of a session that is like another. */
export const SIMILAR_FIELDS = [
  ...['log', 'seq', 'distance', 'session', 'modelDigest', 'family', 'policy', 'tokens', 'kvBytes', 'effectiveBits'],
  ...['decisions', 'priceThreshold', 'predictedKld', 'meanKld', 'reason', 'endMs'],
] as const satisfies readonly ('log' | 'seq' | 'distance' | keyof SessionRecord)[];

/** From this width on there is room for whole ids of sessions. */
const WHOLE_IDS_COLUMNS = 120;

function sessionColumn<Row extends { readonly session: string }>(columns: number): Column<Row> {
  const isWhole = columns >= WHOLE_IDS_COLUMNS;
  return {
    title: 'session',
    align: 'left',
    value: ({ session }) => (isWhole ? session : shortId(session)),
    ...(isWhole ? {} : { means: 'the end of its id, which is enough to name it' }),
  };
}

const decisionColumns = (columns: number): Column<DecisionRow>[] => [
  { title: 'id', value: (row) => entryId(row.seq) },
  { title: 'time', align: 'left', optional: true, value: (row) => timeText(row.timeMs).slice(11, 19) },
  sessionColumn(columns),
  { title: 'tokens', value: (row) => String(row.tokens), means: 'in the cache when it was decided' },
  { title: 'layer', value: (row) => String(row.layer) },
  {
    title: 'page',
    value: (row) => `${row.page}${row.side}`,
    means: 'its number, and k for keys, v for values or kv for both',
  },
  { title: 'move', align: 'left', value: (row) => `${row.from}→${row.to}` },
  { title: 'verdict', align: 'left', value: (row) => (row.accepted ? 'made' : 'refused') },
  {
    title: 'reason',
    align: 'left',
    least: 6,
    optional: true,
    value: (row) => (row.accepted ? row.rule : row.verdictRule),
    means: 'the rule that planned or refused it',
  },
  { title: 'freed', value: (row) => bytesText(row.bytesBefore - row.bytesAfter) },
];

/** `audit list`. Dates stand above the rows they belong to. */
export function decisionsText(rows: readonly DecisionRow[], columns = Number.POSITIVE_INFINITY): string {
  if (rows.length === 0) return 'No decision matches.';
  const all = decisionColumns(columns);
  const lines = table(all, rows, columns).split('\n');
  const text = lines.splice(0, 2);
  let day = '';
  for (const [index, row] of rows.entries()) {
    const today = timeText(row.timeMs).slice(0, 10);
    if (today !== day) text.push(`-- ${today} UTC --`);
    day = today;
    text.push(lines[index] as string);
  }
  return [...text, '', legend(all, columns)].join('\n');
}

const sessionColumns = (columns: number): Column<SessionRow>[] => [
  sessionColumn(columns),
  { title: 'opened (UTC)', align: 'left', optional: true, value: (row) => timeText(row.openedMs).slice(0, 16) },
  { title: 'model', align: 'left', least: 8, value: (row) => row.model },
  { title: 'policy', align: 'left', least: 6, value: (row) => row.policy },
  { title: 'tokens', value: (row) => String(row.tokens) },
  {
    title: 'KV',
    value: (row) => bytesText(row.kvBytes),
    means: 'bytes of keys and values at its last decision or end',
  },
  { title: 'moves', value: (row) => String(row.decisions), means: 'decisions, refused ones included' },
  { title: 'refused', value: (row) => String(row.refused) },
  {
    title: 'KLD',
    value: (row) => brief(row.meanKld, 3),
    means: 'divergence from the exact cache, where it was measured',
  },
  {
    title: 'end',
    align: 'left',
    value: (row) => row.end,
    means: "how it ended; 'open' is still running or was killed",
  },
];

export function sessionsText(rows: readonly SessionRow[], columns = Number.POSITIVE_INFINITY): string {
  if (rows.length === 0) return 'The log has no sessions.';
  const all = sessionColumns(columns);
  return [table(all, rows, columns), '', legend(all, columns)].join('\n');
}

const countColumns = (by: CountKey): Column<CountRow>[] => [
  {
    title: by,
    align: by === 'layer' ? 'right' : 'left',
    least: 12,
    value: ({ key }) => (by === 'hour' ? timeText(Number(key)).slice(0, 16) : String(key)),
    ...(by === 'reason' ? { means: 'the rule that planned a move, or that refused it' } : {}),
    ...(by === 'hour' ? { means: 'its beginning, UTC' } : {}),
  },
  { title: 'moves', value: (row) => String(row.decisions), means: 'decisions, refused ones included' },
  { title: 'refused', value: (row) => String(row.refused) },
  { title: 'freed', value: (row) => bytesText(row.bytesFreed) },
  {
    title: 'mean ε',
    value: (row) => brief(row.epsilonMean, 3),
    means: 'error that they were decided by: measured just before the move, else predicted',
  },
  { title: 'worst ε', value: (row) => brief(row.epsilonMax, 3) },
  { title: 'first (UTC)', align: 'left', optional: true, value: (row) => timeText(row.firstMs).slice(0, 16) },
  { title: 'last (UTC)', align: 'left', optional: true, value: (row) => timeText(row.lastMs).slice(0, 16) },
];

/** `audit count`. */
export function countsText(by: CountKey, rows: readonly CountRow[], columns = Number.POSITIVE_INFINITY): string {
  if (rows.length === 0) return 'No decision matches.';
  const all = countColumns(by);
  return [table(all, rows, columns), '', legend(all, columns)].join('\n');
}

/** A session as `audit similar` tells it. */
export interface SimilarSession extends Omit<SessionRecord, 'predictedKld'> {
  /** What its policy predicted its moves to cost, in nats; null: it predicts nothing. */
  readonly predictedKld: number | null;
}

export const similarSession = ({ payload, ...near }: Neighbour<SessionRecord>): Neighbour<SimilarSession> => ({
  ...near,
  payload: { ...payload, predictedKld: predictedBy(payload.policy, payload.predictedKld) },
});

const SIMILAR_COLUMNS: readonly Column<Neighbour<SimilarSession>>[] = [
  { title: 'entry', value: ({ id }) => entryId(id.seq) },
  { title: 'distance', value: ({ distance }) => distance.toFixed(4), means: 'of the fingerprints; 0 is the same work' },
  { title: 'tokens', value: ({ payload }) => String(payload.tokens) },
  { title: 'bits', value: ({ payload }) => payload.effectiveBits.toFixed(2), means: 'per number of the cache' },
  {
    title: 'price',
    value: ({ payload }) => brief(payload.priceThreshold, 3),
    means: 'at which moves were made in the end, in KLD per byte',
  },
  {
    title: 'KLD',
    value: ({ payload }) => {
      const kld = payload.meanKld ?? payload.predictedKld;
      return kld === null ? '–' : brief(kld, 3);
    },
  },
  {
    title: '',
    align: 'left',
    value: ({ payload }) =>
      payload.meanKld !== null ? 'measured' : payload.predictedKld === null ? 'not predicted' : 'predicted',
  },
];

/**
 * `audit similar`: sessions nearest first, with the divergence that was measured, or else the one that their policy
 * predicted.
 */
export function similarText(near: readonly Neighbour<SimilarSession>[], columns = Number.POSITIVE_INFINITY): string {
  if (near.length === 0) return 'No other session is in the index yet.';
  const session = sessionColumn<SimilarSession>(columns);
  const all = [
    { ...session, value: ({ payload }: Neighbour<SimilarSession>) => session.value(payload) },
    ...SIMILAR_COLUMNS,
  ];
  return [table(all, near, columns), '', legend(all, columns)].join('\n');
}

/** `audit query`: what a SELECT answered. */
export function answerText({ columns: titles, rows, more }: SqlAnswer, columns?: number): string {
  const cells = titles.map(
    (title, at): Column<readonly unknown[]> => ({
      title: printable(title),
      align: rows.every((row) => row[at] === null || typeof row[at] === 'number') ? 'right' : 'left',
      least: 8,
      value: (row) => cellText(row[at]),
    }),
  );
  const rest = more ? ['', `There are more rows: --limit shows more than ${grouped(rows.length)}.`] : [];
  return [table(cells, rows, columns), ...rest].join('\n');
}

function cellText(cell: unknown): string {
  if (cell === null) return '–';
  if (cell instanceof Date) return timeText(cell.getTime());
  return typeof cell === 'object' ? JSON.stringify(cell) : String(cell);
}

export function verifyText(report: VerifyReport, columns?: number): string {
  const { problem, entries, unopened, segments, logId, headHash, series, foreign, senseless = [] } = report;
  const { damagedKeys = [] } = report;
  if (problem !== null && problem.seq !== null && problem.seq === senseless[0]?.seq)
    return nonsenseText(report, columns);
  if (problem !== null) {
    const found = wrap(printable(problem.what), columns);
    return [`DAMAGED after ${plural(entries, 'sound entry', 'sound entries')}.`, found].join('\n');
  }
  const gone = series.reduce((sum, one) => sum + one.removedEntries, 0);
  const heads =
    series.length < 2 ? [] : series.map((one) => `  ${one.series}: ${grouped(one.entries)}, head ${one.headHash}`);
  const named = foreign.map(
    ({ file, offset, bytes, what }) =>
      `  ${printable(file)}${offset === 0 ? '' : ` from byte ${grouped(offset)}`}, ${bytes === null ? 'no regular file' : plural(bytes, 'byte')}: ${what}`,
  );
  return [
    `Sound: ${plural(entries, 'entry', 'entries')} in ${plural(segments, 'segment')} of log ${logId ?? '(not begun)'}.`,
    `Head ${headHash}`,
    ...(gone === 0 ? [] : [`Retention removed ${plural(gone, 'entry', 'entries')} before them.`]),
    ...(unopened === 0
      ? []
      : [
          wrap(
            `${plural(unopened, 'entry', 'entries')} could not be opened, because the session was erased, or its key is not here or damaged.`,
            columns,
          ),
        ]),
    ...damagedKeys
      .slice(0, NAMED_MAX)
      .map((session) => wrap(`The key file of session ${printable(session)} is damaged.`, columns)),
    ...(damagedKeys.length <= NAMED_MAX ? [] : [`${damagedKeys.length - NAMED_MAX} more key files are damaged.`]),
    ...(heads.length === 0 ? [] : [`${heads.length} writers at a time wrote it; entries of each:`, ...heads]),
    ...(named.length === 0 ? [] : ['Not of the log:', ...named.map((line) => wrap(line, columns, '    '))]),
    wrap(anchorText(report.anchor), columns),
  ].join('\n');
}

/** Entries that are named; there may be thousands. */
const NAMED_MAX = 20;

/** A log that is what was written, and has entries that make no sense. */
function nonsenseText({ senseless = [], entries, headHash }: VerifyReport, columns?: number): string {
  const one = senseless.length === 1;
  const named = senseless.slice(0, NAMED_MAX).map((entry) => wrap(`  ${senselessText(entry)}`, columns, '    '));
  return [
    wrap(
      `NOT SOUND: ${plural(senseless.length, 'entry', 'entries')} of ${grouped(entries)} ${one ? 'makes' : 'make'} no sense. Every entry is what was written, and what reads the log passes ${one ? 'this one' : 'these'} over:`,
      columns,
    ),
    ...named,
    ...(senseless.length > NAMED_MAX ? [`  and ${senseless.length - NAMED_MAX} more`] : []),
    `Head ${headHash}`,
  ].join('\n');
}

/** One line about an entry that makes no sense. */
export const senselessText = ({ seq, session, what }: SenselessEntry): string =>
  `entry ${entryId(seq)}${session === '' ? '' : ` of session ${printable(session)}`}: ${printable(what)}`;

/** What a comparison with checkpoints proved, or what is not known without one. */
export function anchorText(anchor: VerifyReport['anchor']): string {
  if (anchor === undefined)
    return 'What this cannot know: whether entries were cut off at the end, or the whole log was written anew. Keep checkpoints elsewhere and compare them: audit checkpoint, audit verify --against.';
  const { checkpoints, removed, unanchoredEntries, latestMs } = anchor;
  const gone =
    removed === 0 ? '' : ` Nothing is left to compare ${removed} of them with: retention removed those entries.`;
  const when = latestMs === null ? '' : `, the latest of ${timeText(latestMs)}`;
  const rest =
    unanchoredEntries === 0
      ? 'They cover every entry.'
      : `${plural(unanchoredEntries, 'entry is', 'entries are')} younger: a change or a cut there would not show.`;
  return `The log has all that ${plural(checkpoints, 'checkpoint')} signed${when}.${gone} ${rest}`;
}

export function replayText(report: ReplayReport): string {
  const { session, policy, situations, decisions, firstDifference } = report;
  const scope = isPool(session)
    ? `${plural(decisions, 'turn')} of ${plural(situations, 'asking')} of ${printable(session)} (${printable(policy)})`
    : `${plural(decisions, 'decision')} on ${plural(situations, 'situation')} of session ${printable(session)} (${printable(policy)})`;
  const lack = lacksText(report);
  const lacks = lack === '' ? '' : ` The log lacks ${lack}.`;
  if (firstDifference === null) {
    const cut = isPool(session)
      ? ' Some askings were of more sessions than an entry has room for, and say no turns.'
      : ' The last plan was cut off.';
    const end = report.complete ? '' : cut;
    const { notChecked = [] } = report;
    const beyond = notChecked.length === 0 ? '' : ` Of its end nothing here says ${notChecked.join(', ')}.`;
    return `Replayed ${scope}: every byte is the same.${end}${lacks}${beyond}`;
  }
  const { seq, what, logged, replayed } = firstDifference;
  return [
    `Replayed ${scope}, then entry ${entryId(seq)} differs (${what}).${lacks}`,
    `  logged:   ${printable(logged)}`,
    `  replayed: ${printable(replayed)}`,
  ].join('\n');
}

/** `audit replay --without`: how many decisions would have been others. */
export function withoutText({ session, without, had, decisions, counts, added }: WithoutReport): string {
  const scope = `${plural(decisions, 'decision')} of session ${printable(session)}`;
  if (!had) return `The session knew nothing of that: ${scope} would be the same without ${WITHOUT_NAMES[without]}.`;
  const differing = decisions - counts.same;
  const kinds = [
    [counts['other-form'], 'to another form'],
    [counts.earlier, 'earlier'],
    [counts.later, 'later'],
    [counts.never, 'never'],
    [counts['other-verdict'], 'with another verdict'],
  ] as const;
  const told = kinds.filter(([count]) => count > 0).map(([count, what]) => `${count} ${what}`);
  const share = percent(differing / Math.max(1, decisions));
  const how = told.length === 0 ? '' : `: ${told.join(', ')}`;
  const more = ` ${plural(added, 'move')} would have been planned where the log has none of that page side.`;
  return `Without ${WITHOUT_NAMES[without]} ${differing} (${share}) of ${scope} would have been others${how}.${more} Trials are those of the log.`;
}

/** What the log lacks of a session, and who kept it out; '' for nothing. */
export function lacksText({ missing = 0, leftOut = 0 }: Pick<ReplayReport, 'missing' | 'leftOut'>): string {
  const parts = [
    ...(missing === leftOut ? [] : [`${plural(missing - leftOut, 'entry', 'entries')} of it that the disk refused`]),
    ...(leftOut === 0 ? [] : [`${plural(leftOut, 'entry', 'entries')} of it that a rule left out`]),
  ];
  return parts.join(' and ');
}

/** Where lines are folded that no terminal bounds. */
const ENTRY_COLUMNS = 80;

/**
 * `audit show`: any entry. What fits on one line is put on one, and built-in thresholds are only counted; --json has
 * them all.
 */
export function entryText(entry: Entry, columns = ENTRY_COLUMNS): string {
  const width = Number.isFinite(columns) ? columns : ENTRY_COLUMNS;
  const session = entry.session === '' ? '' : ` of session ${printable(entry.session)}`;
  const head = `Entry ${entryId(entry.seq)}: ${entry.kind}${session}, ${timeText(entry.timeMs)}`;
  return `${head}\n${folded(withoutDefaults(entry.body), 0, 0, width)}`;
}

/** The same for an entry whose body nobody can open. */
export function unopenedText({ seq, kind, session, timeMs, why }: ReturnType<typeof readEnvelope>): string {
  const what = {
    erased: 'the session was erased',
    missing: 'the key of the session is not here',
    damaged: 'the file of its key is damaged',
  }[why ?? 'missing'];
  return `Entry ${entryId(seq)}: ${kind} of session ${printable(session)}, ${timeText(timeMs)}\nIts body cannot be read: ${what}. The entry still counts in the hash chain.`;
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

/**
 * JSON with two spaces per level; what fits into the rest of its line (after `used` characters) stands there, numbers
 * share lines.
 */
function folded(value: unknown, indent: number, used: number, columns: number): string {
  const flat = jsonText(value ?? null);
  const isPlain = typeof value !== 'object' || value === null;
  if (isPlain || indent + used + flat.length < columns) return flat;
  const inside = ' '.repeat(indent + 2);
  const close = `\n${' '.repeat(indent)}`;
  if (!Array.isArray(value)) {
    const lines = Object.entries(value).map(([key, field]) => {
      const name = `${jsonText(key)}: `;
      return `${inside}${name}${folded(field, indent + 2, name.length, columns)}`;
    });
    return `{\n${lines.join(',\n')}${close}}`;
  }
  if (value.every((one) => typeof one === 'number')) {
    return `[\n${inside}${wrap(value.join(', '), columns - indent - 3).replaceAll('\n', `\n${inside}`)}${close}]`;
  }
  return `[\n${value.map((one) => inside + folded(one, indent + 2, 0, columns)).join(',\n')}${close}]`;
}

/** An arrow that a kernel pack took, with the entry that tells it. */
export interface PackRow extends PackBody {
  readonly seq: number;
  readonly timeMs: number;
}

/** Arrows of packs, as wide as the terminal. */
export function packsText(rows: readonly PackRow[], columns: number): string {
  if (rows.length === 0) return 'The log has no entry about packs.';
  const titles: Column<PackRow>[] = [
    { title: 'id', value: ({ seq }) => entryId(seq) },
    { title: 'time', align: 'left', optional: true, value: ({ timeMs }) => timeText(timeMs).slice(0, 19) },
    { title: 'pack', align: 'left', value: ({ name, version }) => printable(name === '' ? '?' : `${name} ${version}`) },
    { title: 'digest', align: 'left', value: ({ digest }) => digest.slice(0, 12) },
    { title: 'arrow', align: 'left', value: ({ from, to }) => `${from}→${to}` },
    { title: 'trust', optional: true, value: ({ trustVersion }) => String(trustVersion) },
    { title: 'signed by', align: 'left', optional: true, value: ({ keyIds }) => keyIds.join(' ') },
    { title: 'because', align: 'left', least: 6, optional: true, value: ({ because }) => printable(because) },
  ];
  return table(titles, rows, columns);
}
