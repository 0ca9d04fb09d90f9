/**
 * A whole model under an eviction rule. Each KV head of each layer holds tokens of its own in f16, and attention over
 * them is computed in plain loops, because the cache of this project drops nothing. Tokens come in steps of sixteen,
 * and room for a step is made before it. A rule that chooses once, behind the prompt, holds the whole prompt until
 * then.
 */
import {
  assert,
  FORMAT_NAMES,
  f16CacheBytes,
  fromHalf,
  KvError,
  type MethodRead,
  type MethodReading,
  RopeTable,
  type Runtime,
  ropeFrequencies,
  softmax,
  toHalf,
  turned,
  type Yardstick,
  type YardstickSession,
} from 'palimpsest/lab';
import { yardsticks } from '../rules/index.ts';
import { readThrough } from './read.ts';

/** Shares of the tokens that eviction rules may hold. */
const SHARES = ['50%', '25%'];
/** Rules that keep tokens in lower formats before they drop any. They run in the simulator. */
const TIERED = ['age-tiers', 'anchors', 'coded-h2o'];

export const evictionCaches = (): string[] =>
  [...yardsticks.keys()].filter((id) => !TIERED.includes(id)).flatMap((id) => SHARES.map((share) => `${id}@${share}`));

export interface Eviction {
  readonly id: string;
  /** Tokens that it may hold of so many. */
  readonly budgetTokens: (tokens: number) => number;
}

/**
 * The eviction rule that a cache names, with a share of the tokens ('h2o@25%') or their number ('h2o@1024'); null for
 * any other cache.
 */
export function evictionOf(cache: string): Eviction | null {
  const [, id = '', budget = '', unit] = /^([a-z0-9]+)@([0-9.]+)(%?)$/.exec(cache) ?? [];
  const amount = Number(budget);
  if (!yardsticks.has(id) || TIERED.includes(id) || !(amount > 0)) return null;
  return {
    id,
    budgetTokens: (tokens) => Math.floor(unit === '%' ? (tokens * amount) / 100 : Math.min(amount, tokens)),
  };
}

/** Tokens that are read at once. */
export const EVICTION_STRIDE = 16;
/** Bytes of a position, and of a score where a rule keeps one, for each token that a head holds. */
const POSITION_BYTES = 4;
const SCORE_BYTES = 4;

/**
 * Reads tokens under an eviction rule. The last `scored` ones follow the prompt. Throws 'unsupported' for models with a
 * sliding window, 'budget-too-small' where a rule that chooses once may hold fewer tokens than come behind the prompt,
 * and 'aborted'.
 */
export async function evicted(
  runtime: Runtime,
  { id, budgetTokens: budgetOf }: Eviction,
  { ids, scored, signal }: MethodReading,
): Promise<MethodRead> {
  const { model } = runtime;
  const { config } = model;
  const { layers, kvHeads, queryHeads, headDim } = config;
  if (config.slidingWindow.some((window) => window !== null))
    throw new KvError('unsupported', `${model.name} has a sliding window, so nothing else is evicted`);
  const yardstick = yardsticks.get(id)!;
  const promptTokens = ids.length - scored;
  const budgetTokens = budgetOf(ids.length);
  const bytesF16 = f16CacheBytes(runtime.shape, ids.length);
  const isOnce = yardstick.when === 'prompt';
  const least = isOnce ? scored : EVICTION_STRIDE;
  if (budgetTokens <= least)
    throw new KvError('budget-too-small', `${id} has room for ${budgetTokens} tokens and needs more than ${least}`, {
      values: { given: id, budgetTokens, least },
      hint: isOnce
        ? `it chooses once and keeps all ${scored} tokens that follow: read more tokens, or give it more`
        : 'give it a larger share',
    });
  const rope = new RopeTable(config, ids.length);
  const rotary = { radians: [...ropeFrequencies(config, ids.length).radians], interleaved: config.ropeInterleaved };
  const tokenBytes = Object.fromEntries(FORMAT_NAMES.map((format) => [format, 4 * headDim]));
  const heads = Array.from({ length: layers }, (_, layer) =>
    Array.from({ length: kvHeads }, () => {
      const session = yardstick.open({ layer, layers, promptTokens, tokenBytes: tokenBytes as never });
      return new Held(yardstick, session, headDim, queryHeads / kvHeads, rotary);
    }),
  );
  const all = heads.flat();
  const heldBytes = (): number => all.reduce((sum, head) => sum + head.bytes, 0);
  let bytes = 0;
  const hidden = await readThrough(runtime, {
    ids,
    rope,
    scored,
    signal,
    stride: (start) => Math.min(EVICTION_STRIDE, start < promptTokens ? promptTokens - start : EVICTION_STRIDE),
    before: (start, tokens) => {
      bytes = Math.max(bytes, heldBytes());
      for (const head of all) {
        if (isOnce && start === promptTokens) head.keep(budgetTokens - scored);
        else if (!isOnce && head.count + tokens > budgetTokens) head.keep(budgetTokens - tokens);
      }
    },
    attend: ({ layer, tokens, q, k, v }, start, out) => {
      const [keys, values] = [fromHalf(toHalf(k)), fromHalf(toHalf(v))];
      for (const [head, held] of heads[layer]!.entries()) {
        held.append(keys, values, { start, tokens, kvHeads, head });
        held.attend(q, out, { start, tokens, queryHeads, head });
      }
    },
  });
  return { hidden, bytes: Math.max(bytes, heldBytes()), bytesAtRest: heldBytes(), bytesF16 };
}

