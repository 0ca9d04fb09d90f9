/**
 * The memory that the sessions of an engine share: who may be at work in it (admission.ts), who is in the next pass
 * (scheduler.ts), who begins with pages of others (prefixes.ts), and who gives way when room is short (market.ts).
 * Sessions that wait are parked, or pages go lower; where nothing else helps, the pages of sessions that wait go, and
 * their tokens are read again.
 */
import { given, KvError, type PagePool } from '../../native/index.ts';
import { type ParkingPolicy, type PoolPolicy, RETURNING, type ReclaimStage, type RungId } from '../../policy/index.ts';
import { adapterAsker, type WitnessLog } from '../../witness/index.ts';
import type { Governed } from '../cache/governed.ts';
import { promisedBytes } from '../cache/promised.ts';
import { setAside } from '../cache/set-aside.ts';
import { dropKept, type GoneAdapter, type Keeper, type Landlord, type Tenant } from '../cache/tenant.ts';
import type { PressureReport } from '../cache/types.ts';
import type { Meter } from '../metrics/meter.ts';
import { ENGINE_OPTIONS } from '../options/table.ts';
import type { EngineOptions } from '../options/types.ts';
import { type Job, Scheduler, type Solo } from '../scheduler/scheduler.ts';
import { Admission } from './admission.ts';
import { type Floor, Floors } from './floors.ts';
import { Market } from './market.ts';
import { type IdleForm, IdleSessions } from './park/idle.ts';
import { PoolSeries } from './pool-series.ts';
import { Prefixes, type PrefixOptions } from './prefixes.ts';
import { type Asker, type Find, Reclaim } from './reclaim.ts';
import type { Session } from './session.ts';
import type { ParkedPages, Sharing, Turn } from './sharing.ts';
import { Thrash } from './thrash.ts';

interface Parts {
  readonly pool: PagePool;
  readonly meter: Meter;
  /** How sessions that wait are parked; null: they are not. */
  readonly form: IdleForm | null;
  /** Those that are open. */
  readonly sessions: () => Iterable<Session>;
  /** Most calls at work at once; left out: as many as there is room for. */
  readonly maxConcurrent?: number;
  /** Left out: each session reads its own beginning. */
  readonly prefixes?: PrefixOptions;
  /** What calls do where room is short, if their session does not say; left out: the default of engines. */
  readonly onPressure?: NonNullable<EngineOptions['onPressure']>;
  /** How long a pass may take that has a piece of a prompt beside writers; left out: the default of engines. */
  readonly interTokenTargetMs?: number;
  /** Whose pages go lower where room is short; left out: those of whoever keeps its old pages in most bits. */
  readonly policy?: PoolPolicy;
  /** Who is parked first; left out: whoever is expected to cost least time for a byte. */
  readonly parking?: ParkingPolicy;
  /** False: nobody's pages are back before a call begins, to compare with. Default true. */
  readonly fetchesAhead?: boolean;
  /** Where it is written who was asked for bytes, and who was parked; left out: nowhere. */
  readonly log?: WitnessLog;
  /** Hears of each rung of the ladder before it is asked for bytes; left out: nobody does. */
  readonly onRung?: ConstructorParameters<typeof Reclaim>[0]['onRung'];
}

export class SharedMemory implements Sharing, Landlord {
  readonly scheduler: Scheduler;
  /** With whose pages sessions begin; null: each reads its own beginning. */
  readonly prefixes: Prefixes | null;
  readonly #parts: Parts;
  readonly #admission: Admission;
  readonly #reclaim: Reclaim;
  readonly #idle: IdleSessions | null;
  readonly #thrash: Thrash;
  readonly #tenants = new Set<Tenant>();
  readonly #floors: Floors;
  readonly #series: PoolSeries;

