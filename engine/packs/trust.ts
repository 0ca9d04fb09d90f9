/**
 * Whom a state folder trusts with packs: a signed file with keys, roles, thresholds and what is revoked, after TUF,
 * reduced to what there is without a repository. A file is followed only by the next version, which as many keys of the
 * root have signed as both files ask for. Everything here is pure: time is told.
 */
import { z } from 'zod';
import { keyIdOf } from '../../memory/index.ts';
import { KvError } from '../../native/index.ts';
import {
  type Envelope,
  payloadOf,
  readEnvelope,
  type Statement,
  signersOf,
  statementOf,
  TRUST_TYPE,
} from './envelope.ts';
import { checkFloor, type Floors } from './floors.ts';
import { badField, compareVersions, isWithin, packName, packVersion, sha256Hex, versionRange } from './manifest.ts';

/** Ids of keys follow from the keys: 16 hex digits. */
const keyId = z.string().regex(/^[0-9a-f]{16}$/, 'not the id of a key');
/** The one spelling that Date.toISOString has. */
const time = z
  .string()
  .max(24)
  .refine((text) => !Number.isNaN(Date.parse(text)) && new Date(text).toISOString() === text, 'not a time in UTC');
const role = z.strictObject({ keys: z.array(keyId).min(1).max(16), threshold: z.int().min(1).max(16) });

const trustSchema = z.strictObject({
  kind: z.literal('palimpsest-trust'),
  schemaVersion: z.literal(1),
  version: z.int().min(1).max(1_000_000),
  expires: time,
  keys: z
    .array(z.strictObject({ id: keyId, publicKey: sha256Hex, expires: time }))
    .min(1)
    .max(32),
  roles: z.strictObject({ root: role, packs: role }),
  /** Digests of modules, and ids of keys. */
  revoked: z.array(z.union([sha256Hex, keyId])).max(1024),
  /** By name, the oldest version that is served. */
  minimum: z.record(packName, packVersion),
  /** What may be installed; nothing else is. */
  allow: z
    .array(z.union([z.strictObject({ name: packName, versions: versionRange }), z.strictObject({ digest: sha256Hex })]))
    .max(256),
});

/** Whom a state folder trusts. */
export type Trust = z.infer<typeof trustSchema>;
export type TrustRole = keyof Trust['roles'];

const HINT = 'docs/packs.md has a trust file with all of its fields';

function unsound(what: string, why: string, values: Readonly<Record<string, unknown>> = {}): KvError {
  return new KvError('bad-file', `${what}: ${why}`, { values: { what, ...values }, hint: HINT });
}

/** Reads what a trust file says, not who signed it. Throws 'bad-file' naming the field. */
export function trustOf(value: unknown, what: string): Trust {
  const parsed = trustSchema.safeParse(value);
  if (!parsed.success) throw badField(what, parsed.error);
  const trust = parsed.data;
  const ids = trust.keys.map(({ id }) => id);
  const strange = trust.keys.find(({ id, publicKey }) => keyIdOf(publicKey) !== id);
  if (strange !== undefined) throw unsound(what, `the key ${strange.id} has the id of another`, { keyId: strange.id });
  if (new Set(ids).size !== ids.length) throw unsound(what, 'a key is there twice');
  for (const [name, { keys, threshold }] of Object.entries(trust.roles)) {
    const unknown = keys.find((id) => !ids.includes(id));
    if (unknown !== undefined)
      throw unsound(what, `${name} has the key ${unknown}, which is not listed`, { keyId: unknown });
    if (new Set(keys).size !== keys.length) throw unsound(what, `${name} has a key twice`);
    if (keys.length < threshold)
      throw unsound(what, `${name} asks for ${threshold} signatures of ${keys.length} keys`, { threshold });
  }
  return trust;
}

const isPast = (expires: string, nowMs: number): boolean => Date.parse(expires) <= nowMs;

/**
 * Keys of a role that count at a time, or were revoked: a signature by one of those is a refusal of its own, so that a
 * person learns why.
 */
