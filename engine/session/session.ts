/**
 * One conversation over one governed cache, in the thread that runs the model: the cache, a model and tokens. Reads
 * prompts in chunks that end at page boundaries and generates token by token.
 */
import {
  type FormatName,
  firstToken,
  given,
  type KvCache,
  KvError,
  type PagePool,
  pageStart,
  sealsBetween,
} from '../../native/index.ts';
import { Activation } from '../adapters/activation.ts';
import { type AppliedAdapter, weightsKey } from '../adapters/adapters.ts';
import { comingBack } from '../cache/coming-back.ts';
import { Governed, withoutPack } from '../cache/governed.ts';
import { type SessionPack, withPack } from '../cache/pack-pages.ts';
import { type Outcome, runPass } from '../cache/pass.ts';
import { QUESTION_TOKENS, Question } from '../cache/promoted.ts';
import { reportOf } from '../cache/report.ts';
import { type Asked, cutTo, endPrompt, fork, promote, takeBack } from '../cache/step.ts';
import type { StepTimes } from '../cache/stepper.ts';
import type { Spent } from '../cache/tally.ts';
import { askedOf } from '../cache/terms.ts';
import type { LayerRows, SessionReport, Stake } from '../cache/types.ts';
import { parseBytes } from '../options/parse-budget.ts';
import { isProposedFor, SESSION_OPTIONS } from '../options/table.ts';
import type { Prompt } from '../options/types.ts';
import { originalsTerms } from '../originals/terms.ts';
import type { Client } from '../scheduler/fairness.ts';
import type { Solo } from '../scheduler/scheduler.ts';
import { adaptedDense } from '../transformer/adapted-dense.ts';
import { attentionTerms } from '../transformer/attention.ts';
import { nameInLog } from '../transformer/load.ts';
import { Rotary } from '../transformer/rotary.ts';
import { outputSketches } from '../transformer/runtime/output-sketch.ts';
import type { Runtime } from '../transformer/runtime/runtime.ts';
import type { DenseBackend, ScaledAdapter } from '../transformer/types.ts';
import { Answer, type AnswerOptions } from './answer.ts';
import { BookLookup } from './book-lookup.ts';
import { logSumExp } from './divergence.ts';
import type { Floor } from './floors.ts';
import { KnownPrefix } from './known-prefix.ts';
import { LayerProbe } from './layer-probe.ts';
import { Occupancy } from './occupancy.ts';
import { Probe } from './probe.ts';
import { checkFits, checkIds, type ReadOptions, tokenizeFor } from './prompt.ts';
import { lookupOf } from './prompt-lookup.ts';
import type { Reader } from './reader.ts';
import { Receipts } from './receipt.ts';
import { Rereading } from './rereading.ts';
import type { SessionSetup } from './setup.ts';
import type { Turn } from './sharing.ts';
import { termsFor } from './terms-for.ts';
import { TextProbe } from './text-probe.ts';
import { Trail } from './trail.ts';
import type { Generated } from './types.ts';
import { write } from './write.ts';

export class Session implements Reader {
  readonly runtime: Runtime;
  readonly setup: SessionSetup;
  readonly governed: Governed;
  /** As one that takes turns with others. */
  readonly client: Client;
  readonly times: StepTimes = { denseMs: 0, attentionMs: 0 };
  /** Token ids in the cache, in order. */
  readonly tokens: number[] = [];
  readonly rotary: Rotary;
  readonly weights: string;
  /** Bytes that it and its forks keep whoever needs some; null: none. */
  readonly floor: Floor | null;
  #activation: Activation;
  readonly #occupancy = new Occupancy(this);
  #trail: Trail;
  /** Where logits are written while an answer is. */
  #logits: Float32Array | null = null;
  #probe: Probe | null = null;
  readonly #text: TextProbe;
  readonly #layers: LayerProbe;
  readonly #book: BookLookup;
  readonly #prefix: KnownPrefix;
  readonly #rereading: Rereading;
  /** What was read last, where pages may come back for an answer to it; with the length of the cache behind it. */
  #question: (Asked & { readonly end: number }) | null = null;
  #isFreed = false;
  /** The step under way; settled when there is none. */
  #stepping: Promise<void> = Promise.resolve();

