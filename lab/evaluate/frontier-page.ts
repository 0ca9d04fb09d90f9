/**
 * The rows of `frontier` as one page that needs nothing else: for each model and context a chart of divergence over
 * effective bits, and the table below it. Methods differ by the shape of their signs as well as by colour, and the best
 * caches are joined by a line and named.
 */

import { bareName, kindOf } from './every-cache.ts';
import { type FrontierRow, type Point, places, pointsOf } from './frontier-rows.ts';
import { columnsFor, FRONTIER_COLUMNS, otherTables, refusalText } from './frontier-table.ts';

const WIDTH = 880;
const HEIGHT = 460;
const MARGIN = { left: 72, right: 24, top: 18, bottom: 48 };
/** Less divergence than this is drawn at the foot of the chart. */
const LEAST_KLD = 1e-5;
/** Half the size of a sign. */
const R = 5;
/** Height of a name, and its width for each character. */
const NAME = { height: 13, width: 6.6 };

/**
 * Outlines around (0, 0). Filled ones and open ones alternate, so that neighbours in the list are told apart at a
 * glance.
 */
const SIGNS: readonly string[] = [
  `M${-R},0a${R},${R} 0 1,0 ${2 * R},0a${R},${R} 0 1,0 ${-2 * R},0z`,
  `M${-R},${-R}h${2 * R}v${2 * R}h${-2 * R}z`,
  `M0,${-R - 1}L${R + 1},${R}L${-R - 1},${R}z`,
  `M0,${-R - 1}L${R + 1},0L0,${R + 1}L${-R - 1},0z`,
  `M0,${R + 1}L${R + 1},${-R}L${-R - 1},${-R}z`,
  `M${-R},${-R}L${R},${R}M${-R},${R}L${R},${-R}`,
  `M0,${-R - 1}V${R + 1}M${-R - 1},0H${R + 1}`,
  `M${-R},-2H-2V${-R}H2V-2H${R}V2H2V${R}H-2V2H${-R}z`,
];

const escaped = (text: string): string =>
  text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;').replaceAll('"', '&quot;');

interface Axes {
  readonly x: (bits: number) => number;
  readonly y: (kld: number) => number;
  readonly bits: readonly number[];
  readonly decades: readonly number[];
}

function axesOf(points: readonly Point[]): Axes {
  const bits = points.map((point) => point.bits);
  const [from, to] = [Math.floor(Math.min(...bits)), Math.ceil(Math.max(...bits) + 0.01)];
  const logs = points.map(({ meanKld }) => Math.log10(Math.max(LEAST_KLD, meanKld)));
  const [low, high] = [Math.floor(Math.min(...logs)), Math.ceil(Math.max(...logs) + 0.01)];
  const { left, right, top, bottom } = MARGIN;
  const step = to - from > 10 ? 2 : 1;
  return {
    x: (value) => left + ((value - from) / (to - from)) * (WIDTH - left - right),
    y: (value) => {
      const log = Math.log10(Math.max(LEAST_KLD, value));
      return top + ((high - log) / (high - low)) * (HEIGHT - top - bottom);
    },
    bits: Array.from({ length: Math.floor((to - from) / step) + 1 }, (_, at) => from + at * step),
    decades: Array.from({ length: high - low + 1 }, (_, at) => low + at),
  };
}

