/**
 * What the models of a thread have in common: the state folder with its log, one budget for the caches of all, one
 * schedule, and what is counted. An engine of its own has these for itself.
 */
import { randomBytes } from 'node:crypto';
import type { QdrantOptions } from '../../memory/index.ts';
import { given, KvError, openPool, type PagePool, show } from '../../native/index.ts';
import { type AnchorOptions, type FailureMode, type LogRule, useMasterKeys } from '../../witness/index.ts';
import type { IdlePlace } from '../cache/away.ts';
import { memoryBytes } from '../cache/budget.ts';
import { Group } from '../cache/group.ts';
import { type EngineEvent, eventTeller, type TellEvent, untold } from '../events/event.ts';
import { FALLBACKS, Meter } from '../metrics/meter.ts';
import { parseGroupBudget } from '../options/parse-budget.ts';
import type { EngineOptions, KvGroup, LogRetention } from '../options/types.ts';
import type { IdleForm } from '../session/park/idle.ts';
import type { ModelPredictor } from '../session/park/predictors.ts';
import type { Session } from '../session/session.ts';
import { SharedMemory } from '../session/shared-memory.ts';
import type { TextHelpers } from '../sidecar/hint.ts';
import { openState, type State } from '../state/folder.ts';
import type { Runtime } from '../transformer/runtime/runtime.ts';
import { watchedHelpers } from './watched-helpers.ts';

/** Of the digests by which the beginnings of sessions are known, where no state folder has one. */
const KEY_BYTES = 32;

export interface CommonsOptions {
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
  /** Whether helpers are asked. */
  readonly helpers: boolean;
  /** The file of a user's own; left out: that of the package. */
  readonly embedder?: string | undefined;
  /** Told of events; left out: nobody is. */
  readonly onEvent?: (event: EngineEvent) => void;
}

/** A model of the thread, with its sessions. */
interface Member {
  readonly runtime: Runtime;
  readonly predictor: ModelPredictor;
  readonly sessions: Iterable<Session>;
}

export class Commons {
  readonly state: State | null;
  readonly meter: Meter;
  readonly shared: SharedMemory;
  /** Null: nobody asks any. */
  readonly helpers: TextHelpers | null;
  /** One set of threads, and one heap, for all sessions. */
  readonly pool: PagePool;
  /** What all sessions may take together; undefined: nobody said it. */
  readonly budgetBytes: number | undefined;
  readonly #members = new Set<Member>();
  /** By name, those that had a session. */
  readonly #groups = new Map<string, Group>();
  #lowMemory = false;

  /** Throws 'bad-argument' for sessions that wait on disk where there is no state folder. */
  constructor(state: State | null, options: CommonsOptions) {
    const { kvBudgetBytes, idleSessions, maxConcurrent, interTokenTargetMs, onPressure } = options;
    this.state = state;
    this.meter = new Meter(FALLBACKS, tellerOf(options));
    this.helpers = options.helpers ? watchedHelpers(this.meter, { embedder: options.embedder }) : null;
    const form = idleSessions === 'keep' ? null : this.#idleForm(idleSessions);
    this.pool = openPool(kvBudgetBytes ?? memoryBytes());
    this.budgetBytes = kvBudgetBytes;
    const sessions = (): Iterable<Session> => this.sessions;
    const key = state?.prefixKey ?? randomBytes(KEY_BYTES);
    const prefixes = options.prefixCaching ? { key, keepsClosed: kvBudgetBytes !== undefined } : undefined;
    this.shared = new SharedMemory({
      pool: this.pool,
      meter: this.meter,
      form,
      sessions,
      ...given({ maxConcurrent, prefixes, interTokenTargetMs, onPressure, log: state?.log }),
    });
    this.meter.budget.set({}, this.pool.budgetBytes);
  }

  /** With the state folder that the options name, which is made where there is none. */
  static async open(options: CommonsOptions): Promise<Commons> {
    useMasterKeys(options.masterKeys);
    const state = options.stateDir === null ? null : await stateOf(options, options.stateDir);
    let commons: Commons | null = null;
    try {
      commons = new Commons(state, options);
      await commons.helpers?.check();
      return commons;
    } catch (error) {
      await doAll(commons?.endings ?? [() => state?.close()]).catch(() => {});
      throw error;
    }
  }

