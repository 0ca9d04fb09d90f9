/**
 * The packs of a state folder as sessions use them: which one writes new pages, and which read those that there are.
 * Nothing is changed here, and nothing is loaded where no trust file was installed and no pack activated.
 */
import { KvError } from '../../native/index.ts';
import { type PackState, readsPages } from '../../policy/index.ts';
import { ENVELOPE_BYTES_MAX, readEnvelope, STATEMENT_TYPE, statementOf } from './envelope.ts';
import { MODULE_BYTES_MAX, type PackManifest } from './manifest.ts';
import { type Generation, type PackRecord, PackStore } from './store.ts';
import { readTrust, standingOf, type Trust } from './trust.ts';

/** Behind the name of a pack that is only being tried. */
const CANARY = '@canary';

/** A pack that may be used, with its module ready to be compiled. */
export interface LoadedPack {
  readonly name: string;
  readonly version: string;
  /** SHA-256 of the module as it was signed: what formats, parked sessions and the log name. */
  readonly digest: string;
  readonly state: PackState;
  readonly manifest: PackManifest;
  /** The module with its fuel counted. */
  readonly instrumented: Uint8Array;
}

export interface ActivePacksOptions {
  readonly stateDir: string;
  /** Counts the fuel of a module. Throws 'bad-pack'. */
  readonly instrument: (module: Uint8Array) => Uint8Array;
}

export class ActivePacks {
  readonly #store: PackStore;
  readonly #instrument: (module: Uint8Array) => Uint8Array;
  readonly #loaded = new Map<string, Uint8Array>();
  #now: { readonly generation: Generation; readonly trust: Trust } | null = null;

  /** Throws 'bad-file' and 'checksum-mismatch' where the store is damaged, 'io'. */
  constructor({ stateDir, instrument }: ActivePacksOptions) {
    this.#store = new PackStore(stateDir);
    this.#instrument = instrument;
    this.refresh();
  }

  /** Looks whether another generation holds. Sessions that are open keep what they have. → whether there is one */
  refresh(): boolean {
    const number = this.#store.currentNumber();
    if (number === this.generation) return false;
    if (number === null) this.#now = null;
    else {
      const generation = this.#store.generation(number);
      const trust = readTrust(this.#store.object(generation.trust.envelope, ENVELOPE_BYTES_MAX), 'the trust file');
      this.#now = { generation, trust };
    }
    return true;
  }

  /** The number of the generation that holds; null: nothing was ever installed. */
  get generation(): number | null {
    return this.#now?.generation.generation ?? null;
  }

  /** Names of packs that sessions can ask for. */
  get names(): readonly string[] {
    return this.#records.filter(({ state }) => state === 'active' || state === 'canary').map(({ name }) => name);
  }

  get #records(): readonly PackRecord[] {
    return this.#now?.generation.packs ?? [];
  }

  /** What a pack is in, by its digest; null: nobody knows it. */
  stateOf(digest: string): PackState | null {
    return this.#records.find((one) => one.digest === digest)?.state ?? null;
  }

  /** True if a pack only reads pages, until none is left. */
  get isDraining(): boolean {
    return this.#records.some(({ state }) => state === 'draining');
  }

  /** A module need not be kept in memory: it is read and instrumented again where somebody asks for it. */
  forget(digest: string): void {
    this.#loaded.delete(digest);
  }

  /**
   * `NAME`: the version that is active; `NAME@canary`: the one that is being tried. Throws 'not-found' where there is
   * none, and as `reader` does.
   */
  asked(asked: string): LoadedPack {
    const isCanary = asked.endsWith(CANARY);
    const name = isCanary ? asked.slice(0, -CANARY.length) : asked;
    const found = isCanary ? this.canary(name) : this.active(name);
    if (found !== null) return found;
    throw new KvError(
      'not-found',
      `no version of the pack ${JSON.stringify(name)} is ${isCanary ? 'a canary' : 'active'}`,
      {
        values: { pack: name, known: this.names.join(', ') },
        hint: 'install and activate it, or leave out `pack`',
      },
    );
  }

  /** The pack of a name that writes pages of sessions that begin; null: none does. Throws as `reader` does. */
  active(name: string): LoadedPack | null {
    return this.#writer(name, 'active');
  }

  /** The pack of a name that is being tried by sessions that ask for it; null: none is. Throws as `reader` does. */
  canary(name: string): LoadedPack | null {
    return this.#writer(name, 'canary');
  }

  /**
   * The pack that wrote a page, by its digest or how that begins (12 digits or more), as long as it may read. null:
   * nobody may, and the page is made again. Throws 'checksum-mismatch', 'bad-file', 'not-found', 'io' where its files
   * are not what was installed.
   */
  reader(digest: string): LoadedPack | null {
    if (!/^[0-9a-f]{12,64}$/.test(digest)) return null;
    const [record, another] = this.#records.filter((one) => one.digest.startsWith(digest) && readsPages(one.state));
    return record === undefined || another !== undefined ? null : this.#load(record);
  }

  /** Every pack that writes or reads pages. Throws as `reader` does. */
  loadAll(): LoadedPack[] {
    return this.#records.filter(({ state }) => readsPages(state)).map((record) => this.#load(record));
  }

  #writer(name: string, state: PackState): LoadedPack | null {
    const record = this.#records.find((one) => one.name === name && one.state === state);
    if (record === undefined || this.#now === null) return null;
    const envelope = this.#store.object(record.envelope, ENVELOPE_BYTES_MAX);
    const standing = standingOf(readEnvelope(envelope, STATEMENT_TYPE, name), record, this.#now.trust);
    return standing === 'served' ? this.#load(record) : null;
  }

  /** Files are named by what was verified when they were installed, and are looked at again. */
  #load({ name, version, digest, envelope, state }: PackRecord): LoadedPack {
    const what = `${name} ${version}`;
    const stated = statementOf(readEnvelope(this.#store.object(envelope, ENVELOPE_BYTES_MAX), STATEMENT_TYPE, what));
    let instrumented = this.#loaded.get(digest);
    if (instrumented === undefined) {
      instrumented = this.#instrument(this.#store.object(digest, MODULE_BYTES_MAX));
      this.#loaded.set(digest, instrumented);
    }
    return { name, version, digest, state, manifest: stated.manifest, instrumented };
  }
}
