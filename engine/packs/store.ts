/**
 * Where packs lie: files that are named by their SHA-256, and generations, each of which says all that holds at once:
 * the trust file, the floors, and every pack with its state. `current` names one of them. What a generation names is on
 * disk before the generation is, and the generation before `current` names it, so whoever is killed between any two
 * calls, or loses its power, leaves the old generation or the new one, and never neither.
 *
 *   packs/objects/SHA256            modules, envelopes of packs, trust files
 *   packs/generations/N.json        written once
 *   packs/current                   N
 */
import { createHash } from 'node:crypto';
import { dirname, join } from 'node:path';
import { z } from 'zod';
import {
  KvError,
  parseJson,
  readWhole,
  refusedFile,
  syncFolder,
  temporaryName,
  writeSynced,
} from '../../native/index.ts';
import { PACK_EVENTS, PACK_STATES } from '../../policy/index.ts';
import { type LogFiles, nodeFiles } from '../../witness/index.ts';
import { badField, packName, packVersion, sha256Hex } from './manifest.ts';

/** A generation names at most so many packs; retired ones make room. */
export const PACKS_MAX = 256;
const GENERATION_BYTES_MAX = 4 * 1024 * 1024;
const CURRENT_BYTES_MAX = 16;
const LOST = 'put the folder packs/ of the state folder back as it was';

const number = z.int().min(1).max(1_000_000_000);
const keyIds = z.array(z.string().regex(/^[0-9a-f]{16}$/)).max(16);
const numbers = z.record(z.string().max(40), z.number());

const recordSchema = z.strictObject({
  name: packName,
  version: packVersion,
  digest: sha256Hex,
  envelope: sha256Hex,
  state: z.enum(PACK_STATES),
  /** When its signatures were checked: keys that expired later have signed in time. */
  installedMs: z.number().min(0).max(8.64e15),
  keyIds,
  trustVersion: z.int().min(1),
  numbers,
});

const arrowSchema = z.strictObject({
  name: packName,
  version: packVersion,
  digest: sha256Hex,
  envelope: sha256Hex,
  from: z.enum(PACK_STATES),
  event: z.enum(PACK_EVENTS),
  to: z.enum(PACK_STATES),
  keyIds,
  trustVersion: z.int().min(1),
  because: z.string().max(4000),
  numbers,
});

const generationSchema = z.strictObject({
  kind: z.literal('palimpsest-packs'),
  schemaVersion: z.literal(1),
  generation: number,
  previous: number.nullable(),
  /** The one that the last flip took the place of; a rollback goes there. */
  lastKnownGood: number.nullable(),
  trust: z.strictObject({ version: z.int().min(1), envelope: sha256Hex }),
  floors: z.record(z.string().max(64), packVersion),
  packs: z.array(recordSchema).max(PACKS_MAX),
  /** The arrows that led here from the one before. */
  arrows: z.array(arrowSchema).max(16 * PACKS_MAX),
});

/** A pack as a generation has it. */
export type PackRecord = z.infer<typeof recordSchema>;
/** An arrow that a pack took. */
export type TakenArrow = z.infer<typeof arrowSchema>;
/** All that holds at once. */
export type Generation = z.infer<typeof generationSchema>;

export const sha256Of = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex');

export const packsDir = (stateDir: string): string => join(stateDir, 'packs');

export class PackStore {
  readonly dir: string;
  readonly #files: LogFiles;

  constructor(stateDir: string, files: LogFiles = nodeFiles) {
    this.dir = packsDir(stateDir);
    this.#files = files;
  }

  /** What holds now; null: nothing was ever installed. Throws 'bad-file', 'io'. */
  current(): Generation | null {
    const number = this.currentNumber();
    return number === null ? null : this.generation(number);
  }

  /** Its number, which is cheap to look at again and again. Throws 'bad-file', 'io'. */
  currentNumber(): number | null {
    const path = join(this.dir, 'current');
    let text: string;
    try {
      text = this.#read(path, CURRENT_BYTES_MAX).toString('latin1');
    } catch (error) {
      if (error instanceof KvError && error.code === 'not-found') return null;
      throw error;
    }
    if (!/^[1-9]\d{0,8}\n$/.test(text))
      throw new KvError('bad-file', `${path} names no generation`, { values: { path }, hint: LOST });
    return Number(text);
  }

