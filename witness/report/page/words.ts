/**
 * Numbers and sentences for people. The figures are written as `native/text.ts` writes them, of which the page cannot
 * be made.
 */
import type { ReportData, Table } from './data.ts';
import { SIDE_NAMES } from './data.ts';

/** '1,234,567' */
export const grouped = (value: number): string => String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, ',');

/** A number with as many significant digits as a person needs; '–' for none. */
export function brief(value: number, digits = 4): string {
  if (Number.isNaN(value)) return '–';
  const size = Math.abs(value);
  if (value === 0 || (size < 1e6 && (Number.isInteger(value) || size >= 10 ** digits))) return grouped(value);
  return size >= 1e-3 && size < 1e6
    ? String(Number(value.toPrecision(digits)))
    : value.toExponential(Math.min(2, digits - 1)).replace('e+', 'e');
}

/** '1.5 KiB' */
export function bytesText(bytes: number): string {
  const size = Math.abs(bytes);
  if (size < 1024) return `${bytes} ${size === 1 ? 'byte' : 'bytes'}`;
  const [unit, name] = size < 1024 ** 2 ? [1024, 'KiB'] : size < 1024 ** 3 ? [1024 ** 2, 'MiB'] : [1024 ** 3, 'GiB'];
  return `${Number((bytes / unit).toPrecision(4))} ${name}`;
}

const SERIES_ENTRIES = 2 ** 32;

/** How people read the id of an entry: '17', and '2:17' in the series of a second or later writer. */
export const entryId = (seq: number): string =>
  seq < SERIES_ENTRIES ? String(seq) : `${Math.floor(seq / SERIES_ENTRIES)}:${seq % SERIES_ENTRIES}`;

const UNITS_OF_ONE: Readonly<Record<string, string>> = {
  tokens: 'token',
  pages: 'page',
  places: 'place',
  rows: 'row',
  bits: 'bit',
  'standard deviations': 'standard deviation',
  'dense halves of a token': 'dense half of a token',
};

/** A unit as it is written behind a number. */
export const unitBehind = (value: number, unit: string): string =>
  value === 1 && Object.hasOwn(UNITS_OF_ONE, unit) ? UNITS_OF_ONE[unit]! : unit;

/** A number with its unit; shares in percent. */
function amount(value: number, unit: string): string {
  if (unit === 'share') return `${brief(100 * value)}%`;
  return `${brief(value)}${unit === '' || unit === '1' ? '' : ` ${unitBehind(value, unit)}`}`;
}

/** A decision, one field after the other. */
export interface Decided {
  readonly row: number;
  readonly seq: number;
  readonly situation: number;
  readonly tokens: number;
  readonly layer: number;
  readonly page: number;
  readonly side: number;
  readonly from: string;
  readonly to: string;
  readonly accepted: boolean;
}

/** What an explanation is made of. */
export interface Sources {
  readonly data: ReportData;
  readonly decisions: Table;
  readonly situations: Table;
  readonly trials: Table;
  readonly canaries: Table;
}

/** One row of the decisions. */
export function decided({ data, decisions }: Sources, row: number): Decided {
  const at = (name: string): number => decisions.of(name)[row]!;
  return {
    row,
    seq: at('seq'),
    situation: at('situation'),
    tokens: at('tokens'),
    layer: at('layer'),
    page: at('page'),
    side: at('side'),
    from: data.forms[at('from')] ?? '?',
    to: data.forms[at('to')] ?? '?',
    accepted: at('accepted') === 1,
  };
}

/** A decision in sentences with a title each, as `palimpsest audit explain` tells it. */
export function explained(sources: Sources, row: number): [title: string, text: string][] {
  const one = decided(sources, row);
  return [
    ['what', tellMove(sources, one)],
    ['why', tellReason(sources, one, 'because', 'measured', 'bound', 'Planned')],
    ['threshold', tellThreshold(sources, one)],
    ['trial', tellTrial(sources, one)],
    [
      'verdict',
      tellReason(sources, one, 'verdict', 'verdictMeasured', 'verdictBound', one.accepted ? 'Made' : 'Refused'),
    ],
    ['bytes', tellBytes(sources, one)],
    ['situation', tellSituation(sources, one)],
    ['otherwise', tellOthers(sources, one)],
    ['history', tellHistory(sources, one)],
    ['later', tellCanaries(sources, one)],
    ['record', `Entry ${entryId(one.seq)}: palimpsest audit explain ${entryId(one.seq)} tells more.`],
  ];
}

