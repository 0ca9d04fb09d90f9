/**
 * One conversation over one cache, in the thread that runs the model. Reads prompts in chunks that end at page boundaries,
 * generates token by token, and calls the scheduler at every token boundary.
 */
import type { Fingerprint, Lookup, Measurements } from '../memory/index.ts';
import {
  type KvCache,
  KvError,
  openKvCache,
  openPool,
  type PagePool,
  rowsLeft,
  sealsBetween,
} from '../native/index.ts';
import { machineDigest, type PolicyContext, type ThresholdSet, thresholdOf } from '../policy/index.ts';
import { newId, type WitnessLog } from '../witness/index.ts';
import { withPrice } from './learn.ts';
import { measureWork } from './measure.ts';
import { RopeTable } from './model/rope.ts';
import { createSampler } from './model/sampling.ts';
import { planSession } from './plan.ts';
import { checkGenerate, type ReadOptions, tokenize } from './prompt.ts';
import { sessionReport } from './report.ts';
import type { Runtime } from './runtime.ts';
import { Scheduler, type SchedulerTimes } from './scheduler.ts';
import { outputSketches } from './sketch.ts';
import { runStep, type StepTimes } from './step.ts';
import { StopText } from './stop.ts';
import type { Generated, GenerateOptions, Prompt, SessionOptions, SessionReport } from './types.ts';

export interface SessionSetup extends SessionOptions {
  readonly log: WitnessLog | null;
  readonly thresholds: ThresholdSet;
  /** Where the thresholds came from, for the log. */
  readonly lookup?: Lookup | null;
  readonly fingerprint?: Fingerprint;
}

/** Largest pool of a session without a byte budget. */
const POOL_BYTES_UNBOUNDED = 2 ** 45;

export class Session {
  readonly id: string;
  readonly runtime: Runtime;
  readonly cache: KvCache;
  readonly pool: PagePool;
  readonly budgetBytes: number | null;
  readonly policyId: string;
  readonly setup: SessionSetup;
  readonly times: StepTimes = { denseMs: 0, attentionMs: 0 };
  readonly context: PolicyContext;
  /** Sequence number of the session's first log entry, −1 when it writes none. */
  readonly openSeq: number;
  /** Token ids in the cache, in order. */
  readonly tokens: number[] = [];
  readonly #scheduler: Scheduler | null;
  readonly #shared: { users: number };
  readonly #rope: RopeTable;
  #hidden: Float32Array[] = [];
  #lastHidden: Float32Array | null = null;
  #closed = false;
  #freed = false;
  #busy = false;
  #torn = false;
  #forks = 0;
  /** The step under way; settled when there is none. */
  #stepping: Promise<void> = Promise.resolve();

