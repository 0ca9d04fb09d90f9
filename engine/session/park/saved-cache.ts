/**
 * The file of a cache that a program with a runtime of its own has saved: pages as they are stored, the rows of the
 * open page, and what trials have found. Nothing of it is used that was not checked.
 *
 * All numbers are little-endian:
 *
 *     0  'KVSAVE' and two digits: the version of this container      8  u32 bytes of the head      12  u32 zero
 *    16  f64 bytes of the cache
 *    24  the head, JSON · the cache (cache-bytes.ts) · SHA-256 of everything before
 */
import { z } from 'zod';
import {
  type CacheShape,
  fieldOf,
  KvError,
  PAGE_TOKENS,
  parseJson,
  readRegular,
  SHAPE_OPTIONS,
} from '../../../native/index.ts';
import { machineDigest } from '../../../policy/index.ts';
import type { Governed } from '../../cache/governed.ts';
import { GOVERNING_OPTIONS } from '../../options/table.ts';
import { cacheBytes, fillCache } from './cache-bytes.ts';
import { type Container, checkContainer, DIGEST_BYTES, HEAD_BYTES_MAX, sha256 } from './container.ts';
import { checkTrials, count, trialsSchema } from './trials-left.ts';

const SAVED: Container = {
  magic: 'KVSAVE01',
  noun: 'saved cache',
  hint: 'load it with the version of palimpsest that saved it',
};
const FIXED_BYTES = 24;
const FILE_BYTES_MAX = 2 ** 36;

const text = z.string().max(256);
const schema = z.strictObject({
  /** Its id in the log. */
  session: text,
  savedMs: z.number(),
  modelDigest: text,
  shape: z.strictObject({
    layers: fieldOf('layers', SHAPE_OPTIONS.layers),
    queryHeads: fieldOf('queryHeads', SHAPE_OPTIONS.queryHeads),
    kvHeads: fieldOf('kvHeads', SHAPE_OPTIONS.kvHeads),
    headDim: fieldOf('headDim', SHAPE_OPTIONS.headDim),
  }),
  tokens: count,
  policy: z.strictObject({ id: text, version: count, machine: text }),
  /** How rows are written that are still in the open page, and how many newer tokens keep a page in the window. */
  openFormat: fieldOf('openFormat', GOVERNING_OPTIONS.openFormat),
  windowTokens: fieldOf('windowTokens', GOVERNING_OPTIONS.windowTokens),
  trials: trialsSchema,
});

/** A cache that was read from a file and is sound. */
export interface SavedCache {
  readonly head: z.infer<typeof schema>;
  readonly cache: Uint8Array;
}

const settingsOf = ({ terms }: Governed) => ({
  policy: { id: terms.policy.id, version: terms.policy.version, machine: machineDigest() },
  openFormat: terms.context.openFormat ?? 'f16',
  windowTokens: terms.context.windowTokens ?? PAGE_TOKENS,
});

/** The bytes of a cache between two steps, which stays as it is. */
export function savedBytes(governed: Governed, modelDigest: string): Buffer {
  const { kv, shape, length: tokens } = governed;
  const head: SavedCache['head'] = {
    session: governed.id,
    savedMs: Date.now(),
    modelDigest,
    shape,
    tokens,
    ...settingsOf(governed),
    trials: governed.trials.left(),
  };
  const json = Buffer.from(JSON.stringify(head));
  const cache = cacheBytes(kv, tokens);
  const fixed = Buffer.alloc(FIXED_BYTES);
  fixed.write(SAVED.magic, 'latin1');
  fixed.writeUInt32LE(json.length, 8);
  fixed.writeDoubleLE(cache.length, 16);
  const body = Buffer.concat([fixed, json, cache]);
  return Buffer.concat([body, sha256(body)]);
}

/** Throws 'not-found', 'bad-file', 'unsupported' for another version, 'checksum-mismatch'. */
export function readSaved(path: string): SavedCache {
  return parseSaved(readRegular(path, { bytesMax: FILE_BYTES_MAX, code: 'bad-file' }), path);
}

/** Does what readSaved says, with bytes that were read. */
export function parseSaved(file: Buffer, what: string): SavedCache {
  const refuse = (message: string, values: object = {}): never => {
    throw new KvError('bad-file', `${what} ${message}`, { values: { file: what, bytes: file.length, ...values } });
  };
  checkContainer(file, what, SAVED, FIXED_BYTES + DIGEST_BYTES);
  const [headBytes, bytes] = [file.readUInt32LE(8), file.readDoubleLE(16)];
  const bodyAt = FIXED_BYTES + headBytes;
  if (headBytes > HEAD_BYTES_MAX || bodyAt + bytes + DIGEST_BYTES !== file.length || file.readUInt32LE(12) !== 0)
    refuse('is cut off, or its sizes do not add up', { head: headBytes, cache: bytes });
  const end = file.length - DIGEST_BYTES;
  if (!sha256(file.subarray(0, end)).equals(file.subarray(end)))
    throw new KvError('checksum-mismatch', `${what} was changed`, { values: { file: what } });
  const read = schema.safeParse(parseJson(file.subarray(FIXED_BYTES, bodyAt), { what, code: 'bad-file' }));
  if (!read.success) {
    const [issue] = read.error.issues;
    return refuse(`has a head that makes no sense: ${issue?.message ?? 'unknown'}`, { at: issue?.path.join('.') });
  }
  checkTrials(read.data, what);
  return { head: read.data, cache: file.subarray(bodyAt, end) };
}

/** Throws 'model-mismatch' for a file of another model or shape than the caller names. */
export function checkSaved({ head }: SavedCache, what: string, named: Partial<CacheShape>, modelDigest = ''): void {
  const other = (Object.keys(head.shape) as (keyof CacheShape)[]).find(
    (name) => named[name] !== undefined && named[name] !== head.shape[name],
  );
  if (other !== undefined)
    throw new KvError('model-mismatch', `${what} holds a cache of another shape`, {
      values: { file: what, [other]: head.shape[other], given: named[other] },
    });
  if (modelDigest !== '' && modelDigest !== head.modelDigest)
    throw new KvError('model-mismatch', `${what} holds the cache of another model`, {
      values: { file: what, modelDigest: head.modelDigest, given: modelDigest },
    });
}

/**
 * Puts a saved cache into an empty one. Throws 'bad-argument' for one that decides otherwise, 'budget-exceeded',
 * 'bad-file'; what was put there then stays.
 */
export function fillSaved(governed: Governed, { head, cache }: SavedCache, what: string): void {
  const own = settingsOf(governed);
  const differs = (['openFormat', 'windowTokens'] as const).find((name) => own[name] !== head[name]);
  const { policy } = own;
  if (differs !== undefined)
    throw new KvError('bad-argument', `${what} was saved with another ${differs}`, {
      values: { file: what, [differs]: head[differs], given: own[differs] },
      hint: `give ${differs}: '${head[differs]}'`,
    });
  if (policy.id !== head.policy.id || policy.version !== head.policy.version || policy.machine !== head.policy.machine)
    throw new KvError('bad-argument', `${what} was governed by another policy`, {
      values: {
        file: what,
        policy: `${head.policy.id} ${head.policy.version}`,
        given: `${policy.id} ${policy.version}`,
      },
      hint: `give policy: '${head.policy.id}'`,
    });
  fillCache(governed.kv, head.tokens, cache);
  governed.filled(head.tokens, head.trials);
  governed.descent.leaves('pages-of-others');
  governed.mover.write('note', { resumed: head.tokens, from: head.session, tokens: head.tokens });
}
