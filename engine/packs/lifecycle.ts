/**
 * What happens to packs of a state folder: installed, activated, taken back, distrusted. One process at a time does it.
 * Everything is checked in memory first; then a new generation is made (store.ts); then its arrows are written to the
 * log. Whoever is killed before the last leaves arrows that the next one writes.
 */
import { KvError, packageVersion } from '../../native/index.ts';
import { nextPackState, type PackEvent, type PackState } from '../../policy/index.ts';
import {
  isLogDir,
  type LogFiles,
  lockWriter,
  NO_SESSION,
  type PackBody,
  readLog,
  type WitnessLog,
  type WriterLock,
} from '../../witness/index.ts';
import { ENVELOPE_BYTES_MAX, type Envelope, readEnvelope, STATEMENT_TYPE } from './envelope.ts';
import { checkFloorsKept, type Floors, floorsIn, raiseFloors } from './floors.ts';
import type { PackFiles } from './folder.ts';
import { compareVersions, MODULE_BYTES_MAX, type PackManifest } from './manifest.ts';
import { PackReaders } from './readers.ts';
import { type Generation, PACKS_MAX, type PackRecord, PackStore, sha256Of, type TakenArrow } from './store.ts';
import { type Moment, nextTrust, readTrust, standingOf, type Trust, type VerifiedPack, verifyPack } from './trust.ts';
import type { ContractReport } from './types.ts';

/** What a module goes through before it may be used. */
export interface PackTrial {
  /** The module with its fuel counted. Throws 'bad-pack' for one that is not served. */
  instrument(module: Uint8Array): Uint8Array;
  test(instrumented: Uint8Array, manifest: PackManifest): Promise<ContractReport>;
}

/** What the life of packs depends on. */
export interface PackKeeperOptions {
  readonly stateDir: string;
  /** The log of the state folder, open for writing. */
  readonly log: Pick<WitnessLog, 'dir' | 'append' | 'flush'>;
  /** Milliseconds since the epoch. */
  readonly clock?: () => number;
  readonly files?: LogFiles;
  /** Digests of packs that sessions have pages of which are in files. Left out: nobody knows of any. */
  readonly parked?: () => ReadonlySet<string>;
}

/** What became of a pack that was to be installed. */
export interface InstalledPack {
  readonly record: PackRecord;
  /** It had been installed before. */
  readonly isKnown: boolean;
}

/** A generation that is being made of another one. */
interface Draft {
  readonly packs: Map<string, PackRecord>;
  readonly arrows: TakenArrow[];
}

const draftOf = (before: Generation): Draft => ({
  packs: new Map(before.packs.map((pack) => [pack.digest, pack])),
  arrows: [],
});

/** Before the first trust file. */
const NOTHING: Omit<Generation, 'trust'> = {
  ...{ kind: 'palimpsest-packs', schemaVersion: 1, generation: 0, previous: null, lastKnownGood: null },
  ...{ floors: {}, packs: [], arrows: [] },
};

interface Why {
  readonly because?: string;
  readonly numbers?: Readonly<Record<string, number>>;
}

/** Takes an arrow. Throws 'bad-argument' where there is none. */
function take(draft: Draft, pack: PackRecord, event: PackEvent, { because = '', numbers = {} }: Why = {}): PackRecord {
  const to = nextPackState(pack.state, event);
  const { name, version, digest, envelope, keyIds, trustVersion, state: from } = pack;
  if (to === null)
    throw new KvError('bad-argument', `${name} ${version} is ${from}, and from there nothing leads by '${event}'`, {
      values: { name, version, state: from, event },
      hint: 'palimpsest packs list says what packs are in',
    });
  const next = { ...pack, state: to };
  draft.packs.set(digest, next);
  draft.arrows.push({ name, version, digest, envelope, from, event, to, keyIds, trustVersion, because, numbers });
  return next;
}

const isServing = ({ state }: PackRecord): boolean => state === 'active' || state === 'canary';

export class PackKeeper {
  readonly #store: PackStore;
  readonly #readers: PackReaders;
  readonly #parked: PackKeeperOptions['parked'];
  readonly #options: PackKeeperOptions;
  readonly #lock: WriterLock;
  readonly #witnessedMs: number;
  #now: Generation | null;

