/**
 * Gains of DoRA that were computed before. They need every weight of a model once, and stand for the same as long as
 * the weights, the factors and the magnitudes are the same: by a digest of all of them they are kept in memory, and in
 * a state folder where there is one. What is kept may go at any time, and is then computed again.
 */
import { createHash } from 'node:crypto';
import { readdirSync, rmSync, statSync, utimesSync } from 'node:fs';
import { join } from 'node:path';
import { KvError, readRegular, replaceFile } from '../../native/index.ts';
import { makeFolder } from '../state/folder.ts';
import type { AdapterMatrix } from '../transformer/types.ts';

/** What a matrix and its magnitudes are; the gains follow from them and the weights of the model. */
export interface Magnified {
  readonly matrix: AdapterMatrix;
  readonly magnitudes: Float32Array;
}

/** Most bytes in memory, and in a folder. */
export interface GainBounds {
  readonly memoryBytes: number;
  readonly folderBytes: number;
}
const BOUNDS: GainBounds = { memoryBytes: 16 * 2 ** 20, folderBytes: 256 * 2 ** 20 };
const DIGEST_BYTES = 32;
const FILE = /^[0-9a-f]{64}\.gains$/;

const bytesOf = ({ buffer, byteOffset, byteLength }: Float32Array): Uint8Array =>
  new Uint8Array(buffer, byteOffset, byteLength);

export class KeptGains {
  readonly #dir: string | null;
  readonly #bounds: GainBounds;
  /** The one that was asked for last is at the end. */
  readonly #memory = new Map<string, Float32Array>();

  /** stateDir: null: they are kept in memory alone. */
  constructor(stateDir: string | null, bounds: GainBounds = BOUNDS) {
    this.#dir = stateDir === null ? null : join(stateDir, 'adapters', 'gains');
    this.#bounds = bounds;
  }

  /** Those of each, which are computed where they are not there. model: the digest of the weights. */
  of(model: string, wanted: readonly Magnified[], compute: () => Float32Array[]): Float32Array[] {
    const key = keyOf(model, wanted);
    const count = wanted.reduce((sum, { magnitudes }) => sum + magnitudes.length, 0);
    const found = this.#memory.get(key) ?? this.#read(key, count);
    const all = found ?? joined(compute(), count);
    // Those of a row of zeros are refused by whoever asked.
    if (all.every(Number.isFinite)) {
      this.#remember(key, all);
      if (found === null) this.#write(key, all);
    }
    let at = 0;
    return wanted.map(({ magnitudes }) => all.slice(at, (at += magnitudes.length)));
  }

  #remember(key: string, gains: Float32Array): void {
    this.#memory.delete(key);
    this.#memory.set(key, gains);
    let bytes = 0;
    for (const one of this.#memory.values()) bytes += one.byteLength;
    for (const [first, one] of this.#memory) {
      if (bytes <= this.#bounds.memoryBytes) break;
      this.#memory.delete(first);
      bytes -= one.byteLength;
    }
  }

  /** null: they are not there, or what is there is not what was written. */
  #read(key: string, count: number): Float32Array | null {
    if (this.#dir === null) return null;
    const path = join(this.#dir, `${key}.gains`);
    try {
      const bytes = readRegular(path, { bytesMax: DIGEST_BYTES + 4 * count });
      const gains = new Float32Array(count);
      if (bytes.length !== DIGEST_BYTES + gains.byteLength) return null;
      bytesOf(gains).set(bytes.subarray(DIGEST_BYTES));
      if (!checksumOf(key, gains).equals(bytes.subarray(0, DIGEST_BYTES))) return null;
      const now = new Date();
      utimesSync(path, now, now);
      return gains;
    } catch {
      return null;
    }
  }

  /** A folder that takes nothing costs the time to compute them again, and no more. */
  #write(key: string, gains: Float32Array): void {
    const dir = this.#dir;
    if (dir === null) return;
    try {
      for (const one of [join(dir, '..', '..'), join(dir, '..'), dir]) makeFolder(one);
      replaceFile(join(dir, `${key}.gains`), Buffer.concat([checksumOf(key, gains), bytesOf(gains)]));
      this.#trim(dir);
    } catch (error) {
      if (!(error instanceof KvError) && (error as NodeJS.ErrnoException).code === undefined) throw error;
    }
  }

  /** Removes those that were asked for longest ago, as far as all of them are too many. */
  #trim(dir: string): void {
    const files = readdirSync(dir)
      .filter((name) => FILE.test(name))
      .map((name) => {
        const { size, mtimeMs } = statSync(join(dir, name));
        return { name, size, mtimeMs };
      })
      .sort((a, b) => a.mtimeMs - b.mtimeMs);
    let bytes = files.reduce((sum, { size }) => sum + size, 0);
    for (const { name, size } of files) {
      if (bytes <= this.#bounds.folderBytes) break;
      rmSync(join(dir, name), { force: true });
      bytes -= size;
    }
  }
}

function joined(gains: readonly Float32Array[], count: number): Float32Array {
  const all = new Float32Array(count);
  let at = 0;
  for (const one of gains) {
    all.set(one, at);
    at += one.length;
  }
  return all;
}

function keyOf(model: string, wanted: readonly Magnified[]): string {
  const hash = createHash('sha256').update(`${JSON.stringify(['gains', 1, model])}\n`);
  for (const {
    matrix: { layer, slot, rank, a, b },
    magnitudes,
  } of wanted) {
    hash.update(`${JSON.stringify([layer, slot, rank, a.length, b.length, magnitudes.length])}\n`);
    for (const values of [a, b, magnitudes]) hash.update(bytesOf(values));
  }
  return hash.digest('hex');
}

const checksumOf = (key: string, gains: Float32Array): Buffer =>
  createHash('sha256').update(key).update(bytesOf(gains)).digest();
