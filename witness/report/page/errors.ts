/** Errors against bounds and against originals, the quality of layers, and how long steps took. */
import { lineChart, ratioChart, type Series, type Span, spanChart } from './chart.ts';
import { SIDE_NAMES } from './data.ts';
import { asTable, byId, drawn, el } from './dom.ts';
import { cursors, data, history, moment, some, sources } from './session.ts';
import { brief, grouped } from './words.ts';

/** Measured over bound by layer, of verdicts that rest on a trial. */
function spans(): Span[] {
  const { decisions } = sources;
  const of = (name: string): Float64Array => decisions.of(name);
  const [layer, measured, bound, error, accepted] = [
    of('layer'),
    of('verdictMeasured'),
    of('verdictBound'),
    of('epsilonTo'),
    of('accepted'),
  ];
  const made: number[][] = Array.from({ length: data.layers }, () => []);
  const refused: number[][] = Array.from({ length: data.layers }, () => []);
  for (let row = 0; row < decisions.length; row++) {
    const ratio = measured[row]! / bound[row]!;
    if (Number.isNaN(error[row]!) || !Number.isFinite(ratio)) continue;
    (accepted[row] === 1 ? made : refused)[layer[row]!]?.push(ratio);
  }
  return made.flatMap((ratios, at) => {
    const sorted = ratios.sort((a, b) => a - b);
    if (sorted.length === 0 && refused[at]!.length === 0) return [];
    return [
      {
        layer: at,
        low: sorted[0] ?? 0,
        middle: sorted[sorted.length >> 1] ?? 0,
        high: sorted.at(-1) ?? 0,
        refused: refused[at]!,
      },
    ];
  });
}

export function drawErrors(): void {
  const found = spans();
  byId('no-errors').hidden = found.length > 0;
  byId('errors-drawn').hidden = found.length === 0;
  if (found.length > 0) {
    const worst = found.reduce((a, b) => (b.high > a.high ? b : a));
    const about = `Predicted damage of every move as a share of the bound it was judged by. The largest that was accepted is ${Math.round(100 * worst.high)}% in layer ${worst.layer}.`;
    drawn(byId('error-chart'), (width) =>
      spanChart({ title: 'Error against bound by layer', about, spans: found }, width),
    );
    const rows = found.map(({ layer, low, middle, high, refused }) => [
      String(layer),
      ...[low, middle, high].map((share) => `${(100 * share).toFixed(1)}%`),
      String(refused.length),
    ]);
    byId('errors-drawn').append(
      asTable('Share of the bound by layer', ['layer', 'least', 'median', 'most', 'refused'], rows),
    );
  }
  drawCanaries();
}

function drawCanaries(): void {
  const { canaries } = sources;
  const at = (name: string, row: number): number => canaries.of(name)[row]!;
  const dots = Array.from({ length: canaries.length }, (_, row) => {
    const ratio = at('now', row) / at('promised', row);
    const text = `Layer ${at('layer', row)}, page ${at('page', row)}, ${SIDE_NAMES[at('side', row)]} in ${data.forms[at('to', row)]}: promised ${brief(at('promised', row))}, measured ${brief(at('now', row))} at ${grouped(at('tokens', row))} tokens`;
    return { x: at('tokens', row), y: ratio, isSquare: at('side', row) === 1, text, row };
  }).filter(({ y }) => y > 0 && Number.isFinite(y));
  byId('no-canaries').hidden = dots.length > 0;
  byId('canaries-drawn').hidden = dots.length === 0;
  if (dots.length > 0) {
    const over = dots.filter(({ y }) => y > 1).length;
    const about = `${grouped(over)} of ${grouped(dots.length)} measurements were above what was promised.`;
    byId('canary-sum').textContent = about;
    drawn(byId('canary-chart'), (width) =>
      ratioChart(
        { title: 'Measured error over promised error', about, xMax: history.tokensMost, dots, middle: 'as promised' },
        width,
      ),
    );
    const rows = some(dots).map(({ x, y, row }) => [
      grouped(x),
      String(at('layer', row)),
      SIDE_NAMES[at('side', row)]!,
      brief(at('promised', row)),
      brief(at('now', row)),
      brief(y, 3),
    ]);
    byId('canaries-drawn').append(
      asTable('Canaries', ['tokens', 'layer', 'side', 'promised ε', 'measured ε', 'ratio'], rows),
    );
  }
  const told = data.happenings.map(({ tokens, layer, state, text }) =>
    el(
      'tr',
      {},
      el('td', {}, grouped(tokens)),
      el('td', {}, layer === null ? 'all' : String(layer)),
      el('td', {}, state ?? ''),
      el('td', {}, text),
    ),
  );
  byId('no-happenings').hidden = told.length > 0;
  byId('happenings').hidden = told.length === 0;
  byId('happenings')
    .querySelector('tbody')!
    .append(...told);
}

export function drawLatency(): void {
  const { situations } = sources;
  const [tokens, p95] = [situations.of('tokens'), situations.of('p95')];
  const points = [...tokens.keys()].flatMap((row): [number, number][] =>
    Number.isNaN(p95[row]!) ? [] : [[tokens[row]!, p95[row]!]],
  );
  byId('no-latency').hidden = points.length > 0;
  byId('latency-drawn').hidden = points.length === 0;
  if (points.length === 0) return;
  const sorted = points.map(([, ms]) => ms).sort((a, b) => a - b);
  const at = (share: number): string =>
    `${brief(sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))]!, 3)} ms`;
  const about = `The p95 of steps was between ${at(0)} and ${at(1)}, in the median ${at(0.5)}.`;
  byId('latency-sum').textContent =
    `${about} Each point is taken over the last 64 steps of one token; the log has no single steps, and so no other percentiles.`;
  const series: Series[] = [{ name: 'p95', look: 'steps', isStep: true, points }];
  drawn(byId('latency-chart'), (width) => {
    const { root, cursor } = lineChart(
      {
        title: 'Step latency over tokens',
        about,
        xMin: points[0]![0],
        xMax: history.tokensMost,
        yMax: sorted.at(-1)! * 1.1,
        yText: (ms) => `${brief(ms, 3)} ms`,
        series,
      },
      width,
    );
    cursors.set('latency', cursor);
    cursor(history.frames[moment.frame]?.tokens ?? 0);
    return root;
  });
  byId('latency-drawn').append(
    asTable(
      'p95 of steps by tokens',
      ['tokens', 'p95'],
      some(points).map(([x, ms]) => [grouped(x), `${brief(ms, 3)} ms`]),
    ),
  );
}
