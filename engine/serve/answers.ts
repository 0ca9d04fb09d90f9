/**
 * What the live view answers, as schemas: the types, the OpenAPI document, and the checks of tests all come from here.
 */
import { z } from 'zod';
import { FORMAT_NAMES, KV_ERROR_CODES, type KvErrorCode, LATENT_NAMES } from '../../native/index.ts';
import { type LaterForm, type PageForm, QUALITY_SOURCES } from '../../policy/index.ts';
import {
  coreOf,
  DECISION_ROW,
  type DecisionRow,
  mayBeNull,
  type RowField,
  SESSION_ROW,
  type SessionRow,
  type Type,
} from '../../witness/index.ts';
import { KNOWN_CODES } from '../openai/failure.ts';

const count = z.int().min(0);
const real = z.number();
const text = z.string();
const timeMs = z.number().describe('milliseconds since the epoch');
const session = text.describe('id of the session');
export const form = z.enum([...FORMAT_NAMES, ...LATENT_NAMES] as PageForm[]);
export const laterForm = z.enum([...form.options, 'freed'] as LaterForm[]);
const END = ['open', 'done', 'aborted', 'error'] as const;

/** Some rows of a list, and where it goes on. */
const pageOf = <Row extends z.ZodType>(row: Row) =>
  z.strictObject({
    rows: z.array(row),
    next: text.nullable().describe('value of `cursor` for the next rows; null: there are none'),
  });

/** The type of a field of a row. Numbers that columns of SQL bound are not bounded here. */
function schemaOf(type: Type): z.ZodType {
  if (mayBeNull(type)) return schemaOf(coreOf(type)).nullable();
  switch (type.is) {
    case 'integer':
      return type.min < 0 ? z.int() : count;
    case 'real':
      return real;
    case 'flag':
      return z.boolean();
    case 'one':
      return z.enum(type.of as string[]);
    default:
      return text;
  }
}

/** A sentence as the phrase that stands in descriptions: 'Id of the session.' → 'id of the session'. */
const phraseOf = (sentence: string): string =>
  sentence.replace(/\.$/, '').replace(/^[A-Z](?=[a-z])/, (letter) => letter.toLowerCase());

/** A row with the fields that `witness/entries/` says it has, and what each means as its description. */
export function rowSchema<Row>(fields: readonly RowField[]): z.ZodType<Row> {
  const shape = fields.map(({ name, type, means = '' }) => [name, schemaOf(type).describe(phraseOf(means))] as const);
  return z.strictObject(Object.fromEntries(shape)) as unknown as z.ZodType<Row>;
}

const decision = rowSchema<DecisionRow>(DECISION_ROW);
const sessionRow = rowSchema<SessionRow>(SESSION_ROW);

const memory = z.strictObject({
  session,
  end: z.enum(END),
  lastMs: timeMs.describe('of its latest entry'),
  tokens: count,
  kvBytes: count.describe('bytes of keys and values at its latest situation'),
  kvBytesPeak: count.nullable().describe('the most they ever were; null before the session ended'),
  kvBytesF16: count.nullable().describe('what the same tokens take in f16; null before the session ended'),
  budgetBytes: count.nullable().describe('null: no budget of bytes'),
  canaryBytes: count.describe('of these, originals and rows that are kept to be measured again'),
  stepLatencyMsP95: real.describe('of recent steps of one token; 0: unknown'),
  effectiveBits: real.nullable().describe('bits per number, all metadata included; null before the session ended'),
  formats: z
    .strictObject({ k: z.record(text, real), v: z.record(text, real) })
    .nullable()
    .describe('share of the sealed pages in each format; null before the session ended'),
});
export type MemoryRow = z.infer<typeof memory>;