function tellMove({ data }: Sources, { tokens, layer, page, side, from, to, accepted }: Decided): string {
  const first = page * data.pageTokens;
  const what = `the ${SIDE_NAMES[side]} of page ${page} (tokens ${grouped(first)} to ${grouped(first + data.pageTokens - 1)}) in layer ${layer}`;
  const move = accepted
    ? `went from ${from} to ${to}`
    : `were to go from ${from} to ${to} and stayed in ${from}: refused`;
  return `With ${grouped(tokens)} tokens in the cache, ${what} ${move}.`;
}

/** What was compared with which bound, under which rule. */
function tellReason(
  { data, decisions }: Sources,
  { row }: Decided,
  reasonColumn: string,
  measuredColumn: string,
  boundColumn: string,
  verb: string,
): string {
  const [rule, threshold, unit] = data.reasons[decisions.of(reasonColumn)[row]!] ?? ['', '', '', ''];
  const measured = decisions.of(measuredColumn)[row]!;
  const bound = decisions.of(boundColumn)[row]!;
  const meaning = Object.hasOwn(data.rules, rule) ? ` (${data.rules[rule]})` : '';
  const relation = measured < bound ? 'below' : measured > bound ? 'above' : 'exactly at';
  const isNeed = threshold.startsWith('pressure') && unit === 'share';
  const what = isNeed ? `This needs ${amount(measured, unit)} of the budget` : `Measured ${amount(measured, unit)}`;
  return `${verb} under rule '${rule}'${meaning}. ${what}, ${relation} the bound of ${amount(bound, unit)} ('${threshold}').`;
}

function tellThreshold({ data, decisions }: Sources, { row }: Decided): string {
  const [, threshold, unit, origin] = data.reasons[decisions.of('because')[row]!] ?? ['', '', '', ''];
  const now = `The bound of ${amount(decisions.of('bound')[row]!, unit)} was ${data.origins[origin] ?? origin}.`;
  const start = Object.hasOwn(data.starts, threshold) ? data.starts[threshold] : undefined;
  if (start === undefined) return `${now} The session began without a value of its own for it.`;
  return `${now} The session began with ${amount(start.value, start.unit)}: ${start.source}.`;
}

/** What a page may be tried in. */
const triedForms = ({ forms, freedForm }: ReportData): readonly string[] => forms.slice(0, freedForm);

/** The row of the page's trial that the decision rests on; −1 when there was none. */
function trialOf({ trials }: Sources, { seq, layer, page, side }: Decided): number {
  const [seqs, layers, pages, sides] = [trials.of('seq'), trials.of('layer'), trials.of('page'), trials.of('side')];
  for (let row = trials.length - 1; row >= 0; row--)
    if (seqs[row]! < seq && layers[row] === layer && pages[row] === page && sides[row] === side) return row;
  return -1;
}

function tellTrial(sources: Sources, one: Decided): string {
  const { data, decisions, trials } = sources;
  const at = (name: string): number => decisions.of(name)[one.row]!;
  const parts: string[] = [];
  const trial = trialOf(sources, one);
  if (trial >= 0) {
    const errors = triedForms(data).flatMap((form) => {
      const error = trials.of(form)[trial]!;
      return Number.isNaN(error) ? [] : [`${form} ${brief(error)}`];
    });
    parts.push(
      `When it became movable (entry ${entryId(trials.of('seq')[trial]!)}), the page was tried in other formats. ε, the change of the layer’s output as a share of the residual stream, was: ${errors.join(', ')}.`,
    );
  }
  const [from, to, now, price, planned] = [
    at('epsilonFrom'),
    at('epsilonTo'),
    at('epsilonNow'),
    at('price'),
    at('planned'),
  ];
  if (!Number.isNaN(to))
    parts.push(
      `The plan counted ε ${brief(to)} in ${one.to}${Number.isNaN(from) ? '' : ` against ${brief(from)} in ${one.from}`}.`,
    );
  if (!Number.isNaN(price))
    parts.push(
      `The predicted divergence is ${brief(price * planned)} KLD for ${bytesText(planned)}, or ${brief(price)} KLD per byte.`,
    );
  if (!Number.isNaN(now)) parts.push(`Tried again just before the move, on the newest queries: ε ${brief(now)}.`);
  return parts.length === 0 ? 'None: this policy moves pages without trying them first.' : parts.join(' ');
}

function tellBytes({ decisions }: Sources, { row, accepted }: Decided): string {
  const at = (name: string): number => decisions.of(name)[row]!;
  const [before, freed, planned] = [at('bytes'), at('freed'), at('planned')];
  if (!accepted) return `The cache stayed at ${grouped(before)} bytes; the move would have freed ${grouped(planned)}.`;
  return `The cache went from ${grouped(before)} to ${grouped(before - freed)} bytes: ${grouped(freed)} freed${
    freed === planned ? ', as planned' : `, where ${grouped(planned)} were planned`
  }.`;
}

