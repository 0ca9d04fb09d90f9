/**
 * A workload as ten small numbers, so that "earlier work like this" is a distance. Which model it was is not an axis:
 * equality of models is a filter, not a number. Never made from prompt text.
 */
import { KvError, show } from '../native/index.ts';
import type { Fingerprint } from './types.ts';

/** What an engine can say about a session. `null`: not known (yet); the axis then stands at its neutral value. */
export interface Measurements {
  /** Layers of the model. */
  readonly layers: number;
  /** Query heads of a layer. */
  readonly queryHeads: number;
  /** Key and value heads of a layer. */
  readonly kvHeads: number;
  /** Numbers in a head. */
  readonly headDim: number;
  /** Tokens in the cache, or expected. */
  readonly tokens: number;
  /** rms of all keys over rms of all values. */
  readonly keyValueRatio?: number | null;
  /** Largest channel rms of the keys (after RoPE) over their mean channel rms, averaged over layers. ≥ 1. */
  readonly keyOutlier?: number | null;
  /** Entropy of the attention mass over pages, by its maximum ln(pages), averaged over layers. 0..1 */
  readonly attentionEntropy?: number | null;
  /** Share of the attention mass on the first page, which holds the sinks. 0..1 */
  readonly sinkMass?: number | null;
  /** Share of the attention mass on the newest two pages: the exact window. 0..1 */
  readonly recencyMass?: number | null;
  /** UTF-8 bytes per token of the text: 4 to 5 where the tokenizer was made for its language, 2 to 3 elsewhere. */
  readonly bytesPerToken?: number | null;
  /** Share of the text's bytes that are ASCII letters. 0..1 */
  readonly letterShare?: number | null;
  /** Share of the text's bytes outside ASCII. 0..1 */
  readonly foreignShare?: number | null;
  /** Distinct tokens over tokens: low where a text repeats itself. 0..1 */
  readonly distinctShare?: number | null;
  /** Byte budget over the f16 bytes of the whole session; null: no budget, as if it were 1. */
  readonly pressure?: number | null;
}

export interface Axis {
  readonly name: string;
  readonly scaling: string;
  /** Stands in where the measurement is missing. */
  readonly neutral: number;
  /** Raw number of the axis, or null when it was not measured. */
  readonly raw: (m: Measurements) => number | null;
  /** Raw number → place on the axis before clamping to [0, 1]. */
  readonly scale: (raw: number) => number;
  /**
   * Length of the axis: how far apart two workloads are that differ only here, from end to end. Chosen, not measured.
   */
  readonly weight: number;
  /** True of what is said of the text itself. */
  readonly isOfText?: true;
}

const log2Axis = (
  name: string,
  what: string,
  from: number,
  to: number,
  neutral: number,
  weight: number,
  raw: Axis['raw'],
): Axis => ({
  name,
  scaling: `${what}: log2 from ${from} to ${to}`,
  neutral,
  raw,
  scale: (value) => (Math.log2(value) - Math.log2(from)) / (Math.log2(to) - Math.log2(from)),
  weight,
});
const shareAxis = (name: string, what: string, neutral: number, weight: number, raw: Axis['raw']): Axis => ({
  name,
  scaling: `${what}: as it is, 0 to 1`,
  neutral,
  raw,
  scale: (value) => value,
  weight,
});

/**
 * What is said of a text itself is told in sixteenths only: enough to tell kinds of text apart, and too little to tell
 * texts of a kind apart.
 */
const coarse = (axis: Axis): Axis => ({
  ...axis,
  isOfText: true,
  scaling: `${axis.scaling}, in sixteenths`,
  scale: (raw) => Math.round(16 * axis.scale(raw)) / 16,
});

/**
 * The axes in order. Pressure and length decide the price threshold more than anything else, so they are the longest;
 * what is known only after the prompt was read (neutral before) is the shortest. Neutral values are those of
 * SmolLM2-135M on an encyclopedia, novels and program code of 2,048 tokens, rounded.
 */
