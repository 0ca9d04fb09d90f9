/**
 * Downloads one file into the blobs of the cache. What has come is kept beside its future name and goes on by a range;
 * it gets the name when its size and its digest are right and it is on disk. Two processes at once each download for
 * themselves, and the last rename wins, with the same bytes.
 */
import { createHash, randomBytes } from 'node:crypto';
import {
  constants,
  createReadStream,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  renameSync,
  rmSync,
  statSync,
} from 'node:fs';
import { open } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { isGone, KvError, refusedFile } from '../../../native/index.ts';
import { attempt } from '../bytes.ts';
import { putInPlace } from '../fetch.ts';
import { type HubClient, Interruption } from './client.ts';
import type { RemoteFile } from './listing.ts';

export interface Transfer {
  readonly url: string;
  readonly file: RemoteFile;
  /** Where it goes. */
  readonly blob: string;
  /** Bytes that are here, while it is downloaded; then bytes that were read again for the digest. */
  readonly onBytes: (stage: 'download' | 'verify', bytes: number) => void;
}

/** Throws KvError 'network', 'not-allowed', 'not-found', 'checksum-mismatch', 'io', 'aborted'. */
export async function transferFile(client: HubClient, transfer: Transfer): Promise<void> {
  const { blob, file } = transfer;
  attempt(blob, () => mkdirSync(dirname(blob), { recursive: true }));
  const partial = new Partial(blob);
  try {
    await client.patiently(
      file.path,
      () => receive(client, transfer, partial.path),
      () => partial.size,
    );
    await verify(client, transfer, partial.path);
    putInPlace(partial.path, blob);
  } catch (error) {
    if (error instanceof KvError && error.code === 'checksum-mismatch') partial.remove();
    else partial.leave();
    throw error;
  }
}

/**
 * What has come of a file. While a process writes it, its name has that process's id; what nobody writes is taken up by
 * the next download.
 */
class Partial {
  readonly path: string;
  readonly #idle: string;

  constructor(blob: string) {
    this.#idle = `${blob}.partial`;
    this.path = `${blob}.${process.pid}-${randomBytes(4).toString('hex')}.partial`;
    for (const left of this.#leftBehind(blob)) {
      try {
        renameSync(left, this.path);
        return;
      } catch {
        // Another process was faster.
      }
    }
  }

  get size(): number {
    return statSync(this.path, { throwIfNoEntry: false })?.size ?? 0;
  }

  leave(): void {
    if (existsSync(this.path)) attempt(this.#idle, () => renameSync(this.path, this.#idle));
  }

  remove(): void {
    rmSync(this.path, { force: true });
  }

  /** The largest first. */
  #leftBehind(blob: string): string[] {
    const active = new RegExp(`^${basename(blob)}\\.(\\d+)-[0-9a-f]+\\.partial$`);
    const size = (path: string): number => lstatSync(path, { throwIfNoEntry: false })?.size ?? 0;
    return readdirSync(dirname(blob))
      .filter((name) => name === basename(this.#idle) || isGone(Number(active.exec(name)?.[1])))
      .map((name) => join(dirname(blob), name))
      .filter(isAlone)
      .sort((a, b) => size(b) - size(a));
  }
}

/**
 * True for a file of one name. What a link leads to is somebody else's, and is not written to: the link is removed, and
 * the file stays.
 */
function isAlone(path: string): boolean {
  const found = lstatSync(path, { throwIfNoEntry: false });
  if (found === undefined || (found.isFile() && found.nlink === 1)) return found !== undefined;
  if (!found.isDirectory()) rmSync(path, { force: true });
  return false;
}

/** Reads and appends, and follows no link that was put in its place meanwhile. */
const APPENDING = constants.O_RDWR | constants.O_APPEND | constants.O_CREAT | (constants.O_NOFOLLOW ?? 0);

/** One attempt to bring what is missing. */
async function receive(client: HubClient, { url, file, onBytes }: Transfer, path: string): Promise<void> {
  const handle = await open(path, APPENDING).catch((cause: unknown) => {
    throw refusedFile(path, cause);
  });
  try {
    let { size } = await handle.stat();
    if (size > file.size) await handle.truncate((size = 0));
    if (size === file.size) return;
    const { response, body, close } = await client.open(
      url,
      size === 0 ? {} : { headers: { range: `bytes=${size}-` } },
    );
    try {
      const from = startOf(response, size, file);
      if (from !== size) await handle.truncate((size = from ?? 0));
      if (from === null)
        throw new Interruption('the server has no such range, so the download begins anew', { url, status: 416 });
    } catch (error) {
      close();
      throw error;
    }
    onBytes('download', size);
    for await (const chunk of body) {
      if (size + chunk.length > file.size) {
        await handle.truncate(0);
        throw lies(file, `sends more of ${file.path} than the ${file.size} bytes of the listing`);
      }
      await handle.appendFile(chunk).catch((cause: unknown) => {
        throw refusedFile(path, cause);
      });
      size += chunk.length;
      onBytes('download', size);
    }
    if (size < file.size)
      throw new Interruption(`the server ended after ${size} of ${file.size} bytes`, { url, bytes: size });
  } finally {
    await handle.close();
  }
}

/**
 * The byte that an answer begins with; null: the server refuses the range. Throws 'network' for an answer that is not
 * of this file.
 */
function startOf(response: Response, asked: number, file: RemoteFile): number | null {
  if (response.status === 416) return null;
  if (response.status !== 206) {
    const length = response.headers.get('content-length');
    if (length !== null && !response.headers.has('content-encoding') && Number(length) !== file.size)
      throw lies(file, `announces ${length} bytes of ${file.path}, the listing ${file.size}`);
    return 0;
  }
  const said = response.headers.get('content-range') ?? '';
  const [, start, total] = /^bytes (\d+)-\d+\/(\d+|\*)$/.exec(said) ?? [];
  if (Number(start) !== asked)
    throw lies(file, `was asked for ${file.path} from byte ${asked} and answers '${said.slice(0, 80)}'`);
  if (total !== '*' && Number(total) !== file.size)
    throw lies(file, `announces ${total} bytes of ${file.path}, the listing ${file.size}`);
  return asked;
}

function lies(file: RemoteFile, what: string): KvError {
  return new KvError('network', `the server ${what}`, {
    values: { file: file.path, bytes: file.size },
    hint: 'the server, or one in between, is at fault: try again later, or name another with HF_ENDPOINT',
  });
}

/** Reads the file again. Git digests a header before the content. */
async function verify(client: HubClient, { file, onBytes }: Transfer, path: string): Promise<void> {
  const isGit = file.digest.length === 40;
  const hash = createHash(isGit ? 'sha1' : 'sha256');
  if (isGit) hash.update(`blob ${file.size}\0`);
  let bytes = 0;
  try {
    for await (const chunk of createReadStream(path, { highWaterMark: 2 ** 20 })) {
      client.checkAborted();
      hash.update(chunk as Buffer);
      onBytes('verify', (bytes += (chunk as Buffer).length));
    }
  } catch (cause) {
    throw cause instanceof KvError ? cause : refusedFile(path, cause);
  }
  const actual = hash.digest('hex');
  if (actual === file.digest) return;
  throw new KvError(
    'checksum-mismatch',
    `what was downloaded of ${file.path} does not have the digest that the Hub names`,
    {
      values: { file: file.path, expected: file.digest, actual, bytes },
      hint: 'it was removed; the same command downloads it anew',
    },
  );
}
