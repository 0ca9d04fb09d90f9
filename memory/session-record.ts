/**
 * A session as others find it again: what it used, how it ended, in which log it stands, and what it taught. Made from
 * its 'open' and 'close' entries, which come from elsewhere, so everything is checked.
 */
import { z } from 'zod';
import { KvError, seriesOf } from '../native/index.ts';
import { isPackId, type ScaledDigest } from '../policy/index.ts';
import { adaptedDigest, adapterPart, appliedAdapters } from './adapted.ts';
import { checkExperience, experienceOf, type LoggedEntry } from './experience.ts';
import type { Fields } from './filter.ts';
import { currentFingerprint, TEXT_AXES, textPlaceOf } from './fingerprint.ts';
import { type TextHint, textHint } from './hint.ts';
import type { Experience } from './types.ts';
import type { VectorEntry } from './vector.ts';

/** Share of the sealed pages in each format, 0 to 1. */
export type FormatShares = Readonly<Record<string, number>>;

/**
 * What is known of a session that ended. Its id in an index is (log, seq of its 'close' entry), its vector the
 * fingerprint.
 */
export interface SessionRecord {
  /** Its id in the log. */
  readonly session: string;
  /** SHA-256 of the model's weights; empty: nobody named a model. */
  readonly modelDigest: string;
  /** That of the model without adapters; null: it is told by a version that did not tell it. */
  readonly plainDigest: string | null;
  /** What was added to its answers, in the order of its log; null: not told. */
  readonly adapters: readonly ScaledDigest[] | null;
  /** The kernel pack that it had pages in, `pack:NAME@DIGEST` as its log names it; null: none, or not told. */
  readonly pack: string | null;
  /** Architecture of the model. */
  readonly family: string;
  /** The policy that ran. */
  readonly policy: string;
  /** What its fingerprint says of its text; null: not told. */
  readonly textPlace: readonly number[] | null;
  /** Tokens in the cache. */
  readonly tokens: number;
  /** Peak of the cache in bytes. */
  readonly kvBytes: number;
  /** 16 · kvBytes / bytes of f16. */
  readonly effectiveBits: number;
  /** Formats of keys and values at its end; null: its log is older than this field. */
  readonly formats: { readonly k: FormatShares; readonly v: FormatShares } | null;
  /** Moves planned, refused ones included. */
  readonly decisions: number;
  /** Price per byte, in nats, up to which moves were made in the end. */
  readonly priceThreshold: number;
  /** What the policy predicted its moves to cost, in nats. */
  readonly predictedKld: number;
  /** Measured divergence; null: it was not compared. */
  readonly meanKld: number | null;
  /** How it ended. */
  readonly reason: string;
  /** Milliseconds since the epoch at its end; null: not known. */
  readonly endMs: number | null;
  /** Series of the log that its process wrote. */
  readonly writer: number;
  /** Digest of the first page of its beginning (prefix.ts); null: nothing was asked of it. */
  readonly prefix: string | null;
  /** True if it measured what errors in single layers cost. */
  readonly probed: boolean;
  /** What helpers said of its text; left out: none did. */
  readonly hint?: TextHint | undefined;
  /** True if it has an experience. */
  readonly teaches: boolean;
  /** What it taught; null: nothing, for example because it failed. */
  readonly experience: Experience | null;
}

/** Fields of a session that filters may name. */
export const SESSION_FIELDS = {
  session: 'keyword',
  modelDigest: 'keyword',
  plainDigest: 'keyword',
  pack: 'keyword',
  family: 'keyword',
  policy: 'keyword',
  reason: 'keyword',
  writer: 'integer',
  tokens: 'integer',
  kvBytes: 'integer',
  decisions: 'integer',
  endMs: 'integer',
  effectiveBits: 'float',
  meanKld: 'float',
  prefix: 'keyword',
  probed: 'bool',
  teaches: 'bool',
} as const satisfies Fields;

/** Another one where a log says more of a session than an index of earlier versions has. */
export const RECORD_VERSION = 3;

/** What earlier versions told a server beside these: the state folder's path, which is nobody else's business. */
export const RETIRED_FIELDS = ['stateDir'] as const;

