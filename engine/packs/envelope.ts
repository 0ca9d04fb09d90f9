/**
 * Signed envelopes (DSSE 1.0): a payload with its type, and signatures over both. The signature is of the bytes that
 * `preAuthentication` makes, it is checked before anything of the payload is parsed, and what is parsed afterwards are
 * exactly the bytes that were checked.
 */
import type { KeyObject } from 'node:crypto';
import { z } from 'zod';
import { isSignedBy, keyIdOf, signBytes } from '../../memory/index.ts';
import { KvError, parseJson } from '../../native/index.ts';
import { badField, MODULE_BYTES_MAX, type PackManifest, packManifest, sha256Hex } from './manifest.ts';

/** Most bytes of an envelope, signatures included: a manifest with 256 vectors has less than 200 KB. */
export const ENVELOPE_BYTES_MAX = 512 * 1024;
const SIGNATURES_MAX = 16;
const SIGNATURE_BYTES = 64;

/** What a pack is signed as: a statement of in-toto. */
export const STATEMENT_TYPE = 'application/vnd.in-toto+json';
/** What a trust file is signed as, so that no signature of one can stand for one of the other. */
export const TRUST_TYPE = 'application/vnd.palimpsest.trust+json';
export type PayloadType = typeof STATEMENT_TYPE | typeof TRUST_TYPE;

/** The one file that a statement is about. */
export const MODULE_NAME = 'module.wasm';
const STATEMENT = 'https://in-toto.io/Statement/v1';
const PREDICATE = 'urn:palimpsest:kernel-pack:1';

/** The key of a signature, as its owner is known: the id follows from the key, so one key has one id. */
export interface PublicKey {
  readonly id: string;
  /** The raw public key, 32 bytes in hex. */
  readonly publicKey: string;
}

/** An envelope whose signatures nobody has checked. The payload is not parsed. */
export interface Envelope {
  readonly what: string;
  readonly payloadType: PayloadType;
  readonly payload: Buffer;
  readonly signatures: readonly { readonly keyId: string; readonly value: Buffer }[];
}

const envelopeSchema = z.strictObject({
  payloadType: z.string().max(100),
  payload: z.string().max(ENVELOPE_BYTES_MAX),
  signatures: z
    .array(z.strictObject({ keyid: z.string().regex(/^[0-9a-f]{16}$/), sig: z.string().max(100) }))
    .min(1)
    .max(SIGNATURES_MAX),
});

/** What is signed: `DSSEv1`, and type and payload, each with its length in front. */
export function preAuthentication(payloadType: string, payload: Uint8Array): Buffer {
  const head = `DSSEv1 ${Buffer.byteLength(payloadType)} ${payloadType} ${payload.length} `;
  return Buffer.concat([Buffer.from(head), payload]);
}

/** Bytes of base64 in its one spelling. Throws 'bad-file'. */
function bytesOf(base64: string, what: string): Buffer {
  const bytes = Buffer.from(base64, 'base64');
  if (bytes.toString('base64') === base64) return bytes;
  throw new KvError('bad-file', `${what} has base64 in another spelling than its own`, { values: { what } });
}

/**
 * Reads an envelope of one type, and nothing of its payload. Throws 'bad-file' for what is none, 'bad-signature' for
 * one of another type.
 */
export function readEnvelope(bytes: Uint8Array, payloadType: PayloadType, what: string): Envelope {
  if (bytes.length > ENVELOPE_BYTES_MAX)
    throw new KvError('bad-file', `${what} has ${bytes.length} bytes; at most ${ENVELOPE_BYTES_MAX} are read`, {
      values: { what, bytes: bytes.length, bytesMax: ENVELOPE_BYTES_MAX },
    });
  const parsed = envelopeSchema.safeParse(parseJson(bytes, { code: 'bad-file', what }));
  if (!parsed.success) throw badField(what, parsed.error);
  const { payloadType: found, payload, signatures } = parsed.data;
  if (found !== payloadType)
    throw new KvError('bad-signature', `${what} is signed as '${found}', and '${payloadType}' is wanted`, {
      values: { what, payloadType: found, expected: payloadType },
    });
  return {
    what,
    payloadType,
    payload: bytesOf(payload, what),
    signatures: signatures.map(({ keyid, sig }) => ({ keyId: keyid, value: bytesOf(sig, what) })),
  };
}

