/**
 * The adapters of an engine, by name and by digest. A name stands for a digest and may come to stand for another one:
 * sessions keep what they were opened with. The memory of an adapter is freed when no name and no session has it. Those
 * that a state folder registers are read when a session asks for them, and stay as long as there is room.
 */
import { KvError } from '../../native/index.ts';
import type { Runtime } from '../transformer/runtime/runtime.ts';
import type { ScaledAdapter } from '../transformer/types.ts';
import { readAdapter } from './read.ts';
import { type AdapterRegistry, registeredInfo } from './registry.ts';
import type { Adapter, AdapterInfo } from './types.ts';

/** An adapter that sessions can name. */
export interface NamedAdapter extends AdapterInfo {
  /** The name. */
  readonly name: string;
  /** 'known' is read from the state folder when a session asks for it; 'resident' is in memory. */
  readonly state: 'known' | 'resident';
  /** What it takes in memory; 0: it is not there. */
  readonly bytes: number;
  /** Open sessions that have it. */
  readonly sessions: number;
}

/** An adapter in memory. */
interface Resident {
  readonly info: AdapterInfo;
  /** In the dense half. */
  readonly adapter: number;
  readonly bytes: number;
  /** What reading it took. */
  readonly restoreMs: number;
  /** The latest time that a session asked for it, counted in such times. */
  used: number;
  readonly holders: Set<object>;
}

/** Most bytes of registered adapters that stay in memory although no session has them. */
const IDLE_BYTES_MAX = 256 * 2 ** 20;
/** So many times after a session has asked for an adapter it may still be about to hold it. */
const RECENTLY = 8;

/** What a log and a file say of an adapter. */
export interface AppliedAdapter {
  readonly digest: string;
  readonly scale: number;
}

/** What adapters add to all rows of a session. */
export class AdapterSet {
  /** In the order in which they add. Those that add nothing are left out. */
  readonly applied: readonly AppliedAdapter[];
  readonly scaled: readonly ScaledAdapter[];
  /** What activates each; null: nothing need. */
  readonly invocations: readonly (readonly number[] | null)[];
  /** True if keys or values are others than those of the model. */
  readonly adaptsKv: boolean;
  readonly #residents: readonly Resident[];
  readonly #check: (resident: Resident) => void;
  readonly #free: () => void;

  /** @internal */
  constructor(
    parts: readonly { readonly resident: Resident; readonly scale: number }[],
    check: (resident: Resident) => void,
    free: () => void,
  ) {
    const active = parts
      .filter(({ scale }) => scale !== 0)
      .sort((a, b) => compare(a.resident.info.digest, b.resident.info.digest) || a.scale - b.scale);
    this.applied = active.map(({ resident, scale }) => ({ digest: resident.info.digest, scale }));
    this.scaled = active.map(({ resident, scale }) => ({ adapter: resident.adapter, scale }));
    this.invocations = active.map(({ resident }) => resident.info.invocation ?? null);
    this.adaptsKv = active.some(({ resident }) => resident.info.slots.some((slot) => slot === 'k' || slot === 'v'));
    this.#residents = parts.map(({ resident }) => resident);
    this.#check = check;
    this.#free = free;
  }

  /** Those that add to all rows. */
  get always(): readonly AppliedAdapter[] {
    return this.applied.filter((_, at) => this.invocations[at] === null);
  }

