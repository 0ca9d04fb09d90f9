/**
 * A whole model under an eviction rule. Each KV head of each layer holds tokens of its own in f16, and attention over them is computed in plain loops,
 * because the cache of this project drops nothing. Tokens come in steps of sixteen, and room for a step is made before it. A rule that chooses once,
 * behind the prompt, holds the whole prompt until then.
 */
import { f16CacheBytes } from '../../engine/cache/budget.ts';
import { softmax, turned } from '../../engine/trace/head.ts';
import { RopeTable, ropeFrequencies } from '../../engine/transformer/rope.ts';
import type { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { assert, FORMAT_NAMES, fromHalf, KvError, toHalf } from '../../native/index.ts';
import { type Yardstick, type YardstickSession, yardsticks } from '../../policy/index.ts';
import type { Eviction } from './methods.ts';
import { readThrough, type YardstickRead } from './read.ts';

/** Tokens that are read at once. */
export const EVICTION_STRIDE = 16;
/** Bytes of a position, and of a score where a rule keeps one, for each token that a head holds. */
const POSITION_BYTES = 4;
const SCORE_BYTES = 4;

/**
 * Reads tokens under an eviction rule. The last `scored` ones follow the prompt. The code is 'budget-too-small' where a rule that chooses once may hold
 * fewer tokens than come behind the prompt. Throws 'unsupported' for models with a sliding window.
 */
export async function evicted(
  runtime: Runtime,
  ids: readonly number[],
  { id, budgetTokens: budgetOf }: Eviction,
  scored: number,
): Promise<YardstickRead> {
  const { model } = runtime;
  const { config } = model;
  const { layers, kvHeads, queryHeads, headDim, hiddenSize } = config;
  if (config.slidingWindow.some((window) => window !== null))
    throw new KvError('unsupported', `${model.name} has a sliding window, so nothing else is evicted`);
  const yardstick = yardsticks.get(id)!;
  const promptTokens = ids.length - scored;
  const budgetTokens = budgetOf(ids.length);
  const bytesF16 = f16CacheBytes(runtime.shape, ids.length);
  const isOnce = yardstick.when === 'prompt';
  if (budgetTokens <= (isOnce ? scored : EVICTION_STRIDE)) {
    const hidden = new Float32Array(scored * hiddenSize);
    return { hidden, bytes: 0, bytesAtRest: 0, bytesF16, code: 'budget-too-small' };
  }
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
  return { hidden, bytes: Math.max(bytes, heldBytes()), bytesAtRest: heldBytes(), bytesF16, code: null };
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

  /** Attention of the newest `tokens` queries [tokens, queryHeads, d] over what is held, into `out` of the same shape. The rule sees it. */
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
