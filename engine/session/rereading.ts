/**
 * Measures what the moves of a session cost: now and then a few tokens are read a second time, over a copy of the cache
 * whose coded pages are exchanged for their originals, and what the session has put out is compared with what comes of
 * that. The errors of rows that were computed over coded pages stay, so that a part of the divergence is not seen.
 * Where not every coded page side has an original, their errors are doubled in the copy instead (doubling.ts). Only
 * where a divergence was stated, as long as moves can follow.
 */
import { type KvCache, openPool, PAGE_TOKENS, pageOf, pageStart, SIDES } from '../../native/index.ts';
import { type RereadReport, thresholdOf } from '../../policy/index.ts';
import { memoryBytes } from '../cache/budget.ts';
import type { Originals } from '../originals/originals.ts';
import { copiedLayer } from './copied-layer.ts';
import { divergenceBetween } from './divergence.ts';
import { Doubled } from './doubling.ts';
import type { Reader } from './reader.ts';

/**
 * Where the length is known, nothing is read twice before this share of it. A divergence budget is spent as a power of
 * the length, but what moves early costs more than is predicted by as much as anything else, and stays: from half of
 * the length on it is known too late (docs/lab/policy.md).
 */
const FROM_SHARE = 0.2;

/** What the copy of the cache holds in place of coded pages: what they were, or what has twice their errors. */
type Beside = 'originals' | 'doubled';

/** Tokens that were read over such a copy. */
interface Again {
  /** The residual stream behind them, [rows, m]. */
  readonly hidden: Float32Array;
  /** What was there of the divergence that is seen: all of it for originals. */
  readonly share: number;
}

/** Tokens whose output is kept, as far as they have come. */
interface Span {
  readonly start: number;
  /** Of the residual stream, [rows, m]. */
  readonly hidden: Float32Array;
  rows: number;
}

export class Rereading {
  readonly #reader: Reader;
  readonly #isWanted: boolean;
  /** null: there are none, or such that have errors of their own. */
  readonly #originals: Originals | null;
  readonly #every: number;
  readonly #rows: number;
  /** The next span begins at the first full page from here on. */
  #next: number;
  #span: Span | null = null;

  constructor(reader: Reader) {
    const { terms, latents, originals, packs } = reader.governed;
    const { policy, context, kldBudget } = terms;
    const every = thresholdOf(context.thresholds, 'reread.every').value;
    this.#reader = reader;
    this.#isWanted = policy.rereads === true && kldBudget !== null && latents === null && packs === null && every > 0;
    this.#originals = originals?.terms.format === 'q8' ? originals : null;
    this.#every = every;
    this.#rows = thresholdOf(context.thresholds, 'reread.rows').value;
    this.#next = every;
  }

