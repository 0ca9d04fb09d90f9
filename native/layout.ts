/**
 * Every number and name that the TypeScript and the C++ code must agree on, except for formats (native/formats/). `npm
 * run generate` writes them to native/layout.gen.h. The binary contains their digest (abi.ts), so one that was built
 * with others is not loaded.
 */
import type { KvErrorCode } from './error.ts';

/** One of the two sides of a page: its keys or its values. */
export type Side = 'k' | 'v';
export const SIDES: readonly Side[] = ['k', 'v'];

/** The number of tokens in a page. It is fixed, so the page of a token follows from its position and never changes. */
export const PAGE_TOKENS = 128;
/** The first rows of page 0 are attention sinks: they stay in f16 and are part of no mean and no code. */
export const SINK_TOKENS = 4;
/** The next multiple of `alignment` from `bytes` on. */
export const padded = (bytes: number, alignment: number): number => Math.ceil(bytes / alignment) * alignment;

/** How many rows an open page has room for at first. The room is doubled as tokens come, until it is a whole page. */
export const OPEN_ROWS_LEAST = 16;
/** How many queries each layer keeps for trials. */
export const TRIAL_QUERIES = 16;
/** One query in every 8 is kept, at positions i with i % 8 = 7, so sixteen of them span a page. */
export const TRIAL_STRIDE = 8;
/** The most candidates of one trial. */
export const TRIAL_CANDIDATES_MAX = 128;
/** The most rows that a page side keeps. */
export const KEPT_ROWS_MAX = 128;
/** In candidates of trials, ids from here on are latents: this plus the index in LATENT_NAMES. */
export const LATENT_CANDIDATES_FROM = 128;
/** The number of rows of the random sketch of W_o. */
export const SKETCH_ROWS = 32;
/** The parts of a page are allocated in multiples of this many bytes. */
export const PAGE_PART_ALIGN = 64;
/**
 * The most products that one integer dot product adds up: the largest head size, which is more than the tokens of a
 * page.
 */
export const CONTRACTION_MAX = 256;
export const HEAD_DIM_MAX = 256;
export const HEADS_MAX = 1024;
export const LAYERS_MAX = 4096;
export const THREADS_MAX = 64;
/** The most bytes that the payload of an entry of the log has. */
export const ENTRY_PAYLOAD_MAX = 1 << 20;
/** How many roots the state of a log's tree has room for. */
export const CHAIN_PEAKS_MAX = 53;
/** The most experts of a layer, of all layers together, and for one row. */
export const EXPERTS_MAX = 1024;
export const EXPERTS_ALL_MAX = 1 << 16;
export const EXPERTS_USED_MAX = 64;

/** Each of these becomes a constant of the header: PAGE_TOKENS is kPageTokens. */
export const LIMITS = {
  PAGE_TOKENS,
  SINK_TOKENS,
  OPEN_ROWS_LEAST,
  TRIAL_QUERIES,
  TRIAL_STRIDE,
  TRIAL_CANDIDATES_MAX,
  KEPT_ROWS_MAX,
  LATENT_CANDIDATES_FROM,
  SKETCH_ROWS,
  PAGE_PART_ALIGN,
  CONTRACTION_MAX,
  HEAD_DIM_MAX,
  HEADS_MAX,
  LAYERS_MAX,
  THREADS_MAX,
  ENTRY_PAYLOAD_MAX,
  CHAIN_PEAKS_MAX,
  EXPERTS_MAX,
  EXPERTS_ALL_MAX,
  EXPERTS_USED_MAX,
} as const;

/** The statuses that native calls return, each with the code of its error. A status is an index into this list. */
export const STATUSES: readonly { readonly name: string; readonly code: KvErrorCode | null }[] = [
  { name: 'ok', code: null },
  { name: 'bad-argument', code: 'bad-argument' },
  { name: 'bad-shape', code: 'bad-shape' },
  { name: 'bad-value', code: 'bad-value' },
  { name: 'unsupported', code: 'unsupported' },
  { name: 'budget-exceeded', code: 'budget-exceeded' },
  { name: 'budget-too-small', code: 'budget-too-small' },
  { name: 'closed', code: 'closed' },
  // The system has no memory left, although the budget allows more.
  { name: 'no-memory', code: 'budget-exceeded' },
];
export const STATUS_NO_MEMORY = STATUSES.findIndex(({ name }) => name === 'no-memory');

/** Every instruction set that some build has. C++ uses the index. */
export const ISA_NAMES = [
  'scalar',
  'avx2',
  'avx512vnni',
  'neon',
  'neondot',
  'wasm-simd128',
  'avx2vnni',
  'neoni8mm',
] as const;
/**
 * An instruction set of the kernels. `avx512vnni`, `avx2vnni` and `neondot` have 8-bit dot products, `neoni8mm` has
 * products of 8-bit matrices as well, and `scalar` runs everywhere.
 */
