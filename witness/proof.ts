/**
 * Proofs that one entry is in the log (RFC 6962 §2.1.1): the hashes from its leaf to a root that a checkpoint signed.
 */
import { asRecord, KvError } from '../native/index.ts';
import { HASH_BYTES } from './chain.ts';
import { type Checkpoint, parseCheckpoint } from './checkpoint.ts';
import { SALT_BYTES } from './commitment.ts';
import { bodyOf, type Disclosure, isDisclosed, isEncrypted } from './encryption.ts';
import { type Envelope, isCanonical, PAYLOAD_BYTES_MAX, parseEnvelope } from './entry.ts';
import { type LogFiles, nodeFiles } from './files.ts';
import { SessionKeys } from './keys.ts';
import type { VerifierKey } from './note.ts';
import { badLog } from './scan.ts';
import { checkSeq, entryId, firstSeqOf, seriesDir, seriesOf } from './series.ts';
import { Frontier, leafHash, nodeHash } from './tree.ts';
import { walkLog } from './walk.ts';

export type { Disclosure } from './encryption.ts';

/** What a third party needs beside the verifier key: `witness/README.md` shows a program that checks it. */
export interface InclusionProof {
  /** The entry as it is stored: canonical JSON. Its leaf is SHA-256(0x00 ‖ these bytes in UTF-8). */
  readonly entry: string;
  /** Its place in the series, from 0. */
  readonly leafIndex: number;
  /** Leaves of the tree that the checkpoint signed. */
  readonly treeSize: number;
  /** Roots of the subtrees beside the way from the leaf to the root, lowest first, base64. */
  readonly path: readonly string[];
  /** The checkpoint: a signed note. */
  readonly checkpoint: string;
  /** What an encrypted entry says, and the salt with which its commitment shows that. Only where it was asked for. */
  readonly disclosed?: Disclosure;
}

/** What a proof is to show. */
export interface ProveOptions {
  /**
   * Gives also the plain body of an encrypted entry, for whoever gets the proof to read. Nothing else of its session
   * can be read with it. Needs the key of the session.
   */
  readonly disclose?: boolean;
}

/** What of a proof is looked at. */
type Said = Omit<InclusionProof, 'treeSize'>;

/** The same with its checkpoint, whose signature was checked. */
interface Checked {
  readonly proof: Said;
  readonly point: Checkpoint;
}

/** Leaves of a series, those that retention removed only as the full subtrees that they made. */
class Leaves {
  readonly #peaks = new Map<number, Uint8Array>();
  readonly #first: number;
  #hashes = Buffer.alloc(1024 * HASH_BYTES);
  count = 0;

  constructor(before: Frontier) {
    this.#first = before.leaves;
    let from = 0;
    for (const peak of before.peaks) {
      this.#peaks.set(from, peak);
      from += fullBelow(before.leaves - from);
    }
  }