export const AXES: readonly Axis[] = Object.freeze([
  log2Axis('layers', 'layers', 1, 256, 0.6, 1, (m) => m.layers),
  log2Axis('group', 'query heads per KV head', 1, 32, 0.3, 1, (m) => m.queryHeads / m.kvHeads),
  log2Axis('headDim', 'head_dim', 8, 256, 0.6, 1, (m) => m.headDim),
  log2Axis('tokens', 'tokens', 128, 2 ** 20, 0.4, 2, (m) => m.tokens),
  log2Axis('keyValueRatio', 'key rms over value rms', 2 ** -6, 2 ** 6, 0.6, 0.5, (m) => m.keyValueRatio ?? null),
  log2Axis('keyOutlier', 'largest over mean channel rms of keys', 1, 64, 0.45, 0.5, (m) => m.keyOutlier ?? null),
  shareAxis('attentionEntropy', 'entropy over pages by ln(pages)', 0.6, 0.5, (m) => m.attentionEntropy ?? null),
  shareAxis('sinkMass', 'mass on the first page', 0.3, 0.5, (m) => m.sinkMass ?? null),
  shareAxis('recencyMass', 'mass in the window', 0.4, 0.5, (m) => m.recencyMass ?? null),
  log2Axis('pressure', 'budget over f16 bytes', 1 / 16, 1, 1, 2, (m) => m.pressure ?? null),
  coarse(log2Axis('bytesPerToken', 'bytes per token', 1, 8, 0.7, 2, (m) => m.bytesPerToken ?? null)),
  coarse(shareAxis('letterShare', 'ASCII letters among bytes', 0.8, 1, (m) => m.letterShare ?? null)),
  coarse(shareAxis('foreignShare', 'bytes outside ASCII', 0, 1, (m) => m.foreignShare ?? null)),
  coarse(shareAxis('distinctShare', 'distinct tokens among tokens', 0.4, 1, (m) => m.distinctShare ?? null)),
]);

/** Numbers in a fingerprint. A change of the axes changes this or FINGERPRINT_VERSION, and old indexes are rebuilt. */
export const FINGERPRINT_DIM = AXES.length;
export const FINGERPRINT_VERSION = 3;
/** Axes that fingerprints of version 2 had: the first of today's. */
const VERSION_2_DIM = 10;

/**
 * A fingerprint as a log has it → one of today's axes: those that its version did not have stand at their neutral
 * values.
 */
export function currentFingerprint(numbers: readonly number[]): readonly number[] {
  if (numbers.length !== VERSION_2_DIM) return numbers;
  return [...numbers, ...AXES.slice(VERSION_2_DIM).map(({ neutral, weight }) => neutral * weight)];
}

/**
 * Measurements → [FINGERPRINT_DIM], each axis clamped to [0, 1] and multiplied by its weight, rounded to 6 decimals so
 * that it survives JSON and float32 alike. Measurements that are missing, NaN or infinite stand at the neutral value:
 * the result is finite for every input.
 */
export function fingerprint(measurements: Measurements): Fingerprint {
  return AXES.map((axis) => {
    const raw = axis.raw(measurements);
    const place = raw === null || typeof raw !== 'number' || Number.isNaN(raw) ? Number.NaN : axis.scale(raw);
    const known = Number.isNaN(place) ? axis.neutral : Math.min(1, Math.max(0, place));
    return Math.round(known * axis.weight * 1e6) / 1e6;
  });
}

/** What a fingerprint says of the text. */
export const textPlaceOf = (print: Fingerprint): readonly number[] => print.filter((_, axis) => AXES[axis]!.isOfText);

/** Numbers that a fingerprint has of a text. */
export const TEXT_AXES = AXES.filter(({ isOfText }) => isOfText === true).length;

/** Throws 'bad-shape' or 'bad-value' when `numbers` is not FINGERPRINT_DIM finite numbers. */
export function checkFingerprint(numbers: Fingerprint): void {
  if (!Array.isArray(numbers) || numbers.length !== FINGERPRINT_DIM) {
    throw new KvError('bad-shape', `a fingerprint has ${FINGERPRINT_DIM} numbers`, {
      values: { length: Array.isArray(numbers) ? numbers.length : typeof numbers },
      hint: 'make it with fingerprint()',
    });
  }
  const wrong = numbers.findIndex((x) => typeof x !== 'number' || !Number.isFinite(x));
  if (wrong >= 0) {
    throw new KvError('bad-value', `axis ${AXES[wrong]!.name} of the fingerprint is not a finite number`, {
      values: { axis: AXES[wrong]!.name, value: show(numbers[wrong]) },
    });
  }
}
