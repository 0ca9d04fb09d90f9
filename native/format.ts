/**
 * What the bytes of a page mean, as frozen data. Sizes are computed from the fields, never typed in.
 * Native formats of this room: `f16`, `q8` and the rot family (rotated Lloyd-Max codes in nested bit planes).
 */
import { KvError } from './error.ts';

/** Tokens in one page. Fixed: group boundaries are functions of absolute position for the life of a token. */
export const PAGE_TOKENS = 128;
/** Rows 0..3 of page 0 are attention sinks: kept in f16, outside every mean and every code. */
export const SINK_TOKENS = 4;
/** Queries kept per layer for trials. */
export const TRIAL_QUERIES = 16;
/** Rows of the random sketch of W_o. */
export const SKETCH_ROWS = 32;
/** Head sizes for which every format exists; other multiples of 8 up to 256 are served in f16 only. */
export const CODED_HEAD_DIMS: readonly number[] = [64, 80, 96, 128, 256];

/** Keys or values. */
export type Side = 'k' | 'v';
export const SIDES: readonly Side[] = ['k', 'v'];
/** What of a page a move concerns: one side, or both in one move. */
export type Part = Side | 'kv';
export const PARTS: readonly Part[] = ['k', 'v', 'kv'];
/** The sides of a part. */
export const sidesOf = (part: Part): readonly Side[] => (part === 'kv' ? SIDES : [part]);

/** Names in order of quality, best first. The index is the id that crosses to C++. */
export const FORMAT_NAMES = ['f16', 'q8', 'rot4', 'rot3', 'rot2'] as const;
/** A format of one side of a page. See FORMAT_NAMES. */
export type FormatName = (typeof FORMAT_NAMES)[number];

export interface KvFormat {
  readonly name: FormatName;
  /** Index in FORMAT_NAMES; the id used by the native code. */
  readonly id: number;
  /** Bits of one code, metadata not included. */
  readonly codeBits: number;
  /** Keys are stored after RoPE in every native format. */
  readonly rope: 'post';
  readonly rotated: boolean;
  readonly source: string;
  readonly layoutVersion: number;
}

const define = (name: FormatName, codeBits: number, rotated: boolean, source: string): KvFormat =>
  Object.freeze({
    name,
    id: FORMAT_NAMES.indexOf(name),
    codeBits,
    rope: 'post' as const,
    rotated,
    source,
    layoutVersion: 1,
  });

const ROT_SOURCE = 'randomized Hadamard rotation + Gaussian Lloyd-Max code + unbiased scale; native/README.md';

export const FORMATS: Readonly<Record<FormatName, KvFormat>> = Object.freeze({
  f16: define('f16', 16, false, 'IEEE 754 binary16'),
  q8: define('q8', 8, false, 'symmetric int8, one f16 scale per token and head'),
  rot4: define('rot4', 4, true, ROT_SOURCE),
  rot3: define('rot3', 3, true, ROT_SOURCE),
  rot2: define('rot2', 2, true, ROT_SOURCE),
});

/** Parts of one page side are allocated in multiples of this many bytes. */
export const PAGE_PART_ALIGN = 64;

const align = (bytes: number): number => Math.ceil(bytes / PAGE_PART_ALIGN) * PAGE_PART_ALIGN;

/**
 * Bytes that one sealed page of one side takes in the pool, padding included: exactly what is allocated.
 * f16: 128·n·d·2. q8: 128·n·(d codes) + 128·n f16 scales. rot b: codes 128·n·d·b/8, then one metadata part
 * of n·(128 int8 scales + d int8 means + one f16 mean scale).
 */
export function pageBytes(format: FormatName, kvHeads: number, headDim: number): number {
  const { codeBits, rotated } = FORMATS[format];
  const codes = align((PAGE_TOKENS * kvHeads * headDim * codeBits) / 8);
  if (format === 'f16') return codes;
  if (!rotated) return codes + align(PAGE_TOKENS * kvHeads * 2);
  return codes + align(kvHeads * (PAGE_TOKENS + headDim + 2));
}

/** Effective bits per element of one sealed page side, all metadata and padding included. */
export function pageBits(format: FormatName, kvHeads: number, headDim: number): number {
  return (pageBytes(format, kvHeads, headDim) * 8) / (PAGE_TOKENS * kvHeads * headDim);
}

export function isFormatName(name: string): name is FormatName {
  return (FORMAT_NAMES as readonly string[]).includes(name);
}

/** ggml and engine names that mean one of ours in all but layout; anything else is refused by name. */
export function parseFormat(text: string): FormatName {
  const name = text.trim().toLowerCase();
  if (isFormatName(name)) return name;
  if (name === 'fp16') return 'f16';
  throw new KvError('unsupported', `unknown cache type '${text}'`, {
    values: { given: text, known: FORMAT_NAMES.join(', ') },
    hint: `use one of ${FORMAT_NAMES.join(', ')}, or a pair such as rot4:rot2 for K:V`,
  });
}

/** Formats of keys and values. */
export interface FormatPair {
  /** Format of keys. */
  readonly k: FormatName;
  /** Format of values. */
  readonly v: FormatName;
}

/** Parses `rot4` or `rot4:rot2` (K:V). */
export function parsePair(text: string): FormatPair {
  const parts = text.split(':');
  if (parts.length > 2) {
    throw new KvError('unsupported', `'${text}' is not a cache type or a K:V pair`, {
      values: { given: text },
      hint: 'write rot4 or rot4:rot2',
    });
  }
  const k = parseFormat(parts[0] ?? '');
  return { k, v: parts[1] === undefined ? k : parseFormat(parts[1]) };
}