  add(leaf: Uint8Array): void {
    const at = this.count++ * HASH_BYTES;
    if (at === this.#hashes.length) this.#hashes = Buffer.concat([this.#hashes, Buffer.alloc(this.#hashes.length)]);
    this.#hashes.set(leaf, at);
  }

  /** Root of the subtree over the leaves from `from` to before `to`. */
  root(from: number, to: number): Uint8Array {
    const gone = to <= this.#first ? this.#peaks.get(from) : undefined;
    if (gone !== undefined) return gone;
    const at = (from - this.#first) * HASH_BYTES;
    if (to - from === 1) return Buffer.from(this.#hashes.subarray(at, at + HASH_BYTES));
    const half = from + splitOf(to - from);
    return nodeHash(this.root(from, half), this.root(half, to));
  }

  /** The roots beside the way from this leaf to the root over the first `size` leaves, lowest first. */
  path(leaf: number, size: number): Uint8Array[] {
    const path: Uint8Array[] = [];
    let [from, to] = [0, size];
    while (to - from > 1) {
      const half = from + splitOf(to - from);
      path.push(leaf < half ? this.root(half, to) : this.root(from, half));
      if (leaf < half) to = half;
      else from = half;
    }
    return path.reverse();
  }
}

/** Largest power of two that is at most `count`. */
const fullBelow = (count: number): number => 2 ** Math.floor(Math.log2(count));
/** Largest power of two that is smaller than `count`: where RFC 6962 splits a tree. */
const splitOf = (count: number): number => fullBelow(count - 1);

/**
 * Proof that the entry with this seq is in the log, against the smallest of `checkpoints` that covers it. The log is
 * read up to there, and its root must be the one that was signed. Throws 'not-found' where there is no such entry or no
 * checkpoint covers it, 'bad-log', and where it is to be disclosed 'sealed' (its session was erased, or its key is not
 * here) and 'unsupported' (it was encrypted before format 3 of the log).
 */
export function proveEntry(
  dir: string,
  seq: number,
  checkpoints: readonly Checkpoint[],
  options?: ProveOptions,
): InclusionProof;
/** @internal */
export function proveEntry(
  dir: string,
  seq: number,
  checkpoints: readonly Checkpoint[],
  options: ProveOptions,
  files: LogFiles,
): InclusionProof;
export function proveEntry(
  dir: string,
  seq: number,
  checkpoints: readonly Checkpoint[],
  { disclose = false }: ProveOptions = {},
  files: LogFiles = nodeFiles,
): InclusionProof {
  checkSeq(seq);
  const series = seriesOf(seq);
  const leafIndex = seq - firstSeqOf(series);
  const [checkpoint] = checkpoints
    .filter((one) => one.series === series && one.size > leafIndex)
    .sort((a, b) => a.size - b.size);
  if (checkpoint === undefined)
    throw new KvError('not-found', `no checkpoint covers entry ${entryId(seq)}`, {
      values: { seq, checkpoints: checkpoints.length },
      hint: 'name one that was written later, or write one now: audit checkpoint',
    });
  const { size: treeSize, note, rootHash, logId, place } = checkpoint;
  let leaves: Leaves | null = null;
  let tree: Frontier | null = null;
  let entry: string | null = null;
  for (const raw of walkLog(files, seriesDir(dir, series), { withTree: true })) {
    tree ??= new Frontier(raw.header.leaves, raw.header.peaks);
    leaves ??= new Leaves(tree.copy());
    leaves.add(raw.leaf);
    tree.add(raw.leaf);
    if (raw.seq === seq) entry = Buffer.from(raw.payload).toString('utf8');
    if (tree.leaves < treeSize) continue;
    if (entry === null) throw noEntry(seq);
    if (raw.logId !== logId || Buffer.from(tree.root()).toString('hex') !== rootHash)
      throw badLog(
        ...([raw.segment, raw.offset, raw.seq] as const),
        `the first ${treeSize} entries are not those that were signed (checkpoint ${place})`,
      );
    const path = leaves.path(leafIndex, treeSize).map((hash) => Buffer.from(hash).toString('base64'));
    const disclosed = disclose ? disclosureOf(files, dir, entry) : {};
    return { entry, leafIndex, treeSize, path, checkpoint: note, ...disclosed };
  }
  throw new KvError(
    'bad-log',
    `the log has fewer than the ${treeSize} entries that were signed (checkpoint ${place})`,
    {
      values: { seq, treeSize },
    },
  );
}

/** Nothing for an entry that is not encrypted: it lies open in every proof. */
function disclosureOf(files: LogFiles, dir: string, entry: string): { readonly disclosed?: Disclosure } {
  const envelope = parseEnvelope(Buffer.from(entry));
  return isEncrypted(envelope) ? { disclosed: new SessionKeys(files, dir).disclose(envelope) } : {};
}

const noEntry = (seq: number): KvError =>
  new KvError('not-found', `the log has no entry ${entryId(seq)}`, {
    values: { seq },
    hint: 'see `audit list` for the ids there are',
  });

/**
 * What a proof says, checked against `keys` alone: the entry, with its plain body where the proof discloses it, else as
 * it is stored, so that the body may be encrypted. Throws 'bad-signature' where none of the keys signed the checkpoint,
 * where the entry is not among those that were signed or says another body than is disclosed, or where this is no
 * proof.
 */
export function checkProof(proof: unknown, keys: readonly VerifierKey[]): Record<string, unknown> {
  const said = proofIn(proof);
  const point = parseCheckpoint(said.checkpoint, keys, 'the checkpoint of the proof');
  checkPath({ proof: said, point });
  const envelope = envelopeIn({ proof: said, point });
  return { ...envelope, body: bodyIn(envelope, said) };
}

/** A tree of 2^53 leaves is no deeper. */
const PATH_HASHES_MAX = 64;
/** More than a checkpoint with the signatures of many witnesses has. */
const CHECKPOINT_CHARS_MAX = 1 << 20;

/** The proof, where everything in it has the type and the length that it can have, before any of it is decoded. */
function proofIn(value: unknown): Said {
  const { entry, leafIndex, path, checkpoint, disclosed } = asRecord(value) ?? {};
  const isOne = isText(entry, PAYLOAD_BYTES_MAX) && isText(checkpoint, CHECKPOINT_CHARS_MAX) && Array.isArray(path);
  if (!isOne) throw noProof('it lacks an entry, a path or a checkpoint, or one of them is too long');
  if (path.length > PATH_HASHES_MAX) throw noProof('its path is too long');
  if (!path.every((one) => isBase64(one, HASH_BYTES))) throw noProof('its path has something that is no hash');
  const proof = { entry, leafIndex: leafIndex as number, path: path as string[], checkpoint };
  if (disclosed === undefined) return proof;
  const { salt, body } = asRecord(disclosed) ?? {};
  if (!isBase64(salt, SALT_BYTES) || !isText(body, PAYLOAD_BYTES_MAX) || !isBase64(body, base64Bytes(body)))
    throw noProof('it discloses something that is no salt and no body');
  return { ...proof, disclosed: { salt, body } };
}

const isText = (value: unknown, charsMax: number): value is string =>
  typeof value === 'string' && value.length <= charsMax;

/** True for the one spelling of so many bytes. */
const isBase64 = (value: unknown, bytes: number): value is string =>
  isText(value, 4 * Math.ceil(bytes / 3)) &&
  Buffer.from(value, 'base64').length === bytes &&
  Buffer.from(value, 'base64').toString('base64') === value;

/** Bytes that so long a text of base64 says. */
const base64Bytes = (text: string): number => Math.floor((3 * text.replace(/={1,2}$/, '').length) / 4);

/** Follows the path from the entry to the root that was signed (RFC 9162, section 2.1.3.2). */
function checkPath({ proof: { entry, leafIndex, path }, point: { size, rootHash } }: Checked): void {
  if (!Number.isSafeInteger(leafIndex) || leafIndex < 0 || leafIndex >= size)
    throw noProof(`entry ${leafIndex} is not among the ${size} that were signed`);
  let hash = leafHash(Buffer.from(entry));
  let [at, last] = [leafIndex, size - 1];
  for (const beside of path.map((one) => Buffer.from(one, 'base64'))) {
    if (last === 0) throw noProof('its path is too long');
    const isRight = at % 2 === 1 || at === last;
    hash = isRight ? nodeHash(beside, hash) : nodeHash(hash, beside);
    for (; isRight && at % 2 === 0 && at > 0; at /= 2) last = Math.floor(last / 2);
    [at, last] = [Math.floor(at / 2), Math.floor(last / 2)];
  }
  if (last !== 0 || hash.toString('hex') !== rootHash) throw noProof('the entry is not what was signed');
}

/**
 * The entry in its one spelling: whoever signs could else sign one that two programs read as two entries, or that names
 * the place of another.
 */
function envelopeIn({ proof: { entry, leafIndex }, point: { series } }: Checked): Envelope {
  const payload = Buffer.from(entry);
  let envelope: Envelope;
  try {
    envelope = parseEnvelope(payload);
  } catch (error) {
    throw noProof((error as KvError).message);
  }
  if (!isCanonical(payload, envelope)) throw noProof('the entry is not in the one spelling');
  if (envelope.seq !== firstSeqOf(series) + leafIndex)
    throw noProof(`the entry says it is ${entryId(envelope.seq)}, and stands in another place`);
  return envelope;
}

/** The body: as it is disclosed, where it is that to which the entry is committed. */
function bodyIn(envelope: Envelope, { disclosed }: Said): unknown {
  if (disclosed === undefined) return envelope.body;
  if (!isEncrypted(envelope)) throw noProof('it discloses the body of an entry that is not encrypted');
  if (!isDisclosed(envelope, disclosed)) throw noProof('the entry is not committed to the body that it discloses');
  const body = bodyOf(Buffer.from(disclosed.body, 'base64'));
  if (body === undefined) throw noProof('the body that it discloses is not in the one form');
  return body;
}

const noProof = (what: string): KvError =>
  new KvError('bad-signature', `this proves nothing: ${what}`, {
    hint: 'ask for the file again as `audit prove` wrote it, and for the verifier key of its log',
  });
