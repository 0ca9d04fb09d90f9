/**
 * Who may ask, by keys: a file has the SHA-256 of each, so whoever reads it can ask nothing. One key shares no cache
 * with another and is told of no other, unless it may see all.
 */
import { createHash, timingSafeEqual } from 'node:crypto';
import type { IncomingHttpHeaders } from 'node:http';
import { z } from 'zod';
import { KvError, readRegular } from '../../native/index.ts';
import { parseTable } from '../options/table-file.ts';

const KEY = z.strictObject({
  name: z.string().min(1).max(100).describe('who has it; two keys of one name are of one person'),
  sha256: z
    .string()
    .regex(/^[0-9a-f]{64}$/, '64 hexadecimal digits')
    .describe('of the key'),
  sees: z
    .enum(['answers', 'all'])
    .default('answers')
    .describe('answers: its own answers; all: also sessions, decisions and metrics of everybody'),
  priority: z.int().default(0).describe('whose requests begin first: a lower number before a higher one'),
  weight: z.number().positive().max(1000).default(1).describe('its share of turns beside others of its priority'),
  requestsPerSecond: z.number().positive().optional().describe('in the long run; twice as many at once'),
});

/** A key of a server. */
export interface ApiKey {
  /** Who has it. Two keys of one name are of one person. Not empty. */
  readonly name: string;
  /** Of the key, in hexadecimal. */
  readonly sha256: string;
  /** What it is told: its own answers, or also sessions, decisions and metrics of everybody. Default 'answers'. */
  readonly sees?: 'answers' | 'all';
  /** Whose requests begin first: a lower number before a higher one. Default 0. */
  readonly priority?: number;
  /** Its share of turns beside others of its priority. Default 1. */
  readonly weight?: number;
  /** In the long run; twice as many at once. Default: no bound but that of its address. */
  readonly requestsPerSecond?: number;
}

const FILE = z.strictObject({ keys: z.array(KEY).min(1).max(10_000) });
const FILE_BYTES_MAX = 2 ** 22;

/** The keys of a TOML or JSON file. Throws 'bad-config', 'not-found', 'io'. */
export function readKeys(path: string): readonly ApiKey[] {
  const table = parseTable(path, readRegular(path, { bytesMax: FILE_BYTES_MAX, code: 'bad-config' }));
  return checkedKeys((table as { keys?: unknown }).keys, path, table);
}

/** Throws 'bad-config'. where: what has them. */
export function checkedKeys(keys: unknown, where: string, table: object = { keys }): readonly ApiKey[] {
  const { success, data, error } = FILE.safeParse(table);
  if (success) return data.keys as readonly ApiKey[];
  const [{ path, message }] = error.issues as [z.core.$ZodIssue];
  throw new KvError('bad-config', `${where}: ${path.join('.')}: ${message}`, {
    values: { path: where, keys: Array.isArray(keys) ? keys.length : null },
    hint: '[[keys]] with name = "ann" and sha256 = "…", which printf %s KEY | sha256sum tells',
  });
}

/** The key of whoever has the one token of a server. */
export const tokenKey = (token: string): ApiKey => ({
  name: '',
  sha256: createHash('sha256').update(token).digest('hex'),
  sees: 'all',
  priority: 0,
  weight: 1,
});

export class Keys {
  readonly #all: readonly { readonly key: ApiKey; readonly hash: Buffer }[];

  constructor(keys: readonly ApiKey[]) {
    this.#all = keys.map((key) => ({ key, hash: Buffer.from(key.sha256, 'hex') }));
  }

  /** True if anybody may ask. */
  get areNone(): boolean {
    return this.#all.length === 0;
  }

  /**
   * Whose key headers have; null: nobody's. Compares hashes, and all of them, so that the time it takes tells nothing
   * of the keys.
   */
  find({ authorization = '', 'x-api-key': header }: IncomingHttpHeaders): ApiKey | null {
    const given = /^Bearer +(\S+)$/i.exec(authorization)?.[1] ?? (typeof header === 'string' ? header : '');
    const hash = createHash('sha256').update(given).digest();
    let found: ApiKey | null = null;
    for (const one of this.#all) if (timingSafeEqual(hash, one.hash)) found = one.key;
    return given === '' ? null : found;
  }
}
