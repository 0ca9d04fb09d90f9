/**
 * The kernel packs of an engine, for sessions that ask for one by its name: whoever opens gets the version that is
 * active then, and keeps it.
 */
import { KvError } from '../../native/index.ts';
import type { PackStanding, SessionPack } from '../cache/pack-pages.ts';
import { ActivePacks } from '../packs/active.ts';
import { compileModule, PackInstance } from '../packs/instance.ts';
import { instrumentModule } from '../packs/instrument.ts';
import type { CompiledModule } from '../packs/machine.ts';

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
  readonly #stateDir: string | null;
  #active: ActivePacks | null = null;
  /** By digest. */
  readonly #compiled = new Map<string, CompiledModule>();

  constructor(stateDir: string | null) {
    this.#stateDir = stateDir;
  }

  /**
   * `NAME`: the version that is active; `NAME@canary`: the one that is being tried. Throws 'unsupported' without a
   * state folder and for a pack that is no codec, 'not-found' where there is none, and what ActivePacks throws.
   */
  of(asked: string): SessionPack {
    const isCanary = asked.endsWith(CANARY);
    const name = isCanary ? asked.slice(0, -CANARY.length) : asked;
    if (this.#stateDir === null)
      throw new KvError('unsupported', 'packs are installed in a state folder, and this engine has none', {
        values: { pack: name },
        hint: 'open the engine with stateDir',
      });
    this.#active ??= new ActivePacks({ stateDir: this.#stateDir, instrument: instrumentModule });
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
    if (manifest.kind !== 'codec')
      throw new KvError('unsupported', `the pack ${JSON.stringify(name)} is no codec`, { values: { pack: name } });
    const [{ fuelPerToken }] = manifest.formats as [(typeof manifest.formats)[number]];
    const module = this.#compiled.get(digest) ?? compileModule(instrumented);
    this.#compiled.set(digest, module);
    return {
      ...{ name, digest },
      open: () => PackInstance.open(module, { fuelPerToken }),
      standing: standingOf(packs, digest),
    };
  }
}
