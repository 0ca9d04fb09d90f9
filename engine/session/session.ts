/**
 * One conversation over one governed cache, in the thread that runs the model: the cache, a model and tokens. Reads prompts in chunks
 * that end at page boundaries and generates token by token.
 */
import {
  type FormatName,
  given,
  type KvCache,
  KvError,
  PAGE_TOKENS,
  type PagePool,
  pageStart,
} from '../../native/index.ts';
import { Governed } from '../cache/governed.ts';
import { planWithLatents } from '../cache/latents.ts';
import { modelLatents } from '../cache/model-latents.ts';
import type { Spent } from '../cache/mover.ts';
import { reportOf } from '../cache/report.ts';
import { endPrompt, fork, makeRoom, runStep, type StepTimes, takeBack } from '../cache/step.ts';
import type { LayerRows, SessionReport } from '../cache/types.ts';
import type { Prompt } from '../options/types.ts';
import { nameInLog } from '../transformer/load.ts';
import { Rotary } from '../transformer/rotary.ts';
import { outputSketches } from '../transformer/runtime/output-sketch.ts';
import type { Runtime } from '../transformer/runtime/runtime.ts';
import { Answer, type AnswerOptions } from './answer.ts';
import { Recall } from './book-lookup.ts';
import { Probe } from './probe.ts';
import { countedTokens, type ReadOptions, tokenize } from './prompt.ts';
import { PromptLookup } from './prompt-lookup.ts';
import type { SessionSetup } from './setup.ts';
import { GainProbe } from './text-probe.ts';
import type { Generated } from './types.ts';
import { type Writing, write } from './write.ts';

export class Session {
  readonly runtime: Runtime;
  readonly setup: SessionSetup;
  readonly governed: Governed;
  readonly times: StepTimes = { denseMs: 0, attentionMs: 0 };
  /** Token ids in the cache, in order. */
  readonly tokens: number[] = [];
  readonly #rotary: Rotary;
  #hidden: Float32Array[] = [];
  #lastHidden: Float32Array | null = null;
  #rows: Float32Array | null = null;
  #probe: Probe | null = null;
  readonly #gain: GainProbe;
  readonly #recall: Recall;
  #closed = false;
  #freed = false;
  /** Since when no call uses it; null: one does. */
  #idleSinceMs: number | null = performance.now();
  #torn = false;
  /** The step under way; settled when there is none. */
  #stepping: Promise<void> = Promise.resolve();

  private constructor(runtime: Runtime, setup: SessionSetup, governed: Governed, rotary: Rotary) {
    this.runtime = runtime;
    this.setup = setup;
    this.governed = governed;
    this.#rotary = rotary;
    this.#gain = new GainProbe(governed);
    this.#recall = new Recall(governed, runtime.model.tokenizer, setup.recall);
  }

  static open(runtime: Runtime, setup: SessionSetup): Session {
    const { shape, model } = runtime;
    const { kvBudget, kldBudget, policy, stepLatencyBudgetMs } = setup;
    const rotary = new Rotary(
      model.config,
      Math.min(setup.tokensExpected ?? Number.POSITIVE_INFINITY, model.config.contextLength),
    );
    const latents = setup.latents === undefined ? undefined : modelLatents(model, rotary, setup.latents);
    const plan = planWithLatents(shape, setup, setup.thresholds, latents);
    const governed = Governed.open({
      shape,
      plan,
      native: {
        threads: runtime.cacheThreads,
        slidingWindow: model.config.slidingWindow,
        scoreCap: model.config.scoreCap,
      },
      sketches: plan.policy.needsTrials ? outputSketches(runtime) : [],
      latents,
      pool: setup.pool,
      idle: setup.idle,
      meter: setup.meter,
      log: setup.witness === false || plan.exact ? null : setup.log,
      opened: {
        model: { name: nameInLog(model), digest: model.digest, architecture: model.config.architecture },
        requested: {
          kvBudget: kvBudget ?? null,
          kldBudget: kldBudget ?? null,
          policy: (typeof policy === 'object' ? policy.id : policy) ?? null,
          tokensExpected: plan.tokensExpected,
          ...(stepLatencyBudgetMs === undefined ? {} : { stepLatencyBudgetMs }),
        },
        effective: {
          isa: runtime.native.isa,
          threads: runtime.threads,
          dense: runtime.dense.name,
          ...(setup.idle === undefined ? {} : { idleSessions: setup.idle.place }),
          ...setup.origin,
        },
      },
      evidence: setup,
    });
    try {
      governed.begin();
      return new Session(runtime, setup, governed, rotary);
    } catch (error) {
      governed.close();
      throw error;
    }
  }

