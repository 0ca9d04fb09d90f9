/**
 * The rows of `npm run evaluate -- frontier`, the file that holds them, and the means that tables and charts are made
 * of.
 */
import { z } from 'zod';
import { bareName } from './every-cache.ts';

const share = z.number().min(0).max(1);
const divergence = z.number().nonnegative();

/** What was measured where, with what. */
const subject = {
  model: z.string(),
  /** First characters of the digest of the weights. */
  digest: z.string(),
  /** Tokens that are read. */
  context: z.int().positive(),
  /** A cache as parseCache() reads it, or an eviction rule with the share of tokens that it may hold. */
  cache: z.string(),
  /** Why there are no numbers: a budget too small for so few tokens, a format that does not serve the heads. */
  code: z.string().nullable(),
  commit: z.string(),
};

/** How far the scored tokens are from the exact cache. */
const compared = {
  scored: z.int().positive(),
  perplexity: z.number().positive(),
  perplexityExact: z.number().positive(),
  meanKld: divergence,
  medianKld: divergence,
  kld99: divergence,
  kld999: divergence,
  sameTop: share,
};

/** One passage read by one cache. Its last tokens are scored, against the exact cache. */
export const qualityRow = z.strictObject({
  part: z.literal('quality'),
  ...subject,
  text: z.string(),
  kind: z.string(),
  /** First characters of the SHA-256 of the token ids that are read. */
  textDigest: z.string(),
  measured: z
    .strictObject({
      /** 16 · bytes / bytesF16: window, sinks and metadata included. */
      bits: z.number().positive(),
      /** The most that the cache ever took. */
      bytes: z.int().positive(),
      /** What it takes when all is read. */
      bytesAtRest: z.int().positive(),
      bytesF16: z.int().positive(),
      ...compared,
    })
    .nullable(),
});

/** Codes at five depths, asked for at the end: five documents with one code each, or one document with five. */
export const recallRow = z.strictObject({
  part: z.literal('recall'),
  ...subject,
  keys: z.enum(['one', 'many']),
  document: z.int().nonnegative(),
  /** Where the codes stand, from 0 to 1. */
  depths: z.array(share).min(1),
  /** By depth, whether the answer was right. */
  recalled: z.array(z.boolean()).min(1).nullable(),
});

/** Decode attention over a long history of Gaussian rows, in turns with f16. */
export const speedRow = z.strictObject({
  part: z.literal('speed'),
  /** Query heads, KV heads and head size, as in 9/3x64. */
  shape: z.string(),
  cache: z.string(),
  tokens: z.int().positive(),
  threads: z.int().positive(),
  /** Time per token and KV head. */
  nsPerToken: z.number().positive(),
  gbPerSecond: z.number().positive(),
  shareOfStream: z.number().positive(),
  /** How many times faster it is than f16 in the same rounds. */
  ratioToF16: z.number().positive(),
  /** The relative error of the kernel, compared with float64 from the decoded values. */
  error: z.number().nonnegative(),
  commit: z.string(),
});

/**
 * Short chunks, each a context that is quantized whole, and tokens behind it that are scored, the first of them
 * included.
 */
export const shortRow = z.strictObject({
  part: z.literal('short'),
  ...subject,
  kind: z.string(),
  textDigest: z.string(),
  chunks: z.int().positive(),
  /** Bits are those of the quantized context alone. */
  measured: z.strictObject({ bits: z.number().positive(), ...compared }).nullable(),
});

/** One passage from its beginning to its end: bytes as they grow, and divergence along the way. */
export const courseRow = z.strictObject({
  part: z.literal('course'),
  ...subject,
  text: z.string(),
  kind: z.string(),
  textDigest: z.string(),
  /** In equal stretches; the tokens of each are sampled. */
  course: z
    .array(
      z.strictObject({
        /** Where the stretch ends. */
        tokens: z.int().positive(),
        bytes: z.int().positive(),
        bytesF16: z.int().positive(),
        sampled: z.int().positive(),
        meanKld: divergence,
      }),
    )
    .nullable(),
});