function keysOf(trust: Trust, name: TrustRole, nowMs: number): Trust['keys'] {
  return trust.keys.filter(
    ({ id, expires }) => trust.roles[name].keys.includes(id) && !isPast(expires, nowMs) && !trust.revoked.includes(id),
  );
}

/** Throws 'bad-signature' unless as many keys of a role have signed as it asks for. → ids of those that did. */
function checkSigned(envelope: Envelope, trust: Trust, name: TrustRole, nowMs: number): string[] {
  const { what } = envelope;
  const all = signersOf(envelope, trust.keys);
  const counted = keysOf(trust, name, nowMs).filter(({ id }) => all.has(id));
  const { threshold } = trust.roles[name];
  if (counted.length >= threshold) return counted.map(({ id }) => id);
  const others = [...all].filter((id) => !counted.some((key) => key.id === id));
  const why = others.map((id) => `${id} ${reasonOf(trust, id, name, nowMs)}`);
  throw new KvError(
    'bad-signature',
    `${what} has ${counted.length} of ${threshold} signatures that count for ${name} of trust version ${trust.version}${why.map((one) => `; ${one}`).join('')}`,
    {
      values: { what, signatures: counted.length, threshold, role: name, trustVersion: trust.version },
      hint: 'sign it with a key that the trust file has, or install a newer trust file',
    },
  );
}

function reasonOf(trust: Trust, id: string, name: TrustRole, nowMs: number): string {
  if (trust.revoked.includes(id)) return 'is revoked';
  if (!trust.roles[name].keys.includes(id)) return `is no key of ${name}`;
  return isPast(trust.keys.find((key) => key.id === id)!.expires, nowMs) ? 'has expired' : 'does not count';
}

/** The moment of a check, with what the clock may not be behind. */
export interface Moment {
  readonly nowMs: number;
  /** When the newest entry was written that is known; 0: none is. */
  readonly witnessedMs: number;
}

/** Writers on one machine whose clock is set now and then differ by less. */
const CLOCK_SLACK_MS = 60_000;

/** Throws 'bad-signature' where the clock cannot be right: expiry would mean nothing. */
export function checkClock({ nowMs, witnessedMs }: Moment): void {
  if (nowMs + CLOCK_SLACK_MS >= witnessedMs) return;
  throw new KvError(
    'bad-signature',
    'the clock is behind the newest entry of the log, so nobody knows what has expired',
    {
      values: { nowMs, witnessedMs },
      hint: 'set the clock of this machine',
    },
  );
}

function checkCurrent(trust: Trust, what: string, moment: Moment): void {
  checkClock(moment);
  if (isPast(trust.expires, moment.nowMs))
    throw new KvError('bad-signature', `${what}, version ${trust.version}, expired at ${trust.expires}`, {
      values: { what, expires: trust.expires, trustVersion: trust.version },
      hint: 'install the next version of the trust file',
    });
}

/**
 * The trust file of an envelope as the first of a state folder, which a person chose, or as the one that follows
 * another. Throws 'bad-file', 'bad-signature'.
 */
export function nextTrust(bytes: Uint8Array, before: Trust | null, moment: Moment, what: string): Trust {
  const envelope = readEnvelope(bytes, TRUST_TYPE, what);
  // The keys of the file before say whether it may be read. The first file has nobody to ask but itself.
  if (before !== null) checkSigned(envelope, before, 'root', moment.nowMs);
  const trust = trustOf(payloadOf(envelope), what);
  checkSigned(envelope, trust, 'root', moment.nowMs);
  if (before !== null && trust.version !== before.version + 1)
    throw new KvError('bad-signature', `${what} has version ${trust.version}, and ${before.version + 1} is next`, {
      values: { what, version: trust.version, expected: before.version + 1 },
      hint: 'install all versions between, one after the other',
    });
  checkCurrent(trust, what, moment);
  return trust;
}

