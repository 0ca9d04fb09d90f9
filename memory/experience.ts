/**
 * What a session taught, read from its 'open' and 'close' entries in the log. Entries come from elsewhere, so
 * everything is checked.
 */
import { z } from 'zod';
import { KvError } from '../native/index.ts';
import { ESTIMATE_MAX, type LayerCost } from '../policy/index.ts';
import { adaptedDigest, adapterPart } from './adapted.ts';
import { currentFingerprint, FINGERPRINT_DIM } from './fingerprint.ts';
import { PREFIX_PAGES_MAX } from './prefix.ts';
import type { Experience } from './types.ts';

/** The part of a log entry that this room reads; the log's own entries are of this shape. */
export interface LoggedEntry {
  readonly seq: number;
  readonly session: string;
  readonly kind: string;
  readonly body: unknown;
}

const finite = z.number();
const positive = z.number().positive();
const estimate = z.object({
  value: positive.max(1e12),
  sd: finite.min(0).max(50),
  samples: finite.min(0).max(1e9),
});
const gains = z.array(positive.max(1e6)).max(4096);
/** A session measures each layer and side once: whoever says more would outvote all others. */
const isOncePerPlace = (costs: readonly Pick<LayerCost, 'layer' | 'side'>[]): boolean =>
  new Set(costs.map(({ layer, side }) => `${layer}${side}`)).size === costs.length;

const experience = z.object({
  seq: z.int().min(0),
  session: z.string().max(200),
  modelDigest: z.string().max(300),
  family: z.string().max(200),
  fingerprint: z
    .array(finite)
    .transform((numbers) => [...currentFingerprint(numbers)])
    .refine(({ length }) => length === FINGERPRINT_DIM),
  priceThreshold: finite.min(0),
  gains: z.object({ k: gains, v: gains }),
  c: positive,
  effectiveBits: finite.min(0),
  meanKld: finite.min(0).nullable(),
  predictedKld: finite.min(0),
  tokens: z.int().min(0),
  text: estimate.optional(),
  course: z
    .object({
      persistence: z.object({ k: z.array(estimate).max(4096), v: z.array(estimate).max(4096) }),
      left: z.array(estimate).max(64),
      noise: z.object({ found: finite.min(0).max(1), page: finite.min(0).max(100), chance: finite.min(0).max(100) }),
    })
    .optional(),
  costs: z
    .array(
      z.object({
        layer: z.int().min(0).max(4095),
        side: z.enum(['k', 'v']),
        cost: finite.min(1 / ESTIMATE_MAX).max(ESTIMATE_MAX),
        rows: z.int().min(1).max(1e9),
      }),
    )
    .max(2 * 4096)
    .refine(isOncePerPlace, 'a layer and side twice')
    .optional(),
  prefix: z
    .object({
      pages: z
        .array(z.string().regex(/^[\w-]{22}$/))
        .min(1)
        .max(PREFIX_PAGES_MAX),
      later: z.base64().max(PREFIX_PAGES_MAX * 4096 * 4),
      answers: z.int().min(1).max(1e9),
    })
    .optional(),
});

const openPart = z.object({
  model: z.object({ digest: z.string(), architecture: z.string() }),
  policy: z.object({ id: z.string() }),
  adapters: adapterPart,
});
const closePart = experience
  .omit({ seq: true, session: true, modelDigest: true, family: true })
  .extend({ reason: z.string() });

/** Throws 'bad-argument' naming the field when it is not an experience with finite numbers in their ranges. */
export function checkExperience(value: Experience): Experience {
  const parsed = experience.safeParse(value);
  if (parsed.success) return parsed.data;
  const { path, message } = parsed.error.issues[0]!;
  throw new KvError('bad-argument', `not an experience: ${[...path.map(String), message].join(': ')}`, {
    values: { path: path.join('.') },
  });
}

/**
 * The experience of one session, or null when it teaches nothing: it failed, it was run by a policy that has no price
 * threshold, or its entries are of a version that this room does not read.
 */
export function experienceOf(open: LoggedEntry, close: LoggedEntry): Experience | null {
  const opened = openPart.safeParse(open.body);
  const closed = closePart.safeParse(close.body);
  if (!opened.success || !closed.success) return null;
  if (opened.data.policy.id !== 'price' || closed.data.reason === 'error' || closed.data.tokens === 0) return null;
  const { reason: _, ...outcome } = closed.data;
  const parsed = experience.safeParse({
    ...outcome,
    seq: close.seq,
    session: close.session,
    modelDigest: adaptedDigest(opened.data.model.digest, opened.data.adapters),
    family: opened.data.model.architecture,
  });
  return parsed.success ? parsed.data : null;
}

/**
 * Reads a log entry by entry and says what each session taught when it ends. Only 'open' and 'close' entries are looked
 * at.
 */
export class ExperienceReader {
  readonly #opened = new Map<string, LoggedEntry>();

  add(entry: LoggedEntry): Experience | null {
    if (entry.kind === 'open') {
      // The bodies of sessions that never end must not pile up.
      const { data } = openPart.safeParse(entry.body);
      if (data !== undefined) this.#opened.set(entry.session, { ...entry, body: data });
    }
    if (entry.kind !== 'close') return null;
    const open = this.#opened.get(entry.session);
    this.#opened.delete(entry.session);
    return open === undefined ? null : experienceOf(open, entry);
  }
}

/** Experiences of a log, in the order in which sessions ended. */
export function* experiencesOf(entries: Iterable<LoggedEntry>): Generator<Experience, void, undefined> {
  const reader = new ExperienceReader();
  for (const entry of entries) {
    const learned = reader.add(entry);
    if (learned !== null) yield learned;
  }
}