function grid({ x, y, bits, decades }: Axes): string {
  const [foot, end] = [HEIGHT - MARGIN.bottom, WIDTH - MARGIN.right];
  const lines = [
    ...bits.map((bit) => `<path class="grid" d="M${x(bit).toFixed(1)},${MARGIN.top}V${foot}"/>`),
    ...decades.map((log) => `<path class="grid" d="M${MARGIN.left},${y(10 ** log).toFixed(1)}H${end}"/>`),
  ];
  const texts = [
    ...bits.map((bit) => `<text x="${x(bit).toFixed(1)}" y="${foot + 18}" text-anchor="middle">${bit}</text>`),
    ...decades.map(
      (log) =>
        `<text x="${MARGIN.left - 8}" y="${(y(10 ** log) + 4).toFixed(1)}" text-anchor="end">${log >= -3 && log <= 1 ? 10 ** log : `1e${log}`}</text>`,
    ),
    `<text x="${(MARGIN.left + end) / 2}" y="${HEIGHT - 8}" text-anchor="middle">effective bits</text>`,
    `<text transform="translate(16 ${HEIGHT / 2}) rotate(-90)" text-anchor="middle">mean KLD, nats (logarithmic)</text>`,
  ];
  return [...lines, ...texts].join('');
}

/**
 * Names beside the best points, each at the first of four places where it covers neither another name nor leaves the
 * chart.
 */
function names(points: readonly Point[], { x, y }: Axes): string {
  const taken: { x: number; y: number; width: number }[] = [];
  return points
    .map((point) => {
      const text = bareName(point.cache);
      const width = text.length * NAME.width;
      const [px, py] = [x(point.bits), y(point.meanKld)];
      const free = [
        { x: px + 9, y: py - 6 },
        { x: px - 9 - width, y: py + 14 },
        { x: px + 9, y: py + 16 },
        { x: px - 9 - width, y: py - 8 },
        { x: px + 9, y: py - 20 },
      ].find(
        (place) =>
          place.x >= MARGIN.left &&
          place.x + width <= WIDTH &&
          place.y <= HEIGHT - MARGIN.bottom &&
          place.y >= NAME.height &&
          taken.every(
            (other) =>
              place.x + width < other.x || other.x + other.width < place.x || Math.abs(place.y - other.y) > NAME.height,
          ),
      );
      if (free === undefined) return '';
      taken.push({ ...free, width });
      return `<text class="name" x="${free.x.toFixed(1)}" y="${free.y.toFixed(1)}">${escaped(text)}</text>`;
    })
    .join('');
}

function sign(method: number): string {
  const isOpen = method % SIGNS.length === 5 || method % SIGNS.length === 6 || method >= SIGNS.length;
  return `class="sign m${method % 8}${isOpen ? ' open' : ''}" d="${SIGNS[method % SIGNS.length]}"`;
}

function chart(points: readonly Point[], methods: readonly string[], title: string): string {
  const drawn = points.filter(({ meanKld }) => meanKld > 0);
  if (drawn.length === 0) return '';
  const axes = axesOf(drawn);
  const best = drawn.filter(({ isBest }) => isBest);
  const at = ({ bits, meanKld }: Point): string => `${axes.x(bits).toFixed(1)},${axes.y(meanKld).toFixed(1)}`;
  const signs = drawn.map(
    (point) =>
      `<path transform="translate(${at(point).replace(',', ' ')})" ${sign(methods.indexOf(kindOf(point.cache)))}><title>${escaped(bareName(point.cache))}: ${point.bits.toFixed(2)} bits, KLD ${point.meanKld.toPrecision(3)}</title></path>`,
  );
  const line = best.length > 1 ? `<path class="best" d="M${best.map(at).join('L')}"/>` : '';
  return `<svg viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label="${escaped(title)}: divergence over effective bits">${grid(axes)}${line}${signs.join('')}${names(best, axes)}</svg>`;
}

function legend(methods: readonly string[]): string {
  const entries = methods.map(
    (method, at) =>
      `<li><svg viewBox="-8 -8 16 16" width="16" height="16" aria-hidden="true"><path ${sign(at)}/></svg> ${escaped(method)}</li>`,
  );
  return `<ul class="legend">${entries.join('')}</ul>`;
}

function tableOf(points: readonly Point[]): string {
  const columns = columnsFor(points);
  return tableHtml(
    columns.map(({ title }) => title),
    points.map((point) => ({ cells: columns.map(({ value }) => value(point)), isBest: point.isBest })),
  );
}