  get id(): string {
    return this.governed.id;
  }

  /** The native cache. */
  get cache(): KvCache {
    return this.governed.kv;
  }

  get pool(): PagePool {
    return this.governed.pool;
  }

  get length(): number {
    return this.tokens.length;
  }

  /** Residual rows kept for comparison, oldest first, [kept, m]. */
  hiddenRows(): Float32Array {
    const width = this.runtime.model.config.hiddenSize;
    const rows = new Float32Array(this.#hidden.length * width);
    for (const [index, row] of this.#hidden.entries()) rows.set(row, index * width);
    return rows;
  }

  /**
   * Reads tokens into the cache. Refuses a prompt that does not fit the context before any work. Whatever ends the reading early, an abort or
   * an error, leaves the session as it was before the call.
   */
  async read(tokenIds: readonly number[], options: ReadOptions = {}): Promise<void> {
    this.#check(tokenIds, options.reserve ?? 0);
    this.#take();
    try {
      await this.#wake(options);
      await this.#read(tokenIds, options);
    } finally {
      this.#idleSinceMs = performance.now();
    }
  }

  /**
   * Makes the cache hold these tokens, of which it reads those that it does not begin with: what they have in common stays, what the cache holds
   * beyond it is taken back. Sealed pages go whole, so that up to a page of what they have in common is read again; with latents, which know
   * only the inputs of the newest rows, all of it. Refuses what does not fit before anything is taken back. → tokens that stayed
   */
  async follow(tokenIds: readonly number[], options: ReadOptions = {}): Promise<number> {
    this.#check(tokenIds, options.reserve ?? 0, 0);
    this.#take();
    try {
      await this.#wake(options);
      const kept = this.keeps(tokenIds);
      if (kept < this.tokens.length) this.rewind(kept);
      if (kept < tokenIds.length) await this.#read(tokenIds.slice(kept), options);
      return kept;
    } finally {
      this.#idleSinceMs = performance.now();
    }
  }

  /** How many of these tokens the cache can keep if it is to hold them and nothing else. Without a last output, which a cache that was taken back has not, at least one is left to read. */
  keeps(tokenIds: readonly number[]): number {
    const { tokens } = this;
    const least = Math.min(tokens.length, tokenIds.length);
    let alike = 0;
    while (alike < least && tokens[alike] === tokenIds[alike]) alike++;
    if (alike === tokens.length && (alike < tokenIds.length || this.#lastHidden !== null)) return alike;
    const kept = Math.min(alike, tokenIds.length - 1);
    if (kept >= this.governed.table(0).pages * PAGE_TOKENS) return kept;
    return this.governed.latents === null ? pageStart(kept) : 0;
  }

  /** Refuses before any work what cannot be read: no tokens, no token ids, or too many. */
  #check(tokenIds: readonly number[], reserve: number, held = this.tokens.length): void {
    const { vocabSize } = this.runtime.model.config;
    if (tokenIds.length === 0)
      throw new KvError('bad-argument', 'an empty prompt has no next token', { hint: 'give at least one token' });
    for (const id of tokenIds) {
      if (!Number.isInteger(id) || id < 0 || id >= vocabSize)
        throw new KvError('bad-value', `token id ${id} is outside the vocabulary of ${vocabSize}`, {
          values: { id, vocabSize },
        });
    }
    this.#fits(tokenIds.length, reserve, held);
  }

  async #read(tokenIds: readonly number[], options: ReadOptions): Promise<void> {
    const way = this.governed.wayBack(tokenIds.length);
    const before = { lastHidden: this.#lastHidden, hidden: [...this.#hidden] };
    try {
      await this.#readOn(tokenIds, options);
      if (options.tokensFollow === true) endPrompt(this.governed);
    } catch (error) {
      if (!this.#closed && way.isOpen) {
        // Unless all of the following is done, nothing may build on the cache.
        this.#torn = true;
        takeBack(this.governed, way);
        this.tokens.length = way.tokens;
        this.#lastHidden = before.lastHidden;
        this.#hidden = before.hidden;
        this.#torn = false;
      }
      throw error;
    } finally {
      way.close();
    }
  }

  async #readOn(tokenIds: readonly number[], options: ReadOptions): Promise<void> {
    const start = performance.now();
    for (let at = 0; at < tokenIds.length; ) {
      if (options.signal?.aborted)
        throw new KvError('aborted', 'aborted while the prompt was read', {
          values: { tokensRead: at, tokens: tokenIds.length },
        });
      await this.#recall.of(this.tokens, () => this.#closed);
      const rows = this.#probe === null ? this.#gain.rowsDue(tokenIds.length - at) : 0;
      const chunk = tokenIds.slice(at, at + (rows > 0 ? rows : this.governed.tokensAtOnce));
      if (rows === 0) await this.#forward(chunk);
      else await this.#forwardProbed(chunk);
      at += chunk.length;
      options.onProgress?.({
        phase: 'prefill',
        tokens: at,
        tokensTotal: tokenIds.length,
        tokensPerSecond: (at * 1000) / (performance.now() - start),
        kvBytes: this.governed.kv.usedBytes,
        acknowledgedSeq: this.setup.log?.acknowledgedSeq ?? -1,
      });
    }
  }

  /** Reads the prompt (when given) and yields text as it is generated; the return value is the summary. */
  async *generate(prompt: Prompt | null, options: AnswerOptions = {}): AsyncGenerator<string, Generated> {
    const { model } = this.runtime;
    const answer = await Answer.open(this.runtime, options);
    try {
      const ids =
        prompt === null ? [] : tokenize(model.tokenizer, prompt, this.tokens.length === 0, countedTokens(model));
      if (ids.length > 0) this.#check(ids, answer.maxTokens);
      else this.#fits(0, answer.maxTokens);
      if (ids.length === 0 && this.#lastHidden === null)
        throw new KvError('bad-argument', 'nothing was read yet', { hint: 'give a prompt first' });
      // Held to the end, because a second call in between would put its tokens among these.
      this.#take();
      try {
        const startMs = performance.now();
        const reading = given<ReadOptions>({ signal: options.signal, onProgress: options.onProgress });
        await this.#wake(reading);
        await this.#read(ids, reading);
        this.governed.meter.promptTokens.add({}, ids.length);
        const asked = { tokens: ids.length, startMs };
        return yield* write(this.#writing(), answer, asked, options.signal, this.#lookup(options));
      } finally {
        this.#idleSinceMs = performance.now();
      }
    } finally {
      answer.close();
    }
  }

  #writing(): Writing {
    return {
      governed: this.governed,
      tokens: this.tokens,
      logits: (row = this.#lastHidden!) => this.runtime.dense.logits(row, 1),
      forward: async (ids) => {
        await this.#forward(ids, true);
        return this.#rows!;
      },
      retract: (tokens, row) => {
        this.rewind(tokens);
        this.#lastHidden = row;
      },
    };
  }

  /** Only where a step of several tokens gives the bits of as many steps, and all of them can be taken back. */
  #lookup({ promptLookupTokens = 0 }: AnswerOptions): PromptLookup | null {
    const { latents, plan } = this.governed;
    const isSame = this.runtime.dense.name === 'native' && (plan.context.openFormat ?? 'f16') === 'f16';
    return promptLookupTokens > 0 && isSame && latents === null ? new PromptLookup(promptLookupTokens) : null;
  }

  /** A session that continues from here. Pages are shared, and so is the budget; each decides by itself, and a move of a shared page is one for both. */
  fork(compareTokens = 0): Session {
    this.#ready();
    const forked = new Session(this.runtime, { ...this.setup, compareTokens }, fork(this.governed), this.#rotary);
    forked.tokens.push(...this.tokens);
    forked.#lastHidden = this.#lastHidden === null ? null : this.#lastHidden.slice();
    return forked;
  }

  /**
   * A probe of the cache as it is now, which keeps what is read from now on until it or another one takes its place. Moves that are made
   * meanwhile are not part of what it compares with, so it is used before the next ones. Throws as Probe.open does.
   */
  probe(layers: readonly number[]): Probe {
    this.#ready();
    return this.#openProbe(layers);
  }

  #openProbe(layers: readonly number[]): Probe {
    this.#probe = Probe.open(this.runtime, this.governed, this.#rotary, layers);
    return this.#probe;
  }

  /** What the next token is drawn from, [m]; null: nothing was read, or tokens were taken back. Between two calls. */
  get lastHidden(): Float32Array | null {
    this.#ready();
    return this.#lastHidden;
  }

  /** The cache holds these tokens already, as that of a parked session. */
  adopt(tokens: readonly number[], lastHidden: Float32Array | null): void {
    this.#ready();
    this.tokens.push(...tokens);
    this.#lastHidden = lastHidden;
  }

  /** As PolicyCache.restore, between two calls. */
  restore(layer: number, page: number, format?: FormatName): number {
    this.#ready();
    return this.governed.restore(layer, page, format);
  }

  /** Since when no call uses it, on the clock of performance.now(); null: one does, or it cannot go on. */
  get idleSinceMs(): number | null {
    return this.#closed || this.#torn ? null : this.#idleSinceMs;
  }

  /** Does work between two calls that needs its pages: where they are parked, they are back before. */
  async awake<Result>(work: () => Result): Promise<Result> {
    this.#take();
    try {
      await this.#wake({});
    } finally {
      this.#idleSinceMs = performance.now();
    }
    return work();
  }

  /** Brings its pages back if they are parked, or reads its tokens again if those are of no use. Whatever prevents that, the tokens are not lost. */
  async #wake(options: ReadOptions): Promise<void> {
    this.setup.idle?.wake(this);
    if (this.cache.length() === this.tokens.length) return;
    const tokens = [...this.tokens];
    takeBack(this.governed, this.governed.wayBack(0, 0));
    this.tokens.length = 0;
    try {
      await this.#read(tokens, options);
    } catch (error) {
      for (const id of tokens) this.tokens.push(id);
      throw error;
    }
  }

  /** Takes back everything after the first `tokens`; those are whole pages, or their page is still in the window (back.ts). The next generate() needs a prompt. */
  rewind(tokens: number): void {
    this.#open();
    takeBack(this.governed, this.governed.wayBack(0, tokens));
    this.#hidden.length = Math.max(0, this.#hidden.length - (this.tokens.length - tokens));
    this.tokens.length = tokens;
    this.#lastHidden = null;
  }

  /** Tells the policy that memory is short; pressure rises at the next token boundary. */
  set lowMemory(value: boolean) {
    this.governed.lowMemory = value;
  }

  report(): SessionReport {
    const { dense, denseChoice } = this.runtime;
    return reportOf(this.governed, { ...this.times, dense: `${dense.name}: ${denseChoice.why}` });
  }

  /** What deciding has taken so far: the same as in `report()`, without making one. */
  get overhead(): Readonly<Spent> {
    return this.governed.spent;
  }

  /** No further step begins; resolves when the running one has ended. What was counted can still be asked. */
  async end(): Promise<void> {
    this.#closed = true;
    await this.#stepping;
  }

  close(): void {
    if (this.#freed) return;
    this.#closed = true;
    this.#freed = true;
    this.governed.close();
  }

  /** Reads tokens and probes them. Room for them is made first, so that the probe sees the pages that they see. */
  async #forwardProbed(ids: readonly number[]): Promise<void> {
    makeRoom(this.governed, ids.length);
    try {
      await this.#gain.run(
        (layers) => this.#openProbe(layers),
        () => this.#forward(ids),
      );
    } finally {
      this.#probe = null;
    }
  }

  /** keepRows: those behind all of the tokens, in #rows. */
  async #forward(ids: readonly number[], keepRows = false): Promise<void> {
    this.#open();
    const step = this.#step(ids, keepRows);
    this.#stepping = step.catch(() => {});
    await step;
  }