export type Isa = (typeof ISA_NAMES)[number];
/** The order of preference: the first one that the build has and the CPU supports is used. */
export const ISAS_BEST_FIRST: readonly Isa[] = [
  'avx512vnni',
  'avx2vnni',
  'avx2',
  'neoni8mm',
  'neondot',
  'neon',
  'wasm-simd128',
  'scalar',
];

/** The formats of latents, best first. C++ uses the index. */
export const LATENT_NAMES = ['xq8', 'xq4', 'xq3'] as const;
/** A format of latents. See LATENT_NAMES. */
export type LatentName = (typeof LATENT_NAMES)[number];
/** The operations of CacheHandle.latent. */
export const LATENT_OPERATIONS = {
  weights: 0,
  rotary: 1,
  hold: 2,
  restore: 3,
  keep: 4,
  scratch: 5,
  move: 6,
  drop: 7,
} as const;
/** The operations of CacheHandle.original. */
export const ORIGINAL_OPERATIONS = { keep: 0, drop: 1, restore: 2, try: 3, format: 4 } as const;
/** The operations of CacheHandle.keptRows. */
export const KEPT_ROWS_OPERATIONS = { keep: 0, drop: 1, try: 2, count: 3 } as const;
/** The matrices of a layer. The output matrix is matrix `q` of an additional layer after the last one. */
export const DENSE_SLOTS = ['q', 'k', 'v', 'o', 'gate', 'up', 'down'] as const;
/** The norms of a layer. The final norm is `attnNorm` of an additional layer after the last one. */
export const DENSE_NORMS = ['attnNorm', 'mlpNorm', 'qNorm', 'kNorm', 'attnPost', 'mlpPost'] as const;
/** How a layer may differ from Llama's; a model has a sum of powers of two, in this order. */
export const DENSE_FEATURES = [
  'noPreNorms',
  'postNorms',
  'gelu',
  'widthNorms',
  'shareAmongChosen',
  'layerNorms',
  'parallel',
  'ungated',
  'geluErf',
] as const;

/**
 * How the matrices of the dense half are kept, in records of 16 outputs by one or eight times 32 inputs
 * (kernels/dense_products.h). `bits` are those of a code; `blocks` says how many times 32 inputs a record has, `head`
 * the bytes before them, and `scales` those of each of them besides its codes. `wide` is our own form for weights that
 * a file has as floats, the others have the numbers of the type of that name. C++ uses the index.
 */
export const DENSE_FORMS = [
  { name: 'wide', bits: 8, blocks: 1, head: 0, scales: 64 },
  { name: 'Q8_0', bits: 8, blocks: 1, head: 0, scales: 32 },
  { name: 'Q4_0', bits: 4, blocks: 1, head: 0, scales: 32 },
  { name: 'Q4_1', bits: 4, blocks: 1, head: 0, scales: 64 },
  { name: 'Q5_0', bits: 5, blocks: 1, head: 0, scales: 32 },
  { name: 'Q5_1', bits: 5, blocks: 1, head: 0, scales: 64 },
  { name: 'Q4_K', bits: 4, blocks: 8, head: 64, scales: 32 },
  { name: 'Q5_K', bits: 5, blocks: 8, head: 64, scales: 32 },
  { name: 'Q6_K', bits: 6, blocks: 8, head: 64, scales: 32 },
] as const;
/**
 * The types of weights that the dense half packs as a file stores them: so many values in so many bytes. C++ uses the
 * index.
 */
export const DENSE_TYPES = [
  { name: 'F32', form: 'wide', values: 1, bytes: 4 },
  { name: 'F16', form: 'wide', values: 1, bytes: 2 },
  { name: 'BF16', form: 'wide', values: 1, bytes: 2 },
  { name: 'Q8_0', form: 'Q8_0', values: 32, bytes: 34 },
  { name: 'Q4_0', form: 'Q4_0', values: 32, bytes: 18 },
  { name: 'Q4_1', form: 'Q4_1', values: 32, bytes: 20 },
  { name: 'Q5_0', form: 'Q5_0', values: 32, bytes: 22 },
  { name: 'Q5_1', form: 'Q5_1', values: 32, bytes: 24 },
  { name: 'Q4_K', form: 'Q4_K', values: 256, bytes: 144 },
  { name: 'Q5_K', form: 'Q5_K', values: 256, bytes: 176 },
  { name: 'Q6_K', form: 'Q6_K', values: 256, bytes: 210 },
] as const;
/** A type of weights that the dense half packs as it is stored. See DENSE_TYPES. */
export type DenseType = (typeof DENSE_TYPES)[number]['name'];
