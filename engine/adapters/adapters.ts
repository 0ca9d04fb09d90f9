/**
 * The adapters of an engine, by name and by digest. A name stands for a digest and may come to stand for another one:
 * sessions keep what they were opened with. The memory of an adapter is freed when no name and no session has it.
 */
import { KvError } from '../../native/index.ts';
import type { Runtime } from '../transformer/runtime/runtime.ts';
import type { ScaledAdapter } from '../transformer/types.ts';
import { readAdapter } from './read.ts';
import type { AdapterInfo } from './types.ts';

/** An adapter that is in memory, by the name that it was added under. */
export interface NamedAdapter extends AdapterInfo {
  /** The name. */
  readonly name: string;
  /** Open sessions that have it. */
  readonly sessions: number;
}

/** An adapter in memory. */
interface Resident {
  readonly info: AdapterInfo;
  /** In the dense half. */
  readonly adapter: number;
  readonly holders: Set<object>;
}

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
    this.adaptsKv = active.some(({ resident }) => resident.info.slots.some((slot) => slot === 'k' || slot === 'v'));
    this.#residents = parts.map(({ resident }) => resident);
    this.#check = check;
    this.#free = free;
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
  readonly #residents = new Map<string, Resident>();
  /** Digests by name. */
  readonly #names = new Map<string, string>();

  constructor(runtime: Runtime) {
    this.#runtime = runtime;
  }

  /**
   * Reads an adapter, and keeps it in memory under a name. A name that is in use stands for this one from now on.
   * Throws what readAdapter throws, and 'unsupported' where the dense half has no place for adapters.
   */
  add(name: string, path: string): NamedAdapter {
    const { dense, denseChoice, model } = this.#runtime;
    if (dense.addAdapter === undefined)
      throw new KvError('unsupported', `the dense half that runs, ${denseChoice.name}, has no place for adapters`, {
        values: { name, dense: denseChoice.name },
        hint: 'create the engine with adapters: {}, so that it takes one that has',
      });
    const { added, ...info } = readAdapter(path, model);
    if (!this.#residents.has(info.digest))
      this.#residents.set(info.digest, { info, adapter: dense.addAdapter(added), holders: new Set() });
    this.#names.set(name, info.digest);
    this.#free();
    return this.#named(name);
  }

  /** Forgets a name. → sessions that still have the adapter, which is freed when the last of them is closed */
  remove(name: string): number {
    const { sessions } = this.#named(name);
    this.#names.delete(name);
    this.#free();
    return sessions;
  }

  list(): NamedAdapter[] {
    return [...this.#names.keys()].sort(compare).map((name) => this.#named(name));
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

  #resident(name: string): Resident {
    const resident = this.#residents.get(this.#names.get(name) ?? '');
    if (resident !== undefined) return resident;
    throw new KvError('not-found', `there is no adapter '${name}'`, {
      values: { name, names: [...this.#names.keys()].slice(0, 16) },
      hint: 'add it to the engine first',
    });
  }

  #named(name: string): NamedAdapter {
    const { info, holders } = this.#resident(name);
    return { name, ...info, sessions: holders.size };
  }

  /** Frees what no name and no session has. */
  #free(): void {
    const named = new Set(this.#names.values());
    for (const [digest, { adapter, holders }] of this.#residents) {
      if (holders.size > 0 || named.has(digest)) continue;
      this.#residents.delete(digest);
      this.#runtime.dense.dropAdapter?.(adapter);
    }
  }
}
