/**
 * A format as frozen data: everything that anybody asks of it is computed from these fields. One file of this folder describes one
 * family of formats and holds its readable reference; the C++ file of the same name beside it makes it fast.
 */
import { PAGE_TOKENS } from '../layout.ts';
import type { ReferenceCodec } from '../reference/codec.ts';

/** How far down a format lies. A layer's storage state names the lowest tier that its pages may enter. */
export const TIERS = ['exact', 'warm', 'archive'] as const;
export type Tier = (typeof TIERS)[number];

/** Head sizes that have a rotation and fit the integer tiles. */
export const CODED_HEAD_DIMS: readonly number[] = [64, 80, 96, 128, 256];

/** What one head holds of one page: bits an element, bytes a token, a channel, and whatever else the head has. */
export interface Field {
  readonly name: string;
  readonly elementBits?: number;
  readonly tokenBytes?: number;
  readonly channelBytes?: number;
  readonly headBytes?: number;
  /** The same in every format of the family, so that a demotion on codes keeps it. */
  readonly kept?: boolean;
}

/** One allocation: the first field of all heads, then the next field of all heads. A part whose first field is kept is shared by a demotion. */
export interface Allocation {
  readonly fields: readonly Field[];
}

export interface FormatDescriptor {
  readonly name: string;
  /** The number that crosses to C++ and never changes: 0 to 63. */
  readonly id: number;
  /** Quality: the lower, the better. Gaps leave room between formats. */
  readonly rank: number;
  readonly tier: Tier;
  /** Bits of one code, metadata not included. */
  readonly codeBits: number;
  /** Formats that a page side may come from: every better one, or those named. */
  readonly from: 'better' | readonly string[];
  /** A page may be sealed in it. */
  readonly window: boolean;
  /** A move within the family works on codes alone, without the rows. */
  readonly nested: boolean;
  readonly headDims: 'any' | readonly number[];
  /** Keys are stored after RoPE in every native format. */
  readonly rope: 'post';
  readonly rotated: boolean;
  /** Allocations of one page side, in order; a part without bytes is not made. */
  readonly parts: readonly Allocation[];
  /** The paper or measurement it comes from. */
  readonly source: string;
  /** Raised with every change of what the bytes mean. */
  readonly layoutVersion: number;
}

/** What a file of this folder exports. */
export interface Family {
  readonly formats: readonly FormatDescriptor[];
  // biome-ignore lint/suspicious/noExplicitAny: each codec has a head of its own kind
  readonly codecs: Readonly<Record<string, ReferenceCodec<any>>>;
}

/** Freezes a descriptor and keeps its exact type. */
export const defineFormat = <const F extends FormatDescriptor>(format: F): F => Object.freeze(format);

/** Bytes of a field for one head. */
export function fieldBytes(field: Field, headDim: number): number {
  const { elementBits = 0, tokenBytes = 0, channelBytes = 0, headBytes = 0 } = field;
  return (PAGE_TOKENS * headDim * elementBits) / 8 + PAGE_TOKENS * tokenBytes + headDim * channelBytes + headBytes;
}
