/**
 * Fills the page from the facts that it carries. Everything that a reader needs without a script is in the page
 * already.
 */
import { lineChart, type Series } from './chart.ts';
import { SIDE_NAMES } from './data.ts';
import { asTable, byId, drawn, el } from './dom.ts';
import { drawErrors, drawLatency } from './errors.ts';
import { bytesOverTime } from './history.ts';
import { type Asked, DecisionList, printedTable } from './list.ts';
import { drawPool } from './pool.ts';
import { cursors, data, history, moment, repaints, some, sources } from './session.ts';
import { drawLegend, drawTiers, seek } from './tiers.ts';
import { bytesText, decided, grouped } from './words.ts';

const f16Of = (tokens: number): number => tokens * data.f16BytesPerToken;

/** Bytes of the cache, beside f16 and the budget. */
function memorySeries(points: ReturnType<typeof bytesOverTime>): Series[] {
  const { situations } = sources;
  const [at, budget] = [situations.of('tokens'), situations.of('budget')];
  const budgets = [...at.keys()].flatMap((row): [number, number][] =>
    Number.isNaN(budget[row]!) ? [] : [[at[row]!, budget[row]!]],
  );
  const cache: Series = {
    name: 'this cache',
    look: 'cache',
    isArea: true,
    points: [
      ...points.map((one) => [one.tokens, one.bytes] as const),
      ...(points.length > 0 ? [[data.tokens, points.at(-1)!.bytes] as const] : []),
    ],
  };
  const f16: Series = {
    name: 'f16',
    look: 'f16',
    points: [
      [0, 0],
      [history.tokensMost, f16Of(history.tokensMost)],
    ],
  };
  if (budgets.length === 0) return [cache, f16];
  const [first, last] = [budgets[0]![1], budgets.at(-1)![1]];
  return [
    cache,
    f16,
    { name: 'budget', look: 'budget', isStep: true, points: [[0, first], ...budgets, [data.tokens, last]] },
  ];
}

function drawMemory(): void {
  const points = bytesOverTime(sources.situations, sources.decisions);
  const series = memorySeries(points);
  const yMax = 1.04 * points.reduce((most, { bytes }) => Math.max(most, bytes), f16Of(history.tokensMost));
  const about = `The cache takes ${bytesText(points.at(-1)?.bytes ?? 0)} at ${grouped(data.tokens)} tokens, where f16 takes ${bytesText(f16Of(data.tokens))}.`;
  const marks = data.happenings.map(({ tokens: x, text, layer }) => ({
    x,
    text: layer === null ? text : `Layer ${layer}: ${text}`,
  }));
  const title = 'KV bytes over tokens';
  const chart = { title, about, xMax: history.tokensMost, yMax, yText: bytesText, isBinary: true, series, marks };
  drawn(byId('memory-chart'), (width) => {
    const { root, cursor } = lineChart(chart, width);
    cursors.set('memory', cursor);
    cursor(history.frames[moment.frame]?.tokens ?? 0);
    return root;
  });
  const rows = some(points).map(({ tokens, bytes }) => {
    const f16 = f16Of(tokens);
    const share = f16 === 0 ? '–' : `${((100 * bytes) / f16).toFixed(1)}%`;
    return [grouped(tokens), bytesText(bytes), bytesText(f16), share];
  });
  byId('memory').append(asTable('KV bytes by tokens', ['tokens', 'this cache', 'f16', 'of f16'], rows));
}

const FIELDS = ['layer', 'page', 'side', 'form', 'reason', 'outcome'] as const;

const asked = (): Asked =>
  Object.fromEntries(
    FIELDS.map((name) => [name, byId<HTMLSelectElement | HTMLInputElement>(`ask-${name}`).value]),
  ) as unknown as Asked;

let list: DecisionList | null = null;

function drawDecisions(): void {
  const { decisions } = sources;
  byId('printed-decisions').append(printedTable(sources));
  list = new DecisionList(sources, { view: byId('list'), count: byId('count'), detail: byId('detail') }, (row) =>
    history.frames.length > 0 ? seek(decided(sources, row).seq) : undefined,
  );
  const option = (value: string, text: string): HTMLElement => el('option', { value }, text);
  const present = (name: string): number[] => [...new Set(decisions.of(name))].sort((a, b) => a - b);
  byId('ask-layer').append(...present('layer').map((layer) => option(String(layer), String(layer))));
  byId('ask-side').append(...present('side').map((side) => option(String(side), SIDE_NAMES[side]!)));
  const forms = [...new Set([...present('from'), ...present('to')])].sort((a, b) => a - b);
  byId('ask-form').append(...forms.map((form) => option(String(form), data.forms[form]!)));
  const names = [...new Set(data.reasons.flat())].sort();
  byId('ask-reason').append(...names.map((name) => option(name, name)));
  const run = (): void => list?.filter(asked());
  for (const name of FIELDS) byId(`ask-${name}`).addEventListener('input', run);
  byId('filters').addEventListener('reset', () => setTimeout(run));
  byId('filters').addEventListener('submit', (event) => event.preventDefault());
  run();
}

function askForPage(side: number, layer: number, page: number): void {
  byId<HTMLSelectElement>('ask-layer').value = String(layer);
  byId<HTMLSelectElement>('ask-side').value = String(side);
  byId<HTMLInputElement>('ask-page').value = String(page);
  list?.filter(asked());
  byId('decisions').scrollIntoView();
  byId('list').focus({ preventScroll: true });
}

const repaint = (): void => {
  for (const paint of repaints) paint();
};

drawMemory();
drawLegend();
drawTiers(askForPage);
drawDecisions();
drawErrors();
drawLatency();
drawPool();
repaint();
// Canvases keep the colours that they were painted with.
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', repaint);
matchMedia('print').addEventListener('change', repaint);
addEventListener('beforeprint', repaint);
addEventListener('afterprint', repaint);
document.documentElement.dataset['ready'] = String(Math.round(performance.now()));
