/**
 * What the body of each kind of entry may say. A hash proves that bytes were not changed, not that they make sense: whoever can write
 * files can write a log with right hashes. So every entry that is read passes here, and what follows may rely on its types.
 */
import { z } from 'zod';
import { isFormatName, KvError } from '../native/index.ts';
import type { EntryBodies, EntryKind } from './types.ts';

/** Columns of the SQL index and typed arrays hold no more. */
const count = z
  .int()
  .min(0)
  .max(2 ** 31 - 1);
const whole = z.int().min(0);
const real = z.number();
const text = z.string().max(4096);
const reals = z.array(real).max(65_536);
/** Far more layers than any model has. A bound is needed because policies allocate arrays of this size. */
const layers = z.int().min(1).max(4096);
const format = z.custom<string>((name) => typeof name === 'string' && isFormatName(name), 'not a format');
const side = z.enum(['k', 'v']);
const origin = z.enum(['default', 'learned', 'file', 'option', 'controller']);
const gains = z.object({ k: reals, v: reals });
const plain = z.record(z.string(), z.unknown());

const thresholds = z.object({
  version: z.literal(1),
  thresholds: z.record(
    z.string(),
    z.object({
      id: text,
      value: real,
      unit: text,
      origin,
      source: text,
      samples: whole,
      evidence: z.array(whole).max(65_536),
    }),
  ),
  gains,
  c: real,
});
const because = z.object({ threshold: text, measured: real, bound: real, unit: text, origin, rule: text });
const errors = z.record(format, real);
const place = { layer: count, page: count, side, from: format };

const changes = z.array(z.object({ ...place, to: format })).min(1);

const situation = z.object({
  index: count,
  tokens: whole,
  bytes: whole,
  sealBytes: whole,
  budgetBytes: whole.nullable(),
  kldBudget: real.nullable(),
  tokensExpected: whole.nullable(),
  movesMax: whole,
  urgent: z.boolean(),
  lowMemory: z.boolean(),
  stepLatencyMsP95: real,
  stepLatencyBudgetMs: real.nullable(),
  trials: z.array(z.object({ ...place, epsilon: errors })),
  outcomes: z.array(
    z.object({ ...place, to: format, accepted: z.boolean(), epsilonNow: real.nullable(), bytesFreed: z.int() }),
  ),
  changes: changes.optional(),
});

const BODIES: { readonly [K in EntryKind]: z.ZodType } = {
  open: z.object({
    model: z.object({ name: text, digest: text, architecture: text }),
    shape: z.object({ layers, queryHeads: count, kvHeads: count, headDim: count }),
    policy: z.object({ id: text, version: count, options: plain, machine: text }),
    context: z.object({
      layers,
      kvHeads: count,
      headDim: count,
      windowFormat: format,
      pageBytes: z.record(z.string(), whole),
      fixedBytes: whole,
      thresholds,
      skipLayers: z.array(count).max(4096),
      floor: z.object({ k: format, v: format }).nullable(),
      priority: z.enum(['bytes', 'kld']).optional(),
    }),
    requested: plain,
    effective: plain,
  }),
  evidence: z.object({
    fingerprint: reals,
    neighbours: z.array(z.object({ session: text, distance: real, seq: whole })).max(65_536),
    thresholds,
  }),
  situation: z.object({ situation }),
  decision: z.object({
    situation: count,
    order: count,
    decision: z.object({
      ...place,
      to: format,
      epsilonFrom: real.nullable(),
      epsilonTo: real.nullable(),
      price: real.nullable(),
      bytesFreed: z.int(),
      retry: z.boolean(),
      because,
    }),
    epsilonNow: real.nullable(),
    verdict: z.object({ accepted: z.boolean(), because }),
    bytesBefore: whole,
    bytesAfter: whole,
    tokens: whole,
  }),
  change: z.object({
    cause: z.enum(['restore', 'give-back', 'shared']),
    changes,
    bytesBefore: whole,
    bytesAfter: whole,
    tokens: whole,
  }),
  close: z.object({
    tokens: whole,
    kvBytes: whole,
    kvBytesF16: whole,
    effectiveBits: real,
    decisions: count,
    refused: count,
    priceThreshold: real,
    predictedKld: real,
    meanKld: real.nullable(),
    fingerprint: reals,
    gains,
    c: real,
    reason: z.enum(['done', 'aborted', 'error']),
  }),
  recovered: z.object({ droppedBytes: whole, segment: text }),
  note: plain,
};

/** Returns the body once it is known to fit its kind. Throws 'bad-log' naming the first field that does not. */
export function checkBody<K extends EntryKind>(kind: K, body: unknown): EntryBodies[K] {
  const { success, error } = BODIES[kind].safeParse(body);
  if (success) return body as EntryBodies[K];
  const { path, message } = error.issues[0]!;
  throw new KvError(
    'bad-log',
    `the ${kind} entry makes no sense: ${[path.map(String).join('.'), message].join(': ')}`,
    {
      values: { kind, path: path.map(String).join('.') },
    },
  );
}
