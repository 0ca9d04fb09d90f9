/**
 * What runs in the model's thread: one runtime, one state folder, any number of sessions, and the calls the other side may make.
 * Knows nothing of threads; worker.ts carries its calls and events.
 */
import { existsSync } from 'node:fs';
import { type QdrantOptions, saveThresholdFile } from '../../memory/index.ts';
import { checkOptions, type FormatName, given, KvError, openPool, type PagePool } from '../../native/index.ts';
import {
  type AnchorOptions,
  type FailureMode,
  type LogRule,
  type RetentionPolicy,
  useMasterKeys,
} from '../../witness/index.ts';
import type { IdlePlace } from '../cache/away.ts';
import { forecast, memoryBytes } from '../cache/budget.ts';
import { metricsText } from '../cache/kv-bytes.ts';
import type { QualityFeedback } from '../cache/types.ts';
import { compareWithExact } from '../evaluate/compare.ts';
import { type TourEvent, type TourOptions, tour, tourTokens } from '../evaluate/tour.ts';
import { Meter } from '../metrics/meter.ts';
import { SESSION_OPTIONS } from '../options/table.ts';
import type {
  ContinuationOptions,
  GenerateOptions,
  Progress,
  Prompt,
  SendOptions,
  SessionOptions,
  ToolChoice,
} from '../options/types.ts';
import { Answer } from '../session/answer.ts';
import { answerChat, countChat, describeChat } from '../session/chat/answering.ts';
import type { Conversation } from '../session/chat/types.ts';
import { leave, setupOf } from '../session/experience.ts';
import { findParked, parkedPath, readParked, writeParked } from '../session/park/folder.ts';
import { type IdleForm, IdleSessions } from '../session/park/idle.ts';
import { parkedBytes } from '../session/park/park.ts';
import { ModelPredictor } from '../session/park/predictors.ts';
import { type Resumed, resumeSession } from '../session/park/resume.ts';
import { checkContinuations, countedTokens, tokenize } from '../session/prompt.ts';
import { Session } from '../session/session.ts';
import type { SessionSetup } from '../session/setup.ts';
import type { Divergence, Generated } from '../session/types.ts';
import { openState, type State } from '../state/folder.ts';
import { Runtime, type RuntimeOptions } from '../transformer/runtime/runtime.ts';
import type { ModelConfig } from '../transformer/types.ts';

export interface HostOptions extends RuntimeOptions {
  readonly stateDir: string | null;
  readonly onLogFailure: FailureMode;
  readonly qdrant?: QdrantOptions | undefined;
  /** Of the caller's thread. */
  readonly masterKeys: readonly Uint8Array[];
  readonly logRules: readonly LogRule[];
  readonly logRetention?: RetentionPolicy | undefined;
  readonly anchor?: AnchorOptions | undefined;
  /** Of all sessions together; left out: the memory of the machine. */
  readonly kvBudgetBytes?: number | undefined;
  readonly idleSessions: 'keep' | IdlePlace;
}

/** What was loaded, and what runs it. */
export interface LoadedInfo {
  /** The name that the model was asked for by, or that of its folder or file. */
  readonly name: string;
  /** Folder or file that it was read from. */
  readonly path: string;
  /** SHA-256 of the weights, in hexadecimal. */
  readonly digest: string;
  /** Bytes of its files. */
  readonly fileBytes: number;
  /** Its shape and hyperparameters. */
  readonly config: ModelConfig;
  /** What its files say about themselves, for people. */
  readonly summary: Readonly<Record<string, unknown>>;
  /** Instruction set of the kernels in use. */
  readonly isa: string;
  /** All that this CPU and this build have, best first. */
  readonly isaAvailable: readonly string[];
  /** What the kernels were compiled with. */
  readonly compiler: string;
  /** Threads of attention and of the dense half. */
  readonly threads: number;
  /** The dense half that runs, and its precision. */
  readonly dense: string;
  /** Why this dense half and no other. */
  readonly denseWhy: string;
  /** Bytes of the weights in memory. */
  readonly denseBytes: number;
  /** Types of the tensors in the file, and how many there are of each. */
  readonly weightTypes: Readonly<Record<string, number>>;
  /** Whether it has a chat template. */
  readonly chat: boolean;
  /** Milliseconds that loading took. */
  readonly loadMs: number;
  /** Folder of the witness log; null where nothing is written. */
  readonly logPath: string | null;
}