  add(member: Member): void {
    this.#members.add(member);
  }

  remove(member: Member): void {
    this.#members.delete(member);
  }

  /** Those of all models. */
  get sessions(): Iterable<Session> {
    return [...this.#members].flatMap(({ sessions }) => [...sessions]);
  }

  /** True if memory is short, as somebody said. */
  get isLow(): boolean {
    return this.#lowMemory;
  }

  /** Somebody says that memory is short, or no longer: to all sessions, and to those that open afterwards. */
  memoryIsLow(isLow: boolean): void {
    this.#lowMemory = isLow;
    for (const session of this.sessions) session.lowMemory = isLow;
    if (isLow) this.shared.parkAll(null);
  }

  /** Sessions of a name, which have a budget together. Throws 'bad-argument'. */
  group({ name, kvBudget, ...rest }: KvGroup): Group {
    if (typeof name !== 'string' || name === '' || Object.keys(rest).length > 0)
      throw new KvError('bad-argument', 'a kvGroup is { name, kvBudget }', { values: { name: show(name) } });
    const budgetBytes = parseGroupBudget(kvBudget, this.budgetBytes ?? memoryBytes());
    const group = this.#groups.get(name) ?? new Group(name, budgetBytes);
    group.budgetBytes = budgetBytes;
    this.#groups.set(name, group);
    return group;
  }

  /** Waits until all that was logged is on disk. → highest acknowledged sequence number, −1 without a log */
  async flush(): Promise<number> {
    return (await this.state?.log.flush()) ?? -1;
  }

  /** What is done at the end, one after the other; each may throw, and the others are done all the same. */
  get endings(): readonly (() => Promise<void> | undefined)[] {
    return [
      () => this.helpers?.close(),
      async () => this.shared.close(),
      async () => this.pool.close(),
      () => this.state?.close(),
      async () => this.#tellUnanchored(),
    ];
  }

  /** Entries of the log that no checkpoint covers in a place outside of it; null: none is anchored. */
  get unanchoredEntries(): number | null {
    return this.state?.log.unanchoredEntries ?? null;
  }

  #tellUnanchored(): void {
    const entries = this.unanchoredEntries;
    if (entries !== null && entries > 0) this.meter.tell('entries-unanchored', { entries });
  }

  /** How sessions that wait are parked. Throws 'bad-argument' where that is in the state folder and there is none. */
  #idleForm(place: IdlePlace): IdleForm {
    if (place === 'reread') return { place };
    if (place === 'memory')
      return { place, predictorOf: (session) => this.#memberOf(session).predictor.findOrRefuse() };
    if (this.state !== null) return { place, stateDir: this.state.dir };
    throw new KvError('bad-argument', 'sessions are parked on disk in the state folder, and there is none', {
      hint: "name a stateDir, or give idleSessions: 'memory'",
    });
  }

  #memberOf({ runtime }: Session): Member {
    for (const member of this.#members) if (member.runtime === runtime) return member;
    throw new KvError('closed', 'the model of the session is closed');
  }
}

const tellerOf = ({ onEvent }: CommonsOptions): TellEvent => (onEvent === undefined ? untold : eventTeller(onEvent));

/** Opens a state folder as the options say. */
export function stateOf(options: CommonsOptions, dir: string): Promise<State> {
  const { onLogFailure, qdrant, logRules, logRetention, anchor } = options;
  const rest = { rules: logRules, retention: logRetention, anchor, tell: tellerOf(options) };
  return openState(dir, { mode: onLogFailure, qdrant, ...rest });
}

/** Does all of it, also when something fails; throws the first such error at the end. */
export async function doAll(works: readonly (() => Promise<void> | undefined)[]): Promise<void> {
  const failed: unknown[] = [];
  for (const work of works) {
    try {
      await work();
    } catch (error) {
      failed.push(error);
    }
  }
  if (failed.length > 0) throw failed[0];
}