/** Decode steps at the end of a context, one token each, sealing and moves of pages included. */
export const latencyRow = z.strictObject({
  part: z.literal('latency'),
  ...subject,
  threads: z.int().positive(),
  steps: z
    .strictObject({
      count: z.int().positive(),
      p50Ms: z.number().positive(),
      p95Ms: z.number().positive(),
      p99Ms: z.number().positive(),
      mostMs: z.number().positive(),
    })
    .nullable(),
});

/** What a cache that is refreshed in the middle of a text takes back of its divergence. */
export const refreshRow = z.strictObject({
  part: z.literal('refresh'),
  ...subject,
  text: z.string(),
  kind: z.string(),
  textDigest: z.string(),
  refresh: z
    .strictObject({
      /** Tokens before it is refreshed. */
      from: z.int().positive(),
      /** Mean KLDs of the stretches behind that. */
      stretches: z.array(
        z.strictObject({
          /** Where the stretch ends. */
          tokens: z.int().positive(),
          /** The cache as it is. */
          kept: divergence,
          /** Read again, and in the same formats. */
          again: divergence,
          /** The originals of its pages put back, in 8 bits. */
          restored: divergence,
        }),
      ),
    })
    .nullable(),
});

export const frontierRow = z.discriminatedUnion('part', [
  qualityRow,
  recallRow,
  speedRow,
  shortRow,
  courseRow,
  latencyRow,
  refreshRow,
]);
export type ShortRow = z.infer<typeof shortRow>;
export type CourseRow = z.infer<typeof courseRow>;
export type LatencyRow = z.infer<typeof latencyRow>;
export type RefreshRow = z.infer<typeof refreshRow>;
export type QualityRow = z.infer<typeof qualityRow>;
export type RecallRow = z.infer<typeof recallRow>;
export type SpeedRow = z.infer<typeof speedRow>;
export type FrontierRow = z.infer<typeof frontierRow>;

/** How the rows were measured. Rows of another protocol cannot stand in the same file. */
export const protocol = z.strictObject({
  /** Precision of the weights, the same in both runs that are compared. */
  dense: z.enum(['auto', 'exact']),
  /** Tokens at the end of a passage that are scored: at most so many, and at most half of it. */
  scored: z.int().positive(),
  /** Tokens that are read at once. Those that are scored attend to what the earlier ones left in the cache. */
  stride: z.int().positive(),
  evictionStride: z.int().positive(),
  outlierFactor: z.number().positive(),
});
export type Protocol = z.infer<typeof protocol>;

export const frontierFile = z.strictObject({
  kind: z.literal('frontier'),
  isa: z.string(),
  protocol,
  machine: z.string().optional(),
  node: z.string(),
  rows: z.array(frontierRow),
});
export type FrontierFile = z.infer<typeof frontierFile>;

/** What distinguishes a row. A later run does not compute it again. */
export function keyOf(row: FrontierRow): string {
  if (row.part === 'speed') return ['speed', row.shape, row.cache, row.tokens, row.threads].join(' | ');
  const subject = [row.part, row.model, row.digest, row.context, row.cache];
  switch (row.part) {
    case 'recall':
      return [...subject, row.keys, row.document, row.depths.join(' ')].join(' | ');
    case 'latency':
      return [...subject, row.threads].join(' | ');
    case 'short':
      return [...subject, row.kind, row.chunks, row.textDigest].join(' | ');
    default:
      return [...subject, row.text, row.textDigest].join(' | ');
  }
}

/** One cache on one model and context: means over the texts. */
export interface Point {
  readonly model: string;
  readonly context: number;
  readonly cache: string;
  readonly texts: number;
  /** Of the most that it ever took. */
  readonly bits: number;
  /** Of what it takes when all is read. */
  readonly bitsAtRest: number;
  readonly bytesAtRest: number;
  readonly meanKld: number;
  /** Means of the medians and of the 99th and 99.9th percentiles of the texts. */
  readonly medianKld: number;
  readonly kld99: number;
  readonly kld999: number;
  readonly sameTop: number;
  readonly perplexity: number;
  readonly perplexityExact: number;
  /** Right answers by depth, with one code a document and with many; empty: not asked. */
  readonly recall: Readonly<Record<'one' | 'many', readonly number[]>>;
  readonly asked: Readonly<Record<'one' | 'many', number>>;
  readonly ratioToF16: number | null;
  /** Nothing else has both less divergence and fewer bits. */
  readonly isBest: boolean;
}