/**
 * Ids of those among the keys that signed, each once. A signature of an unknown key says nothing. Throws
 * 'bad-signature' for one that names a key and is not its own: somebody changed the envelope.
 */
export function signersOf(envelope: Envelope, keys: readonly PublicKey[]): ReadonlySet<string> {
  const { what, payloadType, payload, signatures } = envelope;
  const signed = preAuthentication(payloadType, payload);
  const signers = new Set<string>();
  for (const { keyId, value } of signatures) {
    const key = keys.find(({ id }) => id === keyId);
    if (key === undefined) continue;
    const { publicKey } = key;
    const isOwn =
      value.length === SIGNATURE_BYTES &&
      isSignedBy(signed, { algorithm: 'ed25519', publicKey, value: value.toString('hex') });
    if (!isOwn)
      throw new KvError('bad-signature', `${what}: the signature of ${keyId} is not of this content`, {
        values: { what, keyId },
      });
    signers.add(keyId);
  }
  return signers;
}

/** Parses the payload, which must have been verified. Throws 'bad-file'. */
export const payloadOf = ({ payload, what }: Envelope): unknown => parseJson(payload, { code: 'bad-file', what });

/** An envelope as a file has it, signed by all of these keys. */
export function writeEnvelope(payloadType: PayloadType, payload: Uint8Array, keys: readonly KeyObject[]): Buffer {
  const signed = preAuthentication(payloadType, payload);
  const signatures = keys.map((key) => {
    const { publicKey, value } = signBytes(signed, key);
    return { keyid: keyIdOf(publicKey), sig: Buffer.from(value, 'hex').toString('base64') };
  });
  const envelope = { payloadType, payload: Buffer.from(payload).toString('base64'), signatures };
  return Buffer.from(`${JSON.stringify(envelope)}\n`);
}

/** The same envelope with the signatures of more keys. A key that had signed signs anew. */
export function countersign(envelope: Envelope, keys: readonly KeyObject[]): Buffer {
  const { payloadType, payload, signatures } = envelope;
  const added = JSON.parse(writeEnvelope(payloadType, payload, keys).toString()) as z.infer<typeof envelopeSchema>;
  const isNew = new Set(added.signatures.map(({ keyid }) => keyid));
  const kept = signatures
    .filter(({ keyId }) => !isNew.has(keyId))
    .map(({ keyId, value }) => ({ keyid: keyId, sig: value.toString('base64') }));
  return Buffer.from(`${JSON.stringify({ ...added, signatures: [...kept, ...added.signatures] })}\n`);
}

const statementSchema = z.strictObject({
  _type: z.literal(STATEMENT),
  subject: z
    .array(z.strictObject({ name: z.literal(MODULE_NAME), digest: z.strictObject({ sha256: sha256Hex }) }))
    .length(1),
  predicateType: z.literal(PREDICATE),
  predicate: packManifest,
});

/** What somebody states of a module. */
export interface Statement {
  /** SHA-256 of the module. */
  readonly digest: string;
  readonly manifest: PackManifest;
}

/** Reads the statement of a verified envelope. Throws 'bad-file' naming the field. */
export function statementOf(envelope: Envelope): Statement {
  const parsed = statementSchema.safeParse(payloadOf(envelope));
  if (!parsed.success) throw badField(envelope.what, parsed.error);
  const { subject, predicate } = parsed.data;
  return { digest: subject[0]!.digest.sha256, manifest: predicate };
}

/** The payload that states a manifest of a module. */
export const statementBytes = ({ digest, manifest }: Statement): Buffer =>
  Buffer.from(
    JSON.stringify({
      _type: STATEMENT,
      subject: [{ name: MODULE_NAME, digest: { sha256: digest } }],
      predicateType: PREDICATE,
      predicate: manifest,
    }),
  );

/** Throws 'bad-file' for a module that is larger than any that is served. */
export function checkModuleBytes(bytes: number, what: string): void {
  if (bytes <= MODULE_BYTES_MAX) return;
  throw new KvError('bad-file', `${what} has ${bytes} bytes; a module has at most ${MODULE_BYTES_MAX}`, {
    values: { what, bytes, bytesMax: MODULE_BYTES_MAX },
  });
}
