/**
 * `npm run fetch:texts` brings the public texts that quality is measured on (scripts/texts.json) into .cache/texts,
 * each checked by its SHA-256; what is there is not fetched again.
 *   --from URL   another server that has the repositories as GitHub does: URL/OWNER/NAME/COMMIT/PATH
 *   --to DIR     another folder
 * Ends with 2 if a text is missing at the end, and names it.
 */
import { existsSync, mkdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { parseArgs } from 'node:util';
import { isText, type PublicText, SOURCES, type Source, TEXTS_DIR, textFrom } from '../lab/evaluate/texts.ts';
import { KvError, replaceFile } from '../native/index.ts';

const GITHUB = 'https://raw.githubusercontent.com';
/** Ends of lines and marks take less than this share more. */
const SURPLUS = 1.1;
const PATIENCE_MS = 120_000;

const { values } = parseArgs({
  options: { from: { type: 'string', default: GITHUB }, to: { type: 'string', default: TEXTS_DIR } },
});

/** The bytes at an address. Throws KvError 'network'. */
async function bytesAt(url: string, bytesMax: number): Promise<Buffer> {
  const failed = (why: string, cause?: unknown): KvError =>
    new KvError('network', `${url} ${why}`, { values: { url }, cause });
  try {
    const response = await fetch(url, { signal: AbortSignal.timeout(PATIENCE_MS) });
    if (!response.ok) throw failed(`answers ${response.status}`);
    const chunks: Uint8Array[] = [];
    let bytes = 0;
    for await (const chunk of response.body ?? []) {
      bytes += chunk.length;
      if (bytes > bytesMax) throw failed(`sends more than ${bytesMax} bytes`);
      chunks.push(chunk);
    }
    return Buffer.concat(chunks);
  } catch (error) {
    throw error instanceof KvError ? error : failed('cannot be read', error);
  }
}

/** → 'here', or 'fetched'. Throws KvError 'network', 'checksum-mismatch'. */
async function bring(source: Source, text: PublicText): Promise<'here' | 'fetched'> {
  const path = join(values.to, text.file);
  if (existsSync(path) && isText(text, readFileSync(path))) return 'here';
  const parts: Buffer[] = [];
  for (const part of text.paths)
    parts.push(
      await bytesAt(`${values.from}/${source.repository}/${source.commit}/${part}`, Math.ceil(text.bytes * SURPLUS)),
    );
  const content = textFrom(source, parts);
  if (!isText(text, content))
    throw new KvError('checksum-mismatch', `what ${source.repository} has is not ${text.file}`, {
      values: { file: text.file, bytes: content.length, expected: text.bytes, sha256: text.sha256 },
    });
  mkdirSync(dirname(path), { recursive: true });
  replaceFile(path, content);
  return 'fetched';
}

for (const source of SOURCES) {
  for (const text of source.texts) {
    try {
      const how = await bring(source, text);
      process.stdout.write(`${text.file}  ${how}, ${text.bytes} bytes (${source.licence})\n`);
    } catch (error) {
      if (!(error instanceof KvError)) throw error;
      process.stderr.write(`${text.file}: ${error.message} [${error.code}]\n`);
      process.exitCode = 2;
    }
  }
}
