/**
 * Charts as SVG: lines over tokens, dots over tokens, and a span for each layer. Labels stand beside what they name.
 */
import { svg } from './dom.ts';
import { grouped } from './words.ts';

export interface Series {
  readonly name: string;
  /** A class of the style sheet. */
  readonly look: string;
  readonly points: readonly (readonly [x: number, y: number])[];
  /** Filled down to the axis. */
  readonly isArea?: boolean;
  /** A value lasts until the next one. */
  readonly isStep?: boolean;
}

export interface LineSpec {
  readonly title: string;
  readonly about: string;
  /** Default: 0. */
  readonly xMin?: number;
  readonly xMax: number;
  /** Default: tokens. */
  readonly xUnit?: string;
  readonly yMax: number;
  readonly yText: (value: number) => string;
  readonly series: readonly Series[];
  /** Steps of the y axis are multiples of powers of two, as bytes are. */
  readonly isBinary?: boolean;
  readonly marks?: readonly { readonly x: number; readonly text: string }[];
}

const TOP = 18;
const BOTTOM = 26;
const POINTS_MAX = 1200;
const LABEL_GAP = 15;

/** Round steps that divide 0…max into about `count` parts. */
export function ticks(max: number, count: number, isBinary = false): number[] {
  if (!(max > 0)) return [0];
  const raw = max / count;
  const base = isBinary ? 2 ** Math.floor(Math.log2(raw)) : 10 ** Math.floor(Math.log10(raw));
  const step = base * ((isBinary ? [1, 2] : [1, 2, 5, 10]).find((factor) => base * factor >= raw) ?? 1);
  const found: number[] = [];
  for (let value = 0; value <= max * (1 + 1e-9); value += step) found.push(value);
  return found;
}

/** Keeps of many points the first, lowest, highest and last of each stretch: the line looks the same. */
export function thinned(points: Series['points'], most = POINTS_MAX): Series['points'] {
  if (points.length <= most) return points;
  const kept: (readonly [number, number])[] = [];
  const stretch = Math.ceil((4 * points.length) / most);
  for (let from = 0; from < points.length; from += stretch) {
    const part = points.slice(from, from + stretch);
    const low = part.reduce((a, b) => (b[1] < a[1] ? b : a));
    const high = part.reduce((a, b) => (b[1] > a[1] ? b : a));
    kept.push(
      ...new Set([part[0]!, ...(part.indexOf(low) < part.indexOf(high) ? [low, high] : [high, low]), part.at(-1)!]),
    );
  }
  return kept;
}

/** The largest of any number of values, and at least 1. */
const mostOf = (values: readonly number[]): number => values.reduce((most, value) => Math.max(most, value), 1);

