/**
 * Fits the law of errors to what was measured: KLD ≈ Σ coefficient[side][layer] · ε² of the present queries, and how ε
 * fades with the age of a page. All means are of logarithms. Spreads between windows begin with an assumed one that
 * counts as a window, so that two windows that happen to agree do not make anything certain.
 */
import { DENSE_SLOTS, type DenseSlot, isFormatName, SIDES, type Side } from '../../native/index.ts';
import {
  type ActivationCosts,
  COEFFICIENT_ASSUMED,
  defaultThresholds,
  ESTIMATE_MAX,
  type Estimate,
  type FormatEstimates,
  type Law,
  type ThresholdSet,
} from '../../policy/index.ts';
import type { Measured, MeasuredWindow } from './measured.ts';

/**
 * Standard deviations assumed before there are windows: of one layer beside the others of its text, of texts, of ln
 * offset and ln fade, and of what matrices cost together.
 */
const ASSUMED = { layer: 0.6, text: 0.5, offset: 0.2, fade: 0.3, together: 0.1 };
/** No layer is known better than this, because windows are of finite length: chosen. */
const SD_LEAST = 0.1;
/** Fewer ages say nothing about fading. */
const AGES_LEAST = 3;
const OFFSET_ASSUMED = 1;
/** Σ ε² falls about as one over the age. */
const FADE_ASSUMED = 0.5;
const FADE_LEAST = 0.01;

/** What one window says of each layer, and of itself. */
interface WindowFit {
  /**
   * ln of nats per ε², [layers] per side; null where no query saw the pages or the divergence is too small to be
   * measured.
   */
  readonly layers: Readonly<Record<Side, readonly (number | null)[]>>;
  /** The mean of its errors: what its text has in common. */
  readonly text: number;
}

/**
 * Divergence per ε² of every layer and side, pooled over formats: larger errors weigh more, since their divergence is
 * more certain.
 */
export function perEnergy(window: MeasuredWindow, side: Side, layer: number): number | null {
  let kld = 0;
  let energy = 0;
  for (const probed of Object.values(window[side].probed)) {
    const found = probed.kld[layer];
    if (typeof found !== 'number' || found === 0 || (probed.energy[layer] ?? 0) === 0) continue;
    kld += found;
    energy += probed.energy[layer]!;
  }
  return energy === 0 ? null : kld / energy;
}

function fitWindow(window: MeasuredWindow, layers: number): WindowFit {
  const of = (side: Side): (number | null)[] =>
    Array.from({ length: layers }, (_, layer) => {
      const ratio = perEnergy(window, side, layer);
      return ratio === null ? null : Math.log(ratio);
    });
  const found = { k: of('k'), v: of('v') };
  return { layers: found, text: mean([...found.k, ...found.v].filter((one) => one !== null)) };
}

/** The law that windows agree on. Windows that are not complete may be among them. */
export function lawOf({ settings: { layers }, windows }: Pick<Measured, 'settings' | 'windows'>): Law {
  const fits = windows.map((window) => fitWindow(window, layers)).filter(({ text }) => Number.isFinite(text));
  const samples = fits.length;
  // Without any window, one nat per ε².
  const common = samples === 0 ? 0 : mean(fits.map(({ text }) => text));
  const apart = (fit: WindowFit, side: Side, layer: number): number | null => {
    const ln = fit.layers[side][layer] ?? null;
    return ln === null ? null : ln - fit.text;
  };
  // How far a layer is from its own mean over the texts, taken over all layers, because each has few windows.
  const layerSd = spread(
    SIDES.flatMap((side) =>
      Array.from({ length: layers }, (_, layer) =>
        deviations(fits.map((fit) => apart(fit, side, layer)).filter(isKnown)),
      ),
    ).flat(),
    ASSUMED.layer,
    samples,
    2 * layers,
  );
  const coefficients = (side: Side): Estimate[] =>
    Array.from({ length: layers }, (_, layer) => {
      const known = fits.map((fit) => apart(fit, side, layer)).filter(isKnown);
      if (known.length === 0) return estimateOf(Math.exp(common), ASSUMED.layer, 0);
      const sd = Math.sqrt(layerSd ** 2 / known.length + SD_LEAST ** 2);
      return estimateOf(Math.exp(common + mean(known)), sd, known.length);
    });
  const textSd = spread(deviations(fits.map(({ text }) => text)), ASSUMED.text, samples);
  return {
    coefficient: { k: coefficients('k'), v: coefficients('v') },
    text: estimateOf(1, textSd, samples),
    ...fading(windows),
    epsilon: { k: epsilonOf(windows, 'k', layers), v: epsilonOf(windows, 'v', layers) },
  };
}

/**
 * In each window, ln(Σ ε_now² / Σ ε_first²) is a line over ln age: twice ln offset, less twice the fade. Pages of age 1
 * are left out: their queries are those of the first trials.
 */
