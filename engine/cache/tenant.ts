/**
 * Who uses memory that sessions share and is none: it keeps things for whoever may come, which go in the order of
 * policy/keeping.ts where bytes are needed, and has others as long as somebody uses them.
 */
import { goesFirst, type KeptThing } from '../../policy/index.ts';

export interface Droppable extends KeptThing {
  /** True of an adapter, whose id is its digest. */
  readonly isAdapter?: boolean;
  drop(): void;
}

/** Who keeps something. */
export interface Keeper {
  /** What goes when bytes are needed, or at least what goes first of it. */
  readonly droppable: Iterable<Droppable>;
  /** What all of it takes. */
  readonly keptBytes: number;
}

export interface Tenant extends Keeper {
  /** What it has that somebody uses. */
  readonly pinnedBytes: number;
}

/** The memory, as its tenants know it. */
export interface Landlord {
  join(tenant: Tenant): void;
  /** It has nothing any more. */
  part(tenant: Tenant): void;
  /**
   * Somebody is about to use so many bytes that it keeps, or is about to load. Throws 'budget-exceeded' where those at
   * work would not find room to their ends.
   */
  pins(bytes: number): void;
  /**
   * The same of an adapter, and it gets them beside what the tenant has: they are found on the rungs of the ladder, as
   * those of a session are.
   */
  loads(tenant: Tenant, bytes: number, digest: string): void;
  /** It has less, or what it has loaded. */
  counted(tenant: Tenant): void;
}

/** An adapter that nobody had and that went, and for what. */
export interface GoneAdapter extends KeptThing {
  /** Bytes that were needed, or beyond what may stay. */
  readonly lackingBytes: number;
  /** The session that needed them, or the adapter that was loaded; left out: nobody, too much was idle. */
  readonly session?: string;
}

/** Lets go of one thing after the other, as long as `lacks` says so and there is one. gone: told of each. */
export function dropKept(
  keepers: Iterable<Keeper>,
  lacks: () => boolean,
  gone: (thing: Droppable) => void = () => {},
): void {
  while (lacks()) {
    const first = goesFirst([...keepers].flatMap(({ droppable }) => [...droppable]));
    if (first === undefined) return;
    first.drop();
    gone(first);
  }
}
