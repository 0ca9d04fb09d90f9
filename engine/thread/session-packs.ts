/**
 * The kernel packs of an engine, for sessions that ask for one by its name: whoever opens gets the version that is
 * active then, and keeps it. When the last of them is done with one that only reads, that one is retired.
 */
import { KvError } from '../../native/index.ts';
import { writesPages } from '../../policy/index.ts';
import type { PackStanding, SessionPack } from '../cache/pack-pages.ts';
import { ActivePacks, type LoadedPack } from '../packs/active.ts';
import { compileModule, PackInstance } from '../packs/instance.ts';
import { instrumentModule } from '../packs/instrument.ts';
import { PackKeeper } from '../packs/lifecycle.ts';
import type { CompiledModule } from '../packs/machine.ts';
import { type CodecManifest, packFormatName } from '../packs/manifest.ts';
import { PackReaders } from '../packs/readers.ts';
import type { PackCodec } from '../packs/types.ts';
import { parkedPacks } from '../session/park/folder.ts';
import type { State } from '../state/folder.ts';

/** What a pack may do, looked up anew where another generation holds. */
function standingOf(packs: ActivePacks, digest: string): () => PackStanding {
  const now = (): PackStanding => {
    const reader = packs.reader(digest);
    return reader === null ? 'gone' : writesPages(reader.state) ? 'writes' : 'reads';
  };
  let { generation } = packs;
  let standing = now();
  return () => {
    packs.refresh();
    if (packs.generation === generation) return standing;
    ({ generation } = packs);
    standing = now();
    return standing;
  };
}

/** A pack that sessions have. */
interface UsedPack {
  readonly module: CompiledModule;
  /** Instances that are open. */
  instances: number;
  /** Tells the state folder that this thread has none any more; null: it has none. */
  release: (() => void) | null;
}

export class SessionPacks {
  readonly #state: Pick<State, 'dir' | 'log'> | null;
  #active: ActivePacks | null = null;
  /** By digest: those that sessions have, and those that sessions may ask for. */
  readonly #used = new Map<string, UsedPack>();
  /** Digests of those that broke their contract in a session. */
  readonly #broken = new Set<string>();
  /** What is being told to the state folder. */
  #told: Promise<void> = Promise.resolve();

  constructor(state: Pick<State, 'dir' | 'log'> | null) {
    this.#state = state;
  }

  /** Waits until what broke its contract is taken back for everybody, and what nobody reads is retired. */
  async close(): Promise<void> {
    await this.#told;
  }