/** The trust file that a state folder has, read again. Throws as nextTrust does, not where it expired. */
export function readTrust(bytes: Uint8Array, what: string): Trust {
  return trustOf(payloadOf(readEnvelope(bytes, TRUST_TYPE, what)), what);
}

/** A pack that may be installed. */
export interface VerifiedPack extends Statement {
  readonly keyIds: readonly string[];
  readonly trustVersion: number;
}

/** What a pack is checked against. */
export interface PackCheck {
  readonly trust: Trust;
  readonly floors: Floors;
  readonly moment: Moment;
  /** SHA-256 of the module that lies beside the envelope. */
  readonly digest: string;
  /** The version of this package. */
  readonly engineVersion: string;
}

/**
 * Checks the envelope of a pack: signatures before anything is parsed, then what it states. Throws 'bad-signature' for
 * what is not signed, revoked, too old or not allowed, 'checksum-mismatch' for another module, 'unsupported' for
 * another version of the engine, 'bad-file'.
 */
export function verifyPack(envelope: Envelope, check: PackCheck): VerifiedPack {
  const { trust, digest, moment, engineVersion } = check;
  const { what } = envelope;
  checkCurrent(trust, 'the trust file', moment);
  const keyIds = checkSigned(envelope, trust, 'packs', moment.nowMs);
  const statement = statementOf(envelope);
  const { name, version, engine } = statement.manifest;
  if (statement.digest !== digest)
    throw new KvError('checksum-mismatch', `${what} is about another module`, {
      values: { what, expected: statement.digest, actual: digest },
    });
  checkAllowed(trust, digest, name, version, what);
  checkFloor(check.floors, { name, version, keyIds }, what);
  if (!isWithin(engineVersion, engine))
    throw new KvError('unsupported', `${what} is for versions from ${engine.from} on and below ${engine.below}`, {
      values: { what, version: engineVersion, ...engine },
    });
  return { ...statement, keyIds, trustVersion: trust.version };
}

/** What a pack is that was installed, as far as trust goes. */
export interface Installed {
  readonly name: string;
  readonly version: string;
  readonly digest: string;
  readonly keyIds: readonly string[];
  readonly installedMs: number;
}

/**
 * What a trust file says of a pack that was installed under this one or an earlier one. Revoked: nothing of it is
 * read. Not served: it writes no more pages, because its key went, or it is too old or no longer allowed. What was
 * signed in time stays signed when the key expires.
 */
export function standingOf(envelope: Envelope, pack: Installed, trust: Trust): 'served' | 'not-served' | 'revoked' {
  const left = pack.keyIds.filter((id) => !trust.revoked.includes(id));
  if (trust.revoked.includes(pack.digest) || left.length === 0) return 'revoked';
  try {
    checkSigned(envelope, trust, 'packs', pack.installedMs);
    checkAllowed(trust, pack.digest, pack.name, pack.version, envelope.what);
    return 'served';
  } catch (error) {
    if (error instanceof KvError && error.code === 'bad-signature') return 'not-served';
    throw error;
  }
}

/** Throws 'bad-signature' for a module that a trust file does not serve (any more). */
function checkAllowed(trust: Trust, digest: string, name: string, version: string, what: string): void {
  const refuse = (why: string, values: Readonly<Record<string, unknown>>): KvError =>
    new KvError('bad-signature', `${what}: ${why}`, {
      values: { what, name, version, digest, trustVersion: trust.version, ...values },
      hint: 'the trust file says which packs are served',
    });
  if (trust.revoked.includes(digest)) throw refuse('the module is revoked', {});
  const minimum = Object.hasOwn(trust.minimum, name) ? trust.minimum[name]! : '0.0.0';
  if (compareVersions(version, minimum) < 0)
    throw refuse(`version ${version} is older than ${minimum}, the oldest that is served`, { minimum });
  const isAllowed = trust.allow.some((rule) =>
    'digest' in rule ? rule.digest === digest : rule.name === name && isWithin(version, rule.versions),
  );
  if (!isAllowed) throw refuse(`${name} ${version} is not allowed`, {});
}
