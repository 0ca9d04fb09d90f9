/**
 * Unpacks one member of a zip archive and checks it: sizes against the file, the unpacked length against the directory
 * and the caller's limit, and the CRC-32. Members may be stored or deflated; no zip64, no encryption. No paths are made
 * from names.
 */
import { createReadStream, createWriteStream } from 'node:fs';
import { Readable, Transform } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { crc32, createInflateRaw } from 'node:zlib';
import { KvError } from '../../native/index.ts';
import { FileBytes } from './bytes.ts';

const END_SIGNATURE = 0x06054b50;
const ENTRY_SIGNATURE = 0x02014b50;
const LOCAL_SIGNATURE = 0x04034b50;
const END_BYTES = 22;
const COMMENT_BYTES_MAX = 65535;
const ENTRIES_MAX = 4096;
const STORED = 0;
const DEFLATED = 8;

interface Member {
  readonly method: number;
  readonly packedBytes: number;
  readonly bytes: number;
  readonly crc: number;
  /** Where the member's data begins. */
  readonly start: number;
}

/** Writes a member to a new file. Throws KvError 'bad-file' for a broken archive, 'not-found' without such a member. */
export async function extractMember(
  archive: string,
  name: string,
  target: string,
  options: { readonly bytesMax: number; readonly signal?: AbortSignal | undefined },
): Promise<void> {
  const member = findMember(archive, name);
  if (member.bytes > options.bytesMax)
    throw bad(archive, `${name} is said to unpack to ${member.bytes} bytes`, { bytesMax: options.bytesMax });
  let [bytes, crc] = [0, 0];
  const meter = new Transform({
    transform(chunk: Uint8Array, _encoding, done) {
      bytes += chunk.length;
      crc = crc32(chunk, crc);
      // Stops a zip bomb before it is written.
      if (bytes > member.bytes)
        done(bad(archive, `${name} unpacks to more than the ${member.bytes} bytes announced`, {}));
      else done(null, chunk);
    },
  });
  const packed =
    member.packedBytes === 0
      ? Readable.from([])
      : createReadStream(archive, { start: member.start, end: member.start + member.packedBytes - 1 });
  const write = createWriteStream(target, { flags: 'wx' });
  const signal = options.signal === undefined ? {} : { signal: options.signal };
  try {
    if (member.method === DEFLATED) await pipeline(packed, createInflateRaw(), meter, write, signal);
    else await pipeline(packed, meter, write, signal);
  } catch (cause) {
    if (cause instanceof KvError || (cause as Error).name === 'AbortError') throw cause;
    const code = (cause as NodeJS.ErrnoException).code ?? '';
    if (code.startsWith('Z_')) throw bad(archive, `${name} cannot be unpacked`, { code }, cause);
    throw new KvError('io', `${target}: ${(cause as Error).message}`, { values: { path: target, code }, cause });
  }
  if (bytes !== member.bytes || crc !== member.crc)
    throw bad(archive, `${name} unpacks to other bytes than it was packed from`, { bytes, expected: member.bytes });
}

function findMember(archive: string, name: string): Member {
  const file = FileBytes.open(archive);
  try {
    const { count, start, bytes } = readEnd(file);
    const directory = Buffer.from(file.read(start, bytes).buffer);
    for (let i = 0, at = 0; i < count; i++) {
      if (at + 46 > directory.length || directory.readUInt32LE(at) !== ENTRY_SIGNATURE)
        throw bad(archive, 'the directory is damaged', { entry: i });
      const [nameBytes, extraBytes, commentBytes] = [
        directory.readUInt16LE(at + 28),
        directory.readUInt16LE(at + 30),
        directory.readUInt16LE(at + 32),
      ];
      const end = at + 46 + nameBytes + extraBytes + commentBytes;
      if (end > directory.length) throw bad(archive, 'the directory is damaged', { entry: i });
      if (directory.toString('utf8', at + 46, at + 46 + nameBytes) === name)
        return readMember(file, directory.subarray(at, at + 46), name);
      at = end;
    }
    throw new KvError('not-found', `${archive} has no member ${name}`, { values: { path: archive, member: name } });
  } finally {
    file.close();
  }
}

/** The end record comes last, before a comment of any content; the true one states the length of that comment. */
function readEnd(file: FileBytes): { count: number; start: number; bytes: number } {
  const tailBytes = Math.min(file.size, END_BYTES + COMMENT_BYTES_MAX);
  const tail = Buffer.from(file.read(file.size - tailBytes, tailBytes).buffer);
  for (let at = tail.length - END_BYTES; at >= 0; at--) {
    if (tail.readUInt32LE(at) !== END_SIGNATURE || at + END_BYTES + tail.readUInt16LE(at + 20) !== tail.length)
      continue;
    const [count, bytes, start] = [tail.readUInt16LE(at + 10), tail.readUInt32LE(at + 12), tail.readUInt32LE(at + 16)];
    if (count > ENTRIES_MAX || start + bytes > file.size)
      throw bad(file.path, 'the directory lies outside the file', { count, start, bytes });
    return { count, start, bytes };
  }
  throw bad(file.path, 'it is no zip archive', {});
}

function readMember(file: FileBytes, entry: Buffer, name: string): Member {
  const [flags, method, crc] = [entry.readUInt16LE(8), entry.readUInt16LE(10), entry.readUInt32LE(16)];
  const [packedBytes, bytes, localStart] = [entry.readUInt32LE(20), entry.readUInt32LE(24), entry.readUInt32LE(42)];
  if ((flags & 1) !== 0 || (method !== STORED && method !== DEFLATED) || bytes === 0xffffffff) {
    throw new KvError('unsupported', `${file.path}: ${name} is packed in a way that is not read`, {
      values: { method, flags },
    });
  }
  const local = Buffer.from(file.read(localStart, 30).buffer);
  if (local.readUInt32LE(0) !== LOCAL_SIGNATURE)
    throw bad(file.path, `${name} is not where the directory says`, { at: localStart });
  const start = localStart + 30 + local.readUInt16LE(26) + local.readUInt16LE(28);
  if (start + packedBytes > file.size)
    throw bad(file.path, `${name} reaches beyond the end of the file`, { start, packedBytes });
  return { method, packedBytes, bytes, crc, start };
}

function bad(path: string, what: string, values: Record<string, unknown>, cause?: unknown): KvError {
  return new KvError('bad-file', `${path}: ${what}`, { values: { path, ...values }, cause });
}
