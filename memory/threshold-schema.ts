/**
 * What may stand in a threshold file, for every version of it. The schema says which fields there are, how long a list
 * may be and which numbers are numbers; what a session could start with is checked by `checkThresholds`
 * (`threshold-file.ts`).
 *
 * Each estimate and each threshold has its unit, its sample count and its interval. The interval follows from `value`
 * and `sd`. It stands in the file for people, and a file in which it contradicts the two is refused.
 */
import { z } from 'zod';
import { DENSE_SLOTS, given, seriesOf } from '../native/index.ts';
import {
  type ActivationCosts,
  type Course,
  defaultThresholds,
  ESTIMATE_MAX,
  ESTIMATE_SD_MAX,
  type Estimate,
  isPackId,
  type Law,
  type LogRange,
  OCTAVES,
  SAMPLES_MAX,
} from '../policy/index.ts';
import { compareRanges, rangesOf } from './log-ranges.ts';
import type { Signature } from './signature.ts';

/** Shape of a model's cache. */
export interface ModelShape {
  readonly layers: number;
  readonly queryHeads: number;
  readonly kvHeads: number;
  readonly headDim: number;
}

/** A threshold in a file: where it came from on its way here (`origin`) is not told, to the reader it is 'file'. */
export interface FileThreshold {
  readonly value: number;
  readonly unit: string;
  /** Standard deviation of its logarithm; null: not estimated. */
  readonly sd: number | null;
  readonly samples: number;
  readonly source: string;
  /** Seqs in the log; empty where several logs were merged. */
  readonly evidence: readonly number[];
}

/** A stretch of a series of a log, and the hash of its chain after the last entry: a checkpoint. */
export interface LogPart extends LogRange {
  /** SHA-256 in hex; null: not known. */
  readonly headHash: string | null;
}

/** What everything in a file rests on. */
export interface Evidence {
  /** null: not known. */
  readonly sessions: number | null;
  readonly tokens: number | null;
  /** Empty: no log was kept. */
  readonly logs: readonly LogPart[];
}

/** What one machine learned. */
export interface Learned {
  /** Program and version. */
  readonly createdBy: string;
  readonly evidence: Evidence;
  /** Every threshold that is not at its default. */
  readonly thresholds: Readonly<Record<string, FileThreshold>>;
  readonly gains: { readonly k: readonly number[]; readonly v: readonly number[] };
  readonly c: number;
  readonly law: Law | null;
  /** What sessions found of errors behind their first trials; absent where none told it, and before version 3. */
  readonly course?: Course;
  /** What it costs to round activations to 8 bits; absent where nobody measured it, and before version 4. */
  readonly activations?: ActivationCosts;
}

/** The content of a threshold file, the same for all versions of it. */
export interface ThresholdFile extends Learned {
  readonly model: {
    /** Empty: whoever wrote it had no model file (a cache used without the engine). */
    readonly digest: string;
    readonly shape: ModelShape;
    /** The kernel pack whose sessions it rests on, `pack:NAME@DIGEST`; absent: of sessions without one. */
    readonly pack?: string;
  };
  /**
   * What the file was merged from; empty where that is one machine. Merging again begins from these, so nothing is
   * counted twice.
   */
  readonly parts: readonly Learned[];
  readonly signature: Signature | null;
}

/**
 * The newest version. What names no pack is spelled as version 4, without costs of activations as version 3, and
 * without a course as version 2, which earlier versions of palimpsest read.
 */
export const SCHEMA_VERSION = 5;
const SCHEMA_VERSION_WITHOUT_PACK = 4;
const SCHEMA_VERSION_WITHOUT_ACTIVATIONS = 3;
const SCHEMA_VERSION_WITHOUT_COURSE = 2;
export const THRESHOLDS_MAX = 256;
export const PARTS_MAX = 32;
const LAYERS_MAX = 1024;
const LOGS_MAX = 1024;
const EVIDENCE_MAX = 1024;
const ID = /^[a-z][A-Za-z0-9.-]{0,63}$/;

