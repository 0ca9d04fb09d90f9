/**
 * What runs in the model's thread: one runtime and any number of sessions, over what it shares with other models
 * (commons.ts). What the other side may ask of it stands in `calls/`; worker.ts carries the calls, and nothing else
 * here knows of threads.
 */
import { existsSync } from 'node:fs';
import { checkOptions, given, KvError } from '../../native/index.ts';
import { ACTIVATION_SHARE_MOST, type ActivationChoice, type ActivationCosts } from '../../policy/index.ts';
import { noteLeftOut, useMasterKeys, withRules } from '../../witness/index.ts';
import { Adapters } from '../adapters/adapters.ts';
import { AdapterRegistry } from '../adapters/registry.ts';
import { packId, type SessionPack } from '../cache/pack-pages.ts';
import type { Meter } from '../metrics/meter.ts';
import { SESSION_OPTIONS } from '../options/table.ts';
import type { SessionOptions } from '../options/types.ts';
import { leave, setupOf } from '../session/experience.ts';
import { ModelPredictor } from '../session/park/predictors.ts';
import type { Session } from '../session/session.ts';
import type { SessionSetup } from '../session/setup.ts';
import type { SharedMemory } from '../session/shared-memory.ts';
import { activationCosts } from '../state/activations.ts';
import type { State } from '../state/folder.ts';
import { Runtime, type RuntimeOptions } from '../transformer/runtime/runtime.ts';
import { Commons, type CommonsOptions, doAll, stateOf } from './commons.ts';
import { type Adapted, adaptedOptions } from './proposing.ts';
import { SessionPacks } from './session-packs.ts';

/** What is asked of one model. */
export interface ModelOptions extends Omit<RuntimeOptions, 'activationCosts' | 'adapters'> {
  /** null: none will be added, so that the dense half need not have a place for them. */
  readonly adapters: readonly { readonly name: string; readonly path: string }[] | null;
  readonly activations: 16 | 'auto';
}

export interface HostOptions extends ModelOptions, CommonsOptions {}

export class Host {
  readonly runtime: Runtime;
  readonly adapters: Adapters;
  readonly packs: SessionPacks;
  readonly predictor: ModelPredictor;
  /** What it shares with other models, if there are any. */
  readonly commons: Commons;
  readonly #sessions = new Map<string, Session>();
  readonly #isAlone: boolean;

  /** isAlone: it has the commons for itself, and closes them. */
  private constructor(commons: Commons, runtime: Runtime, options: ModelOptions, isAlone: boolean) {
    const { meter, state, shared } = commons;
    this.commons = commons;
    this.runtime = runtime;
    this.#isAlone = isAlone;
    const registry = state === null ? null : new AdapterRegistry(state.dir);
    const landlord = commons.budgetBytes === undefined ? null : shared;
    this.adapters = new Adapters(runtime, registry, undefined, landlord, (gone) => shared.tellGone(gone));
    this.packs = new SessionPacks(state);
    this.#addAll(options.adapters ?? []);
    this.predictor = new ModelPredictor(runtime.model, state?.dir ?? null);
    // Where sessions that wait are parked predicted, this says at once whether they can be.
    if (shared.place === 'memory') this.predictor.findOrRefuse();
    if (runtime.native.passedOver !== null) meter.fallbacks.add({ reason: 'kernels' });
    if (runtime.denseChoice.isSecondBest) meter.fallbacks.add({ reason: 'dense' });
    if (options.activations === 'auto' && runtime.activations === null) meter.fallbacks.add({ reason: 'activations' });
    commons.add(this);
  }