const quality = z.strictObject({
  session,
  end: z.enum(END),
  lastMs: timeMs.describe('of its latest entry'),
  meanKld: real.nullable().describe('divergence from the exact cache in nats; null: not measured'),
  predictedKld: real
    .nullable()
    .describe('what the policy predicted in nats; null before the session ended, and where it predicts nothing'),
  decisions: count,
  refused: count,
  gaveWay: z.enum(['bytes', 'kld']).nullable().describe('the budget that could not be kept beside the other'),
  statedDivergence: z
    .enum(['broken', 'kept'])
    .nullable()
    .describe('whether it kept the divergence that was stated for it when this last changed; null: it never did'),
  missingEntries: count.describe('entries of it that the log says it does not hold'),
  layers: z
    .array(
      z.strictObject({
        layer: count,
        state: text,
        threshold: text,
        measured: real,
        bound: real,
        source: z.enum(QUALITY_SOURCES),
        seq: count,
      }),
    )
    .describe('layers whose quality changed its state, with the latest change'),
  canaries: z.strictObject({
    probes: count,
    worst: z
      .strictObject({
        layer: count,
        page: count,
        side: z.enum(['k', 'v']),
        to: form,
        epsilonPromised: real,
        epsilonNow: real,
        seq: count,
      })
      .nullable()
      .describe('the one whose error exceeds what was promised by most'),
  }),
});
export type QualityRow = z.infer<typeof quality>;

const because = z.looseObject({ threshold: text, measured: real, bound: real, unit: text, rule: text });

export const ANSWERS = {
  sessions: z.strictObject({
    ...pageOf(sessionRow).shape,
    unopened: z
      .strictObject({ erased: count, missing: count })
      .describe('sessions of which nothing can be said: they were erased, or their keys are not here or damaged'),
  }),
  session: z.strictObject({ session: sessionRow, memory, quality }),
  decisions: pageOf(decision),
  decision,
  map: z
    .looseObject({ session, layers: count, tokens: count, forms: z.array(text), formBits: z.array(real) })
    .describe('the columns of `situations`, `decisions` and `changes` are those of a report of the session'),
  live: z
    .looseObject({
      timeMs,
      model: text.nullable().describe('the name that clients ask for; null: nothing is answered here'),
      hasLog: z.boolean().describe('whether a log is read here'),
      seesAll: z.boolean().describe('false: a key is told of its own answers alone'),
      engine: z.looseObject({}).nullable().describe('what the engine does; null: there is none, or it is not told'),
      pools: z.array(z.looseObject({ pool: text })),
      sessions: z.array(z.looseObject({ session })),
    })
    .describe('rates are those since the snapshot before'),
  memory: pageOf(memory),
  quality: pageOf(quality),
  explanation: z
    .looseObject({
      id: count,
      decision,
      model: text,
      policy: text,
      because,
      verdict: because,
      sentences: z.array(z.strictObject({ title: text, text })),
    })
    .describe('everything that the log says about one decision; `sentences` tell it'),
  verification: z
    .strictObject({
      checkedMs: timeMs,
      report: z.looseObject({
        ok: z.boolean(),
        logId: text.nullable(),
        segments: count,
        entries: count,
        headHash: text,
        problem: z.strictObject({ segment: text, offset: count, seq: count.nullable(), what: text }).nullable(),
      }),
    })
    .describe(
      'whether every byte of the log is what was written. Against a cut tail compare headHash and entries with what was kept elsewhere',
    ),
  lowMemory: z.strictObject({ low: z.boolean().describe('what the engine was told') }),
  error: z.strictObject({
    error: z.strictObject({
      message: text,
      type: text.describe('what kind of refusal it is, as OpenAI servers name them'),
      param: text.nullable().describe('where in the request it is; null: nowhere in it'),
      code: z
        .enum([...(Object.keys(KV_ERROR_CODES) as KvErrorCode[]), ...KNOWN_CODES])
        .nullable()
        .describe('null: a fault of the server'),
      values: z.record(text, z.unknown()),
      hint: text.nullable(),
    }),
  }),
} as const;

export type SessionDetail = z.infer<typeof ANSWERS.session>;
/** Some rows of a list, and where it goes on. */
export interface Page<Row> {
  readonly rows: readonly Row[];
  readonly next: string | null;
}

export interface Sessions extends Page<SessionRow> {
  readonly unopened: { readonly erased: number; readonly missing: number };
}