/** The frame of a chart: its title for screen readers, lines across and labels of both axes. */
function frame(spec: Pick<LineSpec, 'title' | 'about'>, width: number, height: number): SVGElement {
  const id = `chart-${spec.title.toLowerCase().replace(/\W+/g, '-')}`;
  return svg(
    'svg',
    { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-labelledby': `${id}-title ${id}-about`, class: 'chart' },
    svg('title', { id: `${id}-title` }, spec.title),
    svg('desc', { id: `${id}-about` }, spec.about),
  );
}

const text = (x: number, y: number, look: string, content: string, anchor = 'start'): SVGElement =>
  svg('text', { x, y, class: look, 'text-anchor': anchor }, content);

function tokenAxis(
  root: SVGElement,
  xMin: number,
  xMax: number,
  width: number,
  height: number,
  x: (value: number) => number,
  unit = 'tokens',
): void {
  const count = Math.max(2, Math.min(8, Math.floor(width / 110)));
  // Steps as round as those from zero, beginning at the first that is in view.
  const step = ticks(xMax - xMin, count)[1] ?? 1;
  const first = Math.ceil(xMin / step);
  const at = Array.from({ length: Math.floor(xMax / step) - first + 1 }, (_, i) => (first + i) * step);
  for (const [i, value] of at.entries()) {
    const isLast = i === at.length - 1;
    const anchor = x(value) < 20 ? 'start' : x(value) > width - 40 ? 'end' : 'middle';
    root.append(
      svg('line', { x1: x(value), x2: x(value), y1: height - BOTTOM, y2: height - BOTTOM + 5, class: 'tick' }),
    );
    root.append(
      text(
        x(value),
        height - 6,
        'axis',
        isLast ? `${grouped(value)} ${unit}` : grouped(value),
        isLast && anchor === 'middle' ? 'middle' : anchor,
      ),
    );
  }
}

/** Lines over tokens, or over time. `cursor` moves a line to a number of tokens. */
export function lineChart(spec: LineSpec, width: number): { root: SVGElement; cursor: (tokens: number) => void } {
  const height = Math.round(Math.min(340, Math.max(210, width * 0.36)));
  const root = frame(spec, width, height);
  const { xMin = 0, xMax } = spec;
  const x = (value: number): number => ((value - xMin) / Math.max(1, xMax - xMin)) * (width - 2) + 1;
  const y = (value: number): number => height - BOTTOM - (value / (spec.yMax || 1)) * (height - TOP - BOTTOM);
  for (const value of ticks(spec.yMax, 4, spec.isBinary)) {
    root.append(svg('line', { x1: 0, x2: width, y1: y(value), y2: y(value), class: value === 0 ? 'tick' : 'grid' }));
    if (value > 0) root.append(text(0, y(value) - 4, 'axis', spec.yText(value)));
  }
  tokenAxis(root, xMin, xMax, width, height, x, spec.xUnit);
  for (const series of spec.series) root.append(path(series, x, y));
  for (const mark of spec.marks ?? [])
    root.append(svg('path', { d: `M${x(mark.x)} ${TOP}l-4 -8h8z`, class: 'mark' }, svg('title', {}, mark.text)));
  root.append(...labels(spec.series, width, x, y));
  const line = svg('line', { x1: 0, x2: 0, y1: TOP, y2: height - BOTTOM, class: 'cursor' });
  root.append(line);
  return {
    root,
    cursor: (tokens) => {
      line.setAttribute('visibility', tokens < xMin ? 'hidden' : 'visible');
      line.setAttribute('x1', String(x(tokens)));
      line.setAttribute('x2', String(x(tokens)));
    },
  };
}

function path(
  { points, look, isArea = false, isStep = false }: Series,
  x: (v: number) => number,
  y: (v: number) => number,
): SVGElement {
  const shown = thinned(points);
  let d = '';
  for (const [i, [px, py]] of shown.entries()) {
    const at = `${x(px).toFixed(1)} ${y(py).toFixed(1)}`;
    if (i === 0) d = `M${at}`;
    else d += isStep ? `H${x(px).toFixed(1)}V${y(py).toFixed(1)}` : `L${at}`;
  }
  if (isArea && shown.length > 0) d += `V${y(0)}H${x(shown[0]![0]).toFixed(1)}Z`;
  return svg('path', { d, class: `${isArea ? 'area' : 'line'} ${look}` });
}

/** The name of each series at its right end; names that would overlap are moved apart. */
function labels(
  series: readonly Series[],
  width: number,
  x: (v: number) => number,
  y: (v: number) => number,
): SVGElement[] {
  const placed = series
    .flatMap(({ name, look, points, isArea = false }) => {
      const last = points.at(-1);
      if (last === undefined || name === '') return [];
      return [{ name, look, at: y(last[1]) + (isArea ? LABEL_GAP : -5), end: Math.min(width - 4, x(last[0]) - 6) }];
    })
    .sort((a, b) => a.at - b.at);
  for (const [i, label] of placed.entries()) {
    const above = placed[i - 1];
    label.at = Math.max(TOP - 4, above === undefined ? label.at : Math.max(label.at, above.at + LABEL_GAP));
  }
  return placed.map(({ name, look, at, end }) => text(end, at, `label ${look}`, name, 'end'));
}

export interface Dot {
  readonly x: number;
  /** A ratio; 1 is the middle. */
  readonly y: number;
  readonly isSquare: boolean;
  readonly text: string;
}

/** Ratios over tokens, on a scale of powers of two with 1 in the middle. */
export function ratioChart(
  spec: Pick<LineSpec, 'title' | 'about' | 'xMax'> & { readonly dots: readonly Dot[]; readonly middle: string },
  width: number,
): SVGElement {
  const height = Math.round(Math.min(300, Math.max(200, width * 0.3)));
  const root = frame(spec, width, height);
  const most = mostOf(spec.dots.map((dot) => Math.ceil(Math.abs(Math.log2(dot.y)))));
  const reach = Math.min(10, Number.isFinite(most) ? most : 10);
  const x = (value: number): number => (value / Math.max(1, spec.xMax)) * (width - 10) + 5;
  const y = (ratio: number): number => {
    const power = Math.max(-reach, Math.min(reach, Math.log2(ratio)));
    return TOP + ((reach - power) / (2 * reach)) * (height - TOP - BOTTOM);
  };
  for (let power = -reach; power <= reach; power += Math.max(1, Math.ceil(reach / 3))) {
    if (power === 0) continue;
    const at = y(2 ** power);
    root.append(svg('line', { x1: 0, x2: width, y1: at, y2: at, class: 'grid' }));
    root.append(text(0, at - 4, 'axis', power < 0 ? `1/${2 ** -power}` : `${2 ** power}×`));
  }
  root.append(svg('line', { x1: 0, x2: width, y1: y(1), y2: y(1), class: 'bound' }));
  tokenAxis(root, 0, spec.xMax, width, height, x);
  for (const dot of spec.dots.length > 2 * POINTS_MAX ? everyNth(spec.dots, 2 * POINTS_MAX) : spec.dots) {
    const [cx, cy] = [x(dot.x), y(dot.y)];
    const look = `dot${dot.y > 1 ? ' over' : ''}`;
    root.append(
      dot.isSquare
        ? svg('rect', { x: cx - 3, y: cy - 3, width: 6, height: 6, class: look }, svg('title', {}, dot.text))
        : svg('circle', { cx, cy, r: 3.5, class: look }, svg('title', {}, dot.text)),
    );
  }
  root.append(text(width - 4, y(1) - 5, 'label accent', spec.middle, 'end'));
  return root;
}

const everyNth = <T>(all: readonly T[], most: number): T[] => {
  const n = Math.ceil(all.length / most);
  return all.filter((_, i) => i % n === 0);
};

/** Measured over bound, of the moves of one layer. */
export interface Span {
  readonly layer: number;
  readonly low: number;
  readonly middle: number;
  readonly high: number;
  /** The moves that were refused. */
  readonly refused: readonly number[];
}

/** One row for each layer: a line from the least to the most, a tick in the middle, a cross for what was refused. */
export function spanChart(
  spec: Pick<LineSpec, 'title' | 'about'> & { readonly spans: readonly Span[] },
  width: number,
): SVGElement {
  const row = spec.spans.length > 40 ? 11 : 14;
  const left = 34;
  const height = TOP + spec.spans.length * row + BOTTOM;
  const root = frame(spec, width, height);
  const worst = mostOf(spec.spans.flatMap(({ high, refused }) => [high, mostOf(refused)]));
  const xMax = Math.min(3, Math.max(1.25, worst * 1.05));
  const x = (value: number): number => left + (Math.max(0, Math.min(xMax, value)) / xMax) * (width - left - 12);
  for (const value of ticks(xMax, Math.max(3, Math.min(6, width / 110)))) {
    root.append(svg('line', { x1: x(value), x2: x(value), y1: TOP, y2: height - BOTTOM, class: 'grid' }));
    root.append(text(x(value), height - 8, 'axis', `${Math.round(100 * value)}%`, value === 0 ? 'start' : 'middle'));
  }
  root.append(svg('line', { x1: x(1), x2: x(1), y1: TOP - 4, y2: height - BOTTOM, class: 'bound' }));
  root.append(text(x(1), TOP - 7, 'label accent', 'bound', 'middle'));
  for (const [i, { layer, low, middle, high, refused }] of spec.spans.entries()) {
    const y = TOP + (i + 0.5) * row;
    if (row > 12 || layer % 2 === 0) root.append(text(left - 8, y + 4, 'axis', String(layer), 'end'));
    root.append(svg('line', { x1: x(low), x2: x(high), y1: y, y2: y, class: 'span' }));
    root.append(svg('line', { x1: x(middle), x2: x(middle), y1: y - 4, y2: y + 4, class: 'median' }));
    for (const ratio of refused.slice(0, 50)) {
      const cx = x(ratio);
      root.append(
        svg(
          'path',
          { d: `M${cx - 4} ${y - 4}l8 8m0 -8l-8 8`, class: 'refused' },
          svg('title', {}, `layer ${layer}: ${Math.round(100 * ratio)}%, refused`),
        ),
      );
      if (ratio > xMax) root.append(text(cx - 7, y + 4, 'axis', `${Math.round(100 * ratio)}%`, 'end'));
    }
  }
  return root;
}
