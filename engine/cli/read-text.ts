/** Reads prompts and texts from a file or from standard input. They must be UTF-8 and not too long. */
import { isUtf8 } from 'node:buffer';
import { createReadStream } from 'node:fs';
import { open, stat } from 'node:fs/promises';
import { KvError, openFlags } from '../../native/index.ts';

/** 64 MiB: ten times the longest context of a model, at four bytes per token. */
const TEXT_BYTES_MAX = 2 ** 26;

/**
 * Reads a file, or standard input for the path '-'. Messages call it `what`. Throws KvError 'not-found', 'io',
 * 'bad-file'.
 */
export async function readText(path: string, what: string): Promise<string> {
  const name = path === '-' ? 'standard input' : path;
  const chunks: Buffer[] = [];
  let bytes = 0;
  try {
    for await (const chunk of path === '-' ? process.stdin : await streamOf(path)) {
      chunks.push(chunk as Buffer);
      bytes += (chunk as Buffer).length;
      if (bytes > TEXT_BYTES_MAX) break;
    }
  } catch (cause) {
    const { code, message } = cause as NodeJS.ErrnoException;
    const isMissing = code === 'ENOENT' || code === 'ENAMETOOLONG';
    throw new KvError(isMissing ? 'not-found' : 'io', `cannot read the ${what} ${name}: ${message}`, {
      values: { path },
      hint: isMissing ? `the ${what} is the name of a file; a text itself comes on standard input, with -` : undefined,
      cause,
    });
  }
  if (bytes > TEXT_BYTES_MAX) {
    throw new KvError('bad-file', `the ${what} in ${name} is longer than ${TEXT_BYTES_MAX / 2 ** 20} MiB`, {
      values: { path, bytesMax: TEXT_BYTES_MAX },
    });
  }
  const content = Buffer.concat(chunks);
  const text = content.toString('utf8');
  if (!isUtf8(content)) {
    throw new KvError('bad-file', `the ${what} in ${name} is not UTF-8 text`, {
      values: { path, byte: firstDifference(content, Buffer.from(text)) },
      hint: 'convert it, for example with iconv -t UTF-8',
    });
  }
  // A byte order mark is not part of the text.
  return text.replace(/^\uFEFF/, '');
}

/**
 * A pipe is read as its writer writes. What says that it is a file must have its bytes: some of the system, such as
 * /proc/kmsg, would else be waited for without end.
 */
async function streamOf(path: string): Promise<AsyncIterable<unknown>> {
  if (!(await stat(path)).isFile()) return createReadStream(path);
  return (await open(path, openFlags(false))).createReadStream();
}

/**
 * The position of the first byte that is not valid UTF-8. Decoding replaces invalid bytes, so encoding the text again
 * differs from there on.
 */
function firstDifference(a: Buffer, b: Buffer): number {
  let at = 0;
  while (at < a.length && a[at] === b[at]) at++;
  return at;
}