  /** Throws 'not-found', 'bad-file', 'io'. */
  generation(number: number): Generation {
    const path = this.#generationPath(number);
    const bytes = this.#read(path, GENERATION_BYTES_MAX);
    const parsed = generationSchema.safeParse(parseJson(bytes, { code: 'bad-file', what: path, hint: LOST }));
    if (!parsed.success) throw badField(path, parsed.error);
    if (parsed.data.generation !== number)
      throw new KvError('bad-file', `${path} is of another generation`, { values: { path, number }, hint: LOST });
    return parsed.data;
  }

  /** Bytes by their digest. Throws 'not-found', 'checksum-mismatch', 'bad-file', 'io'. */
  object(digest: string, bytesMax: number): Buffer {
    const path = this.#objectPath(digest);
    const bytes = this.#read(path, bytesMax);
    const actual = sha256Of(bytes);
    if (actual === digest) return bytes;
    throw new KvError('checksum-mismatch', `${path} was changed after it was written`, {
      values: { path, expected: digest, actual },
      hint: LOST,
    });
  }

  /** Makes the folder, in which writers lock each other out. Throws 'io'. */
  makeFolder(): void {
    try {
      this.#makeFolder(this.dir);
    } catch (cause) {
      throw refusedFile(this.dir, cause);
    }
  }

  /** Puts objects and a generation on disk, and then makes it the current one. Throws 'io'. */
  commit(next: Generation, objects: readonly Uint8Array[]): void {
    const text = `${JSON.stringify(generationSchema.parse(next))}\n`;
    try {
      for (const folder of ['objects', 'generations']) this.#makeFolder(join(this.dir, folder));
      for (const bytes of objects) this.#put(this.#objectPath(sha256Of(bytes)), bytes);
      this.#put(this.#generationPath(next.generation), Buffer.from(text));
      this.#put(join(this.dir, 'current'), Buffer.from(`${next.generation}\n`));
    } catch (cause) {
      if (cause instanceof KvError) throw cause;
      throw new KvError('io', `the store of packs cannot be written: ${(cause as Error).message}`, {
        values: { dir: this.dir },
        cause,
      });
    }
  }

  #objectPath(digest: string): string {
    return join(this.dir, 'objects', digest);
  }

  #generationPath(number: number): string {
    return join(this.dir, 'generations', `${number}.json`);
  }

  /** A folder and the names of it and of those above are on disk before anything is put in it. */
  #makeFolder(dir: string): void {
    this.#files.mkdirSync(dir);
    for (const above of [dirname(dir), dirname(dirname(dir))]) syncFolder(above, this.#files);
  }

  /** Under its name there is the whole file or what was there before. */
  #put(path: string, bytes: Uint8Array): void {
    const aside = temporaryName(path);
    try {
      this.#files.unlinkSync(aside);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
    }
    writeSynced(aside, bytes, 'wx', this.#files);
    this.#files.renameSync(aside, path);
    syncFolder(dirname(path), this.#files);
  }

  /** A whole file, whose size is looked at before anything is allocated. */
  #read(path: string, bytesMax: number): Buffer {
    let fd: number;
    try {
      fd = this.#files.openSync(path, 'r');
    } catch (cause) {
      throw refusedFile(path, cause);
    }
    try {
      const size = this.#files.sizeSync(fd);
      if (size > bytesMax)
        throw new KvError('bad-file', `${path} has ${size} bytes; at most ${bytesMax} are plausible`, {
          values: { path, bytes: size, bytesMax },
        });
      const bytes = Buffer.alloc(size);
      return bytes.subarray(0, readWhole(fd, bytes, 0, this.#files as never));
    } catch (cause) {
      throw cause instanceof KvError ? cause : refusedFile(path, cause);
    } finally {
      this.#files.closeSync(fd);
    }
  }
}
