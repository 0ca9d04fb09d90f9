/** The head of a parked session: whose it is, what was asked of it, and what must fit on the way back. */
import { z } from 'zod';
import { checkKeys, FORMAT_NAMES, KvError, LATENT_NAMES, PARTS, sealedPages } from '../../native/index.ts';
import type { PageForm, TrialReport } from '../../policy/index.ts';
import { SESSION_OPTIONS } from '../option-names.ts';
import type { TrialsLeft } from '../trials.ts';
import type { SessionOptions } from '../types.ts';

/** Options that are objects of the caller's, or that name files of the caller's: a session that is resumed starts with what one opened now would. */
export const NOT_PARKED = ['thresholds', 'thresholdsPath'] as const;

const count = z
  .int()
  .min(0)
  .max(2 ** 30);
const name = z.string().max(256);
const digest = z.string().regex(/^[0-9a-f]{64}$/);
const form = z.enum([...FORMAT_NAMES, ...LATENT_NAMES] as PageForm[]);
const place = z.strictObject({ layer: count, page: count });
const report = z.strictObject({
  layer: count,
  page: count,
  side: z.enum(PARTS),
  from: form,
  epsilon: z.partialRecord(form, z.number().min(0)),
}) as unknown as z.ZodType<TrialReport>;

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
  /** Of what its pages were predicted by; null: they are as they are stored. */
  predictor: digest.nullable(),
  /** Bytes that the cache took in memory, and those of f16. */
  kvBytes: count.max(Number.MAX_SAFE_INTEGER),
  kvBytesF16: count.max(Number.MAX_SAFE_INTEGER),
  trials: z.strictObject({
    admitted: count,
    due: z.number(),
    found: z.array(report),
    waiting: z.array(place),
    waitingAgain: z.array(place),
    foundAgain: z.array(report),
  }) as unknown as z.ZodType<TrialsLeft>,
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
  const { layers } = head.shape;
  const places = [head.trials.found, head.trials.foundAgain, head.trials.waiting, head.trials.waitingAgain].flat();
  const outside = places.find(({ layer, page }) => layer >= layers || page > sealedPages(head.tokens));
  if (outside !== undefined)
    throw new KvError('bad-file', `${what} tells of a page that it does not hold`, {
      values: { file: what, layer: outside.layer, page: outside.page },
    });
  return head;
}
