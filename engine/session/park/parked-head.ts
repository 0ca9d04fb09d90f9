/** The head of a parked session: whose it is, what was asked of it, and what must fit on the way back. */
import { z } from 'zod';
import { checkKeys, KvError } from '../../../native/index.ts';
import { SESSION_OPTIONS } from '../../options/table.ts';
import type { SessionOptions } from '../../options/types.ts';
import { checkTrials, count, trialsSchema } from './trials-left.ts';

/**
 * Options that are objects of the caller's, or that name files of the caller's: a session that is resumed starts with
 * what one opened now would.
 */
export const NOT_PARKED = ['thresholds', 'thresholdsPath'] as const;

const name = z.string().max(256);
const digest = z.string().regex(/^[0-9a-f]{64}$/);

const schema = z.strictObject({
  /** Its id in the log. */
  session: name,
  parkedMs: z.number(),
  model: z.strictObject({ name, digest, architecture: name }),
  shape: z.strictObject({ layers: count, queryHeads: count, kvHeads: count, headDim: count }),
  tokens: count,
  /** SHA-256 of the text that the tokens stand for: another model may read it if its tokens stand for the same. */
  textDigest: digest,
  policy: z.strictObject({ id: name, version: count, machine: name }),
  options: z.record(z.string(), z.unknown()) as unknown as z.ZodType<SessionOptions>,
  /** The digest of what its pages were predicted by; null: they are as they are stored. */
  predictor: digest.nullable(),
  /** Bytes that the cache took in memory, and those of f16. */
  kvBytes: count.max(Number.MAX_SAFE_INTEGER),
  kvBytesF16: count.max(Number.MAX_SAFE_INTEGER),
  trials: trialsSchema,
});

/** See the schema. */
export type ParkedHead = z.infer<typeof schema>;

/** What JSON says, checked. Throws 'bad-file'. */
export function parkedHead(json: unknown, what: string): ParkedHead {
  const read = schema.safeParse(json);
  if (!read.success) {
    const [issue] = read.error.issues;
    throw new KvError('bad-file', `the head of ${what} makes no sense: ${issue?.message ?? 'unknown'}`, {
      values: { file: what, at: issue?.path.join('.') },
    });
  }
  const head = read.data;
  checkKeys(head.options, SESSION_OPTIONS, `the options in ${what}`);
  checkTrials(head, what);
  return head;
}
