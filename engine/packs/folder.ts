/**
 * A pack as it is passed on: a folder with two files, the signed envelope and the module that it is about. Everything
 * is read once, into memory, after its size was looked at; what is checked and what is kept are these bytes.
 */
import { type Dirent, lstatSync, mkdirSync, opendirSync } from 'node:fs';
import { join } from 'node:path';
import { KvError, readRegular, refusedFile, replaceFile } from '../../native/index.ts';
import { ENVELOPE_BYTES_MAX, MODULE_NAME } from './envelope.ts';
import { MODULE_BYTES_MAX } from './manifest.ts';

export const ENVELOPE_NAME = 'pack.json';
const NAMES: readonly string[] = [ENVELOPE_NAME, MODULE_NAME];

/** A pack that nobody has checked. */
export interface PackFiles {
  readonly path: string;
  readonly envelope: Buffer;
  readonly module: Buffer;
}

/** Names in a folder, of which one more than wanted is enough to know. */
function namesIn(path: string): string[] {
  try {
    const dir = opendirSync(path);
    try {
      const names: string[] = [];
      for (let entry: Dirent | null; names.length <= NAMES.length && (entry = dir.readSync()) !== null; )
        names.push(entry.name);
      return names;
    } finally {
      dir.closeSync();
    }
  } catch (cause) {
    throw refusedFile(path, cause);
  }
}

/** Throws 'bad-file' for what is no pack, 'not-found', 'io'. */
export function readPackFolder(path: string): PackFiles {
  const names = namesIn(path);
  if (names.length !== NAMES.length || NAMES.some((name) => !names.includes(name)))
    throw new KvError('bad-file', `${path} has something else than ${NAMES.join(' and ')}`, {
      values: { path, names: names.map((name) => name.slice(0, 80)) },
    });
  const read = (name: string, bytesMax: number): Buffer => {
    const file = join(path, name);
    if (!lstatSync(file).isFile())
      throw new KvError('bad-file', `${file} is a link or no regular file`, { values: { path: file } });
    return readRegular(file, { bytesMax });
  };
  return { path, envelope: read(ENVELOPE_NAME, ENVELOPE_BYTES_MAX), module: read(MODULE_NAME, MODULE_BYTES_MAX) };
}

/** Writes a pack into a folder, which is made. Throws 'io'. */
export function writePackFolder({ path, envelope, module }: PackFiles): void {
  try {
    mkdirSync(path, { recursive: true });
  } catch (cause) {
    throw refusedFile(path, cause);
  }
  replaceFile(join(path, MODULE_NAME), module);
  replaceFile(join(path, ENVELOPE_NAME), envelope);
}
