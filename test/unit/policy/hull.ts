/** The whole way down of one page side, rung by rung, as tests look at it. */
import { FORMAT_NAMES, type FormatName, LOWEST_FORMATS } from '../../../native/index.ts';
import { FORM_COUNT, fillEpsilon2, nextRung, rank, rungPrice } from '../../../policy/ladder.ts';

export interface Rung {
  readonly format: FormatName;
  readonly bytes: number;
  /** c·g·ε²: predicted KLD of this page side in this format. */
  readonly cost: number;
  /** KLD per byte saved of the step that leads here; 0 for the format it starts with. */
  readonly price: number;
}

/** `weight` is c·g; f16 and q8 cost nothing unless tried. */
export function hull(
  from: FormatName,
  epsilon: Readonly<Partial<Record<FormatName, number>>>,
  pageBytes: Readonly<Record<FormatName, number>>,
  weight: number,
  lowest: FormatName = LOWEST_FORMATS.v,
): Rung[] {
  const bytes = FORMAT_NAMES.map((name) => pageBytes[name]);
  const row = new Float64Array(FORM_COUNT);
  fillEpsilon2(row, 0, epsilon);
  const rungs: Rung[] = [
    { format: from, bytes: pageBytes[from], cost: weight * Math.max(0, row[rank(from)]!), price: 0 },
  ];
  for (
    let at = rank(from), to = nextRung(row, 0, bytes, at, rank(lowest));
    to >= 0;
    to = nextRung(row, 0, bytes, at, rank(lowest))
  ) {
    rungs.push({
      format: FORMAT_NAMES[to]!,
      bytes: bytes[to]!,
      cost: weight * row[to]!,
      price: weight * rungPrice(row, 0, bytes, at, to),
    });
    at = to;
  }
  return rungs;
}
