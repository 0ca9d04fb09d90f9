/**
 * `npm run evaluate -- sizes`: what caches of models that do not fit here would take. Published methods by the sizes
 * their papers give, ours by those of the pages that the engine makes. Nothing is measured and no model is loaded.
 */
import { bytesAt, f16CacheBytes, OPEN_FORMAT } from '../../engine/cache/budget.ts';
import {
  type CacheShape,
  type FormatName,
  KvError,
  PAGE_TOKENS,
  servesHeadDim,
  WINDOW_FORMAT,
} from '../../native/index.ts';
import { parseShape } from '../../scripts/bench/shapes.ts';
import { bareName, formatCaches } from './every-cache.ts';
import { markdown } from './frontier-table.ts';

/** A model as far as its cache goes. */
export interface ModelShape extends CacheShape {
  readonly name: string;
  /** Width m of the residual stream. */
  readonly hiddenSize: number;
}

const shapeOf = (name: string, layers: number, heads: string, hiddenSize: number): ModelShape => ({
  name,
  layers,
  ...parseShape(heads),
  hiddenSize,
});

export const MODEL_SHAPES: readonly ModelShape[] = [
  shapeOf('reference', 6, '4/2x64', 256),
  shapeOf('small', 12, '8/2x64', 512),
  shapeOf('SmolLM2-135M', 30, '9/3x64', 576),
  shapeOf('TinyLlama-1.1B', 22, '32/4x64', 2048),
  shapeOf('Llama-3.2-1B', 16, '32/8x64', 2048),
  shapeOf('Llama-2-7B', 32, '32/32x128', 4096),
  shapeOf('Llama-3.1-8B', 32, '32/8x128', 4096),
  shapeOf('Llama-2-70B', 80, '64/8x128', 8192),
  shapeOf('70B without groups', 80, '64/64x128', 8192),
  shapeOf('Llama-3.1-405B', 126, '128/8x128', 16384),
  shapeOf('PaLM-540B', 118, '48/1x256', 18432),
  shapeOf('540B without groups', 118, '48/48x256', 18432),
];

export const SIZE_CONTEXTS = [512, 4096, 32_768, 131_072];

/** Heads and width of one layer, all that the size of a coded token depends on. */
type LayerShape = Pick<ModelShape, 'kvHeads' | 'headDim' | 'hiddenSize'>;

export interface Scheme {
  readonly name: string;
  /** Bytes of the keys and values of one token in one layer, metadata included. */
  readonly tokenBytes: (shape: LayerShape) => number;
  /** Bytes of a layer whatever its length. */
  readonly onceBytes?: (shape: LayerShape) => number;
  /** Newest tokens that are held in f16, as a mean over time and over keys and values. */
  readonly exactTokens?: number;
}

/** Elements of the keys and values of one token in one layer. */
const elements = ({ kvHeads, headDim }: LayerShape): number => 2 * kvHeads * headDim;
/** Codes of `bits` in groups of `group` with a scale and an offset in f16. */
const grouped = (bits: number, group: number): number => bits / 8 + 4 / group;
/** KIVI's window of R tokens: keys wait for a group, so half of it on average, values for all of it. */
const WINDOW = 128;
const KIVI_EXACT_TOKENS = ((WINDOW - 1) / 2 + WINDOW) / 2;

const kivi = (bits: number, group: number): Scheme => ({
  name: `KIVI-${bits}, groups of ${group}`,
  tokenBytes: (shape) => elements(shape) * grouped(bits, group),
  exactTokens: KIVI_EXACT_TOKENS,
});
const squat = (bits: number, group: number): Scheme => ({
  ...kivi(bits, group),
  name: `SQuat-${bits}, groups of ${group}`,
  // The metric of the queries of each head, in float32.
  onceBytes: ({ kvHeads, headDim }) => kvHeads * headDim * headDim * 4,
});
/**
 * `outliers`: share of elements kept as a value and an index of two bytes each; row pointers and the scale and offset
 * of values come on top.
 */
const kvquant = (bits: number, outliers: number): Scheme => ({
  name: `KVQuant nuq${bits}, ${100 * outliers}%`,
  tokenBytes: (shape) => elements(shape) * (bits / 8 + 4 * outliers) + 2 * 4 + 4,
});
const turbo = (bits: number): Scheme => ({
  name: `TurboQuant ${bits}`,
  tokenBytes: ({ kvHeads, headDim }) => 2 * kvHeads * ((headDim * bits) / 8 + 2),
});

