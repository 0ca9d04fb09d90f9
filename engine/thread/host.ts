/**
 * What runs in the model's thread: one runtime, one state folder, any number of sessions, and what they share. What the
 * other side may ask of it stands in `calls/`; worker.ts carries the calls, and nothing else here knows of threads.
 */
import { randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import type { QdrantOptions } from '../../memory/index.ts';
import { checkOptions, given, KvError, openPool, type PagePool, show } from '../../native/index.ts';
import { ACTIVATION_SHARE_MOST, type ActivationChoice, type ActivationCosts } from '../../policy/index.ts';
import {
  type AnchorOptions,
  type FailureMode,
  type LogRule,
  noteLeftOut,
  useMasterKeys,
  withRules,
} from '../../witness/index.ts';
import { Adapters } from '../adapters/adapters.ts';
import { AdapterRegistry } from '../adapters/registry.ts';
import type { IdlePlace } from '../cache/away.ts';
import { memoryBytes } from '../cache/budget.ts';
import { Group } from '../cache/group.ts';
import { type EngineEvent, eventTeller, untold } from '../events/event.ts';
import { FALLBACKS, Meter } from '../metrics/meter.ts';
import { parseGroupBudget } from '../options/parse-budget.ts';
import { SESSION_OPTIONS } from '../options/table.ts';
import type { EngineOptions, KvGroup, LogRetention, SessionOptions } from '../options/types.ts';
import { leave, setupOf } from '../session/experience.ts';
import type { IdleForm } from '../session/park/idle.ts';
import { ModelPredictor } from '../session/park/predictors.ts';
import type { Session } from '../session/session.ts';
import type { SessionSetup } from '../session/setup.ts';
import { SharedMemory } from '../session/shared-memory.ts';
import { activationCosts } from '../state/activations.ts';
import { openState, type State } from '../state/folder.ts';
import { Runtime, type RuntimeOptions } from '../transformer/runtime/runtime.ts';
import { SessionPacks } from './session-packs.ts';

/** Of the digests by which the beginnings of sessions are known, where no state folder has one. */
const KEY_BYTES = 32;

export interface HostOptions extends Omit<RuntimeOptions, 'activationCosts' | 'adapters'> {
  /** null: none will be added, so that the dense half need not have a place for them. */
  readonly adapters: readonly { readonly name: string; readonly path: string }[] | null;
  readonly activations: 16 | 'auto';
  readonly stateDir: string | null;
  readonly onLogFailure: FailureMode;
  readonly qdrant?: QdrantOptions | undefined;
  /** The keys of the caller's thread. */
  readonly masterKeys: readonly Uint8Array[];
  readonly logRules: readonly LogRule[];
  readonly logRetention?: LogRetention | undefined;
  readonly anchor?: AnchorOptions | undefined;
  /** Most bytes of all sessions together; left out: the memory of the machine. */
  readonly kvBudgetBytes?: number | undefined;
  /** What calls do where room is short; left out: the default. */
  readonly onPressure?: EngineOptions['onPressure'];
  /** Most calls at work at once; left out: as many as there is room for. */
  readonly maxConcurrent?: number | undefined;
  /** How long a pass may take that has a piece of a prompt beside answers; left out: the default. */
  readonly interTokenTargetMs?: number | undefined;
  readonly idleSessions: 'keep' | IdlePlace;
  /** Whether sessions begin with pages of others. */
  readonly prefixCaching: boolean;
  /** Told of events; left out: nobody is. */
  readonly onEvent?: (event: EngineEvent) => void;
}

export class Host {
  readonly runtime: Runtime;
  readonly adapters: Adapters;
  readonly packs: SessionPacks;
  readonly state: State | null;
  readonly meter: Meter;
  readonly predictor: ModelPredictor;
  readonly shared: SharedMemory;
  readonly #sessions = new Map<string, Session>();
  /** By name, those that had a session. */
  readonly #groups = new Map<string, Group>();
  /** One set of threads, and one heap, for all sessions. */
  readonly #pool: PagePool;
  /** What all sessions may take together, where the caller said it. */
  readonly #budgetBytes: number | undefined;
  #lowMemory = false;

  private constructor(runtime: Runtime, state: State | null, meter: Meter, options: HostOptions) {
    const { kvBudgetBytes, idleSessions, maxConcurrent, interTokenTargetMs, onPressure } = options;
    this.runtime = runtime;
    this.adapters = new Adapters(runtime, state === null ? null : new AdapterRegistry(state.dir));
    this.packs = new SessionPacks(state?.dir ?? null);
    for (const { name, path } of options.adapters ?? []) this.adapters.add(name, path);
    this.state = state;
    this.meter = meter;
    this.predictor = new ModelPredictor(runtime.model, state?.dir ?? null);
    const form = idleSessions === 'keep' ? null : this.#idleForm(idleSessions);
    this.#pool = openPool(kvBudgetBytes ?? memoryBytes());
    this.#budgetBytes = kvBudgetBytes;
    const sessions = (): Iterable<Session> => this.sessions;
    const key = state?.prefixKey ?? randomBytes(KEY_BYTES);
    const prefixes = options.prefixCaching ? { key, keepsClosed: kvBudgetBytes !== undefined } : undefined;
    this.shared = new SharedMemory({
      pool: this.#pool,
      meter: this.meter,
      form,
      sessions,
      ...given({ maxConcurrent, prefixes, interTokenTargetMs, onPressure, log: state?.log }),
    });
    this.meter.budget.set({}, this.#pool.budgetBytes);
    if (runtime.native.passedOver !== null) this.meter.fallbacks.add({ reason: 'kernels' });
    if (runtime.denseChoice.isSecondBest) this.meter.fallbacks.add({ reason: 'dense' });
    if (options.activations === 'auto' && runtime.activations === null)
      this.meter.fallbacks.add({ reason: 'activations' });
  }

  static async open(options: HostOptions): Promise<Host> {
    const { stateDir, activations, onLogFailure, qdrant, logRules, logRetention, anchor } = options;
    const tell = options.onEvent === undefined ? untold : eventTeller(options.onEvent);
    const open = (dir: string) =>
      openState(dir, { mode: onLogFailure, qdrant, rules: logRules, retention: logRetention, anchor, tell });
    useMasterKeys(options.masterKeys);
    // Refuse a bad folder before loading a model, and make a new folder only once there is a model to use it.
    let state = stateDir !== null && existsSync(stateDir) ? await open(stateDir) : null;
    let runtime: Runtime | null = null;
    try {
      const costs = (digest: string): ActivationCosts | null => activationCosts(digest, stateDir);
      runtime = await Runtime.open({
        ...options,
        adapters: options.adapters !== null || (stateDir !== null && new AdapterRegistry(stateDir).exists),
        ...(activations === 'auto' ? { activationCosts: costs } : {}),
      });
      if (stateDir !== null) state ??= await open(stateDir);
      return new Host(runtime, state, new Meter(FALLBACKS, tell), options);
    } catch (error) {
      await state?.close();
      await runtime?.close();
      throw error;
    }
  }

  /**
   * Closes everything, also when something cannot be written; throws the first such error at the end. → entries of the
   * log that no checkpoint covers in a place outside of it; null: none is anchored
   */
  async close(): Promise<number | null> {
    const failed: unknown[] = [];
    const attempt = async (work: () => Promise<void> | undefined): Promise<void> => {
      try {
        await work();
      } catch (error) {
        failed.push(error);
      }
    };
    for (const id of [...this.#sessions.keys()]) await attempt(() => this.closeSession(id, 'done'));
    await attempt(async () => this.predictor.close());
    await attempt(async () => this.shared.close());
    await attempt(async () => this.#pool.close());
    await attempt(() => this.state?.close());
    await attempt(() => this.runtime.close());
    const entries = this.state?.log.unanchoredEntries ?? null;
    if (entries !== null && entries > 0) this.meter.tell('entries-unanchored', { entries });
    if (failed.length > 0) throw failed[0];
    return entries;
  }

  /** What all sessions may take together; undefined: nobody said it. */
  get budgetBytes(): number | undefined {
    return this.#budgetBytes;
  }

  get sessions(): Iterable<Session> {
    return this.#sessions.values();
  }

  /** Throws 'closed'. */
  session(id: string): Session {
    const session = this.#sessions.get(id);
    if (session === undefined) throw new KvError('closed', `session ${id} is not open`, { values: { session: id } });
    return session;
  }

  /** Keeps a session until it is closed. */
  keep(session: Session): void {
    this.#sessions.set(session.id, session);
    if (this.#lowMemory) session.lowMemory = true;
  }

  /** Somebody says that memory is short, or no longer: to all sessions, and to those that open afterwards. */
  memoryIsLow(isLow: boolean): void {
    this.#lowMemory = isLow;
    for (const session of this.sessions) session.lowMemory = isLow;
    if (isLow) this.shared.parkAll(null);
  }

  /** What a session with these options is opened with. Throws what planning throws. */
  async setup(options: SessionOptions): Promise<SessionSetup> {
    checkSession(options);
    const { kvGroup, logRules = [] } = options;
    const group = kvGroup === undefined ? undefined : this.#group(kvGroup);
    const adapterSet = options.adapters === undefined ? undefined : this.adapters.set(options.adapters);
    const setup = await setupOf(this.runtime, options, this.state, adapterSet?.applied);
    checkActivations(this.runtime.activations, setup.kldBudget);
    const { shared, meter } = this;
    const sessionPack = options.pack === undefined ? undefined : this.packs.of(options.pack);
    const known = given({
      sessionPack,
      adapterSet,
      sharedBudgetBytes: this.#budgetBytes,
      stateDir: this.state?.dir,
      group,
    });
    return { ...setup, log: withRules(setup.log, logRules), pool: this.#pool, meter, shared, ...known };
  }

  /** Throws 'bad-argument'. */
  #group({ name, kvBudget, ...rest }: KvGroup): Group {
    if (typeof name !== 'string' || name === '' || Object.keys(rest).length > 0)
      throw new KvError('bad-argument', 'a kvGroup is { name, kvBudget }', { values: { name: show(name) } });
    const budgetBytes = parseGroupBudget(kvBudget, this.#budgetBytes ?? memoryBytes());
    const group = this.#groups.get(name) ?? new Group(name, budgetBytes);
    group.budgetBytes = budgetBytes;
    this.#groups.set(name, group);
    return group;
  }

  /** Waits until all that was logged is on disk. → highest acknowledged sequence number, −1 without a log */
  async flush(): Promise<number> {
    return (await this.state?.log.flush()) ?? -1;
  }

  async closeSession(id: string, reason: 'done' | 'aborted' | 'error'): Promise<void> {
    const session = this.#sessions.get(id);
    if (session === undefined) return;
    this.#sessions.delete(id);
    await session.end();
    try {
      await leave(session.governed, this.state?.book ?? null, reason);
      noteLeftOut(session.setup.log);
      await this.state?.log.flush();
      // What is read for its states alone begins no other text.
      if (session.setup.onHidden === undefined) this.shared.keep(session);
    } finally {
      session.close();
      this.shared.forget(session);
    }
  }

  /**
   * How sessions that wait are parked. Throws 'not-found' where nothing predicts their pages, 'bad-argument' where
   * there is no state folder.
   */
  #idleForm(place: IdlePlace): IdleForm {
    if (place === 'reread') return { place };
    if (place === 'memory') return { place, predictor: this.predictor.findOrRefuse() };
    if (this.state !== null) return { place, stateDir: this.state.dir };
    throw new KvError('bad-argument', 'sessions are parked on disk in the state folder, and there is none', {
      hint: "name a stateDir, or give idleSessions: 'memory'",
    });
  }
}

/** What can be seen before a session is planned. */
function checkSession(options: SessionOptions): void {
  checkOptions(options, SESSION_OPTIONS);
  const { exact, kvBudget, kldBudget, originals = SESSION_OPTIONS.originals.default } = options;
  if (exact === true && (kvBudget !== undefined || kldBudget !== undefined)) {
    throw new KvError('bad-argument', 'the exact cache keeps no budget', {
      values: { kvBudget, kldBudget },
      hint: 'leave out exact, or the budget',
    });
  }
  if (exact === true && originals !== SESSION_OPTIONS.originals.default) {
    throw new KvError('bad-argument', 'the exact cache moves no page, so there are no originals of any', {
      values: { originals },
      hint: 'leave out exact, or originals',
    });
  }
}

/** A stated divergence is for pages; of what activations are expected to cost there is room for a tenth of it. */
function checkActivations(choice: ActivationChoice | null, kldBudget: number | undefined): void {
  if (choice === null || kldBudget === undefined || choice.expectedNats <= ACTIVATION_SHARE_MOST * kldBudget) return;
  const { expectedNats } = choice;
  throw new KvError(
    'bad-argument',
    `activations of 8 bits are expected to cost ${expectedNats.toPrecision(2)} nats, more than a tenth of a kldBudget of ${kldBudget}`,
    {
      values: { kldBudget, expectedNats },
      hint: `open the engine with activations: 16, or state at least ${(expectedNats / ACTIVATION_SHARE_MOST).toPrecision(2)}`,
    },
  );
}