  /**
   * Throws 'locked' while another process does something to packs, 'bad-signature' where the store has lost what the
   * log knows, 'bad-file' where it is damaged, 'bad-log', 'io'.
   */
  static async open(options: PackKeeperOptions): Promise<PackKeeper> {
    const store = new PackStore(options.stateDir, options.files);
    store.makeFolder();
    const lock = lockWriter(store.dir);
    try {
      const told = witnessed(options.log.dir, options.files);
      const keeper = new PackKeeper(options, store, lock, told.timeMs);
      checkFloorsKept(keeper.#now?.floors ?? {}, told.floors);
      await keeper.#tellWhatIsUntold(told.generation);
      return keeper;
    } catch (error) {
      lock.release();
      throw error;
    }
  }

  private constructor(options: PackKeeperOptions, store: PackStore, lock: WriterLock, witnessedMs: number) {
    this.#options = options;
    this.#store = store;
    this.#readers = new PackReaders(options.stateDir);
    this.#parked = options.parked;
    this.#lock = lock;
    this.#witnessedMs = witnessedMs;
    this.#now = store.current();
  }

  close(): void {
    this.#lock.release();
  }

  /** What holds now; null: nothing was ever installed. */
  get generation(): Generation | null {
    return this.#now;
  }

  /** Throws 'not-found' where there is no trust file. */
  get trust(): Trust {
    const { envelope } = this.#standing().trust;
    return readTrust(this.#store.object(envelope, ENVELOPE_BYTES_MAX), 'the trust file');
  }

  /**
   * Installs a trust file: the first one, which a person chose, or the next. What it revokes is quarantined, and what
   * it no longer serves writes no more pages. Throws 'bad-signature', 'bad-file', 'io'.
   */
  async installTrust(bytes: Uint8Array, what: string): Promise<Trust> {
    const before = this.#now === null ? null : this.trust;
    const trust = nextTrust(bytes, before, this.#moment(), what);
    const base = { ...(this.#now ?? NOTHING), trust: { version: trust.version, envelope: sha256Of(bytes) } };
    const draft = draftOf(base);
    for (const pack of base.packs) this.#hold(draft, pack, trust);
    await this.#commit(base, draft, {}, [bytes]);
    return trust;
  }

  /** What a new trust file says of a pack that was installed before. */

  #hold(draft: Draft, pack: PackRecord, trust: Trust): void {
    if (pack.state === 'rejected' || pack.state === 'quarantined') return;
    const standing = standingOf(this.#envelopeOf(pack), pack, trust);
    const because = `trust version ${trust.version}: ${standing}`;
    if (standing === 'revoked') take(draft, pack, 'distrust', { because });
    else if (standing === 'not-served' && isServing(pack)) take(draft, pack, 'replace', { because });
  }

  /**
   * Checks, instruments and tests a pack, and keeps it. What is refused leaves nothing but an entry of the log. Throws
   * what verifyPack throws, 'bad-pack' for a module that is not served or broke its contract.
   */
  async install(files: PackFiles, trial: PackTrial): Promise<InstalledPack> {
    const before = this.#standing();
    const digest = sha256Of(files.module);
    let [at, told]: [PackState, Partial<VerifiedPack>] = ['staged', {}];
    try {
      const verified = this.check(files);
      told = verified;
      at = 'verified';
      const known = this.#known(before, verified, sha256Of(files.envelope));
      if (known !== null) return { record: known, isKnown: true };
      const instrumented = trial.instrument(files.module);
      at = 'instrumented';
      const report = await trial.test(instrumented, verified.manifest);
      checkKept(report, verified);
      const record = await this.#keep(before, files, verified, {
        ...{ moduleBytes: files.module.length, instrumentedBytes: instrumented.length },
        ...{ calls: report.calls, fuelPerToken: report.fuelPerToken, error: report.error },
      });
      return { record, isKnown: false };
    } catch (error) {
      if (error instanceof KvError && error.code !== 'io')
        await this.#tellRefused(files, digest, at, told, error.message);
      throw error;
    }
  }

  /** Checks who vouches for a pack, and changes nothing. Throws as verifyPack does. */
  check(files: PackFiles): VerifiedPack {
    const { floors } = this.#standing();
    return verifyPack(readEnvelope(files.envelope, STATEMENT_TYPE, files.path), {
      ...{ trust: this.trust, floors, moment: this.#moment() },
      ...{ digest: sha256Of(files.module), engineVersion: packageVersion() },
    });
  }

  /** A pack that is installed; null: it is not. Throws 'bad-signature' for one that may not come again. */
  #known(before: Generation, { digest, manifest }: VerifiedPack, envelope: string): PackRecord | null {
    const { name, version } = manifest;
    const same = before.packs.find((pack) => pack.digest === digest);
    const twin = before.packs.find((pack) => pack.name === name && pack.version === version);
    if (same?.state === 'quarantined' || (twin !== undefined && twin.digest !== digest))
      throw new KvError(
        'bad-signature',
        same === undefined
          ? `${name} ${version} is installed with another module`
          : `${name} ${version} was distrusted here and does not come again`,
        {
          values: { name, version, digest, installed: twin?.digest ?? digest },
          hint: 'a repaired pack has a new version',
        },
      );
    return same?.envelope === envelope ? same : null;
  }

  async #keep(
    before: Generation,
    { envelope, module }: PackFiles,
    { digest, manifest, keyIds, trustVersion }: VerifiedPack,
    numbers: Readonly<Record<string, number>>,
  ): Promise<PackRecord> {
    const { name, version } = manifest;
    const draft = draftOf(before);
    const staged: PackRecord = {
      ...{ name, version, digest, envelope: sha256Of(envelope), state: 'staged', installedMs: this.#nowMs() },
      ...{ keyIds: [...keyIds], trustVersion, numbers: { ...numbers } },
    };
    const same = draft.packs.get(digest);
    if (same === undefined) this.#makeRoom(draft);
    // Signed anew, by other keys perhaps, it is in what it was in.
    const kept = same === undefined ? tested(draft, staged) : { ...staged, state: same.state };
    draft.packs.set(digest, kept);
    const floors = raiseFloors(before.floors, name, version, keyIds);
    await this.#commit(before, draft, { floors }, [module, envelope]);
    return kept;
  }

  /** Those that nobody uses are forgotten where there is no more room. Throws 'bad-argument' where all are used. */
  #makeRoom(draft: Draft): void {
    if (draft.packs.size < PACKS_MAX) return;
    const free = [...draft.packs.values()].find(({ state }) => state === 'retired' || state === 'tested');
    if (free === undefined)
      throw new KvError('bad-argument', `the store holds ${PACKS_MAX} packs, and all are in use`, {
        values: { packs: draft.packs.size },
      });
    draft.packs.delete(free.digest);
  }

  /**
   * Makes a pack the one that new pages are written by: of sessions that ask for it (canary), or of all that begin.
   * Throws 'not-found', 'bad-signature' where it is no longer served, 'bad-argument', 'io'.
   */
  async activate(typed: string, isCanary = false): Promise<PackRecord> {
    const before = this.#standing();
    const chosen = this.find(typed);
    this.#checkServed(chosen);
    const draft = draftOf(before);
    const superseded = this.#verified(chosen).manifest.supersedes;
    for (const other of before.packs) {
      if (other.digest === chosen.digest || !isServing(other)) continue;
      const isInTheWay = other.name === chosen.name && (!isCanary || other.state === 'canary');
      if (isInTheWay || (superseded.includes(other.digest) && !isCanary)) take(draft, other, 'replace');
    }
    const next = started(draft, chosen, isCanary);
    const lastKnownGood = isCanary ? before.lastKnownGood : before.generation;
    await this.#commit(before, draft, { lastKnownGood }, []);
    return next;
  }

  /**
   * Makes what was active in an earlier generation active again, by default in the one before the last activation. What
   * is active now reads its pages until none is left. Throws 'not-found', 'bad-signature' for what was revoked
   * meanwhile.
   */
  async rollback(to: number | null = null, why: Why = {}): Promise<Generation> {
    const before = this.#standing();
    const number = to ?? before.lastKnownGood;
    if (number === null)
      throw new KvError('not-found', 'there is no generation to go back to', {
        values: { generation: before.generation },
      });
    const target = this.#store.generation(number);
    const wanted = new Set(target.packs.filter(({ state }) => state === 'active').map(({ digest }) => digest));
    const draft = draftOf(before);
    for (const pack of before.packs) if (isServing(pack) && !wanted.has(pack.digest)) take(draft, pack, 'replace', why);
    for (const digest of wanted) {
      const pack = draft.packs.get(digest);
      if (pack === undefined) throw new KvError('not-found', `generation ${number} had ${digest}, which is gone`, {});
      if (pack.state === 'active') continue;
      this.#checkServed(pack);
      take(draft, pack, pack.state === 'canary' ? 'activate' : 'restore', why);
    }
    return this.#commit(before, draft, { lastKnownGood: target.lastKnownGood }, []);
  }

  /**
   * A pack broke its contract in a session: it writes no more pages, and the older version of its name that was active
   * before writes them again, if it is still served. Nothing changes where it does not serve. Throws 'not-found', 'io'.
   */
  async withdraw(digest: string, because: string): Promise<PackRecord> {
    const before = this.#standing();
    const pack = this.find(digest);
    if (!isServing(pack)) return pack;
    const draft = draftOf(before);
    const next = take(draft, pack, 'replace', { because });
    const earlier = pack.state === 'active' ? this.#activeBefore(before, pack) : undefined;
    if (earlier !== undefined) take(draft, earlier, 'restore', { because });
    await this.#commit(before, draft, {}, []);
    return next;
  }

  /** The older version of the same name that was active last, as it is now, if it may be again. */
  #activeBefore(now: Generation, { name, version }: PackRecord): PackRecord | undefined {
    for (let at = now.previous; at !== null; ) {
      const { packs, previous } = this.#store.generation(at);
      at = previous;
      const isOlder = (one: PackRecord): boolean => compareVersions(one.version, version) < 0;
      const was = packs.find((one) => one.name === name && one.state === 'active' && isOlder(one));
      if (was === undefined) continue;
      const pack = now.packs.find((one) => one.digest === was.digest);
      const isFree = pack?.state === 'draining' || pack?.state === 'retired';
      return isFree && standingOf(this.#envelopeOf(pack), pack, this.trust) === 'served' ? pack : undefined;
    }
    return undefined;
  }

  /** A pack broke its contract while it served: nothing is read by it any more. */
  async distrust(digest: string, because: string, numbers: Readonly<Record<string, number>> = {}): Promise<PackRecord> {
    const before = this.#standing();
    const draft = draftOf(before);
    const next = take(draft, this.find(digest), 'distrust', { because, numbers });
    await this.#commit(before, draft, {}, []);
    return next;
  }

  /** Packs that only read, and of which nobody has a page any more, are retired. → those that were. Throws 'io'. */
  async retire(): Promise<readonly PackRecord[]> {
    if (this.#now === null) return [];
    const draft = draftOf(this.#now);
    const draining = this.#now.packs.filter(({ state }) => state === 'draining');
    const parked = draining.length === 0 ? null : this.#parked?.();
    const unread = draining.filter(({ digest }) => !this.#readers.has(digest) && parked?.has(digest) !== true);
    const retired = unread.map((pack) => take(draft, pack, 'drain'));
    if (retired.length > 0) await this.#commit(this.#now, draft, {}, []);
    return retired;
  }

  /**
   * The pack that somebody named: NAME, of which the newest version is meant that is not out of use, NAME@VERSION, or
   * the beginning of a digest. Throws 'not-found'.
   */
  find(typed: string): PackRecord {
    const packs = this.#now?.packs ?? [];
    const [name, version] = typed.split('@');
    const found = packs
      .filter((pack) => pack.name === name && (version === undefined || pack.version === version))
      .filter(({ state }) => version !== undefined || (state !== 'rejected' && state !== 'quarantined'))
      .sort((a, b) => compareVersions(b.version, a.version))[0];
    const byDigest = /^[0-9a-f]{8,64}$/.test(typed) ? packs.filter(({ digest }) => digest.startsWith(typed)) : [];
    const pack = found ?? (byDigest.length === 1 ? byDigest[0] : undefined);
    if (pack === undefined)
      throw new KvError('not-found', `no pack is ${typed.slice(0, 80)}`, {
        values: { asked: typed.slice(0, 80), packs: packs.map((one) => `${one.name}@${one.version}`) },
        hint: 'palimpsest packs list names them',
      });
    return pack;
  }

  /** Throws 'bad-signature' where the trust file no longer serves a pack. */
  #checkServed(pack: PackRecord): void {
    const { trust } = this;
    const standing = pack.state === 'quarantined' ? 'revoked' : standingOf(this.#envelopeOf(pack), pack, trust);
    if (standing === 'served') return;
    throw new KvError(
      'bad-signature',
      `${pack.name} ${pack.version} is ${standing === 'revoked' ? 'revoked' : 'no longer served'}`,
      {
        values: { name: pack.name, version: pack.version, digest: pack.digest, trustVersion: trust.version },
        hint: 'the trust file says which packs are served',
      },
    );
  }

  #verified(pack: PackRecord): VerifiedPack {
    const module = this.#store.object(pack.digest, MODULE_BYTES_MAX);
    return verifyPack(this.#envelopeOf(pack), {
      ...{ trust: this.trust, floors: {}, moment: this.#moment() },
      ...{ digest: sha256Of(module), engineVersion: packageVersion() },
    });
  }

  #envelopeOf({ name, version, envelope }: PackRecord): Envelope {
    return readEnvelope(this.#store.object(envelope, ENVELOPE_BYTES_MAX), STATEMENT_TYPE, `${name} ${version}`);
  }

  #standing(): Generation {
    if (this.#now !== null) return this.#now;
    throw new KvError('not-found', 'this state folder has no trust file, so nobody is trusted with packs', {
      values: { dir: this.#store.dir },
      hint: 'palimpsest packs install TRUST-FILE (docs/packs.md)',
    });
  }

  #nowMs(): number {
    return (this.#options.clock ?? Date.now)();
  }

  #moment(): Moment {
    return { nowMs: this.#nowMs(), witnessedMs: this.#witnessedMs };
  }

  /** Makes the next generation the current one, and tells its arrows. */
  async #commit(
    before: Generation,
    { packs, arrows }: Draft,
    change: Partial<Pick<Generation, 'floors' | 'lastKnownGood'>>,
    objects: readonly Uint8Array[],
  ): Promise<Generation> {
    const next: Generation = {
      ...before,
      ...{ kind: 'palimpsest-packs', schemaVersion: 1, generation: before.generation + 1 },
      ...{ previous: before.generation || null, packs: [...packs.values()], arrows, ...change },
    };
    this.#store.commit(next, objects);
    this.#now = next;
    await this.#tell(next);
    return next;
  }

  async #tell({ arrows, generation }: Generation): Promise<void> {
    for (const arrow of arrows) this.#options.log.append(NO_SESSION, 'pack', { ...arrow, generation });
    await this.#options.log.flush();
  }

  async #tellWhatIsUntold(told: number): Promise<void> {
    if (this.#now !== null && this.#now.generation > told && this.#now.arrows.length > 0) await this.#tell(this.#now);
  }

  /** A pack that was refused: the state that it had reached, and why. */
  async #tellRefused(
    { envelope }: PackFiles,
    digest: string,
    from: PackState,
    { manifest, keyIds = [], trustVersion }: Partial<VerifiedPack>,
    because: string,
  ): Promise<void> {
    this.#options.log.append(NO_SESSION, 'pack', {
      ...{ name: manifest?.name ?? '', version: manifest?.version ?? '', digest, envelope: sha256Of(envelope) },
      ...{
        from,
        event: 'distrust',
        to: 'rejected',
        keyIds,
        trustVersion: trustVersion ?? this.#standing().trust.version,
      },
      ...{ generation: null, because: because.slice(0, 4000), numbers: {} },
    });
    await this.#options.log.flush();
  }
}