/** Published methods, by the sizes that follow from their papers. */
export const SCHEMES: readonly Scheme[] = [
  { name: 'f16', tokenBytes: (shape) => 2 * elements(shape) },
  { name: 'q8_0, groups of 32', tokenBytes: (shape) => elements(shape) * (1 + 2 / 32) },
  kivi(4, 32),
  kivi(4, 64),
  kivi(2, 32),
  kivi(2, 64),
  {
    name: 'K4 V2, groups of 32',
    tokenBytes: (shape) => (elements(shape) / 2) * (grouped(4, 32) + grouped(2, 32)),
    exactTokens: KIVI_EXACT_TOKENS,
  },
  squat(2, 32),
  ...[4, 3, 2].map((bits) => kvquant(bits, 0.01)),
  ...[4, 3, 2].map(turbo),
  {
    name: 'TurboQuant prod 4 keys, 4 values',
    tokenBytes: ({ kvHeads, headDim }) => kvHeads * ((headDim * 4) / 8 + 4) + kvHeads * ((headDim * 4) / 8 + 2),
  },
  { name: 'XQuant 4, inputs, groups of 128', tokenBytes: ({ hiddenSize }) => hiddenSize * grouped(4, 128) },
  { name: 'XQuant 4, latents, groups of 128', tokenBytes: (shape) => elements(shape) * grouped(4, 128) },
];

export const bitsOf = (scheme: Scheme, shape: LayerShape): number => (8 * scheme.tokenBytes(shape)) / elements(shape);

/** Bytes of a whole cache of `tokens` under a published method. */
export function schemeBytes(
  { tokenBytes, onceBytes, exactTokens = 0 }: Scheme,
  shape: ModelShape,
  tokens: number,
): number {
  const exact = Math.min(tokens, exactTokens);
  const layer = exact * 2 * elements(shape) + (tokens - exact) * tokenBytes(shape) + (onceBytes?.(shape) ?? 0);
  return shape.layers * layer;
}

/**
 * The same for a pair of our formats, with its window and sinks, at its largest; null where the formats do not serve
 * the heads.
 */
export function pairBytes(pair: string, shape: ModelShape, tokens: number): number | null {
  const [k, v = k] = pair.split(':') as [FormatName, FormatName?]; // of formats that this build need not compute
  if (![k, v, WINDOW_FORMAT, OPEN_FORMAT].every((format) => servesHeadDim(format, shape.headDim))) return null;
  const pairs = Array.from({ length: shape.layers }, () => ({ k, v }));
  const window = { openFormat: OPEN_FORMAT, windowFormat: WINDOW_FORMAT, windowTokens: PAGE_TOKENS };
  return bytesAt(shape, tokens, pairs, window);
}

/** Figures for caches that are often quoted, and what the formula comes to. */
export interface Quoted {
  readonly what: string;
  readonly quoted: string;
  readonly computed: string;
  readonly why: string;
}

const named = (name: string): ModelShape => MODEL_SHAPES.find((shape) => shape.name === name)!;
/** In units of a thousand, as such figures are quoted. */
const gb = (bytes: number): string => {
  const power = bytes >= 1e12 ? 12 : bytes >= 1e9 ? 9 : 6;
  return `${(bytes / 10 ** power).toFixed(2)} ${{ 6: 'MB', 9: 'GB', 12: 'TB' }[power]}`;
};
const both = (plain: string, grouped: string, tokens: number, batch: number): string =>
  `${gb(batch * f16CacheBytes(named(plain), tokens))}; with ${named(grouped).kvHeads} KV ${named(grouped).kvHeads === 1 ? 'head' : 'heads'} ${gb(batch * f16CacheBytes(named(grouped), tokens))}`;

/**
 * Bytes of a cache whose tokens are in several widths: [tokens, bits] each, `overheadBits` for scales of those below
 * 16.
 */
const tiers = (
  shape: ModelShape,
  batch: number,
  parts: readonly (readonly [number, number])[],
  overheadBits: number,
): number =>
  parts.reduce(
    (sum, [tokens, bits]) => sum + (f16CacheBytes(shape, tokens) * (bits + (bits < 16 ? overheadBits : 0))) / 16,
    0,
  ) * batch;

export const quotedFigures = (): Quoted[] => [...quotedBytes(), ...quotedRatios()];

function quotedBytes(): Quoted[] {
  const half = 'is half of the first, and four times the second';
  const plain70 = named('70B without groups');
  const threeTiers = [
    [64, 16],
    [448, 4],
    [32_256, 2],
  ] as const;
  const whole = f16CacheBytes(plain70, 32_768) * 8;
  return [
    {
      what: '7B, 2,048 tokens',
      quoted: '256 MB',
      computed: gb(f16CacheBytes(named('Llama-2-7B'), 2048)),
      why: 'is a quarter of it',
    },
    {
      what: '70B, 2,048 tokens',
      quoted: '2.6 GB',
      computed: both('70B without groups', 'Llama-2-70B', 2048, 1),
      why: half,
    },
    {
      what: '70B, 32 × 2,048 tokens',
      quoted: '83 GB',
      computed: both('70B without groups', 'Llama-2-70B', 2048, 32),
      why: half,
    },
    {
      what: '70B, 131,072 tokens',
      quoted: '166 GB',
      computed: both('70B without groups', 'Llama-2-70B', 131_072, 1),
      why: half,
    },
    {
      what: '70B, 32,768 tokens',
      quoted: '160 GB',
      computed: both('70B without groups', 'Llama-2-70B', 32_768, 1),
      why: 'is twice the first, and fifteen times the second',
    },
    {
      what: '7B, 32,768 tokens',
      quoted: '16 GB',
      computed: gb(f16CacheBytes(named('Llama-2-7B'), 32_768)),
      why: 'is right in GiB',
    },
    {
      what: '540B, 512 × 2,048 tokens',
      quoted: '3 TB',
      computed: both('540B without groups', 'PaLM-540B', 2048, 512),
      why: 'is of heads half as wide, and of a model with as many KV heads as query heads',
    },
    {
      what: '70B without groups, 8 × 32,768 tokens: 64 in f16, 448 in 4 bits, the rest in 2',
      quoted: '174 GB (3.95×)',
      computed: `${gb(tiers(plain70, 8, threeTiers, 0))} (${(whole / tiers(plain70, 8, threeTiers, 0)).toFixed(1)}×); with scales for groups of 32 ${gb(tiers(plain70, 8, threeTiers, 1))} (${(whole / tiers(plain70, 8, threeTiers, 1)).toFixed(1)}×)`,
      why: 'takes the codes twice as wide and leaves out their scales',
    },
  ];
}

