/**
 * The adapters of an engine, by name and by digest. A name stands for a digest and may come to stand for another one:
 * sessions keep what they were opened with. The memory of an adapter is freed when no name and no session has it. Those
 * that a state folder registers are read when a session asks for them, and stay as long as there is room: in an engine
 * with a budget all of them count in it, and those that nobody has go beside pages that nobody has.
 */
import { given, KvError } from '../../native/index.ts';
import type { ScaledDigest } from '../../policy/index.ts';
import { type Droppable, dropKept, type GoneAdapter, type Landlord, type Tenant } from '../cache/tenant.ts';
import type { Runtime } from '../transformer/runtime/runtime.ts';
import type { ScaledAdapter } from '../transformer/types.ts';
import { KeptGains } from './gains.ts';
import type { PlacedAdapter, Placement } from './proposal.ts';
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
  /** When a session asked for it last. */
  usedMs: number;
  /** Sessions that have it. */
  readonly holders: Set<object>;
  /** Sets of adapters that have it, and no session yet. */
  readonly leases: Set<object>;
}

/** Most bytes of registered adapters that stay in memory although no session has them, where no budget counts them. */
const IDLE_BYTES_MAX = 256 * 2 ** 20;

/** How much the newest of what is expected counts beside all before. Chosen. */
const LIKELY_NEWEST = 1 / 8;
/** What is expected less often is forgotten. */
const LIKELY_LEAST = 1e-3;

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
  readonly #free: () => void;

  /** @internal */
  constructor(parts: readonly Part[], free: () => void) {
    const active = parts
      .filter(({ scale }) => scale !== 0)
      .sort((a, b) => compare(a.resident.info.digest, b.resident.info.digest) || a.scale - b.scale);
    this.applied = active.map(({ resident, scale }) => ({ digest: resident.info.digest, scale }));
    this.scaled = active.map(({ resident, scale }) => ({ adapter: resident.adapter, scale }));
    this.invocations = active.map(({ resident }) => resident.info.invocation ?? null);
    this.adaptsKv = active.some(({ resident }) => resident.info.slots.some((slot) => slot === 'k' || slot === 'v'));
    this.#residents = parts.map(({ resident }) => resident);
    this.#free = free;
  }

  /** Those that add to all rows. */
  get always(): readonly AppliedAdapter[] {
    return this.applied.filter((_, at) => this.invocations[at] === null);
  }

  /** Until a session has them, they are there for this set, unless it is dropped. */
  lease(): void {
    for (const { leases } of this.#residents) leases.add(this);
  }

  drop(): void {
    for (const { leases } of this.#residents) leases.delete(this);
    this.#free();
  }

  /** A session has them until it leaves them. */
  hold(session: object): void {
    for (const { holders, leases } of this.#residents) {
      holders.add(session);
      leases.delete(this);
    }
  }

  leave(session: object): void {
    for (const { holders } of this.#residents) holders.delete(session);
    this.#free();
  }
}

/** An adapter of a set. */
interface Part {
  readonly resident: Resident;
  readonly scale: number;
}

const compare = (a: string, b: string): number => (a < b ? -1 : a > b ? 1 : 0);

/** What stands for the weights that a session computes with: the digest of the model, and what is added to it. */
export const weightsKey = (modelDigest: string, applied: readonly AppliedAdapter[]): string =>
  applied.length === 0
    ? modelDigest
    : JSON.stringify([modelDigest, applied.map(({ digest, scale }) => [digest, scale])]);

export class Adapters implements Tenant {
  readonly #runtime: Runtime;
  readonly #registry: AdapterRegistry | null;
  readonly #gains: KeptGains;
  readonly #idleBytesMax: number;
  readonly #landlord: Landlord | null;
  readonly #gone: (adapter: GoneAdapter) => void;
  readonly #residents = new Map<string, Resident>();
  /** Digests by name, of those that were added. */
  readonly #names = new Map<string, string>();
  /** Share of the sessions that are expected to use each, by digest. */
  readonly #likely = new Map<string, number>();

  /**
   * registry: what a state folder knows. landlord: the memory whose budget counts them; null: nothing does, and of
   * registered adapters that no session has `idleBytesMax` stay. gone: told of what goes beyond that.
   */
  constructor(
    runtime: Runtime,
    registry: AdapterRegistry | null = null,
    idleBytesMax = IDLE_BYTES_MAX,
    landlord: Landlord | null = null,
    gone: (adapter: GoneAdapter) => void = () => {},
  ) {
    this.#gone = gone;
    this.#runtime = runtime;
    this.#registry = registry;
    this.#gains = registry?.gains ?? new KeptGains(null);
    this.#idleBytesMax = landlord === null ? idleBytesMax : Number.POSITIVE_INFINITY;
    this.#landlord = landlord;
    landlord?.join(this);
  }

  /** Nothing of it counts any more. */
  close(): void {
    this.#landlord?.part(this);
  }

  /** What sessions have, or are about to, and what was added under a name. */
  get pinnedBytes(): number {
    return this.#sum((one) => !this.#isIdle(one));
  }

  get keptBytes(): number {
    return this.#sum((one) => this.#isIdle(one));
  }

  #sum(counts: (resident: Resident) => boolean): number {
    let bytes = 0;
    for (const resident of this.#residents.values()) if (counts(resident)) bytes += resident.bytes;
    return bytes;
  }

  #isIdle({ info: { digest }, holders, leases }: Resident): boolean {
    return holders.size === 0 && leases.size === 0 && ![...this.#names.values()].includes(digest);
  }

  get droppable(): readonly Droppable[] {
    return [...this.#residents.values()]
      .filter((one) => this.#isIdle(one))
      .map((one) => ({
        id: one.info.digest,
        isAdapter: true,
        idleMs: performance.now() - one.usedMs,
        bytes: one.bytes,
        restoreMs: one.restoreMs,
        ...given({ likelyUse: this.#likely.get(one.info.digest) }),
        drop: () => {
          this.#drop(one);
          this.#landlord?.counted(this);
        },
      }));
  }

  #drop({ info, adapter }: Resident): void {
    this.#residents.delete(info.digest);
    this.#runtime.dense.dropAdapter?.(adapter);
  }

  /**
   * Reads an adapter, and keeps it in memory under a name. A name that is in use stands for this one from now on.
   * Throws what readAdapter throws, and 'unsupported' where the dense half has no place for adapters.
   */
  add(name: string, path: string): NamedAdapter {
    const { model } = this.#runtime;
    const { digest } = this.#keep(name, () =>
      readAdapter(path, model, (wanted, compute) => this.#gains.of(model.digest, wanted, compute)),
    );
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
    const known = this.#residents.get(info.digest);
    if (known !== undefined) {
      this.#pin(known);
      return info;
    }
    const bytes = dense.adapterBytes!(added);
    this.#landlord?.loads(this, bytes, info.digest);
    try {
      const adapter = dense.addAdapter(added);
      const usedMs = performance.now();
      const used = { usedMs, restoreMs: usedMs - start, holders: new Set<object>(), leases: new Set<object>() };
      this.#residents.set(info.digest, { info, adapter, bytes, ...used });
    } finally {
      this.#landlord?.counted(this);
    }
    return info;
  }

  /** Somebody is about to use it. Throws 'budget-exceeded' where those at work need its room to come to their ends. */
  #pin(resident: Resident): void {
    if (this.#isIdle(resident)) this.#landlord?.pins(resident.bytes);
    resident.usedMs = performance.now();
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

  /** What is expected of sessions that begin: by digest, the share of them that uses it. */
  expects(uses: ReadonlyMap<string, number>): void {
    for (const digest of new Set([...this.#likely.keys(), ...uses.keys()])) {
      const before = this.#likely.get(digest) ?? 0;
      const likely = before + LIKELY_NEWEST * ((uses.get(digest) ?? 0) - before);
      if (likely < LIKELY_LEAST) this.#likely.delete(digest);
      else this.#likely.set(digest, likely);
    }
  }

  /** The names that these have here, and where they are; null: it has none. */
  placed(asked: readonly ScaledDigest[]): (PlacedAdapter | null)[] {
    const registered = this.#registry?.namesFor(this.#runtime.model) ?? new Map<string, string>();
    const added = new Map([...this.#names].map(([name, digest]) => [digest, name]));
    return asked.map(({ digest, scale }) => {
      // A name that was added stands for that one, whatever the folder has under it.
      const known = registered.get(digest);
      const name = added.get(digest) ?? (known !== undefined && this.#names.has(known) ? undefined : known);
      return name === undefined ? null : { name, digest, scale, placement: this.#placement(digest) };
    });
  }

  #placement(digest: string): Placement {
    const resident = this.#residents.get(digest);
    if (resident === undefined) return 'on-disk';
    return resident.holders.size > 0 ? 'in-use' : 'idle';
  }

  get #interleaved(): boolean {
    return this.#runtime.model.config.ropeInterleaved;
  }

  /** What a session with these adapters adds. Throws 'not-found' for a name that is not there. */
  set(asked: readonly { readonly name: string; readonly scale?: number }[]): AdapterSet {
    const lease = {};
    const parts: Part[] = [];
    try {
      for (const { name, scale = 1 } of asked) {
        const resident = this.#resident(name);
        // The next one is not to take its room.
        resident.leases.add(lease);
        parts.push({ resident, scale });
      }
      return this.#setOf(parts);
    } finally {
      for (const { resident } of parts) resident.leases.delete(lease);
      this.#free();
    }
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
    for (const { resident } of parts) this.#pin(resident!);
    return this.#setOf(parts as Part[]);
  }

  #setOf(parts: readonly Part[]): AdapterSet {
    const set = new AdapterSet(parts, () => this.#free());
    set.lease();
    return set;
  }

  /** The adapter of a name, which is read where it is registered and not in memory. */
  #resident(name: string): Resident {
    const resident = this.#residents.get(this.#names.get(name) ?? '') ?? this.#registered(name);
    if (resident === null) throw this.#notFound(name);
    resident.usedMs = performance.now();
    return resident;
  }

  #registered(name: string): Resident | null {
    const registry = this.#registry;
    const found = registry?.find(name) ?? null;
    if (registry === null || found === null) return null;
    const known = found.interleaved === this.#interleaved ? this.#residents.get(found.digest) : undefined;
    if (known !== undefined) {
      this.#pin(known);
      return known;
    }
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
   * Frees what no session has and no name that was added stands for, as far as it is beyond what may be idle, in the
   * order of policy/keeping.ts.
   */
  #free(): void {
    const most = this.#registry === null ? 0 : this.#idleBytesMax;
    const lackingBytes = this.keptBytes - most;
    dropKept(
      [this],
      () => this.keptBytes > most,
      (one) => this.#gone({ ...one, lackingBytes }),
    );
    this.#landlord?.counted(this);
  }
}

const stateOf = (resident: Resident | undefined): Pick<NamedAdapter, 'state' | 'bytes' | 'sessions'> =>
  resident === undefined
    ? { state: 'known', bytes: 0, sessions: 0 }
    : { state: 'resident', bytes: resident.bytes, sessions: resident.holders.size };
