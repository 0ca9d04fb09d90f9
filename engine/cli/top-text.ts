/** The table of `palimpsest top`. */
import { brief, bytesText, type Column, grouped, percent, plural, table } from '../../native/index.ts';
import { shortId } from '../../witness/index.ts';
import type { EngineLoad, TopPool, TopRow } from '../serve/page/snapshot.ts';

/** What one look has found. */
export interface Top {
  /** When, milliseconds since the epoch. */
  readonly timeMs: number;
  readonly pools: readonly TopPool[];
  /** What a running engine says of itself; null: nobody was asked. */
  readonly engine: EngineLoad | null;
  readonly sessions: readonly TopRow[];
}

const COLUMNS: readonly Column<TopRow>[] = [
  { title: 'session', align: 'left', value: ({ session }) => shortId(session) },
  { title: 'state', align: 'left', value: ({ state }) => state },
  { title: 'tokens', value: ({ tokens }) => grouped(tokens) },
  { title: 'tok/s', value: ({ tokensPerSecond }) => tokensPerSecond.toFixed(tokensPerSecond < 10 ? 1 : 0) },
  { title: 'bytes', value: ({ bytes }) => bytesText(bytes) },
  { title: 'bits', value: ({ bits }) => (bits === null ? '-' : bits.toFixed(2)) },
  { title: 'gave up', value: ({ gaveUpBytes }) => (gaveUpBytes === 0 ? '-' : bytesText(gaveUpBytes)) },
  { title: 'floor', value: ({ floorBytes }) => (floorBytes === 0 ? '-' : bytesText(floorBytes)), optional: true },
  { title: 'weight', value: ({ weight }) => brief(weight), optional: true },
  { title: 'price', value: ({ price }) => (price === null ? '-' : brief(price)), optional: true },
  { title: 'model', align: 'left', value: ({ model }) => model, least: 8, optional: true },
];

/** What nobody has needs no column. */
const columnsFor = (sessions: readonly TopRow[]): readonly Column<TopRow>[] =>
  COLUMNS.filter(
    ({ title }) =>
      (title !== 'floor' || sessions.some(({ floorBytes }) => floorBytes > 0)) &&
      (title !== 'weight' || sessions.some(({ weight }) => weight !== 1)),
  );

/** As wide as `columns`, with `rowsMax` rows of sessions at most. */
export function topText({ pools, engine, sessions }: Top, columns: number, rowsMax: number): string {
  const shown = sessions.slice(0, rowsMax);
  const more = sessions.length - shown.length;
  return [
    ...pools.map(poolText),
    ...(engine === null ? [] : [engineText(engine)]),
    ...(sessions.length === 0 ? ['No session is open.'] : [table(columnsFor(sessions), shown, columns)]),
    ...(more > 0 ? [`and ${plural(more, 'session')} more`] : []),
  ].join('\n');
}

const poolText = ({ pool, bytes, budgetBytes, askings, givenBytes }: TopPool): string =>
  `${pool.slice(0, 5)}${shortId(pool.slice(5))}: ${bytesText(bytes)} of ${bytesText(budgetBytes)} (${percent(bytes / Math.max(1, budgetBytes))}), asked ${plural(askings, 'time')}, ${bytesText(givenBytes)} given up`;

function engineText(engine: NonNullable<Top['engine']>): string {
  const { running, waiting, bytes, budgetBytes, tokensPerSecond, tokensPerPass } = engine;
  const budget = budgetBytes === null ? '' : ` of ${bytesText(budgetBytes)}`;
  return `engine: ${bytesText(bytes)}${budget}, ${running} at work, ${waiting} waiting, ${brief(tokensPerSecond)} tok/s, ${brief(tokensPerPass)} tokens a pass`;
}