  #addAll(adapters: NonNullable<ModelOptions['adapters']>): void {
    try {
      for (const { name, path } of adapters) this.adapters.add(name, path);
    } catch (error) {
      this.adapters.close();
      throw error;
    }
  }

  /** A model that has everything for itself. */
  static async open(options: HostOptions): Promise<Host> {
    const { stateDir } = options;
    useMasterKeys(options.masterKeys);
    // Refuse a bad folder before loading a model, and make a new folder only once there is a model to use it.
    let state = stateDir !== null && existsSync(stateDir) ? await stateOf(options, stateDir) : null;
    let runtime: Runtime | null = null;
    let commons: Commons | null = null;
    try {
      runtime = await openRuntime(options, stateDir);
      if (stateDir !== null) state ??= await stateOf(options, stateDir);
      commons = new Commons(state, options);
      await commons.helpers?.check();
      return new Host(commons, runtime, options, true);
    } catch (error) {
      await doAll([...(commons?.endings ?? [() => state?.close()]), () => runtime?.close()]).catch(() => {});
      throw error;
    }
  }

  /** One model of several, which leaves the commons to the others when it is closed. */
  static async openIn(commons: Commons, options: ModelOptions): Promise<Host> {
    const runtime = await openRuntime(options, commons.state?.dir ?? null);
    try {
      return new Host(commons, runtime, options, false);
    } catch (error) {
      await runtime.close();
      throw error;
    }
  }

  get state(): State | null {
    return this.commons.state;
  }

  get meter(): Meter {
    return this.commons.meter;
  }

  get shared(): SharedMemory {
    return this.commons.shared;
  }

  /**
   * Closes everything, also when something cannot be written; throws the first such error at the end. → entries of the
   * log that no checkpoint covers in a place outside of it; null: none is anchored, or the log goes on
   */
  async close(): Promise<number | null> {
    await doAll([
      ...[...this.#sessions.keys()].map((id) => () => this.closeSession(id, 'done')),
      () => this.packs.close(),
      async () => this.adapters.close(),
      async () => this.predictor.close(),
      async () => this.commons.remove(this),
      ...(this.#isAlone ? this.commons.endings : []),
      () => this.runtime.close(),
    ]);
    return this.#isAlone ? this.commons.unanchoredEntries : null;
  }

  /** What all sessions may take together; undefined: nobody said it. */
  get budgetBytes(): number | undefined {
    return this.commons.budgetBytes;
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
    if (this.commons.isLow) session.lowMemory = true;
  }

  /**
   * Opens a session with these options: `open` is told all that it is opened with. Where that fails, nothing is kept of
   * what was had for it. pack: the version in which there are pages already; left out: the one that is active. Throws
   * what planning and opening throw.
   */
  async opening<Opened>(
    options: SessionOptions,
    open: (setup: SessionSetup) => Opened | Promise<Opened>,
    pack?: Pick<SessionPack, 'name' | 'digest'>,
  ): Promise<Opened> {
    checkSession(options);
    const adapted = await adaptedOptions(this, options);
    try {
      return await open(await this.#setup(adapted, pack));
    } catch (error) {
      adapted.adapterSet?.drop();
      throw error;
    }
  }

  async #setup(
    { options, proposal, adapterSet }: Adapted,
    pack: Pick<SessionPack, 'name' | 'digest'> | undefined,
  ): Promise<SessionSetup> {
    const { kvGroup, logRules = [] } = options;
    const group = kvGroup === undefined ? undefined : this.commons.group(kvGroup);
    const askedPack = (name = options.pack) => (name === undefined ? undefined : this.packs.of(name));
    const sessionPack = pack === undefined ? askedPack() : this.packs.again(pack);
    const setup = await setupOf(this.runtime, options, this.state, {
      adapters: adapterSet?.applied,
      pack: sessionPack && packId(sessionPack),
    });
    checkActivations(this.runtime.activations, setup.kldBudget);
    const { shared, meter, budgetBytes: sharedBudgetBytes } = this;
    const { helpers } = this.commons;
    const hintOf = helpers === null ? undefined : (said: Uint8Array) => helpers.hintOf(said);
    const known = given({
      sessionPack,
      proposal,
      adapterSet,
      hintOf,
      sharedBudgetBytes,
      stateDir: this.state?.dir,
      group,
    });
    return { ...setup, log: withRules(setup.log, logRules), pool: this.commons.pool, meter, shared, ...known };
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
}

function openRuntime(options: ModelOptions, stateDir: string | null): Promise<Runtime> {
  const costs = (digest: string): ActivationCosts | null => activationCosts(digest, stateDir);
  return Runtime.open({
    ...options,
    adapters: options.adapters !== null || (stateDir !== null && new AdapterRegistry(stateDir).exists),
    ...(options.activations === 'auto' ? { activationCosts: costs } : {}),
  });
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