/** Within so many standard deviations lie 95% of a normal distribution. */
const SD_95 = 1.96;
/** The interval is printed with 4 digits, so it is this near to what it should be. */
const INTERVAL_TOLERANCE = 1e-3;

/** 95% of what is believed of a number lies between these two, which are rounded to 4 digits. */
export function intervalOf({ value, sd }: { readonly value: number; readonly sd: number }): [number, number] {
  const factor = Math.exp(SD_95 * sd);
  return [Number((value / factor).toPrecision(4)), Number((value * factor).toPrecision(4))];
}

// Control characters could rewrite the terminal of whoever looks at the file.
const line = (max: number) =>
  z
    .string()
    .max(max)
    .regex(/^\P{Cc}*$/u, 'control characters are not allowed');
const size = z.int().min(1).max(65_536);
const count = z.int().min(0).max(Number.MAX_SAFE_INTEGER);
const hash = z.string().regex(/^[0-9a-f]{64}$/, 'not a SHA-256 in hex');
/** −0 and 0 are one number with two spellings. */
const unsigned = (x: number): number => (x === 0 ? 0 : x);
const real = z.number().min(-1e12).max(1e12).transform(unsigned);
const layered = <T extends z.ZodType>(item: T) => z.array(item).max(LAYERS_MAX);
const sides = <T extends z.ZodType>(item: T) => ({ k: layered(item), v: layered(item) });

const model = z.strictObject({
  digest: line(300),
  shape: z.strictObject({ layers: z.int().min(1).max(LAYERS_MAX), queryHeads: size, kvHeads: size, headDim: size }),
});
const modelWithPack = z.strictObject({ ...model.shape, pack: z.string().refine(isPackId, 'not pack:NAME@DIGEST') });
const thresholdsOf = <T extends z.ZodType>(body: T) => z.record(z.string().regex(ID, 'not a threshold id'), body);
const samples = z.int().min(0).max(SAMPLES_MAX);
const seqs = z.array(count).max(EVIDENCE_MAX);

const interval = z.tuple([z.number().min(0), z.number().min(0)]);
type WithInterval = { readonly value: number; readonly sd: number; readonly interval: readonly number[] };
const isInterval = ({ interval: given, ...one }: WithInterval): boolean =>
  intervalOf(one).every((bound, at) => Math.abs(given[at]! - bound) <= INTERVAL_TOLERANCE * bound);
const INTERVAL_WRONG = { message: 'contradicts value and sd', path: ['interval'] };

const estimated = {
  value: z
    .number()
    .min(1 / ESTIMATE_MAX)
    .max(ESTIMATE_MAX),
  sd: z.number().min(0).max(ESTIMATE_SD_MAX).transform(unsigned),
  interval,
  samples: z.number().min(0).max(SAMPLES_MAX).transform(unsigned),
};
const withoutInterval = ({ value, sd, samples: seen }: Estimate): Estimate => ({ value, sd, samples: seen });
const estimate = z.strictObject(estimated).refine(isInterval, INTERVAL_WRONG).transform(withoutInterval);
const estimateIn = (unit: string) =>
  z
    .strictObject({ ...estimated, unit: z.literal(unit) })
    .refine(isInterval, INTERVAL_WRONG)
    .transform(withoutInterval);

const COEFFICIENT_UNIT = 'nats/ε²';
const FACTOR_UNIT = '1';
const COST_UNIT = 'nats';

const law = z.strictObject({
  coefficient: z.strictObject({ unit: z.literal(COEFFICIENT_UNIT), ...sides(estimate) }),
  text: estimateIn(FACTOR_UNIT),
  offset: estimateIn(FACTOR_UNIT),
  fade: estimateIn(FACTOR_UNIT),
  epsilon: z.strictObject({ unit: z.literal(FACTOR_UNIT), ...sides(z.record(z.string().max(40), estimate)) }),
});

const variance = z.number().min(0).max(100);
const course = z.strictObject({
  unit: z.literal(FACTOR_UNIT),
  persistence: z.strictObject(sides(estimate)),
  left: z.array(estimate).max(OCTAVES - 1),
  noise: z.strictObject({ found: z.number().min(0).max(1), page: variance, chance: variance }),
});