/** The arrows of a pack that was installed. */
const tested = (draft: Draft, staged: PackRecord): PackRecord =>
  (['verify', 'instrument', 'test'] as const).reduce(
    (pack, event) => take(draft, pack, event, event === 'test' ? { numbers: pack.numbers } : {}),
    staged,
  );

/** The arrows that make a pack the one that serves. */
function started(draft: Draft, pack: PackRecord, isCanary: boolean): PackRecord {
  if (isCanary) return take(draft, pack, 'tryOut');
  const { state } = pack;
  if (state === 'tested') return take(draft, take(draft, pack, 'tryOut'), 'activate');
  return take(draft, pack, state === 'draining' || state === 'retired' ? 'restore' : 'activate');
}

function checkKept(report: ContractReport, { manifest }: VerifiedPack): void {
  const [problem] = report.problems;
  if (report.kept && problem === undefined) return;
  const { name, version } = manifest;
  throw new KvError(
    'bad-pack',
    `${name} ${version} breaks its contract: ${problem?.message ?? 'nothing more is known'}`,
    {
      values: { name, version, fault: problem?.check, ...problem?.values },
    },
  );
}

/** What a log says of packs: the newest generation, the floors, and when its newest entry was written. */
function witnessed(
  dir: string,
  files?: LogFiles,
): { readonly generation: number; readonly floors: Floors; readonly timeMs: number } {
  let [generation, timeMs] = [0, 0];
  if (!isLogDir(dir, files)) return { generation, timeMs, floors: {} };
  const bodies: PackBody[] = [];
  for (const { body, timeMs: at } of readLog(dir, { kinds: ['pack'], ...(files === undefined ? {} : { files }) })) {
    const told = body as PackBody;
    bodies.push(told);
    generation = Math.max(generation, told.generation ?? 0);
    timeMs = Math.max(timeMs, at);
  }
  return { generation, timeMs, floors: floorsIn(bodies) };
}
