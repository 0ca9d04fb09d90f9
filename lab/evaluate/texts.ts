/**
 * The public texts that quality is measured on (scripts/texts.json). They are where `npm run fetch:texts` puts them,
 * or, compressed, in a folder shared/data beside the checkout.
 */
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { KvError, parseJson } from '../../native/index.ts';

const root = fileURLToPath(new URL('../..', import.meta.url));
export const TEXTS_DIR = join(root, '.cache', 'texts');
const SHARED_DIR = join(root, '..', 'shared', 'data');
const UNPACKED_BYTES_MAX = 2 ** 28;

/** A text: the paths that it is made of in its repository, and what it is then. */
export interface PublicText {
  readonly file: string;
  readonly paths: readonly string[];
  readonly bytes: number;
  readonly sha256: string;
}

export interface Source {
  readonly repository: string;
  readonly commit: string;
  readonly licence: string;
  readonly changes: keyof typeof CHANGES;
  readonly texts: readonly PublicText[];
}

export const SOURCES = (
  parseJson(readFileSync(join(root, 'scripts', 'texts.json')), { code: 'bad-file', what: 'scripts/texts.json' }) as {
    readonly sources: readonly Source[];
  }
).sources;

const withoutMark = (part: Buffer): string =>
  part
    .toString('utf8')
    .replace(/^\uFEFF/, '')
    .replaceAll('\r\n', '\n');
const novel = (part: Buffer): string => `${withoutMark(part).replaceAll('\f', '').trim()}\n`;

/** What becomes of the files of a repository, by the word in scripts/texts.json, which says it. */
const CHANGES = {
  none: (parts: readonly Buffer[]): Buffer => Buffer.concat(parts),
  lines: (parts: readonly Buffer[]): Buffer => Buffer.from(parts.map(withoutMark).join('')),
  novels: (parts: readonly Buffer[]): Buffer => Buffer.from(parts.map(novel).join('\f\n')),
} as const;

/** The text that files of a repository make. */
export const textFrom = ({ changes }: Source, parts: readonly Buffer[]): Buffer => CHANGES[changes](parts);

/** True if these bytes are the text. */
export const isText = ({ bytes, sha256 }: PublicText, content: Buffer): boolean =>
  content.length === bytes && createHash('sha256').update(content).digest('hex') === sha256;

/** Throws 'not-found' if the text has not been fetched, 'checksum-mismatch' if it is another. */
export function textOf(file: string): string {
  const text = SOURCES.flatMap(({ texts }) => texts).find((one) => one.file === file);
  if (text === undefined) throw new KvError('bad-argument', `scripts/texts.json has no ${file}`, { values: { file } });
  const content = bytesOf(file);
  if (isText(text, content)) return content.toString('utf8');
  throw new KvError('checksum-mismatch', `${file} is not the text that was measured`, {
    values: { file, sha256: text.sha256 },
    hint: 'npm run fetch:texts brings it again',
  });
}

function bytesOf(file: string): Buffer {
  const fetched = join(TEXTS_DIR, file);
  if (existsSync(fetched)) return readFileSync(fetched);
  const packed = join(SHARED_DIR, `${file}.xz`);
  if (existsSync(packed)) return execFileSync('xz', ['-dc', packed], { maxBuffer: UNPACKED_BYTES_MAX });
  throw new KvError('not-found', `the text ${file} is not here`, {
    values: { file },
    hint: 'npm run fetch:texts brings the texts that quality is measured on; the kind chronicle needs none',
  });
}