function quotedRatios(): Quoted[] {
  const ratioOf = (bits: number): string => `${(16 / bits).toFixed(1)}×`;
  return [
    {
      what: '2-bit codes',
      quoted: '12×, 16×, 22×',
      computed: `${ratioOf(2)}; in groups of 64 ${ratioOf(2.5)}, of 32 ${ratioOf(3)}`,
      why: 'codes alone cannot do better, and 16× is against float32',
    },
    {
      what: '3-bit codes with 1% outliers',
      quoted: '5.3×',
      computed: ratioOf(bitsOf(SCHEMES.find(({ name }) => name.startsWith('KVQuant nuq3'))!, named('Llama-2-7B'))),
      why: 'leaves out the outliers',
    },
  ];
}

/**
 * A shape by its name, or as layers and heads, as in 80:64/8x128 with a residual stream as wide as its query heads.
 * Throws 'bad-argument'.
 */
export function modelShape(text: string): ModelShape {
  const known = MODEL_SHAPES.find(({ name }) => name.toLowerCase() === text.trim().toLowerCase());
  if (known !== undefined) return known;
  const match = /^([0-9]{1,4}):(.+)$/.exec(text.trim());
  if (match === null || Number(match[1]) === 0)
    throw new KvError('bad-argument', `'${text}' is no shape of a model`, {
      hint: `layers and heads as in 80:64/8x128, or one of ${MODEL_SHAPES.map(({ name }) => name).join(', ')}`,
    });
  const heads = parseShape(match[2]!);
  return shapeOf(text.trim(), Number(match[1]), match[2]!.trim(), heads.queryHeads * heads.headDim);
}

/** All tables as Markdown: bytes of a token, effective bits at each length, whole caches, and quoted figures. */
export function sizeTables(shapes: readonly ModelShape[], lengths: readonly number[], batch: number): string {
  for (const tokens of lengths)
    if (!Number.isSafeInteger(tokens) || tokens < 1 || tokens > 2 ** 24)
      throw new KvError('bad-argument', `a cache of ${tokens} tokens`, { hint: 'from 1 to 16777216' });
  if (!Number.isSafeInteger(batch) || batch < 1)
    throw new KvError('bad-argument', `a batch of ${batch}`, { hint: 'a number from 1' });
  const pairs = formatCaches().map(bareName);
  const perToken = markdown(
    ['bytes a token and layer (bits)', ...shapes.map(({ name }) => name)],
    SCHEMES.map((scheme) => [
      scheme.name,
      ...shapes.map((shape) => `${Math.round(scheme.tokenBytes(shape))} (${bitsOf(scheme, shape).toFixed(2)})`),
    ]),
  );
  const whole = shapes.map((shape) => {
    const bits = (bytes: number, tokens: number): string => {
      const effective = (16 * bytes) / f16CacheBytes(shape, tokens);
      return `${gb(batch * bytes)} (${effective.toFixed(2)})`;
    };
    const rows = [
      ...SCHEMES.map((scheme) => [
        scheme.name,
        ...lengths.map((tokens) => bits(schemeBytes(scheme, shape, tokens), tokens)),
      ]),
      ...pairs.map((pair) => [
        pair,
        ...lengths.map((tokens) => {
          const bytes = pairBytes(pair, shape, tokens);
          return bytes === null ? '' : bits(bytes, tokens);
        }),
      ]),
    ];
    return `### ${shape.name}${batch === 1 ? '' : `, ${batch} sequences`}\n\n${markdown(['whole cache (effective bits)', ...lengths.map((tokens) => `${tokens} tokens`)], rows)}`;
  });
  const quoted = markdown(
    ['cache in f16, or ratio to it', 'quoted', 'is', 'what is quoted'],
    quotedFigures().map(({ what, quoted: said, computed, why }) => [what, said, computed, why]),
  );
  return `### A token, without windows\n\n${perToken}\n\n${whole.join('\n\n')}\n\n### Quoted figures\n\n${quoted}\n`;
}
