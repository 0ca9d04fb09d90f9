/**
 * Types that entries of several kinds are made of. The nouns of policies are declared in `policy/`; what stands here
 * must be the same.
 */

import type { TextHint } from '../../memory/index.ts';
import {
  FORMAT_NAMES,
  type FormatName,
  LATENT_NAMES,
  type LatentName,
  PARTS,
  SIDES,
  type WindowName,
} from '../../native/index.ts';
import type {
  Course,
  Estimate,
  FormChange,
  LaterForm,
  Law,
  LayerCost,
  LogRange,
  PageForm,
  Threshold,
  ThresholdOrigin,
  ThresholdSet,
  TrialReport,
} from '../../policy/index.ts';
import { FORMS } from '../../policy/index.ts';
import { count, known, list, noun, object, one, optional, real, record, type Type, text, whole } from './type.ts';

export const reals = list(real);
/** Far more layers than any model has. A bound is needed because policies allocate arrays of this size. */
export const LAYERS_MAX = 4096;

/** The name of a format. */
export const format = one<FormatName>(FORMAT_NAMES, {
  expected: 'the name of a format',
  alias: ['native', 'FormatName'],
});
export const latent = one<LatentName>(LATENT_NAMES, { alias: ['native', 'LatentName'] });
/** The format of pages in the window. Which ones may be, a build knows best. */
export const windowFormat = known<WindowName>(format);
/** Whatever a page may be in. */
export const form = one<PageForm>(FORMS, { expected: 'the name of a format', alias: ['policy', 'PageForm'] });
/** What it may have become. */
export const laterForm = one<LaterForm>([...FORMS, 'freed'], {
  expected: "the name of a format, or 'freed'",
  alias: ['policy', 'LaterForm'],
});
export const side = one(SIDES, { alias: ['native', 'Side'] });
export const part = one(PARTS, { alias: ['native', 'Part'] });
const ORIGINS = ['default', 'learned', 'file', 'option', 'controller'] as const satisfies ThresholdOrigin[];
export const origin = one<ThresholdOrigin>(ORIGINS, { alias: ['policy', 'ThresholdOrigin'] });

export const gains = object({ k: reals, v: reals });

export const estimate = noun<Estimate>()({ value: real, sd: real, samples: real });

const perSide = <T>(type: Type<T>) => object({ k: list(type), v: list(type) });

const law = noun<Law>()({
  coefficient: perSide(estimate),
  text: estimate,
  offset: estimate,
  fade: estimate,
  epsilon: perSide(record(format, estimate)),
});

export const course = noun<Course>()({
  persistence: perSide(estimate),
  left: list(estimate),
  noise: object({ found: real, page: real, chance: real }),
});

export const layerCost = noun<LayerCost>()({ layer: count, side, cost: real, rows: whole });

export const hint = noun<TextHint>()({ kind: text, share: real, place: reals, by: optional(text) });

export const prefix = object({ pages: list(text, 1), later: text, answers: whole });

const threshold = noun<Threshold>()({
  id: text,
  value: real,
  unit: text,
  origin,
  source: text,
  samples: whole,
  sd: optional(real),
  evidence: list(whole),
});

const source = object({ origin, source: text, samples: whole, evidence: list(whole) });

export const thresholds = noun<ThresholdSet>()({
  version: one([1]),
  thresholds: record(text, threshold),
  gains,
  c: real,
  law: optional(law),
  course: optional(course),
  sources: optional(object({ law: optional(source), course: optional(source) })),
  ranges: optional(list(noun<LogRange>()({ logId: text, from: whole, to: whole }))),
});

export const place = { layer: count, page: count, side: part, from: form };
export const move = { ...place, to: laterForm };

export const changes = list(noun<FormChange>()({ ...place, to: laterForm }), 1);

export const trials = noun<TrialReport>()({ ...place, epsilon: record(form, real) });
