/** What the log says about itself, and what was done to a session from outside. */
import type { FormatName, Side } from '../../native/index.ts';
import type { Growth, LayerChange, PageForm, PagePart } from '../../policy/index.ts';
import { likeSession } from './evidence.ts';
import type { BodyOf, Fields } from './field.ts';
import { changes, form, format, part, side } from './parts.ts';
import { poolAsking } from './pool-asking.ts';
import { poolParking } from './pool-parking.ts';
import { receiptClaims } from './receipt.ts';
import { count, flag, list, noun, nullable, object, one, optional, real, text, whole } from './type.ts';

export const RECOVERED = {
  /** Bytes cut from a torn tail. */
  droppedBytes: { type: whole },
  segment: { type: text },
} as const satisfies Fields;

/** The oldest segments of a series were removed, or were about to be when the power failed. */
export const RETENTION = {
  /** Number of the first segment that stays. */
  firstSegment: { type: whole },
  /** seq of its first entry. */
  firstSeq: { type: whole },
  /** Segments that were removed, and their bytes. */
  segments: { type: whole },
  bytes: { type: whole },
} as const satisfies Fields;

/**
 * What somebody did to a session from outside: what the log says of it was erased, is held for a court, or is held no
 * more.
 */
export const DONE = {
  /** The command. */
  by: { type: text },
} as const satisfies Fields;

const layerChange = noun<LayerChange>()({
  layer: count,
  state: text,
  threshold: text,
  measured: real,
  bound: real,
  source: one(['error', 'topic', 'gain', 'codes', 'agreement']),
});

/**
 * A page side that came back from its original for an answer, with the share of the attention of its layer that the
 * question gave to its page, or that went again.
 */
export interface PromotedSide {
  /** Number of the layer, from 0. */
  readonly layer: number;
  /** Number of the page, from 0. */
  readonly page: number;
  /** Keys or values. */
  readonly side: Side;
  /** The format that it had. */
  readonly from: FormatName;
  /** The format that it got. */
  readonly to: FormatName;
  /** Of the attention of its layer; absent where it went again. */
  readonly share?: number;
}

const promotedSide = noun<PromotedSide>()({
  layer: count,
  page: count,
  side,
  from: format,
  to: format,
  share: optional(real),
});

/** A page side, or a latent, whose codes were others than those that were made. */
export interface MendedSide extends PagePart {
  /** The format that it has, before and after, or the latent that it was. */
  readonly format: PageForm;
  /**
   * True: its codes were made again of its original, or keys and values in place of the latent were; otherwise there
   * was none, or no room.
   */
  readonly mended: boolean;
}

const mendedSide = noun<MendedSide>()({ layer: count, page: count, side: part, format: form, mended: flag });

/** That a cache grows without end: by policy/growth.ts. */
const growth = noun<Growth>()({
  tokens: whole,
  bytes: whole,
  bytesPerToken: real,
  limitBytes: whole,
  tokensLeft: whole,
});

/** A note may say anything. Where these fields stand in it, they are this. */
export const NOTE = {
  layerChanges: { type: optional(list(layerChange)) },
  /** Layers whose trust is in another state. */
  trustChanges: { type: optional(list(layerChange)), since: '0.1.0' },
  promoted: { type: optional(list(promotedSide)), since: '0.1.0' },
  returned: { type: optional(list(promotedSide)), since: '0.1.0' },
  damaged: { type: optional(list(mendedSide)), since: '0.1.0' },
  /** Sessions that began with the same pages. */
  beginning: { type: optional(list(likeSession)), since: '0.1.0' },
  /** Whether the divergence that was stated for the session is kept from here on. */
  statedDivergence: { type: optional(one(['broken', 'kept'])), since: '0.1.0' },
  /** What was stated, and what the moves so far are expected to cost. */
  budgetNats: { type: optional(real), unit: 'nats', since: '0.1.0' },
  expectedNats: { type: optional(real), unit: 'nats', since: '0.1.0' },
  /** Tokens by which that was measured; 0: it is predicted alone. */
  measuredTokens: { type: optional(whole), since: '0.1.0' },
  /** The cache was found to grow without end, and until when it may at this pace. */
  growth: { type: optional(growth), since: '0.1.0' },
  /** What pages of the session gave up for another one with which it shares memory. */
  gaveUpBytes: { type: optional(whole), unit: 'bytes', since: '0.1.0' },
  /** That session, and the policy of the pool by which it was this one's turn. */
  gaveUpFor: { type: optional(text), since: '0.1.0' },
  gaveUpBy: { type: optional(text), since: '0.1.0' },
  /** The entry of the pool's own series that has the asking. */
  gaveUpIn: { type: optional(whole), since: '0.1.0' },
  /** The rung of the ladder (policy/reclaim.ts) on which bytes of the session were found. */
  rung: { type: optional(text), since: '0.1.0' },
  /** An asking of a pool: notes of the pool's own series. */
  pool: { type: optional(poolAsking), since: '0.1.0' },
  /** Sessions that were parked for another one: notes of the pool's own series. */
  parking: { type: optional(poolParking), since: '0.1.0' },
  /** An adapter in memory that nobody had and that went: notes of the pool's own series. */
  adapterGone: {
    type: optional(
      object({
        digest: text,
        bytes: whole,
        idleMs: whole,
        restoreMs: real,
        likelyUse: optional(real),
        lackingBytes: whole,
        session: optional(text),
      }),
    ),
    since: '0.1.0',
  },
  /** The policy of parking that chose the session. */
  parkedBy: { type: optional(text), since: '0.1.0' },
  /**
   * Tokens with which the session began whose pages others had read, and those of them that it holds together with
   * others; these also when it comes back from where it was parked.
   */
  adopted: { type: optional(whole), unit: 'tokens', since: '0.1.0' },
  /** Moves of these pages since the session that had read them was closed. */
  movedSince: { type: optional(changes), since: '0.1.0' },
  heldTokens: { type: optional(whole), since: '0.1.0' },
  /** The digest of the last of these pages and all before it. */
  prefix: { type: optional(text), since: '0.1.0' },
  /** Adapters that are activated by tokens, and the first token whose row each adds to from here on; null: none. */
  activated: { type: optional(list(object({ digest: text, since: nullable(whole) }))), since: '0.1.0' },
  /** What is claimed of an answer that has a receipt. */
  receipt: { type: optional(receiptClaims), since: '0.1.0' },
  tokens: { type: optional(whole) },
} as const satisfies Fields;

export type NoteBody = BodyOf<typeof NOTE>;
export type RecoveredBody = BodyOf<typeof RECOVERED>;
export type RetentionBody = BodyOf<typeof RETENTION>;
export type DoneBody = BodyOf<typeof DONE>;
