/**
 * Runs yardsticks over a trace, head by head. Scores of all recorded queries with all tokens before them are computed
 * once and shared: what a yardstick holds only masks them. Tokens come in steps of sixteen, and room for a step is made
 * before it, so the bytes never exceed the budget; a yardstick that chooses once holds the whole prompt until then.
 * Ranks are made of exact keys; outputs of the formats that tokens are kept in.
 */
import { assert, FORMAT_NAMES, type FormatName, PAGE_TOKENS } from '../../native/index.ts';
import { sideBytes } from '../cache/budget.ts';
import type { Yardstick, YardstickContext, YardstickSession } from '../evaluate/yardstick.ts';
import { dot, logSumExp, softmax, TraceLayer, turned } from './head.ts';
import { Errors } from './later.ts';
import type { Trace } from './reader.ts';

/** Two queries of trials, and two of the keys between them on average. */
const STEP_TOKENS = 16;
/** Formats are places in FORMAT_NAMES, best first. */
const EXACT = FORMAT_NAMES.indexOf('f16');

/** A yardstick with what it may hold. */
export interface YardstickRequest {
  readonly yardstick: Yardstick;
  /** Tokens in f16 of every head. */
  readonly budgetTokens: number;
}

/** What one yardstick did. */
export class YardstickRun {
  readonly request: YardstickRequest;
  readonly errors: Errors;
  /** By steps, over layers and heads. */
  readonly stepBytes: Float64Array;
  droppedMass = 0;
  judged = 0;
  ms = 0;

  constructor(request: YardstickRequest, sketches: readonly Float32Array[], tokens: number) {
    this.request = request;
    this.errors = new Errors(sketches);
    this.stepBytes = new Float64Array(Math.ceil(tokens / STEP_TOKENS));
  }

  /** At the end of each page. */
  get bytes(): number[] {
    const every = PAGE_TOKENS / STEP_TOKENS;
    return [...this.stepBytes].filter((_, step) => step % every === every - 1 || step === this.stepBytes.length - 1);
  }
}

/** `laterToken`: the first whose query is judged, which is also where the prompt ends. */
export function runYardsticks(
  trace: Trace,
  requests: readonly YardstickRequest[],
  sketches: readonly Float32Array[],
  laterToken: number,
): YardstickRun[] {
  const { header, shape } = trace;
  const runs = requests.map((request) => new YardstickRun(request, sketches, header.tokens));
  const sides = sideBytes(
    shape,
    FORMAT_NAMES.map((name) => ({ k: name, v: name })),
  );
  const tokenBytes = Object.fromEntries(
    FORMAT_NAMES.map((format) => [format, (2 * sides[format]) / (PAGE_TOKENS * shape.kvHeads)]),
  ) as Record<FormatName, number>;
  for (const [place, layer] of header.sampling.layers.entries()) {
    const context = { layer, layers: header.shape.layers, promptTokens: laterToken, tokenBytes };
    runLayer(trace, place, context, header.slidingWindow[layer]!, runs);
  }
  return runs;
}

function runLayer(
  trace: Trace,
  place: number,
  context: YardstickContext,
  slidingWindow: number | null,
  runs: readonly YardstickRun[],
): void {
  const { kvHeads, queryHeads, headDim } = trace.shape;
  const layer = new TraceLayer(trace, place);
  const first = layer.positions.findIndex((position) => position >= context.promptTokens);
  const width = queryHeads * headDim;
  const room = (): Float32Array[] => layer.positions.slice(first).map(() => new Float32Array(width));
  const exact = room();
  const outputs = runs.map(room);
  for (let head = 0; head < kvHeads; head++) {
    const one = new Head(trace, layer, head, context, slidingWindow);
    for (const [query, row] of exact.entries()) one.exact(first + query, row);
    for (const [at, run] of runs.entries()) {
      const start = performance.now();
      one.run(run, first, outputs[at]!);
      run.ms += performance.now() - start;
    }
  }
  for (const [at, run] of runs.entries())
    for (const [query, row] of exact.entries())
      run.errors.add(place, row, outputs[at]![query]!, layer.norms[first + query]!);
}

