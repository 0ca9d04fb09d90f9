/**
 * What sessions found errors in single layers to cost, joined into the coefficients of a law. Each found it of a few
 * layers and sides in one text, so that texts and layers are told apart together: ln found = text + side + layer +
 * chance, with what is known of each beforehand. The most likely values of such a sum follow from linear equations,
 * which are solved by turns (Gauss–Seidel); they converge because every unknown has a term of its own.
 */
import { SIDES } from '../native/index.ts';
import type { Estimate, Law, LayerCost } from '../policy/index.ts';

/** Standard deviation of ln of what a text costs beside others, and of what one side does. */
const TEXT_SD = 0.7;
/** Chance in ln of one measurement: what eight tokens of eight texts differ by, with two models. */
const CHANCE_SD = 0.5;
/** No measurement counts as further from its law than e^3. */
const FAR = 3;
/** Far more than it takes. */
const TURNS = 40;

interface Measurement {
  readonly session: number;
  readonly side: number;
  /** Of its layer and side, among all of the model. */
  readonly place: number;
  /** ln(found / what the law says). */
  readonly ln: number;
}

/**
 * A law with its coefficients as these sessions found them; the law itself where they found nothing. Only how layers of
 * a side lie apart is learned: what all have in common belongs to texts, and is measured in each. Layers of which much
 * is known already (`sd`) are changed less.
 */
export function joinCosts(law: Law, sessions: readonly (readonly LayerCost[])[]): Law {
  const { coefficient } = law;
  const layers = coefficient.k.length;
  const measurements = sessions.flatMap((costs, session) =>
    costs
      .filter(({ layer }) => layer < layers)
      .map(({ layer, side: name, cost }): Measurement => {
        const side = SIDES.indexOf(name);
        const ln = Math.log(cost / coefficient[name][layer]!.value);
        return { session, side, place: side * layers + layer, ln: Math.max(-FAR, Math.min(FAR, ln)) };
      }),
  );
  if (measurements.length === 0) return law;
  const sds = SIDES.flatMap((side) => coefficient[side].map(({ sd }) => Math.max(0.01, sd)));
  const samples = sds.map((_, place) => measurements.filter((one) => one.place === place).length);
  const found = apart(measurements, sds, sessions.length);
  const learned = (assumed: readonly Estimate[], side: number): Estimate[] => {
    const from = side * layers;
    const common = found.slice(from, from + layers).reduce((sum, one) => sum + one, 0) / layers;
    return assumed.map(({ value, samples: before }, layer) => ({
      value: fiveDigits(value * Math.exp(found[from + layer]! - common)),
      sd: fiveDigits(1 / Math.sqrt(sds[from + layer]! ** -2 + samples[from + layer]! / CHANCE_SD ** 2)),
      samples: before + samples[from + layer]!,
    }));
  };
  return { ...law, coefficient: { k: learned(coefficient.k, 0), v: learned(coefficient.v, 1) } };
}

/** What layers and sides differ by from what the law says, in ln, where texts and sides differ as well. [2 · layers] */
function apart(measurements: readonly Measurement[], sds: readonly number[], sessions: number): number[] {
  let texts = new Array<number>(sessions).fill(0);
  let sides = SIDES.map(() => 0);
  let places = sds.map(() => 0);
  const textSds = texts.map(() => TEXT_SD);
  const sideSds = sides.map(() => TEXT_SD);
  for (let turn = 0; turn < TURNS; turn++) {
    texts = likeliest(textSds, measurements, (one) => [one.session, one.ln - sides[one.side]! - places[one.place]!]);
    sides = likeliest(sideSds, measurements, (one) => [one.side, one.ln - texts[one.session]! - places[one.place]!]);
    places = likeliest(sds, measurements, (one) => [one.place, one.ln - texts[one.session]! - sides[one.side]!]);
  }
  return places;
}

/** The most likely value of each unknown, all others being known. `of`: which one a measurement tells of, and what. */
function likeliest(
  sds: readonly number[],
  measurements: readonly Measurement[],
  of: (one: Measurement) => readonly [at: number, ln: number],
): number[] {
  const sums = sds.map(() => 0);
  const precisions = sds.map((sd) => sd ** -2);
  for (const one of measurements) {
    const [at, ln] = of(one);
    sums[at]! += ln / CHANCE_SD ** 2;
    precisions[at]! += CHANCE_SD ** -2;
  }
  return sums.map((sum, at) => sum / precisions[at]!);
}

/** More would be noise, and make logs longer. */
const fiveDigits = (value: number): number => Number(value.toPrecision(5));