const shares = z.record(z.string().max(40), z.number().min(0).max(1));
const whole = z.int().min(0);
const real = z.number().min(0);
const outcome = z.object({
  tokens: whole,
  kvBytes: whole,
  effectiveBits: real,
  formats: z.object({ k: shares, v: shares }).nullable().default(null),
  decisions: whole,
  priceThreshold: real,
  predictedKld: real,
  meanKld: real.nullable(),
  reason: z.string().max(40),
  hint: textHint.optional(),
});
const record = outcome.extend({
  session: z.string().max(200),
  modelDigest: z.string().max(300),
  plainDigest: z.string().max(200).nullable().default(null),
  adapters: appliedAdapters.nullable().default(null),
  pack: z.string().refine(isPackId).nullable().default(null),
  textPlace: z.array(z.number()).length(TEXT_AXES).nullable().default(null),
  family: z.string().max(200),
  policy: z.string().max(100),
  endMs: z.int().nullable(),
  writer: whole,
  prefix: z.string().max(40).nullable().default(null),
  probed: z.boolean().default(false),
  teaches: z.boolean(),
  experience: z.unknown(),
});
const openPart = z.object({
  model: z.object({ digest: z.string(), architecture: z.string() }),
  policy: z.object({ id: z.string() }),
  adapters: adapterPart,
  context: z.object({ pack: z.object({ id: z.string() }).optional() }).optional(),
});
const closePart = outcome.extend({ fingerprint: z.array(z.number()).transform(currentFingerprint) });

/** A record as an index has it → one that can be used. Throws 'bad-argument' naming the field. */
export function checkSession(value: SessionRecord): SessionRecord {
  const parsed = record.safeParse(value);
  if (!parsed.success) {
    const { path, message } = parsed.error.issues[0]!;
    throw new KvError('bad-argument', `not a session: ${[...path.map(String), message].join(': ')}`, {
      values: { path: path.join('.') },
    });
  }
  const experience = value.experience === null ? null : checkExperience(value.experience);
  if (parsed.data.teaches !== (experience !== null))
    throw new KvError('bad-argument', 'not a session: it does not say rightly whether it teaches');
  return { ...parsed.data, experience };
}

/** An entry of a log, with its time where the log has one. */
export interface TimedEntry extends LoggedEntry {
  readonly timeMs?: number;
}

/**
 * The session that these two entries are of; null when it has no tokens, no fingerprint of `dim` numbers, or entries of
 * a version that is not read here.
 */
export function sessionOf(
  open: TimedEntry,
  close: TimedEntry,
  log: string,
  dim: number,
): VectorEntry<SessionRecord> | null {
  const opened = openPart.safeParse(open.body);
  const closed = closePart.safeParse(close.body);
  if (!opened.success || !closed.success) return null;
  const { fingerprint, ...rest } = closed.data;
  if (rest.tokens === 0 || fingerprint.length !== dim || !fingerprint.every(Number.isFinite)) return null;
  const experience = experienceOf(open, close);
  const { model, policy, adapters, context } = opened.data;
  const payload: SessionRecord = {
    ...rest,
    session: close.session,
    modelDigest: adaptedDigest(model.digest, adapters),
    plainDigest: model.digest,
    adapters: adapters ?? [],
    pack: context?.pack?.id ?? null,
    textPlace: textPlaceOf(fingerprint),
    family: model.architecture,
    policy: policy.id,
    endMs: close.timeMs ?? null,
    writer: seriesOf(close.seq),
    prefix: experience?.prefix?.pages[0] ?? null,
    probed: experience?.costs !== undefined,
    teaches: experience !== null,
    experience,
  };
  return record.safeParse(payload).success ? { id: { log, seq: close.seq }, vector: fingerprint, payload } : null;
}

/** Sessions of a log, in the order in which they ended. Only 'open' and 'close' entries are looked at. */
export function* sessionsOf(
  entries: Iterable<TimedEntry>,
  log: string,
  dim: number,
): Generator<VectorEntry<SessionRecord>, void, undefined> {
  const opened = new Map<string, TimedEntry>();
  for (const entry of entries) {
    if (entry.kind === 'open') {
      // The bodies of sessions that never end must not pile up.
      const { data } = openPart.safeParse(entry.body);
      if (data !== undefined) opened.set(entry.session, { ...entry, body: data });
    }
    if (entry.kind !== 'close') continue;
    const open = opened.get(entry.session);
    opened.delete(entry.session);
    const session = open === undefined ? null : sessionOf(open, entry, log, dim);
    if (session !== null) yield session;
  }
}