/** A session that was parked. */
export interface ParkedFile {
  /** Its id. */
  readonly session: string;
  /** Where it is. */
  readonly path: string;
  /** How large the file is. */
  readonly fileBytes: number;
  /** Tokens that it holds. */
  readonly tokens: number;
  /** Bytes that its cache took in memory. */
  readonly kvBytes: number;
}

type Emit = (event: unknown) => void;

interface Restored {
  readonly session: string;
  readonly layer: number;
  readonly page: number;
  readonly format?: FormatName;
}

export class Host {
  readonly #runtime: Runtime;
  readonly #state: State | null;
  readonly #sessions = new Map<string, Session>();
  readonly #meter = new Meter();
  /** One set of threads, and one heap, for all sessions. */
  readonly #pool: PagePool;
  readonly #idle: IdleSessions | undefined;
  readonly #predictor: ModelPredictor;

  private constructor(runtime: Runtime, state: State | null, { kvBudgetBytes, idleSessions }: HostOptions) {
    this.#runtime = runtime;
    this.#state = state;
    this.#predictor = new ModelPredictor(runtime.model, state?.dir ?? null);
    const form = idleSessions === 'keep' ? null : this.#idleForm(idleSessions);
    this.#pool = openPool(kvBudgetBytes ?? memoryBytes());
    if (form !== null) this.#idle = new IdleSessions(form, this.#pool, () => this.#sessions.values());
    if (runtime.native.passedOver !== null) this.#meter.fallbacks.add({ reason: 'kernels' });
    if (runtime.denseChoice.isSecondBest) this.#meter.fallbacks.add({ reason: 'dense' });
  }

  static async open(options: HostOptions): Promise<Host> {
    const { stateDir, onLogFailure, qdrant, logRules, logRetention, anchor } = options;
    const open = (dir: string) => openState(dir, onLogFailure, qdrant, logRules, logRetention, anchor);
    useMasterKeys(options.masterKeys);
    // Refuse a bad folder before loading a model, and make a new folder only once there is a model to use it.
    let state = stateDir !== null && existsSync(stateDir) ? await open(stateDir) : null;
    let runtime: Runtime | null = null;
    try {
      runtime = await Runtime.open(options);
      if (stateDir !== null) state ??= await open(stateDir);
      return new Host(runtime, state, options);
    } catch (error) {
      await state?.close();
      await runtime?.close();
      throw error;
    }
  }