  async #step(ids: readonly number[], keepRows: boolean): Promise<void> {
    try {
      const keep = (hidden: Float32Array): void => {
        this.#keep(ids, hidden);
        this.#rows = keepRows ? hidden.slice(0, ids.length * this.runtime.model.config.hiddenSize) : null;
      };
      const onRows = (rows: LayerRows): void => {
        this.#probe?.add(rows);
        this.setup.onRows?.(rows);
      };
      await runStep(this.runtime, this.governed, this.#rotary, Int32Array.from(ids), this.times, keep, onRows);
    } catch (error) {
      // Layers before the fault have these tokens and the others have not, so no later step may build on them.
      this.#torn = this.#freed || this.cache.length(0) !== this.tokens.length;
      throw error;
    }
  }

  /** The cache holds these tokens now; `hidden` is the residual stream behind the last layer. */
  #keep(ids: readonly number[], hidden: Float32Array): void {
    const width = this.runtime.model.config.hiddenSize;
    this.#probe?.output(hidden);
    this.tokens.push(...ids);
    this.#lastHidden = hidden.slice((ids.length - 1) * width, ids.length * width);
    const keep = this.setup.compareTokens ?? 0;
    if (keep === 0) return;
    for (let row = Math.max(0, ids.length - keep); row < ids.length; row++)
      this.#hidden.push(hidden.slice(row * width, (row + 1) * width));
    if (this.#hidden.length > keep) this.#hidden.splice(0, this.#hidden.length - keep);
  }

