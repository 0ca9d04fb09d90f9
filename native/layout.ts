/**
 * Every number and name that the TypeScript and the C++ half must agree on, formats apart (native/formats/). `npm run generate` writes
 * them to native/layout.gen.h, and the binary names their digest when it is loaded (abi.ts), so that two halves that disagree never meet.
 */
import type { KvErrorCode } from './error.ts';

/** Keys or values. */
export type Side = 'k' | 'v';
export const SIDES: readonly Side[] = ['k', 'v'];

/** Tokens in one page. Fixed: group boundaries are functions of absolute position for the life of a token. */
export const PAGE_TOKENS = 128;
/** Rows 0..3 of page 0 are attention sinks: kept in f16, outside every mean and every code. */
export const SINK_TOKENS = 4;
/** Rows that an open page has room for at first; it doubles as tokens come, up to a page. */
export const OPEN_ROWS_LEAST = 16;
/** Queries kept per layer for trials. */
export const TRIAL_QUERIES = 16;
/** A query at position i is kept when i % 8 is 7: sixteen of them span one page. */
export const TRIAL_STRIDE = 8;
/** Most candidates that one trial takes. */
export const TRIAL_CANDIDATES_MAX = 64;
/** Rows of the random sketch of W_o. */
export const SKETCH_ROWS = 32;
/** Parts of one page side are allocated in multiples of this many bytes. */
export const PAGE_PART_ALIGN = 64;
/** Steps that one integer dot contracts at most: the largest head size, and more than the tokens of a page. */
export const CONTRACTION_MAX = 256;
export const HEAD_DIM_MAX = 256;
export const HEADS_MAX = 1024;
export const LAYERS_MAX = 4096;
export const THREADS_MAX = 64;

/** In the header each becomes a constant: PAGE_TOKENS is kPageTokens. */
export const LIMITS = {
  PAGE_TOKENS,
  SINK_TOKENS,
  OPEN_ROWS_LEAST,
  TRIAL_QUERIES,
  TRIAL_STRIDE,
  TRIAL_CANDIDATES_MAX,
  SKETCH_ROWS,
  PAGE_PART_ALIGN,
  CONTRACTION_MAX,
  HEAD_DIM_MAX,
  HEADS_MAX,
  LAYERS_MAX,
  THREADS_MAX,
} as const;

/** What a native call may answer, and the error that it means; the index is the number that crosses. */
export const STATUSES: readonly { readonly name: string; readonly code: KvErrorCode | null }[] = [
  { name: 'ok', code: null },
  { name: 'bad-argument', code: 'bad-argument' },
  { name: 'bad-shape', code: 'bad-shape' },
  { name: 'bad-value', code: 'bad-value' },
  { name: 'unsupported', code: 'unsupported' },
  { name: 'budget-exceeded', code: 'budget-exceeded' },
  { name: 'budget-too-small', code: 'budget-too-small' },
  { name: 'closed', code: 'closed' },
  // The system has no memory: less than the budget promised.
  { name: 'no-memory', code: 'budget-exceeded' },
];
export const STATUS_NO_MEMORY = STATUSES.findIndex(({ name }) => name === 'no-memory');

/** Every instruction set that some build has; the index is the number that crosses. */
export const ISA_NAMES = [
  'scalar',
  'avx2',
  'avx512',
  'avx512vnni',
  'neon',
  'neondot',
  'wasm-simd128',
  'avx2vnni',
] as const;
/** An instruction set of the kernels. `avx512vnni`, `avx2vnni` and `neondot` have 8-bit dot products; `scalar` runs everywhere. */
export type Isa = (typeof ISA_NAMES)[number];
/** The first that a build has and a CPU runs is taken. */
export const ISAS_BEST_FIRST: readonly Isa[] = [
  'avx512vnni',
  'avx512',
  'avx2vnni',
  'avx2',
  'neondot',
  'neon',
  'wasm-simd128',
  'scalar',
];

/** Pages of layer inputs, in order of quality. The index is the number that crosses. */
export const LATENT_NAMES = ['xq8', 'xq4'] as const;
/** A format of latents. See LATENT_NAMES. */
export type LatentName = (typeof LATENT_NAMES)[number];
/** First argument of CacheHandle.latent. */
export const LATENT_OPERATIONS = { weights: 0, rotary: 1, hold: 2, restore: 3, keep: 4, scratch: 5 } as const;
/** Matrices of one layer; the output matrix is matrix `q` of the layer behind the last one. */
export const DENSE_SLOTS = ['q', 'k', 'v', 'o', 'gate', 'up', 'down'] as const;
/** Norms of one layer; the final norm is `attnNorm` of the layer behind the last one. */
export const DENSE_NORMS = ['attnNorm', 'mlpNorm', 'qNorm', 'kNorm'] as const;
