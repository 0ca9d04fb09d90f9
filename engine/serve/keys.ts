/**
 * Who may ask, by keys: a file has the SHA-256 of each, so whoever reads it can ask nothing. One key shares no cache
 * with another and is told of no other, unless it may see all.
 */
import { createHash, timingSafeEqual } from 'node:crypto';
import type { IncomingHttpHeaders } from 'node:http';
import { z } from 'zod';
import { KvError, readRegular } from '../../native/index.ts';
import { ENTRY_KINDS, type LogRule, withRules } from '../../witness/index.ts';
import { parseGroupBudget } from '../options/parse-budget.ts';
import { parseTable } from '../options/table-file.ts';
import type { KvBudget } from '../options/types.ts';

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
  requestsMax: z
    .int()
    .min(1)
    .optional()
    .describe('requests that are answered or wait at one time; more are refused (429)'),
  streamsMax: z
    .int()
    .min(1)
    .default(4)
    .describe('streams of `/v1/live`, and of `/v1/decisions/stream`, at one time; more are refused (503)'),
  kvBudget: z
    .union([z.string(), z.number()])
    .superRefine((budget, context) => {
      const refused = refusedBudget(budget);
      if (refused !== null) context.addIssue({ code: 'custom', message: refused });
    })
    .optional()
    .describe("what its conversations hold together at most: bytes (`2GiB`), or a share of the server's (`25%`)"),
  logged: z.boolean().default(true).describe('false: the log has nothing of its conversations'),
  logRules: z
    .array(
      z.strictObject({
        action: z.enum(['drop', 'mask']),
        path: z.string().optional(),
        kinds: z.array(z.enum(ENTRY_KINDS)).optional(),
      }),
    )
    .superRefine((rules, context) => {
      const refused = refusedRules(rules as readonly LogRule[]);
      if (refused !== null) context.addIssue({ code: 'custom', message: refused });
    })
    .optional()
    .describe('what of them is left out of the log beside what the rules of the server leave out (`--log-rules`)'),
});

/** What a key may say of a field, one row each, as documents have them. */
export const KEY_FIELDS: readonly { readonly name: string; readonly means: string; readonly default: unknown }[] =
  Object.entries(KEY.shape).map(([name, field]) => ({
    name,
    means: field.description!,
    default: field instanceof z.ZodDefault ? field.def.defaultValue : undefined,
  }));

/** Why something is no budget of a group; null: it is one. */
function refusedBudget(budget: string | number): string | null {
  return refusalOf(() => parseGroupBudget(budget, Number.MAX_SAFE_INTEGER));
}

function refusedRules(rules: readonly LogRule[]): string | null {
  return refusalOf(() => withRules(null, rules));
}

function refusalOf(check: () => unknown): string | null {
  try {
    check();
    return null;
  } catch (error) {
    if (!(error instanceof KvError)) throw error;
    return error.message;
  }
}

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
  /** Requests that are answered or wait at one time; more are refused with 429. Default: as many as of all. */
  readonly requestsMax?: number;
  /** Streams of `/v1/live`, and of `/v1/decisions/stream`, at one time. Default 4. */
  readonly streamsMax?: number;
  /** What its conversations hold together at most, as the kvBudget of a KvGroup. Default: as much as those of all. */
  readonly kvBudget?: KvBudget;
  /** False: the log has nothing of its conversations. Default true. */
  readonly logged?: boolean;
  /** What of them is left out of the log beside what the rules of the engine leave out. Default: nothing more. */
  readonly logRules?: readonly LogRule[];
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

/** Streams of one key at one time; those of the one token that all have are as many as there are. */
export const streamsMaxOf = ({ name, streamsMax = KEY.shape.streamsMax.def.defaultValue }: ApiKey): number =>
  name === '' ? Number.POSITIVE_INFINITY : streamsMax;

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
