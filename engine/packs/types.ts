/**
 * What a kernel pack is asked to do, and what is found of it once it was tried. A pack is a WebAssembly module that
 * implements a codec or an element-wise kernel (`docs/packs.md`, What a module may do); what it promises stands in its
 * manifest.
 */

/**
 * How a module broke its contract: `values.fault` of every KvError 'bad-pack', and `check` of a problem in a report.
 */
export const PACK_FAULTS = {
  module: 'the bytes are no module that is served',
  abi: 'it answers another version of the interface',
  trap: 'it was stopped by the machine: an access out of bounds, a division by zero, a stack that is full',
  fuel: 'it wanted more fuel than a call of that size is given',
  status: 'it said that it cannot do what it was asked',
  memory: 'the arrays of the call do not fit in the memory that it declares',
  'guard band': 'it wrote beside its output',
  'not finite': 'its output holds what is no finite number',
  'page bytes': 'a page takes other bytes than promised',
  error: 'decoded rows differ from their originals by more than promised',
  products: 'products taken from a page are not those of the decoded rows',
  repeat: 'the same call gave other bytes, again or in another instance',
  vector: 'bytes or fuel are not those of a vector',
  twin: 'the bits are not those of the format or kernel of ours that it names',
  deadline: 'it was not done in time',
} as const;
export type PackFault = keyof typeof PACK_FAULTS;

/**
 * A codec that is opened for one session (`PackInstance`). Arrays are of one head, tokens first: x and what is decoded
 * are [tokens, dim]. What a call throws means that the codec is not to be trusted any more.
 */
export interface PackCodec {
  /** Bytes of a page. */
  pageBytes(tokens: number, dim: number): number;
  encode(x: Float32Array, tokens: number, dim: number): Uint8Array;
  decode(page: Uint8Array, tokens: number, dim: number): Float32Array;
  /** q: [queries, dim]; out: [queries, tokens], which becomes q·k̂. */
  dots(page: Uint8Array, q: Float32Array, out: Float32Array, tokens: number, dim: number, queries: number): void;
  /** w: [queries, tokens]; out: [queries, dim], to which wᵀ·v̂ is added. */
  mix(page: Uint8Array, w: Float32Array, out: Float32Array, tokens: number, dim: number, queries: number): void;
  close(): void;
}

/** Something that a module did not keep. */
export interface ContractProblem {
  readonly check: PackFault;
  readonly message: string;
  /** The numbers of the case: seed, tokens, dim and the like. */
  readonly values: Readonly<Record<string, unknown>>;
}

/** What the tests of a contract found. */
export interface ContractReport {
  /** The module keeps its promises as far as was tried. */
  readonly kept: boolean;
  /** Calls that were made. */
  readonly calls: number;
  /** The first of each kind. */
  readonly problems: readonly ContractProblem[];
  /** The most fuel that a token of the largest dimension took, with one query. */
  readonly fuelPerToken: number;
  /** The most that was lost, counted as `errorMax` of the manifest. */
  readonly error: number;
}
