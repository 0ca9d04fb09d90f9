/**
 * Random questions to a list of decisions, and their answers by looking at every row: what lists and databases must
 * agree with.
 */
import type { DecisionFilter, DecisionRow, OpenBody, Range } from '../../witness/index.ts';

type Models = ReadonlyMap<string, OpenBody['model']>;

const isIn = (value: number | null, { min = -Infinity, max = Infinity }: Range): boolean =>
  value !== null && value >= min && value <= max;

/** The rows that a filter lets through, newest first. */
export function rowsBy(all: readonly DecisionRow[], models: Models, filter: DecisionFilter): DecisionRow[] {
  const { session, model, layer, page, side, from, to, reason, threshold, accepted, beforeSeq, limit = 100 } = filter;
  const newest = [...all].sort((a, b) => b.timeMs - a.timeMs || b.seq - a.seq);
  const older = beforeSeq === undefined ? newest : newest.slice(newest.findIndex(({ seq }) => seq === beforeSeq) + 1);
  return older
    .filter((row) => {
      const own = models.get(row.session);
      const thresholds = [row.threshold, row.verdictThreshold];
      return [
        session === undefined || row.session === session,
        model === undefined || own?.name === model || own?.digest === model,
        layer === undefined || row.layer === layer,
        page === undefined || row.page === page,
        side === undefined || row.side === side,
        from === undefined || row.from === from,
        to === undefined || row.to === to,
        accepted === undefined || row.accepted === accepted,
        reason === undefined || [row.rule, row.verdictRule, ...thresholds].includes(reason),
        threshold === undefined || thresholds.includes(threshold),
        row.timeMs >= (filter.fromMs ?? -Infinity) && row.timeMs <= (filter.toMs ?? Infinity),
        row.tokens >= (filter.tokensMin ?? -Infinity) && row.tokens <= (filter.tokensMax ?? Infinity),
        filter.epsilonFrom === undefined || isIn(row.epsilonFrom, filter.epsilonFrom),
        filter.epsilonTo === undefined || isIn(row.epsilonTo, filter.epsilonTo),
        filter.epsilonNow === undefined || isIn(row.epsilonNow, filter.epsilonNow),
        filter.bytesFreed === undefined || isIn(row.bytesFreed, filter.bytesFreed),
      ].every(Boolean);
    })
    .slice(0, limit);
}

/** One to three demands, made of rows that there are, so that they are met now and then. */
export function randomFilter(all: readonly DecisionRow[], models: Models, next: () => number): DecisionFilter {
  const row = (): DecisionRow => all[Math.floor(next() * all.length)]!;
  const range = (of: (row: DecisionRow) => number | null): Range => {
    const [a, b] = [of(row()) ?? 0, of(row()) ?? 1].sort((x, y) => x - y) as [number, number];
    return next() < 0.3 ? { min: a } : next() < 0.5 ? { max: b } : { min: a, max: b };
  };
  const demands: readonly (() => DecisionFilter)[] = [
    () => ({ session: row().session }),
    () => ({ session: 'nobody' }),
    () => ({ model: models.get(row().session)![next() < 0.5 ? 'name' : 'digest'] }),
    () => ({ layer: row().layer }),
    () => ({ page: row().page }),
    () => ({ side: row().side }),
    () => ({ from: row().from }),
    () => ({ to: row().to }),
    () => ({ accepted: next() < 0.5 }),
    () => ({ reason: next() < 0.5 ? row().rule : row().verdictThreshold }),
    () => ({ threshold: row().threshold }),
    () => ({ epsilonFrom: range((one) => one.epsilonFrom) }),
    () => ({ epsilonTo: range((one) => one.epsilonTo) }),
    () => ({ epsilonNow: range((one) => one.epsilonNow) }),
    () => ({ bytesFreed: range((one) => one.bytesFreed) }),
    () => ({ fromMs: row().timeMs }),
    () => ({ toMs: row().timeMs }),
    () => ({ tokensMin: row().tokens }),
    () => ({ tokensMax: row().tokens }),
    () => ({ beforeSeq: row().seq }),
    () => ({ limit: 1 + Math.floor(next() * 50) }),
  ];
  const filter: DecisionFilter = {};
  for (let left = 1 + Math.floor(next() * 3); left > 0; left--)
    Object.assign(filter, demands[Math.floor(next() * demands.length)]!());
  return filter;
}
