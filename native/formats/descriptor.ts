/**
 * A format as frozen data, from which everything else about it is computed. Each family has a folder here, whose
 * TypeScript file describes its formats and holds their readable reference; the C++ file of the same name beside it is
 * the fast implementation.
 */
import { PAGE_TOKENS, type Side } from '../layout.ts';
import type { ReferenceCodec } from '../reference/codec.ts';

/** Tiers of formats, from the best down. A layer's storage state names the lowest tier that its pages may enter. */
export const TIERS = ['exact', 'warm', 'archive'] as const;
export type Tier = (typeof TIERS)[number];

/** Head sizes that have a rotation and fit the integer tiles. */
export const CODED_HEAD_DIMS: readonly number[] = [64, 80, 96, 128, 256];

/** One field that a head stores per page: bits per element, bytes per token, per channel and per head. */
export interface Field {
  readonly name: string;
  readonly elementBits?: number;
  readonly tokenBytes?: number;
  readonly channelBytes?: number;
  readonly headBytes?: number;
  /**
   * The field is the same in every format of the family that stores as many bits of an element in it, so a demotion
   * among them keeps it.
   */
  readonly kept?: boolean;
}

/**
 * One allocation: the first field of all heads, then the next field of all heads, and so on. A demotion shares a part
 * whose first field is kept.
 */
export interface Allocation {
  readonly fields: readonly Field[];
}

export interface FormatDescriptor {
  readonly name: string;
  /** The number of the format in C++, 0 to 63, which never changes. */
  readonly id: number;
  /** Quality: lower is better. Gaps leave room for formats in between. */
  readonly rank: number;
  readonly tier: Tier;
  /** Bits of one code, metadata not included. */
  readonly codeBits: number;
  /** Formats that a page side may come from: every better one, or those named. */
  readonly from: 'better' | readonly string[];
  /** The sides that policies put in this format: both, if none are named. The cache itself serves either side. */
  readonly sides?: readonly Side[];
  /**
   * A published method to compare with. The product describes it, so that logs that name it can be read, but only a
   * build with yardsticks computes it (native/yardsticks/).
   */
  readonly yardstick?: true;
  /**
   * Policies put only keys with outlier channels in this format (policy/outlier-keys.ts), and otherwise what a
   * session's cache types name.
   */
  readonly forOutlierKeys?: true;
  /**
   * The format of as many bytes that it errs less than: policies may leave that one out where sessions may use both
   * (`skipsReplaced`).
   */
  readonly replaces?: string;
  /**
   * Where the format stands on the ladder that policies without measurements go down, by side: lower places come first,
   * and gaps leave room for others (policy/ladder.ts). A side that is left out has no rung in it.
   */
  readonly rungs?: Readonly<Partial<Record<Side, number>>>;
  /**
   * Two formats of as many bits have this, one with scales per channel and one that is rotated: their errors side by
   * side tell whether the keys of a layer have outlier channels. The threshold `keys.outliers` was measured with them
   * (policy/outlier-keys.ts).
   */
  readonly outlierGauge?: 'per channel' | 'rotated';
  /** True if a page may be sealed in it. */
  readonly window: boolean;
  /** True if a move within the family works on codes alone, without the rows. */
  readonly nested: boolean;
  readonly headDims: 'any' | readonly number[];
  /** Keys are stored after RoPE in every native format. */
  readonly rope: 'post';
  readonly rotated: boolean;
  /**
   * The codes of keys are chosen by the queries that the layer keeps (reference/steering.ts): by their metric, or by
   * their power in each channel alone. Without them they are those of the plain format.
   */
  readonly steered?: 'metric' | 'channels';
  /** Allocations of one page side, in order; a part without bytes is not allocated. */
  readonly parts: readonly Allocation[];
  /** The paper or measurement it comes from. */
  readonly source: string;
  /** Raised with every change in what the bytes mean. */
  readonly layoutVersion: number;
}

/** What the file of a family exports. */
export interface Family {
  readonly formats: readonly FormatDescriptor[];
  // biome-ignore lint/suspicious/noExplicitAny: each codec has a head of its own kind
  readonly codecs: Readonly<Record<string, ReferenceCodec<any>>>;
}

/** Freezes a descriptor and keeps its exact type. */
export const defineFormat = <const F extends FormatDescriptor>(format: F): F => Object.freeze(format);

/** What formats have in common that policies do not choose wherever a page goes down. */
const CODED = {
  from: 'better',
  window: false,
  headDims: CODED_HEAD_DIMS,
  rope: 'post',
} as const;
type Rest = Omit<FormatDescriptor, keyof typeof CODED>;

/** The same for a published method to compare with. */
export const defineYardstick = <const F extends Rest>(format: F) =>
  defineFormat({ ...CODED, yardstick: true, ...format });

/** The same for codes of 2 to 4 bits over rows that are rotated and scaled, of which policies would choose one each. */
export const defineTurned = <
  const F extends Pick<FormatDescriptor, 'name' | 'id' | 'rank' | 'codeBits' | 'parts' | 'source'>,
>({
  name,
  id,
  rank,
  codeBits,
  parts,
  source,
}: F) =>
  defineYardstick({
    name: name as F['name'],
    id,
    rank,
    tier: codeBits === 4 ? 'warm' : 'archive',
    codeBits,
    nested: false,
    rotated: true,
    parts,
    source,
    layoutVersion: 1,
  });

/** Parts of such a format: its codes in two planes, and a scale for each row. */
export const planesAndScales = (codeBits: number): readonly Allocation[] => [
  { fields: [{ name: 'high', elementBits: 2 }] },
  { fields: [{ name: 'low', elementBits: codeBits - 2 }] },
  { fields: [{ name: 'scales', tokenBytes: 2 }] },
];

/** The same for a format that keys with outlier channels are put in. */
export const defineForOutlierKeys = <const F extends Rest>(format: F) =>
  defineFormat({ ...CODED, forOutlierKeys: true, ...format });

/** Bytes of a field for one head with room for so many tokens. */
export function fieldBytes(field: Field, headDim: number, room: number = PAGE_TOKENS): number {
  const { elementBits = 0, tokenBytes = 0, channelBytes = 0, headBytes = 0 } = field;
  return (room * headDim * elementBits) / 8 + room * tokenBytes + headDim * channelBytes + headBytes;
}