/** What one KV head holds: positions ascending, and rows in f16, which are kept as float32 here. */
class Held {
  readonly #yardstick: Yardstick;
  readonly #session: YardstickSession;
  readonly #width: number;
  readonly #group: number;
  readonly #rotary: Parameters<typeof turned>[2];
  #positions: number[] = [];
  #k = new Float32Array(0);
  #v = new Float32Array(0);

  constructor(
    yardstick: Yardstick,
    session: YardstickSession,
    width: number,
    group: number,
    rotary: Parameters<typeof turned>[2],
  ) {
    this.#yardstick = yardstick;
    this.#session = session;
    this.#width = width;
    this.#group = group;
    this.#rotary = rotary;
  }

  get count(): number {
    return this.#positions.length;
  }

  get bytes(): number {
    const { observes, when } = this.#yardstick;
    const perToken = 4 * this.#width + POSITION_BYTES + (observes && when === 'step' ? SCORE_BYTES : 0);
    return this.count * perToken;
  }

  /** Drops what the rule does not keep. */
  keep(budgetTokens: number): void {
    const width = this.#width;
    const { tokens, formats } = this.#session.keep(this.#positions, budgetTokens);
    assert(formats === undefined, `${this.#yardstick.id} keeps tokens in other formats than f16`);
    let at = 0;
    for (const [to, position] of tokens.entries()) {
      while (this.#positions[at] !== position) {
        at++;
        assert(at < this.#positions.length, `token ${position} is kept, but was dropped`);
      }
      this.#k.copyWithin(to * width, at * width, (at + 1) * width);
      this.#v.copyWithin(to * width, at * width, (at + 1) * width);
    }
    this.#positions = [...tokens];
  }

  /** Rows [tokens, kvHeads, d], of which those of one head are taken. */
  append(
    k: Float32Array,
    v: Float32Array,
    { start, tokens, kvHeads, head }: { start: number; tokens: number; kvHeads: number; head: number },
  ): void {
    const width = this.#width;
    const needed = (this.count + tokens) * width;
    if (needed > this.#k.length) {
      const grown = (rows: Float32Array): Float32Array<ArrayBuffer> => {
        const larger = new Float32Array(2 * needed);
        larger.set(rows);
        return larger;
      };
      this.#k = grown(this.#k);
      this.#v = grown(this.#v);
    }
    for (let token = 0; token < tokens; token++) {
      const from = (token * kvHeads + head) * width;
      this.#k.set(k.subarray(from, from + width), this.count * width);
      this.#v.set(v.subarray(from, from + width), this.count * width);
      this.#positions.push(start + token);
    }
  }

  /**
   * Attention of the newest `tokens` queries [tokens, queryHeads, d] over what is held, into `out` of the same shape.
   * The rule sees it.
   */
  attend(
    q: Float32Array,
    out: Float32Array,
    { tokens, queryHeads, head }: { start: number; tokens: number; queryHeads: number; head: number },
  ): void {
    const width = this.#width;
    const { observes } = this.#yardstick;
    const seenByFirst = this.count - tokens + 1;
    const attention = new Float32Array(observes ? tokens * this.count : 0);
    for (let token = 0; token < tokens; token++) {
      const seen = seenByFirst + token;
      for (let j = 0; j < this.#group; j++) {
        const place = (token * queryHeads + head * this.#group + j) * width;
        const shares = this.#scores(q.subarray(place, place + width), seen);
        softmax(shares);
        for (let at = 0; at < seen; at++) {
          const share = shares[at]!;
          if (observes) attention[token * this.count + at]! += share / this.#group;
          const from = at * width;
          for (let c = 0; c < width; c++) out[place + c]! += share * this.#v[from + c]!;
        }
      }
    }
    if (observes) {
      const queries = this.#positions.slice(-tokens);
      this.#session.observe({ held: this.#positions, queries, attention });
    }
  }

  /** Scores of the first `seen` tokens that are held, the last of which is the query's own. */
  #scores(row: Float32Array, seen: number): Float32Array {
    const width = this.#width;
    const q: Float32Array = row.map((one) => one / Math.sqrt(width));
    const k = this.#k;
    const scores = new Float32Array(seen);
    const position = this.#positions[seen - 1]!;
    let turn: { readonly by: number; readonly q: Float32Array } = { by: 0, q };
    for (let at = 0; at < seen; at++) {
      // By places, a token is nearer to the query by as many as were dropped between the two.
      const nearer = this.#yardstick.positions === 'slot' ? position - this.#positions[at]! - (seen - 1 - at) : 0;
      if (nearer !== turn.by) turn = { by: nearer, q: nearer === 0 ? q : turned(q, -nearer, this.#rotary) };
      const from = at * width;
      let [a, b, c, d] = [0, 0, 0, 0];
      for (let i = 0; i < width; i += 4) {
        a += turn.q[i]! * k[from + i]!;
        b += turn.q[i + 1]! * k[from + i + 1]!;
        c += turn.q[i + 2]! * k[from + i + 2]!;
        d += turn.q[i + 3]! * k[from + i + 3]!;
      }
      scores[at] = a + b + c + d;
    }
    return scores;
  }
}