const mean = (values: readonly number[]): number => values.reduce((sum, value) => sum + value, 0) / values.length;

/**
 * The points of one model and context, those with the fewest bits first. A cache that was not measured on every text
 * that others were is left out, because its mean would be one of other texts; so is one that could not keep its budget
 * on some of them.
 */
export function pointsOf(rows: readonly FrontierRow[], model: string, context: number): Point[] {
  const here = rows.filter((row): row is QualityRow => row.part === 'quality' && isAt(row, model, context));
  const texts = new Set(here.map(({ text }) => text)).size;
  const points = [...new Set(here.map(({ cache }) => cache))].flatMap((cache) => {
    const measured = here.flatMap((row) => (row.cache === cache && row.measured !== null ? [row.measured] : []));
    if (measured.length < texts) return [];
    const of = (pick: (one: (typeof measured)[number]) => number): number => mean(measured.map(pick));
    const recall = (keys: 'one' | 'many'): RecallRow[] =>
      rows.filter(
        (row): row is RecallRow =>
          row.part === 'recall' && isAt(row, model, context) && row.cache === cache && row.keys === keys,
      );
    const byDepth = (keys: 'one' | 'many'): number[] =>
      recall(keys).length === 0
        ? []
        : recall(keys)[0]!.depths.map(
            (_, depth) => recall(keys).filter(({ recalled }) => recalled?.[depth] === true).length,
          );
    const speed = rows.find((row): row is SpeedRow => row.part === 'speed' && row.cache === bareName(cache));
    return [
      {
        model,
        context,
        cache,
        texts,
        bits: (16 * of(({ bytes }) => bytes)) / of(({ bytesF16 }) => bytesF16),
        bitsAtRest: (16 * of(({ bytesAtRest }) => bytesAtRest)) / of(({ bytesF16 }) => bytesF16),
        bytesAtRest: of(({ bytesAtRest }) => bytesAtRest),
        meanKld: of(({ meanKld }) => meanKld),
        medianKld: of(({ medianKld }) => medianKld),
        kld99: of(({ kld99 }) => kld99),
        kld999: of(({ kld999 }) => kld999),
        sameTop: of(({ sameTop }) => sameTop),
        perplexity: Math.exp(of(({ perplexity }) => Math.log(perplexity))),
        perplexityExact: Math.exp(of(({ perplexityExact }) => Math.log(perplexityExact))),
        recall: { one: byDepth('one'), many: byDepth('many') },
        asked: { one: recall('one').length, many: recall('many').length },
        ratioToF16: speed?.ratioToF16 ?? null,
      },
    ];
  });
  const isBeaten = (one: { bits: number; meanKld: number }): boolean =>
    points.some(
      ({ bits, meanKld }) => bits <= one.bits && meanKld <= one.meanKld && (bits < one.bits || meanKld < one.meanKld),
    );
  return points.map((point) => ({ ...point, isBest: !isBeaten(point) })).sort((a, b) => a.bits - b.bits);
}

/** The caches that were refused somewhere, each with why. */
export function refusals(rows: readonly FrontierRow[], model: string, context: number): ReadonlyMap<string, string> {
  return new Map(
    rows.flatMap((row) =>
      (row.part === 'quality' || row.part === 'recall') && isAt(row, model, context) && row.code !== null
        ? [[row.cache, row.code] as const]
        : [],
    ),
  );
}

/** The models and contexts that there are rows of, contexts ascending. */
export function places(
  rows: readonly FrontierRow[],
): { readonly model: string; readonly contexts: readonly number[] }[] {
  const quality = rows.filter((row): row is QualityRow => row.part === 'quality');
  return [...new Set(quality.map(({ model }) => model))].map((model) => ({
    model,
    contexts: [...new Set(quality.filter((row) => row.model === model).map(({ context }) => context))].sort(
      (a, b) => a - b,
    ),
  }));
}

const isAt = (row: { readonly model: string; readonly context: number }, model: string, context: number): boolean =>
  row.model === model && row.context === context;