  constructor(parts: Parts) {
    const { pool, meter, form, sessions, interTokenTargetMs = ENGINE_OPTIONS.interTokenTargetMs.default } = parts;
    this.#parts = parts;
    this.#floors = new Floors(pool, () => this.#pinnedBytes);
    this.#series = new PoolSeries(parts.log, meter);
    this.#thrash = new Thrash(meter);
    this.scheduler = new Scheduler(meter, interTokenTargetMs, () => this.#stepped());
    // Whoever lends pages stays until they are lent.
    const others = (): Session[] => [...sessions()].filter(({ governed }) => governed !== this.prefixes?.lending);
    const holdAgain: Sharing['holdAgain'] = (session, parked, work) => this.holdAgain(session as Session, parked, work);
    const left = (session: Session): void => this.left(session);
    const { parking = RETURNING } = parts;
    const series = this.#series;
    const known = { pool, meter, sessions: others, thrash: this.#thrash, holdAgain, left, policy: parking, series };
    const tokenMs = (): number | null => this.scheduler.tokenMs;
    this.#idle = form === null ? null : new IdleSessions(form, known);
    this.prefixes = parts.prefixes === undefined ? null : new Prefixes({ ...parts, ...parts.prefixes, tokenMs });
    const parkedBytes = (session: Session): number | null => this.#idle?.leftBytes(session) ?? null;
    this.#reclaim = this.#ladder();
    const makeRoom = ({ governed }: Session, neededBytes: number): void =>
      this.reclaim(governed, neededBytes - governed.room.poolRoomBytes!, 'waiting');
    const { maxConcurrent, onPressure = ENGINE_OPTIONS.onPressure.default } = parts;
    const thrash = this.#thrash;
    this.#admission = new Admission({
      pool,
      meter,
      sessions,
      parkedBytes,
      keptBytes: () => this.#keptBytes,
      idleBytes: () => this.#idleBytes,
      heldAgain: (session) => this.prefixes?.heldAgain(session) ?? null,
      makeRoom,
      fetchAhead: parts.fetchesAhead === false ? undefined : (session) => this.#idle?.fetchAhead(session),
      maxConcurrent,
      onPressure,
      thrash,
    });
  }

  get place(): IdleForm['place'] | null {
    return this.#parts.form?.place ?? null;
  }