  private constructor(runtime: Runtime, setup: SessionSetup, governed: Governed, rotary: Rotary, floor: Floor | null) {
    this.runtime = runtime;
    this.setup = setup;
    this.governed = governed;
    this.client = {
      priority: setup.schedulingPriority ?? SESSION_OPTIONS.schedulingPriority.default,
      weight: setup.schedulingWeight ?? SESSION_OPTIONS.schedulingWeight.default,
    };
    this.rotary = rotary;
    this.floor = floor;
    this.#activation = Activation.none(setup.adapterSet ?? null);
    this.weights = weightsKey(runtime.model.digest, setup.adapterSet?.always ?? []);
    setup.adapterSet?.hold(this);
    this.#trail = new Trail(runtime.model.config.hiddenSize, setup.compareTokens ?? 0);
    this.#text = new TextProbe(this);
    this.#layers = new LayerProbe(this);
    this.#book = new BookLookup(this, setup);
    this.#prefix = new KnownPrefix(this, setup.beginnings);
    this.#rereading = new Rereading(this);
  }

  static open(runtime: Runtime, setup: SessionSetup): Session {
    const { shape, model } = runtime;
    const { stepLatencyBudgetMs } = setup;
    const rotary = Rotary.planned(model.config, setup.tokensExpected);
    const originals = originalsTerms(setup);
    const stake = stakeOf(setup);
    const { terms: asked, latents, foresight } = termsFor(runtime, setup, rotary);
    const pack = packOf(setup);
    const terms = withPack(comingBack(asked, originals), shape, pack);
    const governed = Governed.open({
      shape,
      terms,
      native: { threads: runtime.cacheThreads, ...attentionTerms(model.config) },
      sketches: terms.policy.needsTrials ? outputSketches(runtime) : [],
      latents,
      originals,
      pack,
      pool: setup.pool,
      neighbours: setup.shared,
      group: setup.group,
      stake,
      meter: setup.meter,
      log: setup.witness === false || terms.exact ? null : setup.log,
      opened: {
        model: { name: nameInLog(model), digest: model.digest, architecture: model.config.architecture },
        requested: {
          ...askedOf(setup),
          tokensExpected: terms.tokensExpected,
          ...given({ stepLatencyBudgetMs, kvFloor: setup.kvFloor, kvWeight: setup.kvWeight }),
        },
        ...given({ foresight, activations: runtime.activations ?? undefined, adapters: appliedBy(setup) }),
        ...given({ proposal: setup.proposal }),
        effective: {
          isa: runtime.native.isa,
          threads: runtime.threads,
          dense: runtime.dense.name,
          ...given({ idleSessions: setup.shared?.place ?? undefined }),
          ...(stake.floorBytes === 0 ? {} : { floorBytes: stake.floorBytes }),
          ...given({ originals: originals?.place, promote: originals?.promote }),
          ...setup.origin,
        },
      },
      contextTokens: model.config.contextLength,
      evidence: setup,
    });
    let floor: Floor | null = null;
    try {
      checkFloor(stake.floorBytes, terms.budgetBytes);
      if (stake.floorBytes > 0) floor = setup.shared?.commit(stake.floorBytes) ?? null;
      governed.begin();
      return new Session(runtime, setup, governed, rotary, floor);
    } catch (error) {
      floor?.leave();
      governed.close();
      throw error;
    }
  }

  get id(): string {
    return this.governed.id;
  }

  get adapters(): readonly ScaledAdapter[] {
    return this.#activation.scaled;
  }

  denseFor(position: number, tokens: number): DenseBackend {
    return adaptedDense(this.runtime.dense, this.adapters, { position, tokens });
  }

  /** From which token on its adapters add. */
  get activation(): Activation {
    return this.#activation;
  }

