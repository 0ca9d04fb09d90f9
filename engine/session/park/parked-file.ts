/**
 * The bytes of a parked session: what was asked of it, its tokens, and its cache. They hold what the user said, so that
 * a cache that cannot be used is made again from the tokens. Nothing of the bytes is used that was not checked.
 *
 * All numbers are little-endian:
 *
 *     0  'KVPARK' and two digits: the version of this container      8  u32 bytes of the head
 *    12  u32 tokens                                                 16  u32 channels of the last row, 0 for none
 *    20  u32 zero                                                   24  f64 bytes of the cache
 *    32  the head, JSON · the token ids, u32 · the last row of the residual stream, f32
 *        SHA-256 of everything before
 *        the cache (cache-bytes.ts) and its SHA-256
 */
import { KvError, parseJson } from '../../../native/index.ts';
import { type Container, checkContainer, DIGEST_BYTES, HEAD_BYTES_MAX, sha256 } from './container.ts';
import { type ParkedHead, parkedHead } from './parked-head.ts';

const PARKED: Container = {
  magic: 'KVPARK01',
  noun: 'parked session',
  hint: 'resume it with the version of palimpsest that parked it',
};
/** Bytes before the head. */
export const FIXED_BYTES = 32;

/** A parked session, as it is written and as it was read. */
export interface Parked {
  readonly head: ParkedHead;
  readonly tokens: readonly number[];
  /** What the next token is drawn from, [m]; null: nothing was read, or tokens were taken back. */
  readonly lastHidden: Float32Array | null;
  readonly cache: Uint8Array;
}

/** The parts of a file, to be written one behind the other. */
export function formParked({ head, tokens, lastHidden, cache }: Parked): Buffer {
  const json = Buffer.from(JSON.stringify(head));
  const fixed = Buffer.alloc(FIXED_BYTES);
  fixed.write(PARKED.magic, 'latin1');
  fixed.writeUInt32LE(json.length, 8);
  fixed.writeUInt32LE(tokens.length, 12);
  fixed.writeUInt32LE(lastHidden?.length ?? 0, 16);
  fixed.writeDoubleLE(cache.length, 24);
  const ids = Buffer.alloc(4 * tokens.length);
  for (const [i, id] of tokens.entries()) ids.writeUInt32LE(id, 4 * i);
  const row = Buffer.alloc(4 * (lastHidden?.length ?? 0));
  for (const [i, value] of (lastHidden ?? []).entries()) row.writeFloatLE(value, 4 * i);
  const first = Buffer.concat([fixed, json, ids, row]);
  return Buffer.concat([first, sha256(first), cache, sha256(cache)]);
}

/** A file that was read. `fault` says why its cache cannot be used; what stands before it is sound. */
export interface ReadParked extends Parked {
  readonly fault: string | null;
}

/**
 * Throws 'bad-file', 'unsupported' for another version, 'checksum-mismatch' where not even the tokens can be trusted.
 */
export function parseParked(bytes: Uint8Array, what: string): ReadParked {
  const { head, sizes, bodyAt } = parseHead(bytes, what);
  const file = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
  const idsAt = FIXED_BYTES + sizes.head;
  const rowAt = idsAt + 4 * sizes.tokens;
  const tokens = Array.from({ length: sizes.tokens }, (_, i) => file.readUInt32LE(idsAt + 4 * i));
  const lastHidden =
    sizes.row === 0 ? null : Float32Array.from({ length: sizes.row }, (_, i) => file.readFloatLE(rowAt + 4 * i));
  if (head.tokens !== tokens.length || lastHidden?.every(Number.isFinite) === false)
    throw new KvError('bad-file', `${what} contradicts itself`, {
      values: { file: what, tokens: tokens.length, tokensOfHead: head.tokens },
    });
  const cache = bytes.subarray(bodyAt, bytes.length - DIGEST_BYTES);
  const isSound = sha256(cache).equals(file.subarray(file.length - DIGEST_BYTES));
  const fault = isSound ? null : 'its cache does not have the checksum that it was written with';
  return { head, tokens, lastHidden, cache, fault };
}

/** Bytes of the head behind what a file begins with. Throws 'bad-file', 'unsupported' for another version. */
export function headBytes(begin: Buffer, what: string): number {
  checkContainer(begin, what, PARKED, FIXED_BYTES);
  const bytes = begin.readUInt32LE(8);
  if (bytes > HEAD_BYTES_MAX)
    throw new KvError('bad-file', `the head of ${what} is too large`, { values: { file: what, bytes } });
  return bytes;
}

interface Sizes {
  readonly head: number;
  readonly tokens: number;
  readonly row: number;
  readonly cache: number;
}

/** The head alone, of a file of which `bytes` are at least the beginning up to the cache. */
function parseHead(bytes: Uint8Array, what: string): { head: ParkedHead; sizes: Sizes; bodyAt: number } {
  const file = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
  const refuse = (message: string, values: object = {}): never => {
    throw new KvError('bad-file', `${what} ${message}`, { values: { file: what, bytes: file.length, ...values } });
  };
  checkContainer(file, what, PARKED, FIXED_BYTES + 2 * DIGEST_BYTES);
  const sizes = {
    head: file.readUInt32LE(8),
    tokens: file.readUInt32LE(12),
    row: file.readUInt32LE(16),
    cache: file.readDoubleLE(24),
  };
  const bodyAt = FIXED_BYTES + sizes.head + 4 * sizes.tokens + 4 * sizes.row + DIGEST_BYTES;
  if (sizes.head > HEAD_BYTES_MAX || bodyAt + sizes.cache + DIGEST_BYTES !== file.length || file.readUInt32LE(20) !== 0)
    refuse('is cut off, or its sizes do not add up', { ...sizes });
  const end = bodyAt - DIGEST_BYTES;
  if (!sha256(file.subarray(0, end)).equals(file.subarray(end, bodyAt)))
    throw new KvError('checksum-mismatch', `${what}: its head or its tokens were changed`, {
      values: { file: what },
      hint: 'nothing of it can be trusted; read the text again',
    });
  const json = parseJson(file.subarray(FIXED_BYTES, FIXED_BYTES + sizes.head), { what, code: 'bad-file' });
  return { head: parkedHead(json, what), sizes, bodyAt };
}
