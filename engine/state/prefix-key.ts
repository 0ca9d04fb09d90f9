/**
 * The key under which a state folder tells beginnings of texts apart (memory/prefix.ts): its own, made when it is first
 * asked for, or one that its machine has in common with others which share a server.
 */
import { createHash, randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { KvError, privately, replaceFile } from '../../native/index.ts';

const KEY_BYTES = 32;

/**
 * `dir`: the folder that keeps it, which must exist. `shared`: what machines that are to find each other's beginnings
 * were all given. Throws 'io', 'bad-file'.
 */
export function prefixKey(dir: string, shared: string | undefined): Uint8Array {
  if (shared !== undefined) return createHash('sha256').update(shared).digest();
  const path = join(dir, 'prefix.key');
  return readKey(path) ?? makeKey(path);
}

function readKey(path: string): Uint8Array | null {
  let bytes: Buffer;
  try {
    bytes = readFileSync(path);
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException).code === 'ENOENT') return null;
    throw new KvError('io', `cannot read ${path}: ${(cause as Error).message}`, { values: { path }, cause });
  }
  if (bytes.length === KEY_BYTES) return bytes;
  throw new KvError('bad-file', `${path} is no key: it has ${bytes.length} bytes, not ${KEY_BYTES}`, {
    values: { path, bytes: bytes.length },
    hint: 'remove it; beginnings that were learned under it are then not found any more',
  });
}

/** Of two processes that make one at once both go on with that of the last. */
function makeKey(path: string): Uint8Array {
  replaceFile(path, randomBytes(KEY_BYTES), privately());
  return readKey(path)!;
}
