/**
 * What was learned of how errors of pages reach the output: KLD ≈ Σ coefficient[side][layer] · ε² · fade(age). Every
 * number is held as a logarithm with its standard deviation, because errors and divergences spread over decades and are
 * never negative.
 */
import { type FormatName, isFormatName, KvError, plural, type Side, show } from '../native/index.ts';

/** The length in tokens at which the law of errors is fitted. */
export const FITTED_TOKENS = 2048;

/** One learned number in logarithms: what is known of ln value. */
export interface Estimate {
  /** The number itself, always > 0. */
  readonly value: number;
  /** Standard deviation of its logarithm. */
  readonly sd: number;
  /** Sessions or probes that it rests on; 0 for an assumption. */
  readonly samples: number;
}

/** Estimates per format; formats that nobody measured are absent. */
export type FormatEstimates = Readonly<Partial<Record<FormatName, Estimate>>>;

/** KLD ≈ Σ coefficient[side][layer] · ε² · fade(age): what an error of a page does to the output. */
export interface Law {
  /** Expected divergence in nats per ε², [layers] per side. */
  readonly coefficient: { readonly k: readonly Estimate[]; readonly v: readonly Estimate[] };
  /** Factor by which one text differs from another: spread only, its value is 1 before anything was measured. */
  readonly text: Estimate;
  /** ε of later queries: ln ε_later = ln ε + ln offset − fade·ln(age in pages). */
  readonly offset: Estimate;
  /** The exponent of that age. */
  readonly fade: Estimate;
  /** A layer × side table for callers without trials: typical ε per format, [layers]; may be empty. */
  readonly epsilon: { readonly k: readonly FormatEstimates[]; readonly v: readonly FormatEstimates[] };
}

/** What errors in pages of one layer and side were found to do to the output, from which coefficients are learned. */
export interface LayerCost {
  /** Layer of the model, from 0. */
  readonly layer: number;
  /** Keys or values. */
  readonly side: Side;
  /** Divergence in nats per ε², the geometric mean over tokens of what their own errors cost. */
  readonly cost: number;
  /** Tokens that were compared. */
  readonly rows: number;
}

/** A coefficient whose logarithm is no surer than this is worth measuring: calibrated ones are (0.25 to 0.28). */
const UNSURE = 0.3;

/** True if a session can learn what errors in this layer and side cost. */
export const isUnsure = (law: Law | undefined, layer: number, side: Side): boolean =>
  (law?.coefficient[side][layer]?.sd ?? Number.POSITIVE_INFINITY) > UNSURE;

/** Far beyond anything measured: coefficients are 0.01 to 1e3 nats, ε 1e-4 to 1. */
export const ESTIMATE_MAX = 1e12;
/** e^±50 is beyond the range of values on both sides. */
export const ESTIMATE_SD_MAX = 50;
export const SAMPLES_MAX = 1e9;

const SIDES: readonly Side[] = ['k', 'v'];

/** Tells `refuse` each number of an estimate that is none, or lies outside of its range. */
export function checkEstimate(
  given: Estimate | undefined,
  refuse: (name: keyof Estimate, number: unknown, least: number, most: number) => void,
): void {
  const within = (name: keyof Estimate, least: number, most: number): void => {
    const number: unknown = given?.[name];
    if (!(typeof number === 'number' && number >= least && number <= most)) refuse(name, number, least, most);
  };
  within('value', 1 / ESTIMATE_MAX, ESTIMATE_MAX);
  within('sd', 0, ESTIMATE_SD_MAX);
  within('samples', 0, SAMPLES_MAX);
}

/**
 * Checks lengths and ranges of a law. Throws 'bad-thresholds' with the path of the first number that cannot be used.
 */
export function checkLaw(law: Law, layers: number): void {
  const refuse = (id: string, what: string): never => {
    throw new KvError('bad-thresholds', `${id} ${what}`, {
      values: { id, layers },
      hint: 'leave the law out, or take one from an exported file',
    });
  };
  const list = <T>(values: readonly T[], id: string, mayBeEmpty: boolean): readonly T[] => {
    if (!Array.isArray(values)) return refuse(id, 'is no list');
    if (values.length === layers || (mayBeEmpty && values.length === 0)) return values;
    return refuse(id, `has ${plural(values.length, 'entry', 'entries')} for ${plural(layers, 'layer')}`);
  };
  const estimate = (given: Estimate | undefined, id: string): void =>
    checkEstimate(given, (name, number, least, most) => {
      refuse(`${id}.${name}`, `is ${show(number)}, not within ${least} to ${most}`);
    });
  for (const name of ['text', 'offset', 'fade'] as const) estimate(law[name], `law.${name}`);
  for (const side of SIDES) {
    const id = `law.coefficient.${side}`;
    for (const [layer, one] of list(law.coefficient?.[side], id, false).entries()) estimate(one, `${id}.${layer}`);
    const table = `law.epsilon.${side}`;
    for (const [layer, formats] of list(law.epsilon?.[side], table, true).entries()) {
      for (const [format, one] of Object.entries(formats ?? refuse(`${table}.${layer}`, 'is missing'))) {
        if (!isFormatName(format)) refuse(`${table}.${layer}`, `names ${format}, which is no format`);
        estimate(one, `${table}.${layer}.${format}`);
      }
    }
  }
}

/** Divergence in nats per ε² where nothing was learned. */
export const COEFFICIENT_ASSUMED = 1.5;

const assumed = (value: number, sd: number): Estimate => ({ value, sd, samples: 0 });

/**
 * What stands in where nothing was learned. Measured on SmolLM2-135M over eight texts of four kinds: one and a half
 * nats per ε² on average, English below and German above it by e^±0.5; layers lie e^±0.6 apart. Σ ε² falls about as one
 * over the age in pages.
 */
export function defaultLaw(layers: number): Law {
  const coefficient = Array.from({ length: layers }, () => assumed(COEFFICIENT_ASSUMED, 0.6));
  return {
    coefficient: { k: coefficient, v: coefficient },
    text: assumed(1, 0.5),
    offset: assumed(1, 0.2),
    fade: assumed(0.5, 0.15),
    epsilon: { k: [], v: [] },
  };
}

/**
 * What is known after one more measurement of the same number, whose logarithm has this standard deviation: the mean of
 * both by their precisions.
 */
export function observed({ value, sd, samples }: Estimate, measured: number, measuredSd: number): Estimate {
  const [before, now] = [1 / Math.max(1e-12, sd ** 2), 1 / Math.max(1e-12, measuredSd ** 2)];
  const mean = (before * Math.log(value) + now * Math.log(measured)) / (before + now);
  return { value: Math.exp(mean), sd: 1 / Math.sqrt(before + now), samples: samples + 1 };
}