  /** Its rows up to `activation.differsAt` are what they were. */
  set activation(activation: Activation) {
    const changes = activation.differsAt(this.#activation) < Number.POSITIVE_INFINITY;
    this.#activation = activation;
    if (changes) this.governed.mover.write('note', { activated: [...activation.activated], tokens: this.length });
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
    return this.#trail.kept();
  }

  /**
   * Reads tokens into the cache. Refuses a prompt that does not fit the context before any work. Whatever ends the
   * reading early, an abort or an error, leaves the session as it was before the call. Rows that an adapter adds to
   * otherwise than before, because its invocation comes again, are read again. → tokens that others had read
   */
  async read(tokenIds: readonly number[], options: ReadOptions = {}): Promise<number> {
    this.#check(tokenIds, options.reserve ?? 0);
    return this.#atWork(this.tokens.length + tokenIds.length, options, () => this.#readPrompt(tokenIds, options));
  }

  /**
   * Makes the cache hold these tokens, of which it reads those that it does not begin with: what they have in common
   * stays, what the cache holds beyond it is taken back. Sealed pages go whole, so that up to a page of what they have
   * in common is read again; with latents, which know only the inputs of the newest rows, all of it. Refuses what does
   * not fit before anything is taken back. → tokens that it did not read
   */
  async follow(tokenIds: readonly number[], options: ReadOptions = {}): Promise<number> {
    this.#check(tokenIds, options.reserve ?? 0, 0);
    return this.#atWork(tokenIds.length, options, async () => {
      const kept = this.keeps(tokenIds);
      if (kept < this.tokens.length) this.rewind(kept);
      this.activation = this.#activation.behind(tokenIds);
      const found = kept < tokenIds.length ? await this.#read(tokenIds.slice(kept), options) : 0;
      return kept + found;
    });
  }

  /**
   * How many of these tokens the cache can keep if it is to hold them and nothing else. Without a last output, which a
   * cache that was taken back has not, at least one is left to read.
   */
  keeps(tokenIds: readonly number[]): number {
    const { tokens } = this;
    const activation = this.#activation.behind(tokenIds);
    const least = Math.min(tokens.length, tokenIds.length, this.#activation.differsAt(activation));
    let alike = 0;
    while (alike < least && tokens[alike] === tokenIds[alike]) alike++;
    if (alike === tokens.length && (alike < tokenIds.length || this.#trail.last !== null)) return alike;
    const { governed } = this;
    const most = Math.min(alike, tokenIds.length - 1);
    const isOpen = most >= firstToken(governed.table(0).pages);
    const kept = isOpen ? most : governed.latents === null ? pageStart(most) : 0;
    // What has been freed on the way is read again, with all that follows it.
    return governed.reaches(kept) ? kept : 0;
  }

  /** Refuses before any work what cannot be read: no tokens, no token ids, or too many. */
  #check(tokenIds: readonly number[], reserve: number, held = this.tokens.length): void {
    checkIds(tokenIds, this.runtime.model.config.vocabSize);
    this.#fits(tokenIds.length, reserve, held);
  }

  /** Does the work of a call that ends with so many tokens, once there is room for it, with its pages back. */
  async #atWork<Result>(tokens: number, options: ReadOptions, work: () => Promise<Result>): Promise<Result> {
    this.#occupancy.begin();
    try {
      await this.#enter(tokens + (options.reserve ?? 0), options);
      return await work();
    } finally {
      this.#left();
    }
  }

  /** Waits until there is room for so many tokens, and has its pages back then. */
  async #enter(tokens: number, options: ReadOptions): Promise<void> {
    const { shared } = this.setup;
    if (shared !== undefined) await this.#occupancy.resting(() => shared.enter(this, tokens, options.signal));
    await this.#wake(options, true);
  }

  /** The call that has it is done: others may have its room from now on. */
  #left(): void {
    this.#occupancy.end();
    this.setup.shared?.leave(this);
  }

  /** → tokens that others had read */
  async #readPrompt(tokenIds: readonly number[], options: ReadOptions): Promise<number> {
    const before = this.#activation;
    if (!before.isOpen || tokenIds.length === 0 || options.isAgain === true) return this.#read(tokenIds, options);
    const all = [...this.tokens, ...tokenIds];
    const kept = this.keeps(all);
    const again = this.tokens.slice(kept);
    const trail = this.#trail.copy();
    if (again.length > 0) this.rewind(kept);
    this.activation = before.behind(all);
    try {
      const found = await this.#read([...again, ...tokenIds], options);
      return Math.max(0, found - again.length);
    } catch (error) {
      if (!this.isClosed) {
        this.activation = before;
        this.#trail = trail;
        // The next call finds them missing in the cache, and reads them.
        for (const id of again) this.tokens.push(id);
      }
      throw error;
    }
  }

  /** → tokens that others had read */
  async #read(tokenIds: readonly number[], options: ReadOptions): Promise<number> {
    const way = this.governed.wayBack(tokenIds.length);
    const before = this.#trail.copy();
    try {
      const found = await this.#readAsked(tokenIds, options);
      if (options.tokensFollow === true) endPrompt(this.governed);
      return found;
    } catch (error) {
      // Before its pages go, others may begin with them.
      this.setup.shared?.hasRead(this);
      if (!this.isClosed && way.isOpen) {
        // Unless all of the following is done, nothing may build on the cache.
        this.#occupancy.tear();
        takeBack(this.governed, way);
        this.#shorten(way.tokens);
        this.#trail = before;
        this.#occupancy.mend();
      }
      throw error;
    } finally {
      way.close();
      this.setup.shared?.hasRead(this);
    }
  }

  /** Reads a prompt, and notes which pages its last tokens look at, where that is of use. */
  async #readAsked(tokenIds: readonly number[], options: ReadOptions): Promise<number> {
    this.#question = null;
    const tokens = Math.min(QUESTION_TOKENS, tokenIds.length);
    if (this.#promotes === 0 || tokens === 0) return this.#readOn(tokenIds, options);
    const from = tokenIds.length - tokens;
    const found = await this.#readOn(tokenIds, options, 0, from);
    const question = new Question(this.cache);
    await this.#readOn(tokenIds, options, from);
    this.#question = { pages: question.pages(), tokens, end: this.tokens.length };
    return found;
  }

  get #promotes(): number {
    return this.governed.originals?.terms.promote ?? 0;
  }

  /**
   * Brings the pages back that the question looks at, and reads its end again, as far as it is in the open page: what
   * it then says follows from them.
   */
  async #promote(): Promise<void> {
    const question = this.#question;
    this.#question = null;
    if (question === null || question.end !== this.tokens.length) return;
    if (promote(this.governed, question, this.#promotes) === 0) return;
    const open = firstToken(this.cache.table(0).pages);
    const from = Math.max(this.tokens.length - question.tokens, open);
    const ids = this.tokens.slice(from);
    this.rewind(from);
    try {
      while (this.tokens.length < from + ids.length) {
        const at = this.tokens.length - from;
        await this.#forward(ids.slice(at, at + this.governed.tokensAtOnce), { reads: true });
      }
    } catch (error) {
      // The cache lacks tokens that its owner has read.
      if (!this.isClosed) this.#occupancy.tear();
      throw error;
    }
  }

  async #readOn(
    tokenIds: readonly number[],
    options: ReadOptions,
    from = 0,
    to: number = tokenIds.length,
  ): Promise<number> {
    if (this.#prefix.isBeginning(tokenIds)) await this.#prefix.begin(tokenIds);
    const found = await this.#begin(tokenIds.slice(0, Math.min(to, tokenIds.length - 1)), options.signal);
    const start = performance.now();
    const { scheduler } = this.setup.shared ?? {};
    const { signal } = options;
    for (let at = from + found; at < to; ) {
      const tokensRead = at;
      const error = (): KvError =>
        new KvError('aborted', 'aborted while the prompt was read', {
          values: { tokensRead, tokens: tokenIds.length },
        });
      if (signal?.aborted) throw error();
      const turn: Turn = { reads: true, patience: signal && { signal, error } };
      await this.#book.lookUp();
      const probe = this.#probeDue(to - at);
      const { tokensAtOnce } = this.governed;
      const most = probe?.rows ?? scheduler?.piece(tokensAtOnce) ?? tokensAtOnce;
      const chunk = tokenIds.slice(at, Math.min(to, at + most));
      if (probe === null) await this.#forward(chunk, turn);
      else await this.#alone(turn, { tokens: chunk.length, work: () => this.#probed(probe.of, chunk, signal) });
      at += chunk.length;
      this.governed.meter.promptTokens.add({}, chunk.length);
      options.onProgress?.({
        phase: 'prefill',
        tokens: at,
        tokensTotal: tokenIds.length,
        tokensPerSecond: ((at - from - found) * 1000) / (performance.now() - start),
        kvBytes: this.governed.kv.usedBytes,
        acknowledgedSeq: this.setup.log?.acknowledgedSeq ?? -1,
      });
    }
    return found;
  }

  /** Begins, where it is empty, with pages that other sessions hold of these tokens. → tokens that it need not read */
  async #begin(tokenIds: readonly number[], signal: AbortSignal | undefined): Promise<number> {
    const { shared, onRows, onHidden, compareTokens = 0 } = this.setup;
    // Whoever is to see the rows of all tokens has them read.
    if (shared === undefined || this.tokens.length > 0 || compareTokens > 0) return 0;
    if (onRows !== undefined || onHidden !== undefined) return 0;
    const found = this.#isFreed ? 0 : await shared.begin(this, tokenIds, signal);
    for (const id of tokenIds.slice(0, found)) this.tokens.push(id);
    if (found > 0) shared.holds(this);
    return found;
  }

  /** So many tokens are as they were, and those behind them are gone. */
  #shorten(tokens: number): void {
    this.tokens.length = tokens;
    const { descent } = this.governed;
    if (!descent.steps.cut(tokens)) descent.leaves('taken-back', descent.steps.tokens);
    this.setup.shared?.cut(this, tokens);
  }

  /** The probe that the next tokens are for, and how many; null: none is due. `left`: tokens that remain to be read. */
  #probeDue(left: number): { readonly of: TextProbe | LayerProbe; readonly rows: number } | null {
    // Whoever sees all rows, as traces do, takes them by whole pages.
    if (this.#probe !== null || this.setup.onRows !== undefined) return null;
    for (const of of [this.#text, this.#layers]) {
      const rows = of.rowsDue(left);
      if (rows > 0) return { of, rows };
    }
    return null;
  }

  /** Reads the prompt (when given) and yields text as it is generated; the return value is the summary. */
  async *generate(prompt: Prompt | null, options: AnswerOptions = {}): AsyncGenerator<string, Generated> {
    const { model } = this.runtime;
    const answer = await Answer.open(this.runtime, options);
    try {
      const ids = prompt === null ? [] : await tokenizeFor(this, model, prompt, options.signal);
      if (ids.length > 0) this.#check(ids, answer.maxTokens);
      else this.#fits(0, answer.maxTokens);
      if (ids.length === 0 && this.#trail.last === null)
        throw new KvError('bad-argument', 'nothing was read yet', { hint: 'give a prompt first' });
      // Held to the end, because a second call in between would put its tokens among these.
      this.#occupancy.begin();
      try {
        const receipts = Receipts.asked(this, options);
        const startMs = performance.now();
        const reading = given<ReadOptions>({ signal: options.signal, onProgress: options.onProgress });
        await this.#enter(this.tokens.length + ids.length + answer.maxTokens, reading);
        const cachedTokens = await this.#readPrompt(ids, reading);
        await this.#promote();
        const lookup = lookupOf(this, options);
        receipts?.begin();
        const written = yield* write(this, answer, {
          tokens: ids.length,
          cachedTokens,
          startMs,
          signal: options.signal,
          lookup,
        });
        this.#prefix.measure();
        return receipts === null ? written : { ...written, receipt: await receipts.give(written) };
      } finally {
        this.#answered();
      }
    } finally {
      answer.close();
    }
  }

  /**
   * How likely an answer is behind a prompt, in nats, where the prompt is read as generate() reads it. The cache then
   * holds both.
   */
  async likelihood(prompt: readonly number[], answer: readonly number[]): Promise<number> {
    this.#check([...prompt, ...answer], 0);
    this.#occupancy.begin();
    try {
      await this.#enter(this.tokens.length + prompt.length + answer.length, {});
      await this.#readPrompt(prompt, {});
      await this.#promote();
      let nats = 0;
      for (const id of answer) {
        const row = await this.logits();
        nats += row[id]! - logSumExp(row).logSum;
        await this.#forward([id], { reads: false });
      }
      this.#prefix.measure();
      return nats;
    } finally {
      this.#answered();
    }
  }

  /** An answer has been written, or as much of it as there will be. */
  #answered(): void {
    if (!this.isClosed) this.governed.promoted?.giveBack();
    this.#logits = null;
    this.#left();
  }

  logits(row: Float32Array = this.#trail.last!): Promise<Float32Array> {
    const { dense, model } = this.runtime;
    this.#logits ??= new Float32Array(model.config.vocabSize);
    return this.setup.shared?.scheduler.logits.of(dense, row, this.#logits) ?? dense.logits(row, 1, this.#logits);
  }

  retract(tokens: number, row: Float32Array): void {
    this.rewind(tokens);
    this.#trail.endAt(row);
  }

  /**
   * A session that continues from here. Pages that have left the window are shared, and so is the budget; each decides
   * by itself, and a move of a shared page is one for both.
   */
  fork(compareTokens = 0): Session {
    this.#occupancy.checkFree();
    const setup = { ...this.setup, compareTokens };
    const cache = fork(this.governed);
    const forked = new Session(this.runtime, setup, cache, this.rotary, this.floor?.share() ?? null);
    forked.activation = this.#activation;
    forked.adopt(this.tokens, this.#trail.last?.slice() ?? null);
    return forked;
  }

  /**
   * A probe of the cache as it is now, which keeps what is read from now on until it or another one takes its place.
   * Moves that are made meanwhile are not part of what it compares with, so it is used before the next ones. Throws as
   * Probe.open does.
   */
  probe(layers: readonly number[]): Probe {
    this.#occupancy.checkFree();
    const probe = Probe.open(this, this.governed, layers);
    this.keepFor(probe);
    return probe;
  }

  keepFor(probe: Probe | null): void {
    this.#probe = probe;
  }

  /** What the next token is drawn from, [m]; null: nothing was read, or tokens were taken back. Between two calls. */
  get lastHidden(): Float32Array | null {
    this.#occupancy.checkFree();
    return this.#trail.last;
  }

  /** The cache holds these tokens already, as that of a parked session. */
  adopt(tokens: readonly number[], lastHidden: Float32Array | null): void {
    this.#occupancy.checkFree();
    for (const id of tokens) this.tokens.push(id);
    this.#trail.endAt(lastHidden);
    this.setup.shared?.holds(this);
  }

  /** Does what PolicyCache.restore says, between two calls. */
  restore(layer: number, page: number, format?: FormatName): number {
    this.#occupancy.checkFree();
    return this.governed.restore(layer, page, format);
  }

  /** True if no call uses it, and one could. */
  get isIdle(): boolean {
    return this.#occupancy.isFree;
  }

  /** True if a call has it that waits until there is room to begin. */
  get isInLine(): boolean {
    return this.#occupancy.isResting;
  }

  /** How many calls have used it. */
  get calls(): number {
    return this.#occupancy.calls;
  }

  /** When the last call ended that used it, on the clock of performance.now(). */
  get idleSinceMs(): number {
    return this.#occupancy.endedMs;
  }

  /** How long it waited before the newest call; null: there was none before. */
  get pauseMs(): number | null {
    return this.#occupancy.pauseMs;
  }

  get isClosed(): boolean {
    return this.#occupancy.isClosed;
  }

  /** Does work between two calls that needs its pages: where they are parked, they are back before. */
  async awake<Result>(work: () => Result): Promise<Result> {
    this.#occupancy.begin();
    try {
      await this.#wake({}, false);
    } finally {
      this.#occupancy.end();
    }
    // Nobody else comes between, since nothing is waited for.
    return work();
  }

  /**
   * Brings its pages back if they are parked, or reads its tokens again if those are of no use. Whatever prevents that,
   * the tokens are not lost.
   */
  async #wake(options: ReadOptions, isAtWork: boolean): Promise<void> {
    this.setup.shared?.wake(this, isAtWork);
    if (this.cache.length() === this.tokens.length) return;
    const tokens = [...this.tokens];
    const isEmpty = this.cache.length() === 0;
    takeBack(this.governed, this.governed.wayBack(0, 0));
    this.#shorten(0);
    if (isEmpty) this.governed.descent.anew();
    try {
      await this.#read(tokens, options);
    } catch (error) {
      for (const id of tokens) this.tokens.push(id);
      throw error;
    }
  }

  /**
   * Takes back everything after the first `tokens`; those are whole pages, or their page is still in the window
   * (back.ts). The next generate() needs a prompt.
   */
  rewind(tokens: number): void {
    this.#occupancy.checkSound();
    cutTo(this.governed, tokens);
    this.#trail.cut(this.tokens.length - tokens);
    this.#shorten(tokens);
    this.#prefix.cut(tokens);
  }

  /** Tells the policy that memory is short; pressure rises at the next token boundary. */
  set lowMemory(value: boolean) {
    this.governed.memoryIsLow(value);
  }

  report(): SessionReport {
    const { dense, denseChoice, activations } = this.runtime;
    const pressure = this.setup.shared?.pressure(this) ?? null;
    const named = `${dense.name}: ${denseChoice.why}`;
    return reportOf(this.governed, { ...this.times, dense: named, activations, pressure });
  }

  /** What deciding has taken so far: the same as in `report()`, without making one. */
  get overhead(): Spent {
    return this.governed.tally.spent;
  }

  /** No further step begins; resolves when the running one has ended. What was counted can still be asked. */
  async end(): Promise<void> {
    this.#occupancy.close();
    const error = new KvError('closed', 'the session was closed', { values: { session: this.id } });
    this.setup.shared?.drop(this, error);
    await this.#stepping;
  }

  close(): void {
    if (this.#isFreed) return;
    this.#occupancy.close();
    this.#isFreed = true;
    this.setup.shared?.left(this);
    this.floor?.leave();
    this.setup.adapterSet?.leave(this);
    this.governed.close();
  }

  async forward(ids: readonly number[]): Promise<Float32Array> {
    const rows = await this.#forward(ids, { reads: false });
    // Several are read only where each row has the bits of a step of its own.
    this.governed.descent.steps.split(ids.length);
    return rows;
  }

  async #forward(ids: readonly number[], turn: Turn): Promise<Float32Array> {
    this.#occupancy.checkSound();
    const { shared } = this.setup;
    const tokenIds = Int32Array.from(ids);
    const ended = (outcome: Outcome): Promise<void> => this.#ended(outcome);
    await this.#taking(
      shared === undefined ? this.#step(tokenIds) : shared.step(this, turn, { stepper: this, tokenIds, ended }),
    );
    return this.#trail.newest;
  }

  /** Does a step of a prompt, and what belongs to it, while no other session does one. */
  async #alone(turn: Turn, solo: Solo): Promise<void> {
    this.#occupancy.checkSound();
    await this.#taking(this.setup.shared?.stepAlone(this, turn, solo) ?? solo.work());
  }

  async #taking(step: Promise<void>): Promise<void> {
    this.#stepping = step.catch(() => {});
    await step;
  }

  async #probed(by: TextProbe | LayerProbe, ids: readonly number[], signal?: AbortSignal): Promise<void> {
    try {
      await by.read(ids, () => this.#step(Int32Array.from(ids)), signal);
    } finally {
      this.governed.promised.end();
    }
  }

  async #step(tokenIds: Int32Array): Promise<void> {
    const [outcome] = await runPass([{ stepper: this, tokenIds }]);
    await this.#ended(outcome!);
  }

  begins(): void {
    this.#occupancy.checkSound();
  }

  async #ended(outcome: Outcome): Promise<void> {
    try {
      if (outcome !== null) throw outcome.error;
      await this.#rereading.measure();
    } catch (error) {
      // Layers before the fault have these tokens and the others have not, so no later step may build on them.
      if (!this.#isFreed && this.cache.length(0) !== this.tokens.length) this.#occupancy.tear();
      throw error;
    } finally {
      this.governed.promised.end();
    }
  }

  sees(rows: LayerRows): void {
    this.#probe?.add(rows);
    this.setup.onRows?.(rows);
  }

  holds(tokenIds: Int32Array, hidden: Float32Array): void {
    this.#probe?.output(hidden);
    this.#rereading.sees(this.tokens.length, tokenIds.length, hidden);
    const seals = sealsBetween(this.tokens.length, tokenIds.length);
    for (const id of tokenIds) this.tokens.push(id);
    this.governed.descent.steps.add(tokenIds.length);
    this.#trail.add(tokenIds.length, hidden);
    if (this.setup.onHidden !== undefined) this.setup.onHidden(hidden);
    else if (seals > 0) this.setup.shared?.holds(this);
  }

  #fits(tokens: number, reserve: number, held = this.tokens.length): void {
    this.#occupancy.checkSound();
    checkFits({ held, prompt: tokens, reserve }, this.runtime.model.config.contextLength);
  }
}