  private constructor(
    runtime: Runtime,
    setup: SessionSetup,
    parts: {
      cache: KvCache;
      pool: PagePool;
      scheduler: Scheduler | null;
      budgetBytes: number | null;
      policyId: string;
      context: PolicyContext;
      id: string;
      shared: { users: number };
      openSeq: number;
    },
  ) {
    this.runtime = runtime;
    this.setup = setup;
    this.cache = parts.cache;
    this.pool = parts.pool;
    this.budgetBytes = parts.budgetBytes;
    this.policyId = parts.policyId;
    this.context = parts.context;
    this.id = parts.id;
    this.#scheduler = parts.scheduler;
    this.#shared = parts.shared;
    this.#shared.users++;
    this.openSeq = parts.openSeq;
    this.#rope = new RopeTable(
      runtime.model.config,
      Math.min(setup.tokensExpected ?? Number.POSITIVE_INFINITY, runtime.model.config.contextLength),
    );
  }

  static open(runtime: Runtime, setup: SessionSetup): Session {
    const { shape } = runtime;
    const { config } = runtime.model;
    const { policy, policyOptions, context, budgetBytes, tokensExpected } = planSession(shape, setup, setup.thresholds);
    const { windowFormat } = context;
    const exact = windowFormat === 'f16';
    const pool = openPool(budgetBytes ?? POOL_BYTES_UNBOUNDED);
    let cache: KvCache | null = null;
    try {
      cache = openKvCache({ shape, pool, windowFormat, threads: runtime.threads, slidingWindow: config.slidingWindow });
      if (policy.needsTrials)
        for (const [layer, sketch] of outputSketches(runtime).entries()) cache.setOutputSketch(layer, sketch);
      const id = newId();
      const log = setup.witness === false || exact ? null : setup.log;
      const scheduler = new Scheduler({
        session: id,
        cache,
        pool,
        policy,
        context,
        budgetBytes,
        kldBudget: setup.kldBudget ?? null,
        tokensExpected,
        stepLatencyBudgetMs: setup.stepLatencyBudgetMs ?? null,
        log,
      });
      cache.setSkipShare(thresholdOf(context.thresholds, 'attention.skip').value);
      const openSeq = log?.append(id, 'open', {
        model: { name: runtime.model.name, digest: runtime.model.digest, architecture: config.architecture },
        shape,
        policy: { id: policy.id, version: policy.version, options: policyOptions, machine: machineDigest() },
        context,
        requested: {
          kvBudget: setup.kvBudget ?? null,
          kldBudget: setup.kldBudget ?? null,
          policy: setup.policy ?? null,
          tokensExpected,
          ...(setup.stepLatencyBudgetMs === undefined ? {} : { stepLatencyBudgetMs: setup.stepLatencyBudgetMs }),
        },
        effective: {
          budgetBytes,
          policy: policy.id,
          windowFormat,
          isa: runtime.native.isa,
          threads: runtime.threads,
          dense: runtime.dense.name,
        },
      });
      if (setup.lookup != null && setup.fingerprint !== undefined) {
        log?.append(id, 'evidence', {
          fingerprint: setup.fingerprint,
          neighbours: setup.lookup.neighbours,
          thresholds: setup.thresholds,
        });
      }
      return new Session(runtime, setup, {
        cache,
        pool,
        scheduler,
        budgetBytes,
        policyId: policy.id,
        context,
        id,
        shared: { users: 0 },
        openSeq: openSeq ?? -1,
      });
    } catch (error) {
      cache?.close();
      pool.close();
      throw error;
    }
  }

  /** True when this session writes to the log. */
  get logged(): boolean {
    return this.openSeq >= 0;
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

  /** Reads tokens into the cache. Refuses a prompt that does not fit the context before any work. */
  async read(tokenIds: readonly number[], options: ReadOptions = {}): Promise<void> {
    this.#check(tokenIds, options.reserve ?? 0);
    this.#take();
    try {
      await this.#read(tokenIds, options);
      if (options.tokensFollow === true) this.#scheduler?.endPrompt(this.tokens.length);
    } finally {
      this.#busy = false;
    }
  }

  /** Refuses before any work what cannot be read: no tokens, no token ids, or too many. */
  #check(tokenIds: readonly number[], reserve: number): void {
    const { vocabSize } = this.runtime.model.config;
    if (tokenIds.length === 0)
      throw new KvError('bad-argument', 'an empty prompt has no next token', { hint: 'give at least one token' });
    for (const id of tokenIds) {
      if (!Number.isInteger(id) || id < 0 || id >= vocabSize)
        throw new KvError('bad-value', `token id ${id} is outside the vocabulary of ${vocabSize}`, {
          values: { id, vocabSize },
        });
    }
    this.#fits(tokenIds.length, reserve);
  }

  async #read(tokenIds: readonly number[], options: ReadOptions): Promise<void> {
    const start = performance.now();
    for (let at = 0; at < tokenIds.length; ) {
      if (options.signal?.aborted)
        throw new KvError('aborted', 'aborted while the prompt was read', {
          values: { tokensRead: at, tokens: tokenIds.length },
        });
      const chunk = tokenIds.slice(at, at + rowsLeft(this.tokens.length));
      await this.#forward(chunk);
      at += chunk.length;
      options.onProgress?.({
        phase: 'prefill',
        tokens: at,
        tokensTotal: tokenIds.length,
        tokensPerSecond: (at * 1000) / (performance.now() - start),
        kvBytes: this.pool.usedBytes,
        acknowledgedSeq: this.setup.log?.acknowledgedSeq ?? -1,
      });
    }
  }

  /** Reads the prompt (when given) and yields text as it is generated; the return value is the summary. */
  async *generate(prompt: Prompt | null, options: GenerateOptions = {}): AsyncGenerator<string, Generated> {
    const { maxTokens, stops } = checkGenerate(options);
    const ids = prompt === null ? [] : tokenize(this.runtime.model.tokenizer, prompt, this.tokens.length === 0);
    const sampler = createSampler({
      temperature: options.temperature ?? 0,
      topP: options.topP ?? 1,
      seed: options.seed ?? 0,
    });
    if (ids.length > 0) this.#check(ids, maxTokens);
    else this.#fits(0, maxTokens);
    if (ids.length === 0 && this.#lastHidden === null)
      throw new KvError('bad-argument', 'nothing was read yet', { hint: 'give a prompt first' });
    // From here to the end: a second call in between would put its tokens among these.
    this.#take();
    try {
      const startRead = performance.now();
      await this.#read(ids, {
        ...(options.signal === undefined ? {} : { signal: options.signal }),
        ...(options.onProgress === undefined ? {} : { onProgress: options.onProgress }),
      });
      let readMs = performance.now() - startRead;
      const { tokenizer, config } = this.runtime.model;
      const ends = new Set([...config.eosIds, ...tokenizer.eosIds]);
      const stream = tokenizer.stream();
      const stop = new StopText(stops);
      let start = performance.now();
      let text = '';
      let count = 0;
      let finish: Generated['finish'] = 'length';
      while (count < maxTokens) {
        if (options.signal?.aborted) {
          finish = 'aborted';
          break;
        }
        const logits = await this.runtime.dense.logits(this.#lastHidden!, 1);
        const id = sampler.next(logits);
        if (ends.has(id)) {
          finish = 'stop';
          break;
        }
        // Only now is it known that something follows the prompt; what its last page takes is still the prompt's work.
        if (count === 0 && ids.length > 0) {
          const before = performance.now();
          this.#scheduler?.endPrompt(this.tokens.length);
          const roomMs = performance.now() - before;
          readMs += roomMs;
          start += roomMs;
        }
        await this.#forward([id]);
        count++;
        const piece = stop.push(stream.push(id));
        if (piece !== '') {
          text += piece;
          yield piece;
        }
        if (stop.hit) {
          finish = 'stop';
          break;
        }
      }
      const rest = stop.hit ? '' : stop.push(stream.end()) + stop.end();
      if (rest !== '') {
        text += rest;
        yield rest;
      }
      const seconds = (performance.now() - start) / 1000;
      return {
        text,
        tokens: count,
        promptTokens: ids.length,
        finish,
        prefillTokensPerSecond: ids.length === 0 ? 0 : (ids.length * 1000) / readMs,
        tokensPerSecond: count === 0 ? 0 : count / seconds,
      };
    } finally {
      this.#busy = false;
    }
  }

  /** A session that continues from here without touching this one: pages are shared, its own pages are never moved, nothing is logged. */
  fork(compareTokens = 0): Session {
    this.#ready();
    const forked = new Session(
      this.runtime,
      { ...this.setup, log: null, compareTokens },
      {
        cache: this.cache.fork(),
        pool: this.pool,
        scheduler: null,
        budgetBytes: this.budgetBytes,
        policyId: this.policyId,
        context: this.context,
        id: `${this.id}+${++this.#forks}`,
        shared: this.#shared,
        openSeq: -1,
      },
    );
    forked.tokens.push(...this.tokens);
    forked.#lastHidden = this.#lastHidden === null ? null : this.#lastHidden.slice();
    return forked;
  }

  /** Takes back everything after the first `tokens`; the rows must still be in the open page. The next generate() needs a prompt. */
  rewind(tokens: number): void {
    this.#open();
    this.cache.truncate(tokens);
    this.tokens.length = tokens;
    this.#lastHidden = null;
  }

  /** The thresholds of this session with what it has learned so far: the final price becomes the start price. */
  learned(): ThresholdSet {
    return withPrice(this.setup.thresholds, this.#scheduler?.summary.priceThreshold ?? 0);
  }

  /** What the work was like, as far as the cache knows; nothing of a fork. */
  measured(): Partial<Measurements> {
    return this.#scheduler === null ? {} : measureWork(this.cache, this.#scheduler.masses);
  }

  /** Somebody needs memory: pressure rises at the next token boundary. */
  set lowMemory(value: boolean) {
    if (this.#scheduler !== null) this.#scheduler.lowMemory = value;
  }

  report(): SessionReport {
    return sessionReport(this, this.#scheduler);
  }

  /** What deciding has taken so far: the same as in `report()`, without making one. Null of a fork. */
  get overhead(): Readonly<SchedulerTimes> | null {
    return this.#scheduler?.times ?? null;
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
    this.cache.close();
    // Forks count bytes in the same pool: the last one closes it.
    if (--this.#shared.users === 0) this.pool.close();
  }

  async #forward(ids: readonly number[]): Promise<void> {
    this.#open();
    const step = this.#step(ids);
    this.#stepping = step.catch(() => {});
    await step;
  }

  async #step(ids: readonly number[]): Promise<void> {
    const start = performance.now();
    if (this.#scheduler !== null) this.#scheduler.makeRoom(this.tokens.length, ids.length);
    else this.#roomForFork(ids.length);
    let hidden: Float32Array;
    try {
      hidden = await runStep(
        this.runtime,
        this.cache,
        this.#rope,
        Int32Array.from(ids),
        this.times,
        this.#scheduler !== null,
      );
    } catch (error) {
      // Layers before the fault have these tokens, those behind have not: no later step may build on that.
      this.#torn = this.#freed || this.cache.length(0) !== this.tokens.length;
      throw error;
    }
    const width = this.runtime.model.config.hiddenSize;
    this.tokens.push(...ids);
    this.#lastHidden = hidden.slice((ids.length - 1) * width, ids.length * width);
    const keep = this.setup.compareTokens ?? 0;
    if (keep > 0) {
      for (let row = Math.max(0, ids.length - keep); row < ids.length; row++)
        this.#hidden.push(hidden.slice(row * width, (row + 1) * width));
      if (this.#hidden.length > keep) this.#hidden.splice(0, this.#hidden.length - keep);
    }
    this.#scheduler?.run(this.tokens.length, ids.length);
    if (ids.length === 1) this.#scheduler?.stepTook(performance.now() - start);
  }

  /** Nothing of a fork is ever moved, so what it seals must fit as it is, in all layers or in none. */
  #roomForFork(tokensNew: number): void {
    const neededBytes = sealsBetween(this.tokens.length, tokensNew) * this.cache.sealBytes * this.context.layers;
    const { usedBytes, budgetBytes } = this.pool;
    if (usedBytes + neededBytes <= budgetBytes) return;
    throw new KvError(
      'budget-exceeded',
      `the KV budget of ${budgetBytes} bytes has no room for another page of this fork`,
      {
        values: { budgetBytes, usedBytes, neededBytes, tokens: this.tokens.length },
        hint: 'fork from a session without a byte budget, or with a larger one',
      },
    );
  }

  #fits(tokens: number, reserve: number): void {
    this.#open();
    const { contextLength } = this.runtime.model.config;
    const needed = this.tokens.length + tokens + reserve;
    if (needed > contextLength) {
      throw new KvError(
        'context-too-long',
        `${this.tokens.length} tokens in the cache + ${tokens} of the prompt + ${reserve} to generate exceed the context of ${contextLength}`,
        {
          values: { cached: this.tokens.length, prompt: tokens, maxTokens: reserve, contextLength },
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
    if (this.#busy)
      throw new KvError('busy', 'the session is in use by another call', {
        values: { session: this.id },
        hint: 'wait for the running call, or fork() before it',
      });
  }

  /** Takes the session for one call; whoever takes it sets #busy back. */
  #take(): void {
    this.#ready();
    this.#busy = true;
  }
}