function fading(windows: readonly MeasuredWindow[]): Pick<Law, 'offset' | 'fade'> {
  const lines = windows.flatMap(({ ages }) => {
    const points = ages
      .filter(({ age, now, first }) => age > 1 && now > 0 && first > 0)
      .map(({ age, now, first }) => ({ x: Math.log(age), y: Math.log(now / first) }));
    if (points.length < AGES_LEAST) return [];
    const x = mean(points.map((point) => point.x));
    const y = mean(points.map((point) => point.y));
    const slope =
      points.reduce((sum, point) => sum + (point.x - x) * (point.y - y), 0) /
      points.reduce((sum, point) => sum + (point.x - x) ** 2, 0);
    return [{ offset: (y - slope * x) / 2, fade: Math.log(Math.max(FADE_LEAST, -slope / 2)) }];
  });
  const estimate = (name: 'offset' | 'fade', value: number): Estimate => {
    const logs = lines.map((line) => line[name]);
    const sd = spread(deviations(logs), ASSUMED[name], lines.length);
    return estimateOf(lines.length === 0 ? value : Math.exp(mean(logs)), sd, lines.length);
  };
  return { offset: estimate('offset', OFFSET_ASSUMED), fade: estimate('fade', FADE_ASSUMED) };
}

/** Typical ε of first trials: pages differ within a window, and windows from each other. */
function epsilonOf(windows: readonly MeasuredWindow[], side: Side, layers: number): FormatEstimates[] {
  return Array.from({ length: layers }, (_, layer) => {
    const found: Record<string, Estimate> = {};
    for (const format of Object.keys(windows[0]?.[side].first ?? {}).filter(isFormatName)) {
      const tried = windows.flatMap((window) => {
        const { ln, sd } = window[side].first[format] ?? { ln: [], sd: [] };
        return typeof ln[layer] === 'number' ? [{ ln: ln[layer], sd: sd[layer] ?? 0 }] : [];
      });
      if (tried.length === 0) continue;
      const within = mean(tried.map(({ sd }) => sd ** 2));
      const between = mean(deviations(tried.map(({ ln }) => ln)).map((x) => x ** 2));
      found[format] = estimateOf(Math.exp(mean(tried.map(({ ln }) => ln))), Math.sqrt(within + between), tried.length);
    }
    return found;
  });
}

/**
 * A set to start sessions with: the law, and the defaults for all else. Of its coefficients only how they lie apart is
 * kept, around the assumed level: what a session measures per ε² is less than what this measures, by a factor that
 * belongs to the text and that sessions find themselves.
 */
export function thresholdsOf(law: Law): ThresholdSet {
  const { k, v } = law.coefficient;
  const level = COEFFICIENT_ASSUMED / Math.exp(mean([...k, ...v].map(({ value }) => Math.log(value))));
  const leveled = (estimates: readonly Estimate[]): Estimate[] =>
    estimates.map(({ value, sd, samples }) => estimateOf(value * level, sd, samples));
  return { ...defaultThresholds(k.length), law: { ...law, coefficient: { k: leveled(k), v: leveled(v) } } };
}

/**
 * What windows say of rounding activations to 8 bits: means over them, since a choice is held to a mean. Null where no
 * window was measured whole.
 */
export function activationCostsOf({
  settings: { layers },
  windows,
}: {
  readonly settings: Pick<Measured['settings'], 'layers'>;
  readonly windows: readonly Pick<MeasuredWindow, 'activations'>[];
}): ActivationCosts | null {
  const all = windows.flatMap(({ activations }) => (activations?.output == null ? [] : [activations]));
  if (all.length === 0) return null;
  const alone = (of: (one: (typeof all)[number]) => number | null | undefined): number[] =>
    all.map((one) => Math.max(1 / ESTIMATE_MAX, of(one) ?? 0));
  const lists = (slot: DenseSlot): number[][] =>
    Array.from({ length: layers }, (_, layer) => alone((one) => one.alone[slot][layer]));
  const output = alone((one) => one.output);
  const logs = [...DENSE_SLOTS.flatMap(lists), output].map((values) => values.map(Math.log));
  const sd = spread(logs.flatMap(deviations), ASSUMED.text, all.length, logs.length) / Math.sqrt(all.length);
  const costOf = (values: readonly number[]): Estimate => estimateOf(mean(values), sd, all.length);
  const ratios = all.flatMap(({ together }) =>
    together === null || together.sum === 0 || together.kld === 0 ? [] : [together.kld / together.sum],
  );
  const ratioSd = spread(deviations(ratios.map(Math.log)), ASSUMED.together, ratios.length);
  return {
    matrices: Object.fromEntries(
      DENSE_SLOTS.map((slot) => [slot, lists(slot).map(costOf)]),
    ) as unknown as ActivationCosts['matrices'],
    output: costOf(output),
    together: estimateOf(ratios.length === 0 ? 1 : mean(ratios), ratioSd, ratios.length),
  };
}

/** Five digits: more would be noise, and make files longer. */
const rounded = (value: number): number => Number(value.toPrecision(5));
const estimateOf = (value: number, sd: number, samples: number): Estimate => ({
  value: rounded(value),
  sd: rounded(sd),
  samples,
});
const isKnown = (value: number | null): value is number => value !== null;
/** NaN for none. */
const mean = (values: readonly number[]): number => values.reduce((sum, value) => sum + value, 0) / values.length;
const deviations = (values: readonly number[]): number[] => {
  const middle = mean(values);
  return values.map((value) => value - middle);
};

/**
 * Standard deviation of `samples` values, of which `kinds` lists stand among the deviations; an assumed one counts as
 * one more value.
 */
function spread(deviating: readonly number[], assumed: number, samples: number, kinds = 1): number {
  const squares = deviating.reduce((sum, value) => sum + value ** 2, 0);
  return Math.sqrt((squares / kinds + assumed ** 2) / Math.max(1, samples));
}
