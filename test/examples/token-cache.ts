/**
 * A cache of single tokens with a hard budget: keys and values in packed uniform codes, and a rule of others
 * (`lab/rules`) that says which tokens stay. It shows what such caches promise, over parts that are here anyway;
 * sessions keep all tokens, in pages. What is easily got wrong and is right here (docs/lab/policy.md names a cache that
 * has it wrong):
 *   position    tokens are known by their place in the text, whatever has been dropped
 *   newest      heavy hitters protect the newest half of the budget: a token that nobody could ask for yet is not the
 *   first to go
 *   budget      is never exceeded, also where sinks and window together are larger, and pyramid shares of all layers
 *   have it as their mean
 *               (`pyramid` shares the budget among layers and chooses as h2o does; PyramidKV itself, which chooses once
 *   behind a prompt, is a yardstick)
 *   constants   a head whose channels are all equal keeps its value; the low of a group is stored, not a rounded zero
 *   point
 *   bytes       codes are packed, metadata is counted, and ratios are to f16
 */

import type { YardstickSession } from '../../engine/evaluate/yardstick.ts';
import { pyramidCapacity, yardsticks } from '../../lab/rules/index.ts';
import { KvError } from '../../native/index.ts';
import { roundHalfEven } from '../../native/reference/float32.ts';
import { fromHalf, halfAbove, halfBelow } from '../../native/reference/half.ts';

/** What a cache of one layer is. */
export interface TokenCacheOptions {
  readonly heads: number;
  readonly headDim: number;
  readonly bits: 2 | 3 | 4 | 8;
  /** Most tokens, on average over layers. */
  readonly maxTokens: number;
  readonly rule: 'h2o' | 'streaming' | 'pyramid';
  readonly layer?: number;
  readonly layers?: number;
}

interface Coded {
  /** [heads·headDim], `bits` each, the first in the low bits. */
  readonly codes: Uint8Array;
  /** f16, [heads]. */
  readonly lows: Uint16Array;
  readonly steps: Uint16Array;
}

export class TokenCache {
  readonly budgetTokens: number;
  readonly #options: TokenCacheOptions;
  readonly #session: YardstickSession;
  readonly #held = new Map<number, { readonly key: Coded; readonly value: Coded }>();
  #next = 0;

  /** Throws 'bad-argument'. */
  constructor(options: TokenCacheOptions) {
    const { heads, headDim, bits, maxTokens, rule, layer = 0, layers = 1 } = options;
    for (const [name, value] of Object.entries({ heads, headDim, maxTokens, layers }))
      if (!Number.isSafeInteger(value) || value < 1)
        throw new KvError('bad-argument', `${name} must be a whole number from 1 on`, { values: { [name]: value } });
    if (![2, 3, 4, 8].includes(bits))
      throw new KvError('bad-argument', 'bits must be 2, 3, 4 or 8', { values: { bits } });
    this.#options = options;
    this.budgetTokens =
      rule === 'pyramid' ? pyramidCapacity(maxTokens, layer, layers, Number.MAX_SAFE_INTEGER) : maxTokens;
    const yardstick = yardsticks.get(rule === 'streaming' ? 'streaming' : 'h2o')!;
    this.#session = yardstick.open({ layer, layers, promptTokens: 0, tokenBytes: {} as never });
  }

  /** Positions that are held, ascending. */
  get positions(): number[] {
    return [...this.#held.keys()];
  }

  /**
   * Takes one token in, key and value [heads, headDim], and drops what exceeds the budget. → its position. Throws
   * 'bad-argument', 'bad-value'.
   */
  append(key: Float32Array, value: Float32Array): number {
    const coded = { key: this.#encode(key), value: this.#encode(value) };
    const position = this.#next++;
    this.#held.set(position, coded);
    if (this.#held.size > this.budgetTokens) this.shrink(this.budgetTokens);
    return position;
  }

  /** Adds up what the newest query gave to each held token. Throws 'bad-argument'. */
  observe(attention: Float32Array): void {
    const held = this.positions;
    if (attention.length !== held.length)
      throw new KvError('bad-argument', 'one probability for each held token', {
        values: { given: attention.length, held: held.length },
      });
    this.#session.observe({ held, queries: [this.#next - 1], attention });
  }

  /** Drops tokens until so many are left. */
  shrink(tokens: number): void {
    const kept = new Set(this.#session.keep(this.positions, Math.max(0, tokens)).tokens);
    for (const position of this.positions) if (!kept.has(position)) this.#held.delete(position);
  }

  /** Key and value of a position as they are decoded; null where the token was dropped or never came. */
  get(position: number): { readonly key: Float32Array; readonly value: Float32Array } | null {
    const coded = this.#held.get(position);
    return coded === undefined ? null : { key: this.#decode(coded.key), value: this.#decode(coded.value) };
  }

  /** Bytes of all live codes and their metadata. */
  get bytes(): number {
    const of = ({ codes, lows, steps }: Coded): number => codes.byteLength + lows.byteLength + steps.byteLength;
    return [...this.#held.values()].reduce((sum, { key, value }) => sum + of(key) + of(value), 0);
  }

  /** How many times smaller that is than f16; 1 when nothing is held. */
  get ratio(): number {
    const { heads, headDim } = this.#options;
    return this.#held.size === 0 ? 1 : (this.#held.size * 4 * heads * headDim) / this.bytes;
  }

  #encode(row: Float32Array): Coded {
    const { heads, headDim, bits } = this.#options;
    if (row.length !== heads * headDim)
      throw new KvError('bad-argument', `a row has ${heads * headDim} numbers`, { values: { given: row.length } });
    if (!row.every((x) => Math.abs(x) <= 65504))
      throw new KvError('bad-value', 'NaN, an infinity or more than f16 holds', {});
    const codes = new Uint8Array(Math.ceil((row.length * bits) / 8));
    const [lows, steps] = [new Uint16Array(heads), new Uint16Array(heads)];
    const most = 2 ** bits - 1;
    for (let head = 0; head < heads; head++) {
      const own = row.subarray(head * headDim, (head + 1) * headDim);
      lows[head] = halfBelow(Math.min(...own) + 0);
      const low = fromHalf(lows[head]!);
      steps[head] = halfAbove(Math.fround((Math.max(...own) - low) / most));
      const step = fromHalf(steps[head]!);
      for (const [c, x] of own.entries())
        put(codes, head * headDim + c, bits, step === 0 ? 0 : Math.min(most, roundHalfEven((x - low) / step)));
    }
    return { codes, lows, steps };
  }

  #decode({ codes, lows, steps }: Coded): Float32Array {
    const { heads, headDim, bits } = this.#options;
    return Float32Array.from({ length: heads * headDim }, (_, at) => {
      const head = Math.floor(at / headDim);
      return fromHalf(lows[head]!) + fromHalf(steps[head]!) * take(codes, at, bits);
    });
  }
}

/** Bit by bit, since codes of 3 bits cross bytes. */
function put(codes: Uint8Array, index: number, bits: number, code: number): void {
  for (let bit = 0; bit < bits; bit++) {
    const at = index * bits + bit;
    codes[at >> 3]! |= ((code >> bit) & 1) << (at & 7);
  }
}

function take(codes: Uint8Array, index: number, bits: number): number {
  let code = 0;
  for (let bit = 0; bit < bits; bit++) {
    const at = index * bits + bit;
    code |= ((codes[at >> 3]! >> (at & 7)) & 1) << bit;
  }
  return code;
}
