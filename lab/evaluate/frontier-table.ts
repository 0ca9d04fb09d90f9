/** The rows of `frontier` as Markdown: one table for each model and context, fewest bits first. */
import { percent } from '../../native/index.ts';
import { bareName } from './every-cache.ts';
import { type FrontierRow, type Point, places, pointsOf, refusals } from './frontier-rows.ts';

export interface FrontierColumn {
  readonly title: string;
  /** What it is, for the legend. */
  readonly is: string;
  readonly value: (point: Point) => string;
}

const small = (value: number): string =>
  value === 0 ? '0' : value < 1e-4 ? value.toExponential(1) : value.toPrecision(2);
const recalled =
  (keys: 'one' | 'many') =>
  (point: Point): string =>
    point.asked[keys] === 0 ? '' : `${point.recall[keys].join(' ')} of ${point.asked[keys]}`;

export const FRONTIER_COLUMNS: readonly FrontierColumn[] = [
  {
    title: 'cache',
    is: 'formats of keys and values, a policy at its budget, or an eviction rule at its share of tokens; in bold where nothing else has both fewer bits and less divergence',
    value: ({ cache }) => bareName(cache),
  },
  {
    title: 'bits',
    is: 'effective bits of the most that was ever held: window, sinks and all metadata counted',
    value: ({ bits }) => bits.toFixed(2),
  },
  {
    title: 'at rest',
    is: 'effective bits when all is read, which is how others count theirs',
    value: ({ bitsAtRest }) => bitsAtRest.toFixed(2),
  },
  { title: 'KLD', is: 'mean divergence from the exact cache in nats', value: ({ meanKld }) => small(meanKld) },
  { title: 'median', is: 'its median, as the mean over the texts', value: ({ medianKld }) => small(medianKld) },
  { title: '99%', is: 'its 99th percentile, likewise', value: ({ kld99 }) => small(kld99) },
  { title: '99.9%', is: 'its 99.9th, likewise: of 512 tokens the largest', value: ({ kld999 }) => small(kld999) },
  {
    title: 'ΔPPL',
    is: 'change of the perplexity',
    value: ({ perplexity, perplexityExact }) => percent(perplexity / perplexityExact - 1),
  },
  { title: 'same top', is: 'tokens whose most likely successor is the same', value: ({ sameTop }) => percent(sameTop) },
  { title: 'recall, one', is: 'right answers at five depths, one code in a document', value: recalled('one') },
  { title: 'recall, many', is: 'the same with five codes in a document', value: recalled('many') },
  {
    title: 'speed',
    is: 'of decode attention over 16K tokens, as a multiple of that of f16',
    value: ({ ratioToF16 }) => ratioToF16?.toFixed(2) ?? '',
  },
  { title: 'KiB at rest', is: 'bytes when all is read', value: ({ bytesAtRest }) => (bytesAtRest / 1024).toFixed(0) },
];

/** The columns that some point has something in. */
export const columnsFor = (points: readonly Point[]): FrontierColumn[] =>
  FRONTIER_COLUMNS.filter(({ value }) => points.some((point) => value(point) !== ''));

/** What was refused, in a sentence; empty: nothing. */
export function refusalText(rows: readonly FrontierRow[], model: string, context: number): string {
  const refused = refusals(rows, model, context);
  const codes = [...new Set(refused.values())];
  return codes
    .map((code) => {
      const caches = [...refused].filter(([, why]) => why === code).map(([cache]) => bareName(cache));
      return `Refused (${code}): ${caches.join(', ')}.`;
    })
    .join(' ');
}

/** A table beside the frontier. */
export interface OtherTable {
  readonly title: string;
  readonly head: readonly string[];
  readonly rows: readonly (readonly string[])[];
}

const ofPart = <Part extends FrontierRow['part']>(
  rows: readonly FrontierRow[],
  part: Part,
): Extract<FrontierRow, { part: Part }>[] =>
  rows.filter((row): row is Extract<FrontierRow, { part: Part }> => row.part === part);

const groups = <Row>(rows: readonly Row[], of: (row: Row) => string): [title: string, rows: Row[]][] =>
  [...new Set(rows.map(of))].map((title) => [title, rows.filter((row) => of(row) === title)]);

/**
 * Short chunks, courses along a text, caches that were refreshed, and decode steps. Rows that were refused have nothing
 * to show.
 */
export const otherTables = (rows: readonly FrontierRow[]): OtherTable[] => [
  ...shortTables(ofPart(rows, 'short')),
  ...courseTables(ofPart(rows, 'course')),
  ...refreshTables(ofPart(rows, 'refresh')),
  ...stepTables(ofPart(rows, 'latency')),
];

type Rows<Part extends FrontierRow['part']> = Extract<FrontierRow, { part: Part }>[];