  /** Tokens behind so many left these rows of the residual stream, [tokens, m]; nothing is decided yet. */
  sees(position: number, tokens: number, hidden: Float32Array): void {
    if (!this.#isWanted) return;
    this.#goOn(position);
    this.#span ??= this.#begin(position, tokens);
    const span = this.#span;
    if (span === null) return;
    const width = this.#width;
    const from = Math.max(0, span.start - position);
    const rows = Math.min(tokens - from, this.#rows - span.rows);
    if (rows <= 0) return;
    span.hidden.set(hidden.subarray(from * width, (from + rows) * width), span.rows * width);
    span.rows += rows;
  }

  /** Tokens may have been taken back since. */
  #goOn(position: number): void {
    const span = this.#span;
    if (span === null) this.#next = Math.min(this.#next, position + this.#every);
    else if (position < span.start || position > span.start + span.rows) this.#span = null;
    else span.rows = position - span.start;
  }

  /**
   * A span that begins among these tokens, if one is due: the last of them, since others did not see what moves behind
   * the step.
   */
  #begin(position: number, tokens: number): Span | null {
    const end = position + tokens;
    const start = Math.max(position, this.#next, end - this.#rows);
    if (start >= end || !this.#isWorthIt(start)) return null;
    return { start, hidden: new Float32Array(this.#rows * this.#width), rows: 0 };
  }

  get #width(): number {
    return this.#reader.runtime.model.config.hiddenSize;
  }

  /** Something has moved already, enough is at stake, and something can move when the result is known. */
  #isWorthIt(start: number): boolean {
    const { mover, terms, hasFailed } = this.#reader.governed;
    const { tokensExpected } = terms;
    if (mover.changesSoFar === 0 || hasFailed) return false;
    if (tokensExpected === null || start >= tokensExpected) return true;
    return start >= FROM_SHARE * tokensExpected && start + 2 * PAGE_TOKENS <= tokensExpected;
  }

  /** Called between two steps: reads a span twice that is whole. What it finds counts from the next situation on. */
  async measure(): Promise<void> {
    const span = this.#span;
    if (span === null || span.rows < this.#rows) return;
    this.#span = null;
    this.#next = span.start + this.#every;
    const { governed } = this.#reader;
    const start = performance.now();
    const beside = this.#besideAt(span.start);
    const report = beside === null ? null : await this.#read(span, beside);
    if (report !== null) governed.heard({ reread: report });
    governed.tally.trialsTook(performance.now() - start);
  }

  /** What pages of so many tokens are compared with; nothing while one is better for an answer, unknown to policies. */
  #besideAt(tokens: number): Beside | null {
    const { promoted } = this.#reader.governed;
    if ((promoted !== null && promoted.count > 0) || this.#hasFreed(tokens)) return null;
    return this.#hasAll(tokens) ? 'originals' : 'doubled';
  }

  /** A sliding window has left a page behind. */
  #hasFreed(tokens: number): boolean {
    const { shape, sliding } = this.#reader.governed;
    for (let layer = 0; layer < shape.layers; layer++)
      for (let page = 0; page < pageOf(tokens); page++) if (sliding.isFreed(layer, page)) return true;
    return false;
  }

  /** Every page side that is not as it was has an original. */
  #hasAll(tokens: number): boolean {
    const { kv, shape, terms } = this.#reader.governed;
    if (this.#originals === null) return false;
    for (let layer = 0; layer < shape.layers; layer++)
      for (let page = 0; page < pageOf(tokens); page++)
        for (const side of SIDES)
          if (kv.format(layer, page, side) !== terms.context.windowFormat && !this.#originals.has(layer, page, side))
            return false;
    return true;
  }

  async #read({ start, hidden }: Span, beside: Beside): Promise<RereadReport | null> {
    const again = await this.#again(start, beside);
    if (again === null) return null;
    const isDoubled = beside === 'doubled';
    const [exact, ours] = isDoubled ? [hidden, again.hidden] : [again.hidden, hidden];
    const klds = (await this.#divergences(exact, ours)).map((kld) => again.share * kld);
    const mean = klds.reduce((sum, kld) => sum + kld, 0) / klds.length;
    const variance = klds.reduce((sum, kld) => sum + (kld - mean) ** 2, 0) / Math.max(1, klds.length - 1);
    const standardError = Math.sqrt(variance / klds.length);
    return { tokens: start, rows: klds.length, meanKld: mean, standardError, ...(isDoubled ? { isDoubled } : {}) };
  }

  /** Of every row of the residual stream, [rows, m]. */
  async #divergences(exact: Float32Array, ours: Float32Array): Promise<number[]> {
    const { dense } = this.#reader.runtime;
    // A dense half may use its arrays again.
    const before = (await dense.logits(exact, this.#rows)).slice();
    const now = await dense.logits(ours, this.#rows);
    const vocab = before.length / this.#rows;
    const row = (of: Float32Array, at: number): Float32Array => of.subarray(at * vocab, (at + 1) * vocab);
    return Array.from({ length: this.#rows }, (_, at) => divergenceBetween(row(before, at), row(now, at)));
  }

  /** The span once more; null: originals are lost, or few errors could be doubled. */
  async #again(start: number, beside: Beside): Promise<Again | null> {
    const { runtime, rotary, tokens } = this.#reader;
    const { layers } = runtime.model.config;
    const rows = this.#rows;
    const dense = this.#reader.denseFor(start, rows);
    const pool = openPool(memoryBytes());
    const doubled = new Doubled();
    try {
      let input = await dense.first(dense.embed(Int32Array.from(tokens.slice(start, start + rows))), rows);
      for (let layer = 0; ; layer++) {
        const { q, k, v, x } = input;
        rotary.apply(layer, q, k, rows, start);
        const copy = this.#copy(pool, layer, start);
        const attention = new Float32Array(q.length);
        try {
          if (beside === 'originals' && !this.#exchange(copy, layer, start)) return null;
          if (beside === 'doubled') doubled.double(copy, pageOf(start));
          copy.append(0, k, v);
          copy.attend(0, q, attention, { observe: false });
        } finally {
          copy.close();
        }
        if (layer + 1 === layers) {
          const share = beside === 'doubled' ? doubled.share : 1;
          const last = await dense.last(attention, x, rows);
          return share === null ? null : { hidden: last.slice(0, rows * this.#width), share };
        }
        input = await dense.next(layer, attention, x, rows);
      }
    } finally {
      pool.close();
    }
  }

  /** A layer as it is, up to so many tokens. */
  #copy(pool: ReturnType<typeof openPool>, layer: number, tokens: number): KvCache {
    const { kv, shape } = this.#reader.governed;
    const page = pageOf(tokens);
    const copy = copiedLayer(this.#terms(pool), { of: kv, layer, at: layer, pages: page });
    const open = (tokens - pageStart(tokens)) * shape.kvHeads * shape.headDim;
    try {
      const [k, v] = SIDES.map((side) => (open === 0 ? null : kv.decode(layer, page, side).subarray(0, open)));
      if (k && v) copy.append(0, k, v);
      return copy;
    } catch (error) {
      copy.close();
      throw error;
    }
  }

  #terms(pool: ReturnType<typeof openPool>) {
    const { runtime, governed } = this.#reader;
    const { windowFormat, openFormat = 'f16' } = governed.terms.context;
    return { runtime, pool, formats: { windowFormat, openFormat } };
  }

  /** Puts originals into the copy of a layer. → whether all of them could be read */
  #exchange(copy: KvCache, layer: number, tokens: number): boolean {
    const { kv, terms } = this.#reader.governed;
    for (let page = 0; page < pageOf(tokens); page++)
      for (const side of SIDES) {
        if (kv.format(layer, page, side) === terms.context.windowFormat) continue;
        const original = this.#originals!.read(layer, page, side);
        if (original === null) return false;
        copy.exchangeSide(0, page, side, original);
      }
    return true;
  }
}
