/**
 * Receipts: what a session claims of one of its answers, and where the log says it. The claims stand in a note of the
 * session, so they are in the chain; a receipt repeats them with the hashes of that entry and of the session's first.
 */
import { createHash } from 'node:crypto';
import { asRecord, given, KvError } from '../native/index.ts';
import { type PolicySummary, predictedBy } from '../policy/index.ts';
import { faultIn } from './body.ts';
import { canonicalJson } from './canonical.ts';
import { type ReceiptClaims, receiptClaims } from './entries/receipt.ts';
import { hashAt, readLogId } from './read.ts';

/** An entry of a log: its number, and the hash of the chain there, in base64url. */
export interface EntryPlace {
  /** Its number in the log. */
  readonly seq: number;
  /** Stands for it and all before it. */
  readonly hash: string;
}

/** What an answer comes with, at most 1 KiB of JSON. */
export interface Receipt extends ReceiptClaims {
  /** Id of the session. */
  readonly session: string;
  /** Where the log says all this. */
  readonly log: {
    /** Identity of the log, in base64url. */
    readonly id: string;
    /** The entry with which the session began. */
    readonly first: EntryPlace;
    /** The note that has the claims. */
    readonly last: EntryPlace;
  };
}

/** What was asked, in full: with a receipt and its log it is all that running the answer again takes. */
export interface ReceiptRequest {
  /** Ids of all tokens that the cache held when the answer began. */
  readonly tokens: readonly number[];
  /** The steps in which they were read: so many tokens, so many times. */
  readonly steps: readonly (readonly [tokens: number, times: number])[];
  /** Options of the answer, as generate takes them; an infinite number is a text. */
  readonly options: Readonly<Record<string, unknown>>;
}

/** No receipt is larger. */
export const RECEIPT_BYTES_MAX = 1024;

/** SHA-256 of a text, in base64url. */
const sha256 = (said: string): string => createHash('sha256').update(said).digest('base64url');
/** In base64url what is written in hexadecimal digits elsewhere. */
export const shortDigest = (hex: string): string => Buffer.from(hex, 'hex').toString('base64url');

/** Digest of a text. */
export const textDigest = (text: string): string => sha256(text);
/** Digest of token ids: of their list as JSON. */
export const tokensDigest = (ids: readonly number[]): string => sha256(canonicalJson(ids));
/** Digest of a request: of its canonical JSON. */
export const requestDigest = ({ tokens, steps, options }: ReceiptRequest): string =>
  sha256(canonicalJson({ options, steps, tokens }));

/** What a policy's summary says of the divergence. */
export function divergenceSaid(policy: string, { measured, predictedKld }: PolicySummary): ReceiptClaims['kld'] {
  if (measured !== undefined && measured.tokens > 0) return { nats: rounded(measured.meanKld), by: 'measured' };
  const nats = predictedBy(policy, predictedKld);
  return nats === null ? { nats, by: 'none' } : { nats: rounded(nats), by: 'forecast' };
}

const rounded = (nats: number): number => Number(nats.toPrecision(4));

/** The hash of the chain at an entry. Throws 'bad-log', 'not-found'. */
export function placeOf(dir: string, seq: number): EntryPlace {
  const hash = hashAt(dir, seq);
  if (hash === null) throw new KvError('not-found', `the log has no entry ${seq}`, { values: { seq } });
  return { seq, hash: shortDigest(hash) };
}

/** The receipt for claims that stand in an entry of a log, once that is on disk. */
export function receiptFor(
  dir: string,
  session: string,
  claims: ReceiptClaims,
  { first, last }: { readonly first: number; readonly last: number },
): Receipt {
  const id = readLogId(dir);
  if (id === null) throw new KvError('bad-log', 'the log has no entry yet', { values: { session } });
  return { ...claims, session, log: { id: shortDigest(id), first: placeOf(dir, first), last: placeOf(dir, last) } };
}

const isPlace = (value: unknown): boolean => {
  const { seq, hash } = asRecord(value) ?? {};
  return Number.isSafeInteger(seq) && (seq as number) >= 0 && typeof hash === 'string' && hash.length <= 64;
};

/** The receipt, if it says what receipts say and no more. Throws 'bad-signature'. */
export function receiptIn(value: unknown): Receipt {
  const all = asRecord(value);
  if (all === undefined) throw noReceipt('it is no object');
  const { session, log, ...claims } = all;
  const fault = faultIn(receiptClaims, claims);
  if (fault !== null) throw noReceipt(fault);
  const { id, first, last } = asRecord(log) ?? {};
  if (typeof session !== 'string' || typeof id !== 'string' || !isPlace(first) || !isPlace(last))
    throw noReceipt('it does not say where the log has it');
  if (Buffer.byteLength(JSON.stringify(value)) > RECEIPT_BYTES_MAX)
    throw noReceipt(`it has more than ${RECEIPT_BYTES_MAX} bytes`);
  return value as Receipt;
}

/** What is claimed, without where. */
export function claimsOf(receipt: Receipt): ReceiptClaims {
  const claims = Object.entries(receipt).filter(([name]) => name !== 'session' && name !== 'log');
  return Object.fromEntries(claims) as unknown as ReceiptClaims;
}

/** A receipt that is refused. */
export const noReceipt = (what: string, values: Readonly<Record<string, unknown>> = {}): KvError =>
  new KvError('bad-signature', `the receipt is refused: ${what}`, {
    values,
    hint: 'ask for the receipt again as it was given with the answer, and for the log that it names',
  });

const isCounts = (value: unknown): value is number[] =>
  Array.isArray(value) && value.every((count) => Number.isSafeInteger(count) && count >= 0);

const areRuns = (value: unknown): value is [number, number][] =>
  Array.isArray(value) && value.every((run) => isCounts(run) && run.length === 2 && run.every((count) => count > 0));

/** The request of a receipt, if that is what it is the digest of. Throws 'bad-signature'. */
export function requestIn(value: unknown, { request }: Receipt): ReceiptRequest {
  const { tokens, steps, options } = asRecord(value) ?? {};
  if (!isCounts(tokens) || !areRuns(steps) || asRecord(options) === undefined)
    throw noReceipt('what was asked is no list of tokens with steps and options');
  const asked = { tokens, steps, options: options as ReceiptRequest['options'] };
  if (asked.tokens.length !== request.tokens || requestDigest(asked) !== request.digest)
    throw noReceipt('what was asked is not what it has the digest of', given({ tokens: asked.tokens.length }));
  return asked;
}
