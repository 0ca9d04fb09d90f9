/** The rows of `frontier` as Markdown: one table for each model and context, fewest bits first. */
import { percent } from '../../native/index.ts';
import { type FrontierRow, type Point, places, pointsOf, refusals } from './frontier-rows.ts';
import { bareName } from './methods.ts';

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
  { title: 'bits', is: 'effective bits: window, sinks and all metadata counted', value: ({ bits }) => bits.toFixed(2) },
  { title: 'KLD', is: 'mean divergence from the exact cache in nats', value: ({ meanKld }) => small(meanKld) },
  { title: 'median', is: 'its median, as the mean over the texts', value: ({ medianKld }) => small(medianKld) },
  { title: '99%', is: 'its 99th percentile, likewise', value: ({ kld99 }) => small(kld99) },
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

export function frontierTable(rows: readonly FrontierRow[]): string {
  const parts: string[] = [];
  for (const { model, contexts } of places(rows))
    for (const context of contexts) {
      const points = pointsOf(rows, model, context);
      if (points.length === 0) continue;
      const columns = columnsFor(points);
      parts.push(
        `### ${model}, ${context} tokens`,
        [
          line(columns.map(({ title }) => title)),
          line(columns.map((_, at) => (at === 0 ? '---' : '---:'))),
          ...points.map((point) =>
            line(columns.map(({ value }, at) => (at === 0 && point.isBest ? `**${value(point)}**` : value(point)))),
          ),
        ].join('\n'),
      );
      const refused = refusalText(rows, model, context);
      if (refused !== '') parts.push(refused);
    }
  return `${parts.join('\n\n')}\n`;
}

const line = (cells: readonly string[]): string => `| ${cells.join(' | ')} |`;
