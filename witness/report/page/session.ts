/** The facts that the page carries, and what its parts share. */
import { type ReportData, Table } from './data.ts';
import { byId } from './dom.ts';
import { History } from './history.ts';
import type { Sources } from './words.ts';

/** Rows of a table that stands for a chart. */
const TABLE_ROWS = 40;
export const data = JSON.parse(byId('data').textContent ?? '') as ReportData;
export const sources: Sources = {
  data,
  decisions: new Table(data.decisions),
  situations: new Table(data.situations),
  trials: new Table(data.trials),
  canaries: new Table(data.canaries),
};
export const history = new History(data, sources.situations, sources.decisions, new Table(data.changes));
/** Moves the line of each chart to a number of tokens. */
export const cursors = new Map<string, (tokens: number) => void>();

/** Every so many of the rows, the last included. */
export function some<T>(rows: readonly T[], most = TABLE_ROWS): T[] {
  const step = Math.ceil(rows.length / most);
  return rows.filter((_, i) => i === rows.length - 1 || i % Math.max(1, step) === 0);
}

/** What is to be painted again when colours change. */
export const repaints: (() => void)[] = [];

/** The moment of the run that is shown: the place in `history.frames`. */
export const moment = { frame: Math.max(0, history.frames.length - 1) };