/** One KV head: its scores, and what is held of it. */
class Head {
  readonly #trace: Trace;
  readonly #layer: TraceLayer;
  readonly #head: number;
  readonly #context: YardstickContext;
  readonly #window: number;
  readonly #group: number;
  /** The queries of each query head, [queries, d]. */
  readonly #queries: readonly Float32Array[];
  /** The scores of each query head and query, [tokens up to the query]. */
  readonly #scores: readonly (readonly Float32Array[])[];
  /** The logarithm of the sum over all tokens, for each query head and query. */
  readonly #sums: readonly number[][];
  /** By format. */
  readonly #rows: { readonly k: Float32Array; readonly v: Float32Array }[] = [];

  constructor(trace: Trace, layer: TraceLayer, head: number, context: YardstickContext, slidingWindow: number | null) {
    const { headDim, kvHeads, queryHeads } = trace.shape;
    this.#trace = trace;
    this.#layer = layer;
    this.#head = head;
    this.#context = context;
    this.#window = slidingWindow ?? Number.POSITIVE_INFINITY;
    this.#group = queryHeads / kvHeads;
    const { k } = this.#in(EXACT);
    const heads = Array.from({ length: this.#group }, (_, j) => layer.queries(head * this.#group + j));
    this.#queries = heads;
    this.#scores = heads.map((q) =>
      layer.positions.map((position, query) => {
        const scores = new Float32Array(position + 1).fill(Number.NEGATIVE_INFINITY);
        for (let token = this.#first(position); token <= position; token++)
          scores[token] = dot(q, query * headDim, k, token * headDim, headDim);
        return scores;
      }),
    );
    this.#sums = this.#scores.map((queries) => queries.map(logSumExp));
  }

  /** Attention of a query over all tokens, into its place in `out` [H, d]. */
  exact(query: number, out: Float32Array): void {
    const { v } = this.#in(EXACT);
    for (let j = 0; j < this.#group; j++) {
      const shares = this.#scores[j]![query]!.slice();
      softmax(shares);
      this.#mix(
        j,
        out,
        shares,
        (at) => at,
        () => v,
      );
    }
  }

  /** Runs a yardstick; `first`: the first query that is judged, whose output goes into outputs[0]. */
  run(run: YardstickRun, first: number, outputs: readonly Float32Array[]): void {
    const { yardstick, budgetTokens } = run.request;
    const { promptTokens, tokenBytes } = this.#context;
    const session: YardstickSession = yardstick.open(this.#context);
    const { positions, tokens } = this.#layer;
    let held: number[] = [];
    let bytes = 0;
    // Formats by position: all tokens come as f16.
    const formats = new Uint8Array(tokens).fill(EXACT);
    let query = 0;
    for (let start = 0; start < tokens; start += STEP_TOKENS) {
      const end = Math.min(tokens, start + STEP_TOKENS);
      const isDue =
        yardstick.when === 'prompt'
          ? start === promptTokens
          : bytes + (end - start) * tokenBytes.f16 > budgetTokens * tokenBytes.f16;
      if (isDue) {
        const room = budgetTokens - (yardstick.when === 'prompt' ? tokens - promptTokens : end - start);
        held = this.#keep(session, held, Math.max(0, room), formats);
        bytes = held.reduce((sum, position) => sum + tokenBytes[FORMAT_NAMES[formats[position]!]!], 0);
        const excess = bytes - Math.max(0, room) * tokenBytes.f16;
        // What chooses once may give its layers different shares.
        assert(yardstick.when === 'prompt' || excess <= 1e-6, `${yardstick.id} keeps ${excess} bytes more than it may`);
      }
      for (let token = start; token < end; token++) held.push(token);
      bytes += (end - start) * tokenBytes.f16;
      run.stepBytes[start / STEP_TOKENS]! += bytes;
      const from = query;
      while (query < positions.length && positions[query]! < end) query++;
      if (yardstick.observes) this.#observe(session, held, from, query);
      for (let judged = Math.max(first, from); judged < query; judged++) {
        run.droppedMass += this.#judge(yardstick, held, judged, formats, outputs[judged - first]!);
        run.judged += this.#group;
      }
    }
  }

  /** What a yardstick keeps of `held`: positions that were there, in formats that are no better. */
  #keep(session: YardstickSession, held: readonly number[], budgetTokens: number, formats: Uint8Array): number[] {
    const before = new Set(held);
    const kept = session.keep(held, budgetTokens);
    for (const [at, position] of kept.tokens.entries()) {
      assert(before.has(position), `token ${position} is kept, but was dropped`);
      assert(at === 0 || position > kept.tokens[at - 1]!, `token ${position} is out of order`);
      const format = FORMAT_NAMES.indexOf(kept.formats?.[at] ?? 'f16');
      assert(format >= formats[position]!, `token ${position} goes up from ${formats[position]} to ${format}`);
      formats[position] = format;
    }
    return [...kept.tokens];
  }

  /** Shows the probabilities of queries [from, to) over what is held, as means over the query heads. */
  #observe(session: YardstickSession, held: readonly number[], from: number, to: number): void {
    const attention = new Float32Array((to - from) * held.length);
    for (let query = from; query < to; query++) {
      for (const scores of this.#scores) {
        const shares = this.#masked(scores[query]!, held);
        softmax(shares);
        const row = (query - from) * held.length;
        for (let at = 0; at < shares.length; at++) attention[row + at]! += shares[at]! / this.#group;
      }
    }
    session.observe({ held, queries: this.#layer.positions.slice(from, to), attention });
  }

  /** Scores of the held tokens up to the query. */
  #masked(scores: Float32Array, held: readonly number[]): Float32Array {
    const out = new Float32Array(seenOf(held, scores.length - 1));
    for (let at = 0; at < out.length; at++) out[at] = scores[held[at]!]!;
    return out;
  }

  /**
   * The output of a query over what is held. → what its attention over all tokens gave to those that are not, summed
   * over the query heads
   */
  #judge(
    { positions }: Yardstick,
    held: readonly number[],
    query: number,
    formats: Uint8Array,
    out: Float32Array,
  ): number {
    const { headDim } = this.#trace.shape;
    const position = this.#layer.positions[query]!;
    const seen = seenOf(held, position);
    let dropped = 0;
    for (let j = 0; j < this.#group; j++) {
      const shares = this.#masked(this.#scores[j]![query]!, held);
      dropped += seen === position + 1 ? 0 : Math.max(0, 1 - Math.exp(logSumExp(shares) - this.#sums[j]![query]!));
      const q = this.#queries[j]!.subarray(query * headDim, (query + 1) * headDim);
      let turn = { by: 0, q };
      for (let at = 0; at < seen; at++) {
        const token = held[at]!;
        if (token < this.#first(position)) continue;
        const format = formats[token]!;
        // By places, a token is nearer to the query by as many as were dropped between the two.
        const nearer = positions === 'slot' ? position - token - (seen - 1 - at) : 0;
        if (format === EXACT && nearer === 0) continue;
        if (nearer !== turn.by)
          turn = { by: nearer, q: nearer === 0 ? q : turned(q, -nearer, this.#trace.header.rotary) };
        shares[at] = dot(turn.q, 0, this.#in(format).k, token * headDim, headDim);
      }
      softmax(shares);
      this.#mix(
        j,
        out,
        shares,
        (at) => held[at]!,
        (token) => this.#in(formats[token]!).v,
      );
    }
    return dropped;
  }

  #mix(
    j: number,
    out: Float32Array,
    shares: Float32Array,
    tokenOf: (at: number) => number,
    valuesOf: (token: number) => Float32Array,
  ): void {
    const { headDim } = this.#trace.shape;
    const place = (this.#head * this.#group + j) * headDim;
    for (let at = 0; at < shares.length; at++) {
      const share = shares[at]!;
      if (share === 0) continue;
      const token = tokenOf(at);
      const v = valuesOf(token);
      for (let c = 0; c < headDim; c++) out[place + c]! += share * v[token * headDim + c]!;
    }
  }

  /** The first token that a query may attend to. */
  #first(position: number): number {
    return Math.max(0, position - this.#window + 1);
  }

  #in(format: number): { readonly k: Float32Array; readonly v: Float32Array } {
    this.#rows[format] ??= this.#layer.rows(this.#head, FORMAT_NAMES[format]!);
    return this.#rows[format]!;
  }
}

/** How many of the held tokens stand at or before a position. */
function seenOf(held: readonly number[], position: number): number {
  let seen = held.length;
  while (seen > 0 && held[seen - 1]! > position) seen--;
  return seen;
}