  /** Every call by name; parameters are what engine.ts sends. Unknown names are our own fault. */
  async call(method: string, params: unknown, emit: Emit, signal: AbortSignal): Promise<unknown> {
    switch (method) {
      case 'info':
        return this.#info();
      case 'metrics':
        return metricsText(
          this.#meter,
          [...this.#sessions.values()].map(({ governed }) => governed),
          this.#state?.log ?? null,
        );
      case 'open':
        return (await this.#open(params as SessionOptions)).id;
      case 'tokenize':
        return this.#tokenize(params as { prompt: Prompt; tokensMax: number });
      case 'generate':
        return this.#generate(
          params as { session: string; prompt: Prompt | null; options: GenerateOptions },
          emit,
          signal,
        );
      case 'describeChat':
        return describeChat(this.#runtime, params as { chat: Conversation; toolChoice: ToolChoice | undefined });
      case 'countChat': {
        const { session, chat } = params as { session: string; chat: Conversation };
        return countChat(this.#runtime.model, this.#session(session), chat);
      }
      case 'answerChat': {
        const { session, chat, options } = params as { session: string; chat: Conversation; options: SendOptions };
        return answerChat(this.#runtime.model, this.#session(session), chat, { ...options, signal }, emit);
      }
      case 'continuations':
        return this.#continuations(
          params as { session: string; prompt: Prompt; options: ContinuationOptions },
          emit,
          signal,
        );
      case 'read': {
        const { session, prompt } = params as { session: string; prompt: Prompt };
        await this.#read(this.#session(session), prompt, emit, signal);
        return null;
      }
      case 'fork': {
        const origin = this.#session((params as { session: string }).session);
        const fork = await origin.awake(() => origin.fork());
        this.#sessions.set(fork.id, fork);
        return fork.id;
      }
      case 'park': {
        const { session, path, predict } = params as { session: string; path: string | null; predict: boolean };
        const parking = this.#session(session);
        return parking.awake(() => this.#park(parking, path, predict));
      }
      case 'resume':
        return this.#resume(params as { path: string; options: SessionOptions }, emit, signal);
      case 'report':
        return this.#session((params as { session: string }).session).report();
      case 'memoryUsage':
        return this.#session((params as { session: string }).session).governed.memoryUsage();
      case 'adaptThresholds': {
        const { session, feedback } = params as { session: string; feedback: QualityFeedback };
        return this.#session(session).governed.learnt.adapt(feedback);
      }
      case 'restore': {
        const { session, layer, page, format } = params as Restored;
        return this.#session(session).restore(layer, page, format);
      }
      case 'lowMemory': {
        const { session, value } = params as { session: string; value: boolean };
        const told = this.#session(session);
        told.lowMemory = value;
        if (value) this.#idle?.parkAll(told.governed);
        return null;
      }
      case 'compare':
        return this.#compare((params as { session: string }).session, emit, signal);
      case 'tour':
        return this.#tour(params as { session: SessionOptions; tour: TourOptions }, emit, signal);
      case 'forecast':
        return forecast(this.#runtime.shape, (params as { tokens: number }).tokens);
      case 'saveThresholds': {
        const { session, path } = params as { session: string; path: string };
        return this.#saveThresholds(this.#session(session), path);
      }
      case 'flush':
        return (await this.#state?.log.flush()) ?? -1;
      case 'closeSession': {
        const { session, reason } = params as { session: string; reason: 'done' | 'aborted' | 'error' };
        await this.#closeSession(session, reason);
        return null;
      }
      default:
        throw new Error(`the model's thread has no call '${method}'`);
    }
  }

  /** Closes everything, also when something cannot be written; throws the first such error at the end. */
  async close(): Promise<void> {
    const failed: unknown[] = [];
    const attempt = async (work: () => Promise<void> | undefined): Promise<void> => {
      try {
        await work();
      } catch (error) {
        failed.push(error);
      }
    };
    for (const id of [...this.#sessions.keys()]) await attempt(() => this.#closeSession(id, 'done'));
    await attempt(async () => this.#predictor.close());
    await attempt(async () => this.#pool.close());
    await attempt(() => this.#state?.close());
    await attempt(() => this.#runtime.close());
    if (failed.length > 0) throw failed[0];
  }

  #info(): LoadedInfo {
    const { model, dense, denseChoice, native, threads, loadMs } = this.#runtime;
    return {
      name: model.name,
      path: model.path,
      digest: model.digest,
      fileBytes: model.fileBytes,
      config: model.config,
      summary: model.summary,
      isa: native.isa,
      isaAvailable: native.available,
      compiler: native.compiler,
      threads,
      dense: dense.name,
      denseWhy: denseChoice.why,
      denseBytes: dense.bytes,
      weightTypes: dense.weightTypes,
      chat: model.tokenizer.chatTemplate !== null,
      loadMs,
      logPath: this.#state?.log.dir ?? null,
    };
  }

  #session(id: string): Session {
    const session = this.#sessions.get(id);
    if (session === undefined) throw new KvError('closed', `session ${id} is not open`, { values: { session: id } });
    return session;
  }

  #tokenize({ prompt, tokensMax }: { prompt: Prompt; tokensMax: number }): number[] {
    return tokenize(this.#runtime.model.tokenizer, prompt, true, tokensMax);
  }

  async #open(options: SessionOptions): Promise<Session> {
    checkSession(options);
    const session = Session.open(this.#runtime, await this.#setup(options));
    this.#sessions.set(session.id, session);
    return session;
  }

  async #setup(options: SessionOptions): Promise<SessionSetup> {
    const setup = await setupOf(this.#runtime, options, this.#state);
    return { ...setup, pool: this.#pool, meter: this.#meter, ...given({ idle: this.#idle }) };
  }

  async #read(session: Session, prompt: Prompt, emit: Emit, signal: AbortSignal): Promise<void> {
    const { model } = this.#runtime;
    const ids = tokenize(model.tokenizer, prompt, session.length === 0, countedTokens(model));
    await session.read(ids, { signal, onProgress: (progress) => emit({ progress }) });
  }

  /** How sessions that wait are parked. Throws 'not-found' where nothing predicts their pages, 'bad-argument' where there is no state folder. */
  #idleForm(place: IdlePlace): IdleForm {
    if (place === 'memory') return { place, predictor: this.#predictor.findOrRefuse() };
    if (this.#state !== null) return { place, stateDir: this.#state.dir };
    throw new KvError('bad-argument', 'sessions are parked on disk in the state folder, and there is none', {
      hint: "name a stateDir, or give idleSessions: 'memory'",
    });
  }

  async #park(session: Session, path: string | null, predict: boolean): Promise<ParkedFile> {
    const predictor = predict ? this.#predictor.findOrRefuse() : null;
    const bytes = parkedBytes(session, predictor);
    const target = path ?? (this.#state === null ? null : parkedPath(this.#state.dir, session.id));
    if (target === null)
      throw new KvError('bad-argument', 'an engine without a state folder parks where it is told', {
        hint: 'session.park(path)',
      });
    writeParked(target, bytes);
    const { tokens, kvBytes } = { tokens: session.length, kvBytes: session.governed.usedBytes };
    session.governed.mover.write('note', { parked: tokens, fileBytes: bytes.length, tokens });
    await this.#closeSession(session.id, 'done');
    return { session: session.id, path: target, fileBytes: bytes.length, tokens, kvBytes };
  }

  async #resume(
    { path, options }: { path: string; options: SessionOptions },
    emit: Emit,
    signal: AbortSignal,
  ): Promise<{ id: string; resumed: Resumed }> {
    const parked = readParked(findParked(this.#state?.dir ?? null, path));
    const asked = { ...parked.head.options, ...options };
    checkSession(asked);
    const setup = await this.#setup(asked);
    const predictor = parked.head.predictor === null ? null : this.#predictor.findIfSound();
    const reading = { signal, onProgress: (progress: Progress) => emit({ progress }) };
    const { session, resumed } = await resumeSession(this.#runtime, setup, parked, reading, predictor);
    this.#sessions.set(session.id, session);
    return { id: session.id, resumed };
  }

  async #generate(
    params: { session: string; prompt: Prompt | null; options: GenerateOptions },
    emit: Emit,
    signal: AbortSignal,
  ): Promise<Generated> {
    const session = this.#session(params.session);
    const stream = session.generate(params.prompt, {
      ...params.options,
      signal,
      onProgress: (progress) => emit({ progress }),
    });
    for (;;) {
      const next = await stream.next();
      if (next.done === true) return next.value;
      emit({ text: next.value });
    }
  }

  /** Each over a fork of its own, one after the other, so that no more than one holds pages beside the prompt's. */
  async #continuations(
    params: { session: string; prompt: Prompt; options: ContinuationOptions },
    emit: Emit,
    signal: AbortSignal,
  ): Promise<Generated[]> {
    const { n, ...options } = params.options;
    const { model } = this.#runtime;
    checkContinuations(n, options);
    const maxTokens = await Answer.check(this.#runtime, options);
    const session = this.#session(params.session);
    const ids = tokenize(model.tokenizer, params.prompt, session.length === 0, countedTokens(model));
    const onProgress = (progress: Progress): void => emit({ progress });
    const start = performance.now();
    await session.read(ids, { reserve: maxTokens, tokensFollow: true, signal, onProgress });
    const prefillTokensPerSecond = (ids.length * 1000) / (performance.now() - start);
    const all: Generated[] = [];
    for (let i = 0; i < n; i++) {
      const fork = session.fork();
      this.#sessions.set(fork.id, fork);
      const seeded = { session: fork.id, prompt: null, options: { ...options, seed: (options.seed ?? 0) + i } };
      try {
        const generated = await this.#generate(seeded, () => {}, signal);
        all.push({ ...generated, promptTokens: ids.length, prefillTokensPerSecond });
      } catch (error) {
        await this.#closeSession(fork.id, 'error');
        throw error;
      }
      await this.#closeSession(fork.id, signal.aborted ? 'aborted' : 'done');
    }
    return all;
  }

  async #compare(id: string, emit: Emit, signal: AbortSignal): Promise<Divergence> {
    const session = this.#session(id);
    const divergence = await compareWithExact(session, signal, (progress) => emit({ progress }));
    session.governed.learnt.adapt(divergence);
    return divergence;
  }

  async #tour(
    params: { session: SessionOptions; tour: TourOptions },
    emit: Emit,
    signal: AbortSignal,
  ): Promise<unknown> {
    let opened: Session | null = null;
    try {
      const tokensExpected = tourTokens(this.#runtime, params.tour);
      const result = await tour(
        this.#runtime,
        { ...(await setupOf(this.#runtime, { ...params.session, tokensExpected }, this.#state)), meter: this.#meter },
        params.tour,
        (event: TourEvent) => emit(event),
        signal,
        (session) => {
          opened = session;
          this.#sessions.set(session.id, session);
        },
      );
      (opened as Session | null)?.governed.learnt.adapt(result.divergence);
      await this.#closeSession(result.report.session, 'done');
      return { ...result, acknowledgedSeq: (await this.#state?.log.flush()) ?? -1 };
    } catch (error) {
      if (opened !== null) await this.#closeSession((opened as Session).id, signal.aborted ? 'aborted' : 'error');
      throw error;
    }
  }

  async #saveThresholds(session: Session, path: string): Promise<void> {
    await saveThresholdFile(path, session.governed.learnt.thresholds(), {
      modelDigest: this.#runtime.model.digest,
      shape: this.#runtime.shape,
      log: this.#state?.log ?? null,
    });
  }

  async #closeSession(id: string, reason: 'done' | 'aborted' | 'error'): Promise<void> {
    const session = this.#sessions.get(id);
    if (session === undefined) return;
    this.#sessions.delete(id);
    await session.end();
    try {
      await leave(session.governed, this.#state?.book ?? null, reason);
      await this.#state?.log.flush();
    } finally {
      session.close();
      this.#idle?.forget(session);
    }
  }
}

/** What can be seen before a session is planned. */
function checkSession(options: SessionOptions): void {
  checkOptions(options, SESSION_OPTIONS);
  const { exact, kvBudget, kldBudget } = options;
  if (exact === true && (kvBudget !== undefined || kldBudget !== undefined)) {
    throw new KvError('bad-argument', 'the exact cache keeps no budget', {
      values: { kvBudget, kldBudget },
      hint: 'leave out exact, or the budget',
    });
  }
}