/** The first row of a rising column with this value; −1 when it is not there. */
function rowWith(column: Float64Array, value: number): number {
  let low = 0;
  let high = column.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (column[middle]! < value) low = middle + 1;
    else high = middle;
  }
  return column[low] === value ? low : -1;
}

function tellSituation({ situations, decisions }: Sources, one: Decided): string {
  const row = rowWith(situations.of('index'), one.situation);
  if (row < 0) return 'The entry with the situation is not in the log.';
  const at = (name: string): number => situations.of(name)[row]!;
  const [bytes, budget, seal, p95] = [at('bytes'), at('budget') - at('canaryBytes'), at('sealBytes'), at('p95')];
  const share = Number.isNaN(budget)
    ? 'with no byte budget'
    : `${brief((100 * bytes) / Math.max(1, budget))}% of its budget of ${bytesText(budget)}`;
  const plan = decisions.of('situation');
  const first = rowWith(plan, one.situation);
  let [planned, refused] = [0, 0];
  for (let i = first; i < plan.length && plan[i] === one.situation; i++) {
    planned++;
    if (decisions.of('accepted')[i] === 0) refused++;
  }
  const speed = Number.isNaN(p95) ? '' : ` Steps took ${brief(p95)} ms (p95).`;
  return `The cache held ${grouped(one.tokens)} tokens in ${bytesText(bytes)}, ${share}, and the next pages needed ${bytesText(seal)}${
    at('urgent') === 1 ? ' at once' : ''
  } (entry ${entryId(at('seq'))}).${speed} The plan had ${grouped(planned)} ${planned === 1 ? 'move' : 'moves'}, of which ${grouped(refused)} ${
    refused === 1 ? 'was' : 'were'
  } refused.`;
}

function tellOthers(sources: Sources, one: Decided): string {
  const { data, trials } = sources;
  const trial = trialOf(sources, one);
  const others =
    trial < 0
      ? []
      : triedForms(data).flatMap((form, i) => {
          const error = trials.of(form)[trial]!;
          const bytes = data.formBytes[i] ?? null;
          if (Number.isNaN(error) || form === one.to) return [];
          return [`${form}: ${bytes === null ? '' : `${bytesText(bytes)}, `}ε ${brief(error)}`];
        });
  return others.length === 0 ? 'No other format of this page was tried.' : `${others.join('. ')}.`;
}

/** What else was decided about the page, five moves at most. */
function tellHistory(sources: Sources, one: Decided): string {
  const { decisions } = sources;
  const [layers, pages] = [decisions.of('layer'), decisions.of('page')];
  const rows: number[] = [];
  for (let row = 0; row < decisions.length; row++)
    if (layers[row] === one.layer && pages[row] === one.page && row !== one.row) rows.push(row);
  if (rows.length === 0) return 'Nothing else was decided about this page.';
  const told = rows.slice(0, 5).map((row) => {
    const other = decided(sources, row);
    const side = other.side === one.side ? '' : `${SIDE_NAMES[other.side]} `;
    return `${entryId(other.seq)}: ${side}${other.from} to ${other.to} at ${grouped(other.tokens)} tokens${other.accepted ? '' : ' (refused)'}`;
  });
  return `${told.join(', ')}${rows.length > told.length ? ` and ${rows.length - told.length} more` : ''}.`;
}

function tellCanaries({ data, canaries }: Sources, one: Decided): string {
  const at = (name: string, row: number): number => canaries.of(name)[row]!;
  const told: string[] = [];
  let promised = Number.NaN;
  for (let row = 0; row < canaries.length; row++) {
    const isIts =
      at('seq', row) > one.seq &&
      at('layer', row) === one.layer &&
      at('page', row) === one.page &&
      at('side', row) === one.side;
    if (!isIts || data.forms[at('to', row)] !== one.to) continue;
    promised = at('promised', row);
    told.push(`${brief(at('now', row))} after ${grouped(at('age', row))} tokens`);
  }
  if (told.length === 0)
    return one.accepted ? 'Nothing of its original was kept to measure it against later.' : 'Nothing was moved.';
  const rest = told.length > 5 ? ` and ${told.length - 5} more` : '';
  return `Its original was kept, or rows of it. Against that, ε was promised as ${brief(promised)} and measured as ${told.slice(0, 5).join(', ')}${rest}.`;
}