function tableHtml(head: readonly string[], rows: readonly { cells: readonly string[]; isBest: boolean }[]): string {
  const titles = head.map((title) => `<th>${escaped(title)}</th>`).join('');
  const body = rows.map(({ cells, isBest }) => {
    const texts = cells.map((cell) => `<td>${escaped(cell)}</td>`).join('');
    return `<tr${isBest ? ' class="best"' : ''}>${texts}</tr>`;
  });
  return `<div class="wide"><table><thead><tr>${titles}</tr></thead><tbody>${body.join('')}</tbody></table></div>`;
}

const STYLE = `
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #fdfcf9; --faint: #d9d6cd; --quiet: #6a675f; --best: #f1ecdc;
  --m0: #0b5fa5; --m1: #b1440e; --m2: #1a7a3c; --m3: #8a2d8f; --m4: #7a6200; --m5: #a01f3c; --m6: #00717a; --m7: #4b4b9b; }
@media (prefers-color-scheme: dark) { :root { --ink: #ece9e1; --paper: #171614; --faint: #3a3833; --quiet: #a29e94; --best: #2a2820;
  --m0: #74b7f2; --m1: #f29a68; --m2: #74d493; --m3: #d995dd; --m4: #dcc35a; --m5: #f5869f; --m6: #63cdd6; --m7: #a9a9f0; } }
body { margin: 2rem auto; max-width: 60rem; padding: 0 1rem; font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; } p, li { max-width: 46rem; }
svg { width: 100%; height: auto; } .legend svg { width: 16px; height: 16px; vertical-align: -3px; }
svg text { font: 12px system-ui, sans-serif; fill: var(--quiet); } svg text.name { fill: var(--ink); }
.grid { stroke: var(--faint); fill: none; } svg .best { stroke: var(--ink); stroke-dasharray: 3 3; fill: none; }
.sign { stroke-width: 1.5; } .open { fill: none; }
${Array.from({ length: 8 }, (_, at) => `.m${at} { stroke: var(--m${at}); fill: var(--m${at}); }`).join('\n')}
.sign.open { fill: none; stroke-width: 2; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; list-style: none; padding: 0; max-width: none; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { padding: .15rem .6rem; text-align: right; border-bottom: 1px solid var(--faint); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } tr.best { background: var(--best); } tr.best td:first-child { font-weight: 600; }
`;

/** The page. Only what it is given stands in it, and nothing is fetched. */
export function frontierPage(rows: readonly FrontierRow[]): string {
  const all = places(rows).flatMap(({ model, contexts }) =>
    contexts.map((context) => ({ model, context, points: pointsOf(rows, model, context) })),
  );
  const methods = [...new Set(all.flatMap(({ points }) => points.map(({ cache }) => kindOf(cache))))];
  const sections = all
    .filter(({ points }) => points.length > 0)
    .map(({ model, context, points }) => {
      const title = `${model}, ${context} tokens`;
      const refused = refusalText(rows, model, context);
      return `<section><h2>${escaped(title)}</h2>${chart(points, methods, title)}${tableOf(points)}${refused === '' ? '' : `<p>${escaped(refused)}</p>`}</section>`;
    });
  const others = otherTables(rows).map(({ title, head, rows: body }) => {
    const table = tableHtml(
      head,
      body.map((cells) => ({ cells, isBest: false })),
    );
    return `<section><h2>${escaped(title)}</h2>${table}</section>`;
  });
  const columns = FRONTIER_COLUMNS.map(({ title, is }) => `<dt><b>${escaped(title)}</b></dt><dd>${escaped(is)}</dd>`);
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Divergence over bits</title><style>${STYLE}</style></head><body>
<h1>Divergence over bits</h1>
<p>Each sign is one cache, its values the mean over the texts that were read. Lower and further to the left is better; the line joins the caches that no other one beats in both.</p>
${legend(methods)}
${[...sections, ...others].join('\n')}
<h2>Columns</h2><dl>${columns.join('')}</dl>
</body></html>
`;
}