  /** Counts who is at work now, and who waits, and what is kept of those that were closed. */
  measure(): void {
    const { meter } = this.#parts;
    meter.running.set({}, this.#admission.working);
    meter.waiting.set({}, this.#admission.waiting);
    meter.prefixBytes.set({}, this.prefixes?.keptBytes ?? 0);
  }

  #stepped(): void {
    this.prefixes?.readings.stepped();
    const { working, waiting } = this.#admission;
    if (this.#thrash.stepped(working, waiting)) this.#admission.retry();
  }

  async enter(session: Session, tokens: number, signal: AbortSignal | undefined): Promise<void> {
    await this.#admission.enter(session, tokens, signal);
  }

  begin(session: Session, tokenIds: readonly number[], signal: AbortSignal | undefined): Promise<number> | number {
    return this.prefixes?.begin(session, tokenIds, signal) ?? 0;
  }

  hasRead(session: Session): void {
    this.prefixes?.readings.ended(session);
  }

  holdAgain<Result>(session: Session, parked: ParkedPages, work: (held: number) => Result): Result {
    return this.prefixes === null ? work(0) : this.prefixes.holdAgain(session, parked, work);
  }

  cut(session: Session, tokens: number): void {
    this.prefixes?.cut(session, tokens);
  }

  holds(session: Session): void {
    this.prefixes?.holds(session);
  }

  left(session: Session): void {
    this.prefixes?.left(session);
  }

  leave(session: Session): void {
    this.#admission.leave(session);
  }

  commit(floorBytes: number): Floor {
    return this.#floors.commit(floorBytes);
  }

  join(tenant: Tenant): void {
    this.#tenants.add(tenant);
  }

  part(tenant: Tenant): void {
    this.#tenants.delete(tenant);
    setAside(this.#parts.pool, tenant, 0);
  }

  pins(bytes: number): void {
    const roomBytes = this.#admission.leftBytes;
    if (bytes > roomBytes) throw this.#noRoom(bytes, roomBytes);
  }

  loads(tenant: Tenant, bytes: number, digest: string): void {
    this.pins(bytes);
    const asking = { id: adapterAsker(digest), room: { leftBytes: () => this.#freeBytes } };
    if (bytes > this.#freeBytes) this.#reclaim.climb(asking, bytes - this.#freeBytes, 'all');
    const roomBytes = Math.max(0, this.#freeBytes);
    if (bytes > roomBytes) throw this.#noRoom(bytes, roomBytes);
    setAside(this.#parts.pool, tenant, tenant.pinnedBytes + tenant.keptBytes + bytes);
  }

  counted(tenant: Tenant): void {
    setAside(this.#parts.pool, tenant, tenant.pinnedBytes + tenant.keptBytes);
  }

  /** What is free, and promised to no step under way. */
  get #freeBytes(): number {
    const { pool } = this.#parts;
    return pool.budgetBytes - pool.usedBytes - promisedBytes(pool);
  }

  get #pinnedBytes(): number {
    let bytes = 0;
    for (const { pinnedBytes } of this.#tenants) bytes += pinnedBytes;
    return bytes;
  }

  /** What tenants keep for whoever may come. */
  get #idleBytes(): number {
    let bytes = 0;
    for (const { keptBytes } of this.#tenants) bytes += keptBytes;
    return bytes;
  }

  /** The same, with pages of sessions that were closed. */
  get #keptBytes(): number {
    return this.#idleBytes + (this.prefixes?.keptBytes ?? 0);
  }

  #noRoom(neededBytes: number, roomBytes: number): KvError {
    const { budgetBytes, usedBytes } = this.#parts.pool;
    return new KvError(
      'budget-exceeded',
      `an adapter needs ${neededBytes} bytes of the kvBudget, and sessions leave ${roomBytes}`,
      {
        values: { neededBytes, roomBytes, budgetBytes, usedBytes, pinnedBytes: this.#pinnedBytes },
        hint: 'raise the kvBudget of the engine, close sessions, or let idle ones be parked (idleSessions)',
      },
    );
  }

  /** Of an adapter that nobody had and that went. */
  tellGone({ id, bytes, idleMs, restoreMs, likelyUse, lackingBytes, session }: GoneAdapter): void {
    const gone = { digest: id, bytes, idleMs: Math.ceil(idleMs), restoreMs, lackingBytes };
    this.#series.write({ adapterGone: { ...gone, ...given({ likelyUse, session }) } });
  }

  /** asking: who needs them. */
  #dropKept(lackingBytes: number, asking: string): void {
    const { pool } = this.#parts;
    const goalBytes = pool.budgetBytes - pool.usedBytes + lackingBytes;
    const keepers: Keeper[] = [...this.#tenants, ...(this.prefixes === null ? [] : [this.prefixes])];
    dropKept(
      keepers,
      () => pool.budgetBytes - pool.usedBytes < goalBytes,
      (one) => {
        if (one.isAdapter === true) this.tellGone({ ...one, lackingBytes, session: asking });
      },
    );
  }

  pressure(session: Session): PressureReport {
    return this.#admission.report(session);
  }

  step(session: Session, turn: Turn, job: Job): Promise<void> {
    const asking = { ...turn, client: session.client };
    return this.#untilThereIsRoom(session, turn, () => this.scheduler.step(asking, job));
  }

  stepAlone(session: Session, turn: Turn, solo: Solo): Promise<void> {
    const asking = { ...turn, client: session.client };
    return this.#untilThereIsRoom(session, turn, () => this.scheduler.alone(asking, solo));
  }

  async #untilThereIsRoom(session: Session, { patience }: Turn, step: () => Promise<void>): Promise<void> {
    for (;;) {
      try {
        await step();
        return;
      } catch (error) {
        this.#tellChange(session, error);
        if (!isShort(session.governed, error)) throw error;
        // Whoever waits for its pages would wait as long.
        this.hasRead(session);
        if (await this.#admission.anotherEnds(session, patience?.signal)) continue;
        this.#admission.refused(session, session.governed.length);
        throw error;
      }
    }
  }

  /** A step reads no other files than those of the model. */
  #tellChange({ id }: Session, error: unknown): void {
    if (error instanceof KvError && (error.code === 'checksum-mismatch' || error.code === 'bad-file'))
      this.#parts.meter.tell('model-changed', { session: id });
  }

  wake(session: Session, isAtWork: boolean): void {
    const { governed } = session;
    if (governed.away === null) {
      this.#idle?.wake(session, isAtWork);
      return;
    }
    try {
      this.#idle?.wake(session, isAtWork);
    } finally {
      this.prefixes?.holds(session);
    }
  }

  /** Parks every session that waits but for the one that asks, where they are parked anywhere. */
  parkAll(asking: Governed | null): void {
    this.prefixes?.close();
    this.#idle?.parkAll(asking);
  }

  /** A session is about to be closed: others may go on to begin with its pages. */
  keep(session: Session): void {
    this.prefixes?.keep(session);
  }

  /** Nothing is kept any more of sessions that were closed. */
  close(): void {
    this.prefixes?.close();
  }

  drop(session: Session, error: Error): void {
    this.prefixes?.readings.drop(session);
    this.hasRead(session);
    this.scheduler.drop(session.client, error);
    this.#admission.goOn(session);
  }

  /** A session is closed. */
  forget(session: Session): void {
    try {
      this.#idle?.forget(session);
    } finally {
      this.#admission.forget(session);
    }
  }

  reclaim(asking: Governed, lackingBytes: number, stage: ReclaimStage): void {
    const { group, room } = asking;
    if (group === null) {
      this.#reclaim.climb(asking, lackingBytes, stage);
      return;
    }
    const goalBytes = room.poolRoomBytes! + lackingBytes;
    // Those of its group first: what they give is free for everybody.
    for (const scope of [group, null]) this.#reclaim.climb(asking, goalBytes - room.leftBytes(scope), stage, scope);
  }

  /** Asks one rung of the ladder alone. → bytes that it had */
  take(rung: RungId, asking: Asker, lackingBytes: number): number {
    return this.#reclaim.take(rung, asking, lackingBytes);
  }

  /** Where the bytes of each rung are. */
  #ladder(): Reclaim {
    const { pool, meter, onRung } = this.#parts;
    const market = new Market({ ...this.#parts, series: this.#series });
    const press =
      (rung: Parameters<Market['press']>[2]): Find =>
      (asking, lackingBytes, group) =>
        market.press(asking, lackingBytes, rung, group);
    return new Reclaim({
      ...{ pool, meter, place: this.place ?? 'keep', onRung },
      finds: {
        // Pages of sessions that were closed are in no group.
        kept: ({ id }, lackingBytes, group) => (group === null ? this.#dropKept(lackingBytes, id) : undefined),
        originals: (...asked) => this.#idle?.dropOriginals(...asked),
        'demote-waiting': press('demote-waiting'),
        park: (...asked) => this.#idle?.park(...asked),
        demote: press('demote'),
        'demote-all': press('demote-all'),
        'let-go': (...asked) => this.#idle?.letGo(...asked),
      },
    });
  }

  reclaimableBytes(asking: Governed): number {
    if (this.#reclaim.isAsking) return 0;
    const { group, room } = asking;
    const poolBytes = (this.#idle?.reclaimableBytes(asking, null) ?? 0) + this.#keptBytes;
    if (group === null) return poolBytes;
    const groupBytes = this.#idle?.reclaimableBytes(asking, group) ?? 0;
    return Math.min(room.leftBytes(null) + poolBytes, room.leftBytes(group) + groupBytes) - room.poolRoomBytes!;
  }
}

/** True for what a step throws before it begins where the memory that sessions share has no room. */
function isShort({ kv, length, room }: Governed, error: unknown): boolean {
  if (!(error instanceof KvError && (error.code === 'budget-too-small' || error.code === 'budget-exceeded')))
    return false;
  const { ownBytes, budgetBytes, canaryBytes } = room;
  return kv.length(0) === length && (ownBytes === null || budgetBytes! < ownBytes - canaryBytes);
}
