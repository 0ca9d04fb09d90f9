/** Two charts of the last minutes, drawn by uPlot. */
import { byId } from '../../../witness/report/page/dom.ts';
import { bytesText } from '../../../witness/report/page/words.ts';
import type { Snapshot } from './snapshot.ts';
import Plot from './uplot.ts';
import { rateText } from './words.ts';

/** Snapshots that are shown: five minutes of them. */
const SHOWN = 300;
const HEIGHT = 132;
const AXIS_PX = 60;
const MIB = 2 ** 20;
/** Steps of an axis of bytes. */
const BINARY = Array.from({ length: 50 }, (_, power) => 2 ** power);

interface Line {
  readonly colour: string;
  readonly isArea: boolean;
}

class Chart {
  readonly #host: HTMLElement;
  readonly #lines: readonly Line[];
  readonly #label: (value: number) => string;
  readonly #steps: readonly number[] | null;
  /** What the axis goes to where there is nothing. */
  readonly #least: number;
  readonly #data: number[][];
  #plot: Plot | null = null;

  constructor(
    id: string,
    lines: readonly Line[],
    label: (value: number) => string,
    steps: readonly number[] | null = null,
  ) {
    this.#host = byId(id);
    this.#lines = lines;
    this.#label = label;
    this.#steps = steps;
    this.#least = steps === null ? 1 : MIB;
    this.#data = [[], ...lines.map(() => [])];
    new ResizeObserver(() => this.#plot?.setSize({ width: this.#host.clientWidth, height: HEIGHT })).observe(
      this.#host,
    );
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.#draw());
    this.#draw();
  }

  add(timeMs: number, values: readonly (number | null)[]): void {
    for (const [at, value] of [timeMs / 1000, ...values].entries()) {
      const column = this.#data[at]! as (number | null)[];
      column.push(value);
      if (column.length > SHOWN) column.shift();
    }
    this.#plot?.setData(this.#data as unknown as Plot.AlignedData);
  }

  #draw(): void {
    this.#plot?.destroy();
    const style = getComputedStyle(document.documentElement);
    const colour = (name: string): string => style.getPropertyValue(name).trim();
    const axis = {
      stroke: colour('--soft'),
      font: '11px ui-sans-serif, system-ui, sans-serif',
      grid: { stroke: colour('--line'), width: 1 },
      ticks: { show: false },
    };
    const label = this.#label;
    this.#plot = new Plot(
      {
        width: Math.max(1, this.#host.clientWidth),
        height: HEIGHT,
        legend: { show: false },
        cursor: { show: false },
        scales: {
          x: { range: (_, _low, high) => [high - SHOWN, high] },
          y: { range: (_, _low, high) => [0, high > 0 ? high * 1.15 : this.#least] },
        },
        axes: [
          { ...axis, grid: { show: false }, size: 22, space: 90, values: (_, splits) => splits.map(timeText) },
          {
            ...axis,
            ...(this.#steps === null ? {} : { incrs: [...this.#steps] }),
            ...{ size: AXIS_PX, space: 30, values: (_: Plot, splits: number[]) => splits.map((one) => label(one)) },
          },
        ],
        series: [
          {},
          ...this.#lines.map((line) => ({
            stroke: colour(line.colour),
            width: 1.75,
            points: { show: false },
            ...(line.isArea ? { fill: `${colour(line.colour)}22` } : { dash: [4, 4] }),
          })),
        ],
      },
      this.#data as unknown as Plot.AlignedData,
      this.#host,
    );
  }
}

/** '14:05' */
const timeText = (seconds: number): string => new Date(1000 * seconds).toTimeString().slice(0, 5);

/** Draws both. → adds a snapshot */
export function drawCharts(): (at: number, rate: number, bytes: number, budgetBytes: number | null) => void {
  const rate = new Chart('chart-rate', [{ colour: '--tier-exact', isArea: true }], rateText);
  const memory = new Chart(
    'chart-memory',
    [
      { colour: '--tier-exact', isArea: true },
      { colour: '--soft', isArea: false },
    ],
    (bytes) => (bytes === 0 ? '0' : bytesText(bytes)),
    BINARY,
  );
  return (at, perSecond, bytes, budgetBytes) => {
    rate.add(at, [perSecond]);
    memory.add(at, [bytes, budgetBytes]);
  };
}

/** What a snapshot comes to: tokens per second, bytes, and what they may be at most. */
export function totalsOf({ engine, pools, sessions }: Snapshot) {
  const sum = (values: readonly number[]): number => values.reduce((all, one) => all + one, 0);
  return {
    tokensPerSecond: engine?.tokensPerSecond ?? sum(sessions.map((one) => one.tokensPerSecond)),
    bytes: engine?.bytes ?? sum(sessions.map(({ state, bytes }) => (state === 'parked' ? 0 : bytes))),
    budgetBytes: engine?.budgetBytes ?? (pools.length === 0 ? null : sum(pools.map((pool) => pool.budgetBytes))),
  };
}