  /** A session has them until it leaves them. Throws 'not-found' where one was removed meanwhile. */
  hold(session: object): void {
    for (const resident of this.#residents) this.#check(resident);
    for (const { holders } of this.#residents) holders.add(session);
  }

  leave(session: object): void {
    for (const { holders } of this.#residents) holders.delete(session);
    this.#free();
  }
}

const compare = (a: string, b: string): number => (a < b ? -1 : a > b ? 1 : 0);

/** What stands for the weights that a session computes with: the digest of the model, and what is added to it. */
export const weightsKey = (modelDigest: string, applied: readonly AppliedAdapter[]): string =>
  applied.length === 0
    ? modelDigest
    : JSON.stringify([modelDigest, applied.map(({ digest, scale }) => [digest, scale])]);

export class Adapters {
  readonly #runtime: Runtime;
  readonly #registry: AdapterRegistry | null;
  readonly #idleBytesMax: number;
  readonly #residents = new Map<string, Resident>();
  /** Digests by name, of those that were added. */
  readonly #names = new Map<string, string>();
  /** How often sessions have asked for adapters. */
  #asked = 0;

  /** registry: what a state folder knows. idleBytesMax: of registered adapters that no session has. */
  constructor(runtime: Runtime, registry: AdapterRegistry | null = null, idleBytesMax = IDLE_BYTES_MAX) {
    this.#runtime = runtime;
    this.#registry = registry;
    this.#idleBytesMax = idleBytesMax;
  }

  /**
   * Reads an adapter, and keeps it in memory under a name. A name that is in use stands for this one from now on.
   * Throws what readAdapter throws, and 'unsupported' where the dense half has no place for adapters.
   */
  add(name: string, path: string): NamedAdapter {
    const { digest } = this.#keep(name, () => readAdapter(path, this.#runtime.model));
    this.#names.set(name, digest);
    this.#free();
    return this.#named(name);
  }

  /** Keeps an adapter in memory. Throws 'unsupported' where there is no place for any. */
  #keep(name: string, read: () => Adapter): AdapterInfo {
    const { dense, denseChoice } = this.#runtime;
    if (dense.addAdapter === undefined)
      throw new KvError('unsupported', `the dense half that runs, ${denseChoice.name}, has no place for adapters`, {
        values: { name, dense: denseChoice.name },
        hint: 'create the engine with adapters: {}, so that it takes one that has',
      });
    const start = performance.now();
    const { added, ...info } = read();
    if (this.#residents.has(info.digest)) return info;
    const before = dense.bytes;
    const adapter = dense.addAdapter(added);
    const [bytes, restoreMs] = [dense.bytes - before, performance.now() - start];
    this.#residents.set(info.digest, { info, adapter, bytes, restoreMs, used: this.#asked, holders: new Set() });
    return info;
  }

  /**
   * Forgets a name that was added. → sessions that still have the adapter, which is freed when the last of them is
   * closed
   */
  remove(name: string): number {
    if (!this.#names.has(name)) throw this.#notFound(name);
    const { sessions } = this.#named(name);
    this.#names.delete(name);
    this.#free();
    return sessions;
  }

  /** Those that were added, and those that are registered under other names. */
  list(): NamedAdapter[] {
    const registered = (this.#registry?.list() ?? []).filter(({ name }) => !this.#names.has(name));
    return [
      ...[...this.#names.keys()].map((name) => this.#named(name)),
      ...registered.map((one): NamedAdapter => {
        // In memory it may have another digest: that of the order of this model's rows.
        const resident = one.interleaved === this.#interleaved ? this.#residents.get(one.digest) : undefined;
        return { ...registeredInfo(one), ...stateOf(resident) };
      }),
    ].sort((a, b) => compare(a.name, b.name));
  }

  get #interleaved(): boolean {
    return this.#runtime.model.config.ropeInterleaved;
  }

  /** What a session with these adapters adds. Throws 'not-found' for a name that is not there. */
  set(asked: readonly { readonly name: string; readonly scale?: number }[]): AdapterSet {
    return this.#setOf(asked.map(({ name, scale = 1 }) => ({ resident: this.#resident(name), scale })));
  }

  /** The same of those that a log names. Throws 'not-found' for a digest that is not there. */
  again(applied: readonly AppliedAdapter[]): AdapterSet {
    const parts = applied.map(({ digest, scale }) => ({ resident: this.#residents.get(digest), scale }));
    const missing = applied.filter((_, at) => parts[at]!.resident === undefined);
    if (missing.length > 0)
      throw new KvError('not-found', 'the engine has not the adapter of this digest', {
        values: { digest: missing[0]!.digest },
        hint: 'add it to the engine: palimpsest adapters verify tells which it is',
      });
    return this.#setOf(parts as { readonly resident: Resident; readonly scale: number }[]);
  }

  #setOf(parts: readonly { readonly resident: Resident; readonly scale: number }[]): AdapterSet {
    const check = ({ info }: Resident): void => {
      if (!this.#residents.has(info.digest))
        throw new KvError('not-found', 'an adapter was removed while a session was opened', {
          values: { digest: info.digest },
        });
    };
    return new AdapterSet(parts, check, () => this.#free());
  }

  /** The adapter of a name, which is read where it is registered and not in memory. */
  #resident(name: string): Resident {
    const resident = this.#residents.get(this.#names.get(name) ?? '') ?? this.#registered(name);
    if (resident === null) throw this.#notFound(name);
    resident.used = ++this.#asked;
    return resident;
  }

  #registered(name: string): Resident | null {
    const registry = this.#registry;
    const found = registry?.find(name) ?? null;
    if (registry === null || found === null) return null;
    const known = found.interleaved === this.#interleaved ? this.#residents.get(found.digest) : undefined;
    if (known !== undefined) return known;
    const { digest } = this.#keep(name, () => registry.read(found, this.#runtime.model));
    return this.#residents.get(digest)!;
  }

  #notFound(name: string): KvError {
    return new KvError('not-found', `there is no adapter '${name}'`, {
      values: { name, names: [...this.#names.keys()].slice(0, 16) },
      hint: 'add it to the engine, or to its state folder (palimpsest adapters add)',
    });
  }

  #named(name: string): NamedAdapter {
    const resident = this.#residents.get(this.#names.get(name)!)!;
    return { name, ...resident.info, ...stateOf(resident) };
  }

  /**
   * Frees what no session has and no name that was added stands for, as far as it is beyond what may be idle: those
   * first that were idle for long, are large and are read again fast.
   */
  #free(): void {
    const named = new Set(this.#names.values());
    const idle = [...this.#residents.values()].filter(
      ({ info, holders }) => holders.size === 0 && !named.has(info.digest),
    );
    let bytes = idle.reduce((sum, one) => sum + one.bytes, 0);
    const most = this.#registry === null ? 0 : this.#idleBytesMax;
    const gain = (one: Resident): number => ((this.#asked - one.used) * one.bytes) / Math.max(one.restoreMs, 0.01);
    for (const one of idle.sort((a, b) => gain(b) - gain(a))) {
      if (bytes <= most || (this.#registry !== null && one.used > this.#asked - RECENTLY)) continue;
      bytes -= one.bytes;
      this.#residents.delete(one.info.digest);
      this.#runtime.dense.dropAdapter?.(one.adapter);
    }
  }
}

const stateOf = (resident: Resident | undefined): Pick<NamedAdapter, 'state' | 'bytes' | 'sessions'> =>
  resident === undefined
    ? { state: 'known', bytes: 0, sessions: 0 }
    : { state: 'resident', bytes: resident.bytes, sessions: resident.holders.size };