function shortTables(rows: Rows<'short'>): OtherTable[] {
  const titleOf = ({ model, kind, chunks }: Rows<'short'>[number]): string =>
    `${model}, ${chunks} chunks of 128 + 64 tokens, ${kind}`;
  return groups(rows, titleOf).map(([title, all]) => ({
    title,
    head: ['cache', 'bits', 'KLD', 'median', '99%', '99.9%', 'PPL', 'exact PPL', 'same top'],
    rows: all.flatMap(({ cache, measured: one }) =>
      one === null
        ? []
        : [
            [
              bareName(cache),
              one.bits.toFixed(2),
              ...[one.meanKld, one.medianKld, one.kld99, one.kld999].map(small),
              ...[one.perplexity, one.perplexityExact].map((ppl) => ppl.toFixed(2)),
              percent(one.sameTop),
            ],
          ],
    ),
  }));
}

function courseTables(rows: Rows<'course'>): OtherTable[] {
  const titleOf = ({ model, context, text }: Rows<'course'>[number]): string =>
    `${model}, along ${context} tokens, ${text}`;
  return groups(rows, titleOf).flatMap(([title, all]) => {
    const stretches = all.find(({ course }) => course !== null)?.course ?? [];
    const table = (what: string, value: (one: (typeof stretches)[number]) => string): OtherTable => ({
      title: `${title}: ${what} up to each length`,
      head: ['cache', ...stretches.map(({ tokens }) => String(tokens))],
      rows: all.flatMap(({ cache, course }) => (course === null ? [] : [[bareName(cache), ...course.map(value)]])),
    });
    return [
      table('mean KLD of the stretch', ({ meanKld }) => small(meanKld)),
      table('KiB', ({ bytes }) => (bytes / 1024).toFixed(0)),
    ];
  });
}

function refreshTables(rows: Rows<'refresh'>): OtherTable[] {
  const titleOf = ({ model, context, text }: Rows<'refresh'>[number]): string =>
    `${model}, refreshed in the middle of ${context} tokens, ${text}`;
  return groups(rows, titleOf).map(([title, all]) => {
    const stretches = all.find(({ refresh }) => refresh !== null)?.refresh?.stretches ?? [];
    return {
      title: `${title}: mean KLD of the stretch up to each length`,
      head: ['cache', ...stretches.flatMap(({ tokens }) => [`${tokens} as it is`, 'read again', 'originals put back'])],
      rows: all.flatMap(({ cache, refresh }) =>
        refresh === null
          ? []
          : [
              [
                bareName(cache),
                ...refresh.stretches.flatMap(({ kept, again, restored }) => [kept, again, restored].map(small)),
              ],
            ],
      ),
    };
  });
}

function stepTables(rows: Rows<'latency'>): OtherTable[] {
  const titleOf = ({ model, context, threads }: Rows<'latency'>[number]): string =>
    `${model}, decode steps behind ${context} tokens, ${threads} ${threads === 1 ? 'thread' : 'threads'}`;
  return groups(rows, titleOf).map(([title, all]) => ({
    title,
    head: ['cache', 'steps', 'p50 ms', 'p95 ms', 'p99 ms', 'most ms'],
    rows: all.flatMap(({ cache, steps: one }) =>
      one === null
        ? []
        : [
            [
              bareName(cache),
              String(one.count),
              ...[one.p50Ms, one.p95Ms, one.p99Ms, one.mostMs].map((ms) => ms.toFixed(1)),
            ],
          ],
    ),
  }));
}

export function frontierTable(rows: readonly FrontierRow[]): string {
  const parts: string[] = [];
  for (const { model, contexts } of places(rows))
    for (const context of contexts) {
      const points = pointsOf(rows, model, context);
      if (points.length === 0) continue;
      const columns = columnsFor(points);
      parts.push(
        `### ${model}, ${context} tokens`,
        markdown(
          columns.map(({ title }) => title),
          points.map((point) =>
            columns.map(({ value }, at) => (at === 0 && point.isBest ? `**${value(point)}**` : value(point))),
          ),
        ),
      );
      const refused = refusalText(rows, model, context);
      if (refused !== '') parts.push(refused);
    }
  for (const { title, head, rows: body } of otherTables(rows)) parts.push(`### ${title}`, markdown(head, body));
  return `${parts.join('\n\n')}\n`;
}

const line = (cells: readonly string[]): string => `| ${cells.join(' | ')} |`;
/** A table whose first column is text and whose others are numbers. */
export const markdown = (head: readonly string[], rows: readonly (readonly string[])[]): string =>
  [line(head), line(head.map((_, at) => (at === 0 ? '---' : '---:'))), ...rows.map(line)].join('\n');