  #fits(tokens: number, reserve: number, held = this.tokens.length): void {
    this.#open();
    const { contextLength } = this.runtime.model.config;
    const needed = held + tokens + reserve;
    if (needed > contextLength) {
      throw new KvError(
        'context-too-long',
        `${held} tokens in the cache + ${tokens} of the prompt + ${reserve} to generate exceed the context of ${contextLength}`,
        {
          values: { cached: held, prompt: tokens, maxTokens: reserve, contextLength },
          hint: `shorten the prompt by ${needed - contextLength} tokens, or ask for fewer`,
        },
      );
    }
  }

  #open(): void {
    if (this.#closed) throw new KvError('closed', 'the session was closed', { values: { session: this.id } });
    if (this.#torn)
      throw new KvError('closed', 'a step of the session failed half-way, so it cannot go on', {
        values: { session: this.id, tokens: this.tokens.length },
        hint: 'open a new session',
      });
  }

  #ready(): void {
    this.#open();
    if (this.#idleSinceMs === null)
      throw new KvError('busy', 'the session is in use by another call', {
        values: { session: this.id },
        hint: 'wait for the running call, or fork() before it',
      });
  }

  /** Reserves the session for one call; the caller sets #idleSinceMs afterwards. */
  #take(): void {
    this.#ready();
    this.#idleSinceMs = null;
  }
}
