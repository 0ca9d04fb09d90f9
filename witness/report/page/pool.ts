/** What the sessions that share a budget took over time. */
import { lineChart, type Series } from './chart.ts';
import { Table } from './data.ts';
import { asTable, byId, drawn } from './dom.ts';
import { data, some } from './session.ts';
import { bytesText, grouped } from './words.ts';

export function drawPool(): void {
  if (data.pool === null) return;
  const rows = new Table(data.pool.rows);
  const [ms, used, own, budget] = [rows.of('ms'), rows.of('used'), rows.of('own'), rows.of('budget')];
  const line = (column: Float64Array): [number, number][] =>
    [...column].flatMap((value, row): [number, number][] => (Number.isNaN(value) ? [] : [[ms[row]! / 1000, value]]));
  const series: Series[] = [
    { name: 'this session', look: 'cache', isArea: true, points: line(own) },
    { name: 'all sessions', look: 'f16', points: line(used) },
    { name: 'budget', look: 'budget', isStep: true, points: line(budget) },
  ];
  const yMax = 1.04 * [...budget, ...used].reduce((most, value) => Math.max(most, value), 1);
  const xMax = ms.at(-1)! / 1000;
  const about = `At the last of ${grouped(rows.length)} looks all sessions took ${bytesText(used.at(-1)!)} of ${bytesText(budget.at(-1)!)}.`;
  const chart = { title: 'Bytes of all sessions over time', about, xMax, xUnit: 'seconds', yMax };
  drawn(byId('pool-chart'), (width) => lineChart({ ...chart, yText: bytesText, isBinary: true, series }, width).root);
  const cells = some([...ms.keys()]).map((row) => [
    (ms[row]! / 1000).toFixed(1),
    Number.isNaN(own[row]!) ? '–' : bytesText(own[row]!),
    bytesText(used[row]!),
    bytesText(budget[row]!),
  ]);
  byId('pool-chart').after(asTable('Bytes by seconds', ['seconds', 'this session', 'all sessions', 'budget'], cells));
}