/** What it has of memory that it shares. Throws 'bad-argument'. */
/** The pack that it asked for; undefined: none. Throws 'unsupported' where nobody knows packs, and beside latents. */
function packOf({ pack, sessionPack, latents = 'auto', originals = 'none' }: SessionSetup): SessionPack | undefined {
  if (pack !== undefined && sessionPack === undefined)
    throw new KvError('unsupported', 'packs are those of an engine, and this session has none', { values: { pack } });
  if (sessionPack === undefined) return undefined;
  if (latents !== 'auto' && latents !== 'none') throw withoutPack('keep latents', 'a page has one form beside its own');
  if (originals !== 'none') throw withoutPack('keep originals', 'what went to the pack does not come back');
  return sessionPack;
}

/** What the log says of adapters; undefined: there are none. Throws 'unsupported' where nobody knows them. */
function appliedBy({ adapters = [], adapterSet }: SessionSetup): readonly AppliedAdapter[] | undefined {
  const names = isProposedFor(adapters) ? ['proposed'] : adapters.map(({ name }) => name);
  if (names.length > 0 && adapterSet === undefined)
    throw new KvError('unsupported', 'adapters are those of an engine, and this session has none', {
      values: { adapters: names },
    });
  return adapterSet === undefined || adapterSet.applied.length === 0 ? undefined : adapterSet.applied;
}

const stakeOf = ({ kvFloor, kvWeight = SESSION_OPTIONS.kvWeight.default }: SessionSetup): Stake => ({
  floorBytes: kvFloor === undefined ? 0 : parseBytes(kvFloor, 'kvFloor'),
  weight: kvWeight,
});

function checkFloor(floorBytes: number, budgetBytes: number | null): void {
  if (budgetBytes === null || floorBytes <= budgetBytes) return;
  throw new KvError('bad-argument', `a kvFloor of ${floorBytes} bytes is more than the kvBudget of ${budgetBytes}`, {
    values: { kvFloor: floorBytes, budgetBytes },
    hint: 'a session keeps at least its kvFloor and takes at most its kvBudget',
  });
}