  /** Digests of modules that are in memory. */
  get kept(): readonly string[] {
    return [...this.#used.keys()];
  }

  /**
   * `NAME`: the version that is active; `NAME@canary`: the one that is being tried. Throws 'unsupported' without a
   * state folder and for a pack that is no codec, 'not-found' where there is none, 'bad-pack' for one that broke its
   * contract here, and what ActivePacks throws.
   */
  of(asked: string): SessionPack {
    const packs = this.#packsNow(asked);
    return this.#packOf(packs, packs.asked(asked));
  }

  /**
   * The version that pages were written by, which a session has that comes back with them, as long as it may read them.
   * Throws 'not-found' where it is not installed or retired, 'bad-pack' where it was revoked, and what `of` throws.
   */
  again({ name, digest }: Pick<SessionPack, 'name' | 'digest'>): SessionPack {
    const packs = this.#packsNow(name);
    const found = packs.reader(digest);
    if (found !== null) return this.#packOf(packs, found);
    const state = packs.stateOf(digest);
    const id = packFormatName(name, digest);
    throw new KvError(
      state === 'quarantined' ? 'bad-pack' : 'not-found',
      `the pages of the session are in ${id}, which is ${state ?? 'not installed here'}`,
      {
        values: { pack: name, digest, state },
        hint: 'activate or install that version, or name a `pack` to resume with: then the text is read again',
      },
    );
  }

  #packOf(packs: ActivePacks, { name, digest, instrumented, manifest }: LoadedPack): SessionPack {
    if (this.#broken.has(digest))
      throw new KvError('bad-pack', `the pack ${JSON.stringify(name)} broke its contract in a session of this engine`, {
        values: { pack: name, digest },
        hint: 'palimpsest packs list says what is active; leave out `pack` until another version is',
      });
    if (manifest.kind !== 'codec')
      throw new KvError('unsupported', `the pack ${JSON.stringify(name)} is no codec`, { values: { pack: name } });
    const used = this.#used.get(digest) ?? { module: compileModule(instrumented), instances: 0, release: null };
    this.#used.set(digest, used);
    const standing = standingOf(packs, digest);
    return {
      ...{ name, digest, standing },
      open: () => this.#open(digest, used, manifest),
      onFault: ({ message }) => this.#withdraw(digest, message),
    };
  }

  /** What holds now, when nothing is in memory that nobody may ask for. Throws as `of` does. */
  #packsNow(name: string): ActivePacks {
    if (this.#state === null)
      throw new KvError('unsupported', 'packs are installed in a state folder, and this engine has none', {
        values: { pack: name },
        hint: 'open the engine with stateDir',
      });
    if (this.#active === null) {
      this.#active = new ActivePacks({ stateDir: this.#state.dir, instrument: instrumentModule });
      // Whoever had pages of it may have been killed.
      if (this.#active.isDraining) this.#keep(() => undefined);
    }
    this.#active.refresh();
    for (const digest of this.#used.keys()) this.#forget(digest);
    return this.#active;
  }

  /** The state folder hears of the first instance before it is asked anything, so that nobody retires its pack. */
  #open(digest: string, used: UsedPack, { formats }: CodecManifest): PackCodec {
    const [{ fuelPerToken }] = formats as [(typeof formats)[number]];
    this.#used.set(digest, used);
    used.release ??= new PackReaders(this.#state!.dir).hold(digest);
    used.instances++;
    try {
      const codec = PackInstance.open(used.module, { fuelPerToken });
      return endedBy(codec, () => this.#closed(digest, used));
    } catch (error) {
      this.#closed(digest, used);
      throw error;
    }
  }

  #closed(digest: string, used: UsedPack): void {
    if (--used.instances > 0) return;
    used.release?.();
    used.release = null;
    this.#active!.refresh();
    this.#forget(digest);
    if (this.#active!.stateOf(digest) === 'draining') this.#keep(() => undefined);
  }

  /** Where no session has it and none can ask for it, its module goes. */
  #forget(digest: string): void {
    const state = this.#active!.stateOf(digest);
    if (this.#used.get(digest)!.instances > 0 || (state !== null && writesPages(state))) return;
    this.#used.delete(digest);
    this.#active!.forget(digest);
  }

  /** No session begins with it any more, here at once and elsewhere as soon as it is taken back. */
  #withdraw(digest: string, because: string): void {
    if (this.#broken.has(digest)) return;
    this.#broken.add(digest);
    this.#keep((keeper) => keeper.withdraw(digest, because));
  }

  /** Does something to the packs of the state folder, and retires what nobody reads by then. */
  #keep(work: (keeper: PackKeeper) => unknown): void {
    const { dir: stateDir, log } = this.#state!;
    const done = async (): Promise<void> => {
      const keeper = await PackKeeper.open({ stateDir, log, parked: () => parkedPacks(stateDir) });
      try {
        await work(keeper);
        await keeper.retire();
      } finally {
        keeper.close();
      }
    };
    // Where that fails, because somebody is at work on the packs perhaps, the next one does it; the note of a session
    // tells what its pack broke.
    this.#told = this.#told.then(done).catch(() => undefined);
  }
}

/** The same codec, whose end is heard of once. */
function endedBy(codec: PackCodec, onEnd: () => void): PackCodec {
  let isOver = false;
  return {
    pageBytes: (...given) => codec.pageBytes(...given),
    encode: (...given) => codec.encode(...given),
    decode: (...given) => codec.decode(...given),
    dots: (...given) => codec.dots(...given),
    mix: (...given) => codec.mix(...given),
    close() {
      codec.close();
      if (!isOver) onEnd();
      isOver = true;
    },
  };
}