const costs = layered(estimate);
const activations = z.strictObject({
  unit: z.literal(COST_UNIT),
  matrices: z.strictObject({ q: costs, k: costs, v: costs, o: costs, gate: costs, up: costs, down: costs }),
  output: estimate,
  together: estimateIn(FACTOR_UNIT),
});

const threshold = z
  .strictObject({
    value: real,
    unit: line(40),
    sd: z.number().min(0).max(ESTIMATE_SD_MAX).transform(unsigned).nullable(),
    interval: interval.nullable(),
    samples,
    source: line(400),
    evidence: seqs,
  })
  .refine(
    ({ value, sd, interval: given }) =>
      sd === null ? given === null : value > 0 && given !== null && isInterval({ value, sd, interval: given }),
    INTERVAL_WRONG,
  );

const logPart = z
  .strictObject({ logId: line(100).min(1), from: count, to: count, headHash: hash.nullable() })
  .refine(({ from, to }) => from <= to && seriesOf(from) === seriesOf(to), 'not a stretch of one series');

const learned = {
  createdBy: line(100),
  evidence: z.strictObject({
    sessions: count.nullable(),
    tokens: count.nullable(),
    logs: z
      .array(logPart)
      .max(LOGS_MAX)
      .refine(areApart, 'stretches overlap')
      .transform((logs) => [...logs].sort(compareRanges)),
  }),
  thresholds: thresholdsOf(threshold),
  gains: z.strictObject({ unit: z.literal(FACTOR_UNIT), ...sides(z.number()) }),
  c: z.strictObject({ value: z.number(), unit: z.literal(COEFFICIENT_UNIT) }),
  law: law.nullable(),
};

function areApart(logs: readonly LogRange[]): boolean {
  const sorted = [...logs].sort(compareRanges);
  return sorted.every((one, at) => at === 0 || sorted[at - 1]!.logId !== one.logId || sorted[at - 1]!.to < one.from);
}

const part = z.strictObject(learned);
const partWithCourse = z.strictObject({ ...learned, course: course.optional() });

const partWithActivations = z.strictObject({
  ...learned,
  course: course.optional(),
  activations: activations.optional(),
});

const partsOf = <T extends z.ZodType>(one: T) =>
  z
    .array(one)
    .max(PARTS_MAX)
    .refine((parts) => parts.length !== 1, 'one part alone is the file itself');
const signature = z
  .strictObject({
    algorithm: z.literal('ed25519'),
    publicKey: hash,
    value: z.string().regex(/^[0-9a-f]{128}$/, 'not 64 bytes in hex'),
  })
  .optional();

const version2 = z.strictObject({
  kind: z.literal('palimpsest-thresholds'),
  schemaVersion: z.literal(SCHEMA_VERSION_WITHOUT_COURSE),
  model,
  ...learned,
  parts: partsOf(part),
  signature,
});

const version3 = z
  .strictObject({
    kind: z.literal('palimpsest-thresholds'),
    schemaVersion: z.literal(SCHEMA_VERSION_WITHOUT_ACTIVATIONS),
    model,
    ...learned,
    course: course.optional(),
    parts: partsOf(partWithCourse),
    signature,
  })
  .refine(hasCourse, { message: 'missing, which version 3 is for', path: ['course'] });

const complete = {
  kind: z.literal('palimpsest-thresholds'),
  ...learned,
  course: course.optional(),
  activations: activations.optional(),
  parts: partsOf(partWithActivations),
  signature,
};
const version4 = z
  .strictObject({ ...complete, schemaVersion: z.literal(SCHEMA_VERSION_WITHOUT_PACK), model })
  .refine(hasActivations, { message: 'missing, which version 4 is for', path: ['activations'] });

const version5 = z.strictObject({ ...complete, schemaVersion: z.literal(SCHEMA_VERSION), model: modelWithPack });

