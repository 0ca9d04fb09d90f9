/**
 * Entropy coding of small integers with asymmetric numeral systems (rANS: Duda, arXiv 1311.2540): a symbol of
 * probability p takes −log2 p bits, up to the rounding of p to 12 bits. Thirty-two states take turns, so that a decoder
 * need not wait for one before it begins the next, and has them in the lanes of vectors. A state is in [2^15, 2^31) and
 * moves 16 bits at a time. Symbols stand in columns, each of which has one distribution: all lanes look into one table.
 *
 * Bytes: the four states, u32, then the words, u16, in the order in which they are read.
 */
import { KvError } from '../../../native/index.ts';

/** Symbols stand for −LEVEL_MAX … LEVEL_MAX. */
export const LEVEL_MAX = 21;
export const SYMBOLS = 2 * LEVEL_MAX + 1;
const BITS = 12;
const TOTAL = 1 << BITS;
const LEAST = 2 ** 15;
const STATES = 32;

/** Probabilities as shares of 4096, [SYMBOLS], for a logistic distribution of that standard deviation; none is 0. */
export function logisticShares(deviation: number): Uint16Array {
  const width = (deviation * Math.sqrt(3)) / Math.PI;
  const below = (x: number): number => 1 / (1 + Math.exp(-x / width));
  const exact = Array.from({ length: SYMBOLS }, (_, i) => below(i - LEVEL_MAX + 0.58) - below(i - LEVEL_MAX - 0.58));
  const sum = exact.reduce((a, b) => a + b, 0);
  const shares = Uint16Array.from(exact, (p) => 1 + Math.floor((p / sum) * (TOTAL - SYMBOLS)));
  shares[LEVEL_MAX]! += TOTAL - shares.reduce((a, b) => a + b, 0);
  return shares;
}

/**
 * Tables of several distributions. `shares`: of each, SYMBOLS numbers that add up to 4096. Throws 'bad-file' where they
 * do not.
 */
export class Distributions {
  readonly count: number;
  readonly shares: Uint16Array;
  /** Where the share of each symbol begins. */
  readonly #starts: Uint16Array;
  /** Each 4096th: symbol, share − 1 and place in the share, in 6, 12 and 12 bits. */
  readonly #slots: Uint32Array;
  /** What each symbol takes, from logarithms in float32, in which the native code has them alike on every machine. */
  readonly #bits: Float64Array;

  constructor(shares: Uint16Array) {
    this.count = shares.length / SYMBOLS;
    this.shares = shares;
    this.#starts = new Uint16Array(shares.length);
    this.#slots = new Uint32Array(this.count * TOTAL);
    this.#bits = Float64Array.from(shares, (share) => BITS - Math.fround(Math.log2(share)));
    for (let table = 0; table < this.count; table++) {
      let at = 0;
      for (let symbol = 0; symbol < SYMBOLS; symbol++) {
        const share = shares[table * SYMBOLS + symbol]!;
        if (share === 0 || at + share > TOTAL) throw new KvError('bad-file', 'a distribution does not add up');
        this.#starts[table * SYMBOLS + symbol] = at;
        for (let i = 0; i < share; i++) this.#slots[table * TOTAL + at + i] = symbol | ((share - 1) << 6) | (i << 18);
        at += share;
      }
      if (at !== TOTAL) throw new KvError('bad-file', 'a distribution does not add up', { values: { sum: at } });
    }
  }

  /** How often each symbol stands in each column [columns][rows], [columns, SYMBOLS]. */
  counts(levels: Int8Array, columns: number): Uint32Array {
    const counts = new Uint32Array(columns * SYMBOLS);
    const rows = levels.length / columns;
    for (let at = LEVEL_MAX, i = 0, end = rows; i < levels.length; at += SYMBOLS, end += rows)
      for (; i < end; i++) counts[at + levels[i]!]! += 1;
    return counts;
  }

  /** Bits that so many symbols take. tables: which distribution, by the column. */
  bits(counts: Uint32Array, tables: Uint8Array): number {
    let bits = 0;
    for (let column = 0, i = 0; column < tables.length; column++)
      for (let at = tables[column]! * SYMBOLS, end = at + SYMBOLS; at < end; at++, i++)
        if (counts[i]! > 0) bits += counts[i]! * this.#bits[at]!;
    return bits;
  }

  /** levels: columns [tables.length][rows], rows being a multiple of 32. */
  encode(levels: Int8Array, tables: Uint8Array): Buffer {
    const states = new Array<number>(STATES).fill(LEAST);
    // From the last to the first: no more than one for each symbol.
    const words = new Uint16Array(levels.length);
    const rows = levels.length / Math.max(1, tables.length);
    let first = words.length;
    for (let column = tables.length - 1, i = levels.length - 1; column >= 0; column--) {
      const from = tables[column]! * SYMBOLS + LEVEL_MAX;
      for (const end = column * rows; i >= end; i--) {
        const at = from + levels[i]!;
        const share = this.shares[at]!;
        let state = states[i % STATES]!;
        if (state >= share * 2 ** 19) {
          words[--first] = state & 0xffff;
          state >>>= 16;
        }
        const whole = Math.floor(state / share);
        states[i % STATES] = whole * TOTAL + state - whole * share + this.#starts[at]!;
      }
    }
    const out = Buffer.alloc(4 * STATES + 2 * (words.length - first));
    for (const [i, state] of states.entries()) out.writeUInt32LE(state, 4 * i);
    for (let i = first, at = 4 * STATES; i < words.length; i++, at += 2) out.writeUInt16LE(words[i]!, at);
    return out;
  }

  /** Fills columns of levels, as many as were encoded. Throws 'bad-file' where the bytes are not what encode makes. */
  decode(bytes: Uint8Array, tables: Uint8Array, levels: Int8Array): void {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    if (bytes.length < 4 * STATES || bytes.length % 2 !== 0) throw damaged();
    const states = Int32Array.from({ length: STATES }, (_, i) => view.getInt32(4 * i, true));
    if (states.some((state) => state < LEAST)) throw damaged();
    const rows = levels.length / Math.max(1, tables.length);
    let next = 4 * STATES;
    for (let column = 0, i = 0; column < tables.length; column++) {
      const slots = this.#slots.subarray(tables[column]! * TOTAL, (tables[column]! + 1) * TOTAL);
      for (const end = (column + 1) * rows; i < end; i++) {
        const state = states[i % STATES]!;
        const slot = slots[state & (TOTAL - 1)]!;
        levels[i] = (slot & 63) - LEVEL_MAX;
        let left = Math.imul(((slot >>> 6) & (TOTAL - 1)) + 1, state >>> BITS) + (slot >>> 18);
        // Beyond the end 0 is read, and the states are not what they must be.
        if (left < LEAST) {
          left = (left << 16) | bytes[next]! | (bytes[next + 1]! << 8);
          next += 2;
        }
        states[i % STATES] = left;
      }
    }
    if (next !== bytes.length || states.some((state) => state !== LEAST)) throw damaged();
  }
}

const damaged = (): KvError => new KvError('bad-file', 'coded residuals are damaged');
