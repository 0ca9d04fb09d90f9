/** A session ended: what it held, and what it taught. */
import type { MeasuredKld } from '../../policy/index.ts';
import type { BodyOf, Fields } from './field.ts';
import { course, estimate, gains, hint, layerCost, prefix, reals } from './parts.ts';
import { count, list, noun, nullable, object, one, optional, real, record, text, whole } from './type.ts';

/** Share of the sealed pages in each format. */
const shares = record(text, real);

const measured = noun<MeasuredKld>()({ tokens: count, meanKld: real, level: estimate, expectedKld: real });

export const CLOSE = {
  tokens: { type: whole },
  kvBytes: { type: whole },
  kvBytesF16: { type: whole },
  effectiveBits: { type: real },
  decisions: { type: count },
  refused: { type: count },
  priceThreshold: { type: real, unit: 'nats a byte' },
  /** 0 of a policy that tries no pages, which predicts nothing (policy/predicted.ts). */
  predictedKld: { type: real, unit: 'nats' },
  /** Measured divergence when a comparison was run. */
  meanKld: { type: nullable(real), unit: 'nats' },
  fingerprint: { type: reals },
  gains: { type: gains },
  c: { type: real },
  /** What the session measured of its text factor; left out where it measured nothing. */
  text: { type: optional(estimate), since: '0.1.0' },
  /** What reading tokens twice found of its divergence; left out where none were. */
  measured: { type: optional(measured), since: '0.1.0' },
  /** What it found of errors behind their first trials; left out where pages were not tried again. */
  course: { type: optional(course), since: '0.1.0' },
  /** What it found errors in single layers to cost; left out where it probed none. */
  costs: { type: optional(list(layerCost)), since: '0.1.0' },
  /** What was asked of its beginning, told by keyed digests of its pages; left out where nothing was. */
  prefix: { type: optional(prefix), since: '0.1.0' },
  /** What helpers said of the text; left out where none did. */
  hint: { type: optional(hint), since: '0.1.0' },
  formats: { type: optional(object({ k: shares, v: shares })), since: '0.1.0' },
  reason: { type: one(['done', 'aborted', 'error']) },
} as const satisfies Fields;

export type CloseBody = BodyOf<typeof CLOSE>;