/** Files of palimpsest 0.1: every threshold, also those at their default, no law, no interval, one place in one log. */
const version1 = z.strictObject({
  kind: z.literal('palimpsest-thresholds'),
  schemaVersion: z.literal(1),
  model,
  thresholds: thresholdsOf(z.strictObject({ value: real, unit: line(40), source: line(400), samples, evidence: seqs })),
  gains: z.strictObject(sides(z.number())),
  c: z.number(),
  origin: z.strictObject({ logId: line(100), seq: z.int().min(-1), headHash: hash.nullable() }).nullable(),
});

type Wire = z.infer<typeof version2 | typeof version3 | typeof version4 | typeof version5>;
type WireLearned = z.infer<typeof partWithActivations>;

type Telling = Readonly<Partial<Record<'course' | 'activations', unknown>>>;

/** True if anything of a file tells a course. */
function hasCourse(file: Telling & { readonly parts: readonly object[] }): boolean {
  return [file, ...file.parts].some((one: Telling) => one.course !== undefined);
}

/** True if anything of a file tells what rounding activations costs. */
function hasActivations(file: Telling & { readonly parts: readonly object[] }): boolean {
  return [file, ...file.parts].some((one: Telling) => one.activations !== undefined);
}

/**
 * The schema of a version, which makes the content of what it accepts; null for a version that this program does not
 * know.
 */
export function schemaOf(version: unknown): z.ZodType<ThresholdFile> | null {
  if (version === 1) return version1.transform(fromVersion1);
  if (version === SCHEMA_VERSION_WITHOUT_COURSE) return version2.transform(fromWire);
  if (version === SCHEMA_VERSION_WITHOUT_ACTIVATIONS) return version3.transform(fromWire);
  if (version === SCHEMA_VERSION_WITHOUT_PACK) return version4.transform(fromWire);
  return version === SCHEMA_VERSION ? version5.transform(fromWire) : null;
}

function fromWire(wire: Wire): ThresholdFile {
  return { model: wire.model, ...learnedOf(wire), parts: wire.parts.map(learnedOf), signature: wire.signature ?? null };
}

function learnedOf(wire: WireLearned): Learned {
  const { createdBy, evidence, thresholds, gains, c, law: found, course: told, activations: rounded } = wire;
  return {
    createdBy,
    evidence,
    thresholds: Object.fromEntries(
      Object.entries(thresholds).map(([id, { value, unit, sd, samples: seen, source, evidence: from }]) => [
        id,
        { value, unit, sd, samples: seen, source, evidence: from },
      ]),
    ),
    gains: { k: gains.k, v: gains.v },
    c: c.value,
    law: found && {
      ...found,
      coefficient: { k: found.coefficient.k, v: found.coefficient.v },
      epsilon: { k: found.epsilon.k, v: found.epsilon.v },
    },
    ...(told === undefined
      ? {}
      : { course: { persistence: told.persistence, left: told.left, noise: told.noise } satisfies Course }),
    ...(rounded === undefined
      ? {}
      : { activations: { matrices: rounded.matrices, output: rounded.output, together: rounded.together } }),
  };
}

function fromVersion1({ model: from, thresholds, gains, c, origin }: z.infer<typeof version1>): ThresholdFile {
  return {
    model: from,
    createdBy: 'palimpsest 0.1',
    evidence: {
      sessions: null,
      tokens: null,
      logs:
        origin === null || origin.logId === '' || origin.seq < 0
          ? []
          : rangesOf(origin.logId, [origin.seq]).map((range) => ({ ...range, headHash: origin.headHash })),
    },
    thresholds: withoutDefaults(
      Object.fromEntries(Object.entries(thresholds).map(([id, one]) => [id, { sd: null, ...one }])),
    ),
    gains,
    c,
    law: null,
    parts: [],
    signature: null,
  };
}

const DEFAULTS = defaultThresholds(1).thresholds;

/** Without the values that nobody measured and everybody has. */
export function withoutDefaults(
  thresholds: Readonly<Record<string, FileThreshold>>,
): Readonly<Record<string, FileThreshold>> {
  return Object.fromEntries(
    Object.entries(thresholds).filter(
      ([id, { value, samples: seen }]) => seen > 0 || !Object.hasOwn(DEFAULTS, id) || DEFAULTS[id]!.value !== value,
    ),
  );
}

