/** The head of a parked session: whose it is, what was asked of it, and what must fit on the way back. */
import { z } from 'zod';
import { allows, KvError, type Option, refusalOf, show } from '../../../native/index.ts';
import { ADAPTERS_MAX, SESSION_OPTIONS } from '../../options/table.ts';
import type { SessionOptions } from '../../options/types.ts';
import { checkTrials, count, trialsSchema } from './trials-left.ts';

/** The options that a file of a parked session holds: those of the table that are plain data and its own affair. */
export const PARKED_OPTIONS: Readonly<Record<string, Option>> = Object.fromEntries(
  Object.entries<Option>(SESSION_OPTIONS).filter(([, { parked }]) => parked !== false),
);

/** Earlier versions wrote it too. Whoever resumes says whether decisions are logged. */
const LEFT_OUT = 'witness';

/** Runs of steps that a head has at most; of a session with more nothing is said. */
export const DESCENT_STEPS_MAX = 4096;

const name = z.string().max(256);
/** No model of ours has more layers, and no session more pages. */
const LAYERS_MAX = 1024;
const PACK_PAGES_MAX = 2 ** 16;
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
  /** Of the matrices that took activations of 8 bits, as ActivationChoice has them; absent: none. */
  eightBit: z.array(z.int().min(0).max(127)).max(1025).optional(),
  /**
   * What added to its rows, in order, by digest; absent: nothing. Of one that tokens activate, `since` is the first
   * whose row it added to; null: none.
   */
  adapters: z
    .array(z.strictObject({ digest, scale: z.number(), since: count.nullable().optional() }))
    .max(ADAPTERS_MAX)
    .optional(),
  options: z.record(z.string(), z.unknown()),
  /**
   * In whose codec pages of it are, and which were there at any time, of each layer in order; absent: it has none, or
   * has left it.
   */
  pack: z.strictObject({ name, digest, pages: z.array(z.array(count).max(PACK_PAGES_MAX)).max(LAYERS_MAX) }).optional(),
  /** The digest of what its pages were predicted by; null: they are as they are stored. */
  predictor: digest.nullable(),
  /** Bytes that the cache took in memory, and those of f16. */
  kvBytes: count.max(Number.MAX_SAFE_INTEGER),
  kvBytesF16: count.max(Number.MAX_SAFE_INTEGER),
  /** Pages from 0 on that it held together with other sessions; absent: none. */
  heldPages: count.optional(),
  /**
   * How it can be made again of its tokens and a log, where that has all of it: the log, its first and last entry
   * there, the formats and tokens of its window, and the steps in which its tokens were read, as pairs of a length and
   * how often; absent: it cannot.
   */
  descent: z
    .strictObject({
      log: name,
      first: count.max(Number.MAX_SAFE_INTEGER),
      last: count.max(Number.MAX_SAFE_INTEGER),
      window: name,
      steps: z.array(z.tuple([count.min(1), count.min(1)])).max(DESCENT_STEPS_MAX),
    })
    .optional(),
  trials: trialsSchema,
});

/** See the schema. Its options are those of PARKED_OPTIONS. */
export type ParkedHead = Omit<z.infer<typeof schema>, 'options'> & { readonly options: SessionOptions };

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
  checkTrials(head, what);
  return { ...head, options: parkedOptions(head.options, what) };
}

/** Throws 'bad-file' for an option that no parked session has, or that cannot be what it is. */
function parkedOptions(given: Readonly<Record<string, unknown>>, what: string): SessionOptions {
  const { [LEFT_OUT]: _, ...options } = given;
  for (const [option, value] of Object.entries(options)) {
    const row = Object.hasOwn(PARKED_OPTIONS, option) ? PARKED_OPTIONS[option] : undefined;
    if (row === undefined)
      throw new KvError('bad-file', `${what} names an option that no parked session has: ${show(option)}`, {
        values: { file: what, option, known: Object.keys(PARKED_OPTIONS).join(', ') },
        hint: 'resume only files of people whom you trust; options can be given to resume itself',
      });
    // A policy of the caller's own is never parked: what a file names is no reason to run it.
    if (!allows(row, value) || (option === 'policy' && typeof value !== 'string'))
      throw new KvError('bad-file', `an option in ${what} cannot be so: ${refusalOf(option, row)}`, {
        values: { file: what, [option]: show(value) },
      });
  }
  return options;
}
