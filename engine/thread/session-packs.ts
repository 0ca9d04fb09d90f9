/**
 * The kernel packs of an engine, for sessions that ask for one by its name: whoever opens gets the version that is
 * active then, and keeps it.
 */
import { KvError } from '../../native/index.ts';
import type { PackStanding, SessionPack } from '../cache/pack-pages.ts';
import { ActivePacks } from '../packs/active.ts';
import { testPack } from '../packs/contract.ts';
import { compileModule, PackInstance } from '../packs/instance.ts';
import { instrumentModule } from '../packs/instrument.ts';
import { PackKeeper } from '../packs/lifecycle.ts';
import type { CompiledModule } from '../packs/machine.ts';
import type { State } from '../state/folder.ts';

/** Behind the name of a pack that is only being tried. */
const CANARY = '@canary';

/** What a pack may do, looked up anew where another generation holds. */
function standingOf(packs: ActivePacks, digest: string): () => PackStanding {
  let { generation } = packs;
  let standing: PackStanding = 'writes';
  return () => {
    packs.refresh();
    if (packs.generation === generation) return standing;
    ({ generation } = packs);
    const reader = packs.reader(digest);
    standing = reader === null ? 'gone' : reader.state === 'active' || reader.state === 'canary' ? 'writes' : 'reads';
    return standing;
  };
}

export class SessionPacks {
  readonly #state: Pick<State, 'dir' | 'log'> | null;
  #active: ActivePacks | null = null;
  /** By digest. */
  readonly #compiled = new Map<string, CompiledModule>();
  /** Digests of those that broke their contract in a session. */
  readonly #broken = new Set<string>();
  #withdrawn: Promise<void> = Promise.resolve();

  constructor(state: Pick<State, 'dir' | 'log'> | null) {
    this.#state = state;
  }

  /** Waits until what broke its contract is taken back for everybody. */
  async close(): Promise<void> {
    await this.#withdrawn;
  }

  /**
   * `NAME`: the version that is active; `NAME@canary`: the one that is being tried. Throws 'unsupported' without a
   * state folder and for a pack that is no codec, 'not-found' where there is none, 'bad-pack' for one that broke its
   * contract here, and what ActivePacks throws.
   */
  of(asked: string): SessionPack {
    const isCanary = asked.endsWith(CANARY);
    const name = isCanary ? asked.slice(0, -CANARY.length) : asked;
    if (this.#state === null)
      throw new KvError('unsupported', 'packs are installed in a state folder, and this engine has none', {
        values: { pack: name },
        hint: 'open the engine with stateDir',
      });
    this.#active ??= new ActivePacks({ stateDir: this.#state.dir, instrument: instrumentModule });
    const packs = this.#active;
    packs.refresh();
    const found = isCanary ? packs.canary(name) : packs.active(name);
    if (found === null)
      throw new KvError(
        'not-found',
        `no version of the pack ${JSON.stringify(name)} is ${isCanary ? 'a canary' : 'active'}`,
        {
          values: { pack: name, known: packs.names.join(', ') },
          hint: 'install and activate it, or leave out `pack`',
        },
      );
    const { digest, instrumented, manifest } = found;
    if (this.#broken.has(digest))
      throw new KvError('bad-pack', `the pack ${JSON.stringify(name)} broke its contract in a session of this engine`, {
        values: { pack: name, digest },
        hint: 'palimpsest packs list says what is active; leave out `pack` until another version is',
      });
    if (manifest.kind !== 'codec')
      throw new KvError('unsupported', `the pack ${JSON.stringify(name)} is no codec`, { values: { pack: name } });
    const [{ fuelPerToken }] = manifest.formats as [(typeof manifest.formats)[number]];
    const module = this.#compiled.get(digest) ?? compileModule(instrumented);
    this.#compiled.set(digest, module);
    return {
      ...{ name, digest },
      open: () => PackInstance.open(module, { fuelPerToken }),
      standing: standingOf(packs, digest),
      onFault: ({ message }) => this.#withdraw(digest, message),
    };
  }

  /** No session begins with it any more, here at once and elsewhere as soon as it is taken back. */
  #withdraw(digest: string, because: string): void {
    if (this.#broken.has(digest)) return;
    this.#broken.add(digest);
    const { dir: stateDir, log } = this.#state!;
    const trial = { instrument: instrumentModule, test: testPack };
    const withdraw = async (): Promise<void> => {
      const keeper = await PackKeeper.open({ stateDir, log, trial });
      try {
        await keeper.withdraw(digest, because);
      } finally {
        keeper.close();
      }
    };
    // Where that fails, because somebody is at work on the packs perhaps, the note of the session tells it.
    this.#withdrawn = this.#withdrawn.then(withdraw).catch(() => undefined);
  }
}