const sorted = <T, U>(record: Readonly<Record<string, T>>, change: (value: T) => U): Record<string, U> =>
  Object.fromEntries(
    Object.keys(record)
      .sort()
      .map((key) => [key, change(record[key]!)]),
  );

/** What stands in a file of the newest version, its fields in their one order. */
export function wireOf(file: ThresholdFile): Record<string, unknown> {
  const { digest, shape, pack } = file.model;
  const { layers, queryHeads, kvHeads, headDim } = shape;
  return {
    kind: 'palimpsest-thresholds',
    schemaVersion: versionOf(file),
    model: { digest, shape: { layers, queryHeads, kvHeads, headDim }, ...given({ pack }) },
    ...wireOfLearned(file),
    parts: file.parts.map(wireOfLearned).sort((a, b) => (JSON.stringify(a) < JSON.stringify(b) ? -1 : 1)),
    ...(file.signature === null ? {} : { signature: wireOfSignature(file.signature) }),
  };
}

/** The lowest version that has room for what a file tells. */
function versionOf(file: ThresholdFile): number {
  if (file.model.pack !== undefined) return SCHEMA_VERSION;
  if (hasActivations(file)) return SCHEMA_VERSION_WITHOUT_PACK;
  return hasCourse(file) ? SCHEMA_VERSION_WITHOUT_ACTIVATIONS : SCHEMA_VERSION_WITHOUT_COURSE;
}

const wireOfSignature = ({ algorithm, publicKey, value }: Signature): Signature => ({ algorithm, publicKey, value });

/** What one machine learned, as the file has it. */
export function wireOfLearned({
  createdBy,
  evidence,
  thresholds,
  gains,
  c,
  law: found,
  course: told,
  activations: rounded,
}: Learned): Record<string, unknown> {
  const { sessions, tokens, logs } = evidence;
  const ordered = [...logs].sort(compareRanges);
  const plain = ({ value, sd, samples: seen }: Estimate) => {
    const bounds = intervalOf({ value, sd });
    return { value, sd, interval: bounds, samples: seen };
  };
  const factor = (one: Estimate) => ({ unit: FACTOR_UNIT, ...plain(one) });
  return {
    createdBy,
    evidence: {
      sessions,
      tokens,
      logs: ordered.map(({ logId, from, to, headHash }) => ({ logId, from, to, headHash })),
    },
    law: found && {
      coefficient: {
        unit: COEFFICIENT_UNIT,
        k: found.coefficient.k.map(plain),
        v: found.coefficient.v.map(plain),
      },
      text: factor(found.text),
      offset: factor(found.offset),
      fade: factor(found.fade),
      epsilon: {
        unit: FACTOR_UNIT,
        k: found.epsilon.k.map((formats) => sorted(formats as Record<string, Estimate>, plain)),
        v: found.epsilon.v.map((formats) => sorted(formats as Record<string, Estimate>, plain)),
      },
    },
    ...(told === undefined ? {} : { course: wireOfCourse(told, plain) }),
    ...(rounded === undefined
      ? {}
      : {
          activations: {
            unit: COST_UNIT,
            matrices: Object.fromEntries(DENSE_SLOTS.map((slot) => [slot, rounded.matrices[slot].map(plain)])),
            output: plain(rounded.output),
            together: factor(rounded.together),
          },
        }),
    thresholds: sorted(thresholds, ({ value, unit, sd, samples: seen, source, evidence: from }) => ({
      value,
      unit,
      sd,
      interval: sd === null ? null : intervalOf({ value, sd }),
      samples: seen,
      source,
      evidence: from,
    })),
    gains: { unit: FACTOR_UNIT, k: gains.k, v: gains.v },
    c: { value: c, unit: COEFFICIENT_UNIT },
  };
}

/** A course as the file has it. */
function wireOfCourse({ persistence, left, noise }: Course, plain: (one: Estimate) => object): Record<string, unknown> {
  const { found, page, chance } = noise;
  return {
    unit: FACTOR_UNIT,
    persistence: { k: persistence.k.map(plain), v: persistence.v.map(plain) },
    left: left.map(plain),
    noise: { found, page, chance },
  };
}
