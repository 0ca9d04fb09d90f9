/**
 * What a trace says about itself, and where its bytes are. A trace holds the rows that a run put into its cache and the
 * queries that it asked, so that other caches can be tried over the same run without the model. It holds no text and no
 * token ids.
 *
 *   magic, 8 bytes · length of the header (u32) · header as JSON · CRC-32 of the header
 *   per layer: scale (f32) · S·W_o as halves of [32, H·d] / scale · CRC-32
 *   per page, per layer: keys [T, n, d] · values [T, n, d] · queries [Q, H, d], all halves · ‖x‖ of each query (f32) ·
 *   CRC-32
 *   length of the measurements (u32) · measurements as JSON · CRC-32
 *
 * Only sampled layers and heads are there: L, n and H count those. All numbers are little-endian. The length of every
 * block but the last follows from the header, so a reader knows the length of the file before it allocates anything.
 * The CRC-32 of a block covers its place as well.
 */
import { z } from 'zod';
import {
  type CacheShape,
  firstToken,
  KvError,
  PAGE_TOKENS,
  parseJson,
  SKETCH_ROWS,
  sealedPages,
  TRIAL_QUERIES,
  whole,
} from '../../native/index.ts';
import { RandomNumbers } from '../transformer/sampling/random.ts';

export const MAGIC = Buffer.from('KVTRACE1', 'latin1');
/** Most bytes of the header, and of the measurements. */
export const JSON_BYTES_MAX = 2 ** 20;
/** The native cache keeps one query in this many tokens for trials. */
const TRIAL_STRIDE = PAGE_TOKENS / TRIAL_QUERIES;

/** The seed of a sample. That of a page, which is made of it and of the page, is a whole number too. */
export const SEED = { rule: whole(0, 2 ** 31), help: 'chooses what is recorded' };

const size = z.int().min(1);
const indices = (most: number) =>
  z
    .array(z.int().min(0))
    .min(1)
    .max(most)
    .refine((list) => list.every((one, at) => at === 0 || one > list[at - 1]!), 'must ascend');
const line = z
  .string()
  .max(300)
  .regex(/^\P{Cc}*$/u, 'control characters are not allowed');

const schema = z
  .strictObject({
    kind: z.literal('palimpsest-trace'),
    version: z.literal(1),
    /** The model that ran. */
    model: z.strictObject({ name: line, digest: line }),
    /** The shape of its whole cache. */
    shape: z.strictObject({
      layers: size.max(4096),
      queryHeads: size.max(1024),
      kvHeads: size.max(1024),
      headDim: size.max(256),
    }),
    /** Radians per position of each rotated pair: with them a key can be turned to another position. */
    rotary: z.strictObject({ radians: z.array(z.number()).min(1).max(128), interleaved: z.boolean() }),
    /** How many tokens each layer of the model looks back; null: all. */
    slidingWindow: z.array(size.nullable()).max(4096),
    tokens: size.max(2 ** 24),
    sampling: z.strictObject({
      layers: indices(4096),
      /** KV heads; the query heads of each come with it. */
      heads: indices(1024),
      queriesPerPage: z.int().min(TRIAL_QUERIES).max(PAGE_TOKENS),
      seed: SEED.rule.schema,
    }),
  })
  .refine(({ shape }) => shape.queryHeads % shape.kvHeads === 0, 'queryHeads is no multiple of kvHeads')
  .refine(({ shape, slidingWindow }) => slidingWindow.length === shape.layers, 'slidingWindow is not [layers]')
  .refine(({ shape, rotary }) => 2 * rotary.radians.length <= shape.headDim, 'more radians than channels')
  .refine(({ shape, sampling }) => sampling.layers.at(-1)! < shape.layers, 'a sampled layer that is not there')
  .refine(({ shape, sampling }) => sampling.heads.at(-1)! < shape.kvHeads, 'a sampled head that is not there');

const measured = z.strictObject({
  /** The cache as `--caches` names it: 'price@25%'. */
  cache: line,
  /** Tokens at the end of the run that were compared with the exact cache. */
  scored: z.int().min(1),
  meanKld: z.number().min(0),
  /** What the policy had predicted. */
  predictedKld: z.number().min(0),
  /** Most bytes that the cache ever had, and those of a plain f16 cache. */
  kvBytes: z.int().min(0),
  kvBytesF16: z.int().min(0),
});
const measurements = z.array(measured).max(1000);

