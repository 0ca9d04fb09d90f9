/**
 * A cache of one layer that keeps or drops single tokens: keys and values in codes of 2 to 8 bits, a number of tokens
 * that is never exceeded, and a rule that says which of them stay. It attends to nothing by itself: whoever reads its
 * rows tells it how much attention they got. palimpsest's own cache (`openCache`) holds pages and drops none.
 */
import { KvError } from 'palimpsest/lab';
import { H2oSession } from '../rules/h2o.ts';
import { pyramidCapacity } from '../rules/snapkv.ts';
import { split } from '../rules/tokens.ts';
import { decodeRow, encodeGrid, GRID_BITS, type GridBits, type GridRow, rowBytes } from './grid.ts';

/**
 * Which tokens stay. `h2o`: half of them the newest, half those with most attention (arXiv 2306.14048). `window`: the
 * first `sinks` and the newest `window` (arXiv 2309.17453). `pyramid`: as `h2o`, with more tokens for lower layers
 * (arXiv 2406.02069).
 */
export type TokenRule =
  | { readonly id: 'h2o' }
  | { readonly id: 'window'; readonly window: number; readonly sinks: number }
  | { readonly id: 'pyramid'; readonly layer: number; readonly layers: number };

export interface TokenCacheOptions {
  /** Tokens that are held at most; under `pyramid` the mean of all layers. */
  readonly tokens: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly bits: GridBits;
  readonly rule: TokenRule;
}

interface Entry {
  /** Its place among all tokens that were appended. */
  readonly position: number;
  readonly key: GridRow;
  readonly value: GridRow;
}

/** Bytes of one number in f16, which ratios are against. */
const F16_BYTES = 2;

export class TokenCache {
  readonly #options: TokenCacheOptions;
  readonly #hitters = new H2oSession();
  #entries: Entry[] = [];
  #appended = 0;

  /** Throws 'bad-argument' for sizes that are no whole numbers above 0, and for bits that there are no codes of. */
  constructor(options: TokenCacheOptions) {
    const { tokens, kvHeads, headDim, bits, rule } = options;
    const counts = { tokens, kvHeads, headDim, ...(rule.id === 'pyramid' ? { layers: rule.layers } : {}) };
    for (const [name, value] of Object.entries(counts)) checkCount(name, value, 1);
    if (rule.id === 'window') for (const name of ['window', 'sinks'] as const) checkCount(name, rule[name], 0);
    if (rule.id === 'pyramid') checkCount('layer', rule.layer, 0, rule.layers - 1);
    if (!GRID_BITS.includes(bits)) throw wrong('bits', bits, `one of ${GRID_BITS.join(', ')}`);
    this.#options = options;
  }

  /** Tokens held. */
  get length(): number {
    return this.#entries.length;
  }

  /** Which of the tokens that were appended are held, ascending. */
  get positions(): readonly number[] {
    return this.#entries.map(({ position }) => position);
  }

  /** Tokens that are held at most in this layer. */
  get capacity(): number {
    const { tokens, rule } = this.#options;
    if (rule.id !== 'pyramid') return tokens;
    const mean = pyramidCapacity(tokens, rule.layer, rule.layers, Number.MAX_SAFE_INTEGER);
    return Math.max(1, Math.round(mean));
  }

  /** All bytes that are held: codes, steps and offsets. */
  get usedBytes(): number {
    return this.length * this.tokenBytes;
  }

  /** Bytes of the keys and values of one token. */
  get tokenBytes(): number {
    const { kvHeads, headDim, bits } = this.#options;
    return 2 * rowBytes(kvHeads * headDim, kvHeads, bits);
  }

  /** Bytes of a token in f16 over its bytes here. */
  get ratio(): number {
    return (2 * F16_BYTES * this.#rowLength) / this.tokenBytes;
  }

  /** One token. key, value: [kvHeads, headDim]. Throws 'bad-argument', 'bad-value'; then nothing was appended. */
  append(key: Float32Array, value: Float32Array): void {
    const { kvHeads, bits } = this.#options;
    for (const [name, row] of Object.entries({ key, value }))
      if (row.length !== this.#rowLength) throw wrong(`numbers of ${name}`, row.length, String(this.#rowLength));
    const code = (row: Float32Array): GridRow => encodeGrid(row, kvHeads, bits);
    this.#entries.push({ position: this.#appended, key: code(key), value: code(value) });
    this.#appended++;
    if (this.length > this.capacity) this.evict(this.capacity);
  }

  /** Keys and values of tokens by their positions, [kvHeads, headDim] each. Throws 'not-found' for one not held. */
  rows(positions: readonly number[]): { readonly keys: Float32Array[]; readonly values: Float32Array[] } {
    const held = new Map(this.#entries.map((entry) => [entry.position, entry]));
    const entries = positions.map((position) => held.get(position) ?? notHeld(position, this));
    return { keys: entries.map(({ key }) => decodeRow(key)), values: entries.map(({ value }) => decodeRow(value)) };
  }

  /** Adds the attention that each held token got, in the order of `positions`. Throws 'bad-argument', 'bad-value'. */
  observe(masses: ArrayLike<number>): void {
    if (masses.length !== this.length) throw wrong('masses', masses.length, `${this.length}, one for each token held`);
    const at = Array.from(masses).findIndex((mass) => !(mass >= 0 && Number.isFinite(mass)));
    if (at >= 0)
      throw new KvError('bad-value', `mass ${at} is ${masses[at]}`, {
        values: { at, given: String(masses[at]) },
        hint: 'masses are finite and at least 0',
      });
    const queries = [this.#appended - 1];
    this.#hitters.observe({ held: this.positions, queries, attention: Float32Array.from(masses) });
  }

  /** Drops tokens until at most so many are held. Throws 'bad-argument' if that is no count. */
  evict(tokens: number): void {
    checkCount('tokens', tokens, 0);
    const kept = new Set(this.#keep(tokens));
    this.#entries = this.#entries.filter(({ position }) => kept.has(position));
  }

  #keep(tokens: number): readonly number[] {
    const held = this.positions;
    const { rule } = this.#options;
    if (rule.id === 'window') {
      const sinks = held.filter((position) => position < rule.sinks).slice(0, tokens);
      const others = held.filter((position) => position >= rule.sinks);
      return [...sinks, ...split(others, Math.min(rule.window, tokens - sinks.length)).recent];
    }
    return this.#hitters.keep(held, tokens).tokens;
  }

  get #rowLength(): number {
    return this.#options.kvHeads * this.#options.headDim;
  }
}

function checkCount(name: string, value: number, least: number, most = Number.MAX_SAFE_INTEGER): void {
  if (Number.isSafeInteger(value) && value >= least && value <= most) return;
  const range = most === Number.MAX_SAFE_INTEGER ? `of at least ${least}` : `from ${least} to ${most}`;
  throw wrong(name, value, `a whole number ${range}`);
}

const wrong = (name: string, given: unknown, expected: string): KvError =>
  new KvError('bad-argument', `${name} must be ${expected}, not ${String(given)}`, {
    values: { [name]: String(given) },
    hint: 'lab/README.md shows a token cache',
  });

function notHeld(position: number, { length }: TokenCache): never {
  throw new KvError('not-found', `token ${position} is not held`, {
    values: { position, length },
    hint: '`positions` lists the tokens that are',
  });
}