export type TraceHeader = z.infer<typeof schema>;
export type Sampling = TraceHeader['sampling'];
/** A cache that really ran over the tokens of a trace, and what that gave. */
export type Measured = z.infer<typeof measured>;

function parsed<T>(parser: z.ZodType<T>, bytes: Uint8Array, name: string): T {
  const found = parser.safeParse(parseJson(bytes, { what: name, code: 'bad-file' }));
  if (found.success) return found.data;
  const { path, message } = found.error.issues[0]!;
  throw new KvError('bad-file', `${name}: ${[...path, message].join(' ')}`, { values: { file: name } });
}

/** Throws 'bad-file'. */
export const parseHeader = (bytes: Uint8Array, name: string): TraceHeader => parsed(schema, bytes, name);
/** Throws 'bad-file'. */
export const parseMeasurements = (bytes: Uint8Array, name: string): Measured[] => parsed(measurements, bytes, name);

/** The shape of a cache that holds what was sampled. */
export function sampledShape({ shape, sampling }: Pick<TraceHeader, 'shape' | 'sampling'>): CacheShape {
  const kvHeads = sampling.heads.length;
  return {
    layers: sampling.layers.length,
    kvHeads,
    queryHeads: (kvHeads * shape.queryHeads) / shape.kvHeads,
    headDim: shape.headDim,
  };
}

/**
 * The rows of a page whose queries are recorded, ascending: those that trials use, and others that differ from page to
 * page.
 */
export function sampledRows(page: number, { queriesPerPage, seed }: Sampling): number[] {
  const isForTrials = (row: number): boolean => row % TRIAL_STRIDE === TRIAL_STRIDE - 1;
  const rows = Array.from({ length: PAGE_TOKENS }, (_, row) => row);
  const random = new RandomNumbers(seed * 2 ** 20 + page);
  const others = rows.filter((row) => !isForTrials(row));
  const drawn = draw(others, queriesPerPage - TRIAL_QUERIES, random);
  return [...rows.filter(isForTrials), ...drawn].sort((a, b) => a - b);
}

/** `count` of `from`, each as likely as the others, in the order of `from`. */
export function draw(from: readonly number[], count: number, random: RandomNumbers): number[] {
  const drawn: number[] = [];
  for (const [at, one] of from.entries())
    if (random.uniform() * (from.length - at) < count - drawn.length) drawn.push(one);
  return drawn;
}

/** Where the blocks of a trace are. */
export interface Layout {
  readonly pages: number;
  readonly sketchBytes: number;
  readonly sketchAt: (layer: number) => number;
  readonly tokensOf: (page: number) => number;
  readonly queriesOf: (page: number) => readonly number[];
  readonly blockBytes: (page: number) => number;
  /** Both count what was sampled, from 0. */
  readonly blockAt: (page: number, layer: number) => number;
  /** Where the measurements begin. */
  readonly end: number;
}

/** `start`: the bytes before the first block. Lengths include the CRC-32 of each block. */
export function layoutOf(header: TraceHeader, start: number): Layout {
  const { tokens, sampling } = header;
  const { layers, kvHeads, queryHeads, headDim } = sampledShape(header);
  const pages = sealedPages(tokens) + 1;
  const tokensOf = (page: number): number => Math.min(PAGE_TOKENS, tokens - firstToken(page));
  const queriesOf = (page: number): number[] => sampledRows(page, sampling).filter((row) => row < tokensOf(page));
  const blockBytes = (page: number): number =>
    4 * tokensOf(page) * kvHeads * headDim + queriesOf(page).length * (2 * queryHeads * headDim + 4) + 4;
  const sketchBytes = 4 + 2 * SKETCH_ROWS * queryHeads * headDim + 4;
  const first = start + layers * sketchBytes;
  // All pages but the last are as long as the first.
  const blockAt = (page: number, layer: number): number =>
    first + page * layers * (pages > 1 ? blockBytes(0) : 0) + layer * blockBytes(page);
  return {
    pages,
    sketchBytes,
    sketchAt: (layer) => start + layer * sketchBytes,
    tokensOf,
    queriesOf,
    blockBytes,
    blockAt,
    end: blockAt(pages - 1, layers - 1) + blockBytes(pages - 1),
  };
}
