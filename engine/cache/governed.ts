/**
 * One conversation's cache with everything that governs it: the native cache in its pool, the policy's session, trials,
 * moves, pacing, latents, and the log that it is written to. A `Session` is this plus a model and tokens, a
 * `PolicyCache` this plus the caller's arrays. In what order its parts act is said in step.ts.
 */
import type { Fingerprint, Lookup, Prefix, SharedStatus, TextHint } from '../../memory/index.ts';
import {
  assert,
  type Beside,
  type CacheShape,
  type FormatName,
  firstToken,
  given,
  type KvCache,
  KvError,
  LATENT_NAMES,
  type LatentName,
  LOWEST_FORMATS,
  movablePages,
  nativeInfo,
  openPool,
  PAGE_TOKENS,
  type PagePool,
  type PageTable,
  packageVersion,
  pageOf,
  SIDES,
  sealedPages,
} from '../../native/index.ts';
import {
  type Foresight,
  FormArrows,
  type FormChange,
  type FormState,
  kindOf,
  type LaterForm,
  type LayerCost,
  machineDigest,
  openPolicy,
  type PageSide,
  type PolicySession,
  type PolicySummary,
  type Priority,
  type SharedPages,
  type Situation,
  thresholdOf,
} from '../../policy/index.ts';
import { newId, type OpenBody, type WitnessLog } from '../../witness/index.ts';
import { Meter } from '../metrics/meter.ts';
import { Originals } from '../originals/originals.ts';
import type { OriginalsReport, OriginalsTerms } from '../originals/types.ts';
import type { Away, Neighbours } from './away.ts';
import { WayBack } from './back.ts';
import { f16CacheBytes, memoryBytes, spareBytes } from './budget.ts';
import { Canaries } from './canaries.ts';
import type { Content } from './content.ts';
import { Descent } from './descent.ts';
import { formsBySide, latentOf } from './forms.ts';
import type { Group } from './group.ts';
import { Growing } from './growing.ts';
import { type Hears, Kin } from './kin.ts';
import { type CheckedInputs, Latents, noLatents } from './latents.ts';
import { LayerWatch } from './layer-watch.ts';
import { LearnedThresholds } from './learned-thresholds.ts';
import { type Lender, type Loan, sharedTermsOf, trialsOf } from './lender.ts';
import { Masses } from './masses.ts';
import { Mending } from './mending.ts';
import { Mover } from './mover.ts';
import { type NativeOptions, openNative } from './open-native.ts';
import { copyBytes, ownPages } from './own-pages.ts';
import { Pacing } from './pacing.ts';
import { PackPages, type SessionPack } from './pack-pages.ts';
import { PageDigests } from './page-digests.ts';
import { Promised } from './promised.ts';
import { Promoted, reserveFor } from './promoted.ts';
import { Remaking } from './remaking.ts';
import { checkUnshared, restoreOriginals } from './restoring.ts';
import { Room } from './room.ts';
import { SlidingWindows } from './sliding.ts';
import { Stated } from './stated.ts';
import { Tally } from './tally.ts';
import { lowestPair, type Terms } from './terms.ts';
import { type Asked, TrialQueue, type TrialsLeft } from './trials.ts';
import type { MemoryUsage, Stake } from './types.ts';
import { MassTrace } from './workload.ts';

export interface GovernedOptions extends NativeOptions {
  /** A pool that other caches share; left out: one of its own. Its owner closes it. */
  readonly pool?: PagePool | undefined;
  /** The other sessions of that pool, which give memory up when it is short. */
  readonly neighbours?: Neighbours | undefined;
  /** What bounds it and others of that pool together; left out: nothing does. */
  readonly group?: Group | undefined;
  /** What it has of that pool whoever needs some; left out: what anybody has. */
  readonly stake?: Stake | undefined;
  /** What originals it keeps outside of its budget; left out: none. */
  readonly originals?: OriginalsTerms | undefined;
  /** In whose codec pages of the archive may be, as `context.pack` of the terms says; left out: in none. */
  readonly pack?: SessionPack | undefined;
  /** Most tokens of the model; left out: nobody knows. */
  readonly contextTokens?: number | undefined;
  readonly log: WitnessLog | null;
  /** Counts what it does; left out: one of its own, which nobody reads. */
  readonly meter?: Meter | undefined;
  readonly opened: Pick<
    OpenBody,
    'model' | 'adapters' | 'proposal' | 'activations' | 'requested' | 'effective' | 'foresight'
  >;
  /** Where the thresholds came from. */
  readonly evidence?: { readonly lookup?: Lookup | null; readonly fingerprint?: Fingerprint };
}

/**
 * What was learnt of a text that no situation has told yet: what a probe found and reading tokens twice, and what
 * earlier sessions say now that more is known, of its text and of its beginning.
 */
type Heard = Pick<Situation, 'probe' | 'reread' | 'text' | 'later'>;

/** What a plan is made of: bytes and time as they are, and what was measured and moved since the last one. */
type Now = Pick<Situation, 'bytes' | 'sealBytes' | 'movesMax' | 'urgent' | 'stepLatencyMsP95' | 'trials' | 'outcomes'> &
  Required<Pick<Situation, 'changes' | 'again' | 'masses'>>;

export class Governed implements Lender {
  readonly id: string = newId();
  readonly shape: CacheShape;
  readonly terms: Terms;
  readonly kv: KvCache;
  readonly pool: PagePool;
  readonly log: WitnessLog | null;
  readonly meter: Meter;
  readonly policy: PolicySession;
  /** What it has learned for sessions to come. */
  readonly learnt: LearnedThresholds;
  readonly trials: TrialQueue;
  readonly canaries: Canaries;
  /** Null where none are kept. */
  readonly originals: Originals | null;
  /** Pages that are better than policies know, for an answer; null where there are no originals. */
  readonly promoted: Promoted | null;
  /** Whether the codes of demoted sides are what they were. */
  readonly digests: PageDigests;
  /** Page sides that are made again of originals. */
  readonly remaking: Remaking;
  readonly mending: Mending;
  readonly mover: Mover;
  readonly pacing: Pacing;
  readonly sliding: SlidingWindows;
  readonly latents: Latents | null;
  /** Pages in the codec of a pack; null where there is none. */
  readonly packs: PackPages | null;
  /** Why it keeps latents or none; null: nobody left that to it. */
  readonly foresight: Foresight | null;
  readonly kin: Kin;
  readonly room: Room;
  /** Room that was found for the step under way. */
  readonly promised: Promised;
  /** Where attention went lately. */
  readonly masses: MassTrace;
  /** The same as the policy is told of it; null where it does not ask. */
  readonly told: Masses | null;
  readonly tally: Tally;
  /** Whether it can be made again of its tokens and its log. */
  readonly descent = new Descent();
  /** The arrows that sides of its pages took. */
  readonly arrows = new FormArrows();
  /** Whether the divergence that was stated is kept; null: none was. */
  readonly stated: Stated | null;
  /** Whether it grows without end. */
  readonly growing: Growing;
  /** Which of its layers are not as they should be. */
  readonly watch: LayerWatch;
  /** What the trial queue asks of others. */
  readonly #asked: Asked = {
    repeats: (layer, page, newest) => this.policy.repeats?.(layer, page, newest) ?? true,
    lowForm: (...side) => this.promoted?.lowForm(...side) ?? null,
    isFreed: (layer, page) => this.sliding.isFreed(layer, page) || this.packs?.knows(layer, page) === true,
  };
  /** Hears of moves that relatives make of shared pages: here they may be freed. */
  readonly #moved: Hears['moved'] = (move, familyBytesBefore, isFamily) => {
    if (move.to === 'freed') this.packs?.know(move.layer, move.page);
    if (this.sliding.isFreed(move.layer, move.page)) return;
    // A family counts its bytes together, others each its own: what one of them keeps of the page, or lets go, is its.
    const { pageBytes } = this.terms.context;
    const bytesOf = (form: LaterForm): number => (form === 'freed' ? 0 : (pageBytes[form] ?? 0));
    const bytesBefore = isFamily ? familyBytesBefore : this.kv.usedBytes + bytesOf(move.from) - bytesOf(move.to);
    // Where both took the same pass, its own step is behind it as well, and is only counted later.
    const tokens = this.kv.length();
    this.mover.tell({ cause: 'shared', tokens }, [move], Math.min(bytesBefore, this.peakBytes));
  };
  /** What a side of a page is in that has this form and is not promoted. */
  readonly #stateOf = (page: number, form: LaterForm): FormState => {
    if (form === 'freed') return 'freed';
    return page < movablePages(this.#length, this.terms.context.windowTokens) ? kindOf(form) : 'window';
  };
  /** Hears of codes that relatives made again. */
  readonly #mended = ({ layer, page, side }: PageSide): void => {
    if (!this.sliding.isFreed(layer, page)) this.digests.after(layer, page, side);
  };
  /** Its pages, also while they are parked. */
  readonly #pages = { length: (): number => this.length, table: (layer: number): PageTable => this.table(layer) };
  #length = 0;
  #lowMemory = false;
  #openSeq = -1;
  #heard: Heard = {};
  #content: Content = {};
  #hint: TextHint | null = null;
  #sharersTold = '[]';
  #prefix: Prefix | null = null;
  /** What errors in single layers were found to cost. */
  readonly costs: LayerCost[] = [];
  #gaveWay: Priority | null = null;
  #away: Away | null = null;
  readonly #options: GovernedOptions;
  #index = 0;
  #failure: { readonly error: unknown } | null = null;
  /** The peak of the native caches before this one. */
  #peakBytes = 0;
  #closed = false;

  private constructor(options: GovernedOptions, kv: KvCache, pool: PagePool, origin?: Governed) {
    const { shape, terms, log } = options;
    const { context } = terms;
    const { pageBytes, latents } = context;
    this.shape = shape;
    this.terms = terms;
    this.kv = kv;
    this.pool = pool;
    this.log = log;
    this.meter = options.meter ?? new Meter();
    this.#options = options;
    this.policy = openPolicy(terms.policy, context);
    this.learnt = new LearnedThresholds(context.thresholds, shape.layers, this.policy);
    setShares(kv, terms);
    this.tally = new Tally(shape.layers);
    this.trials = new TrialQueue(kv, terms, this.tally, this.#asked);
    this.canaries = new Canaries(kv, terms, this.tally, (layer) => this.policy.haste?.(layer) ?? 1);
    this.originals = options.originals === undefined ? null : this.#openOriginals(options.originals);
    this.promoted = this.originals === null ? null : this.#openPromoted(this.originals);
    this.digests = new PageDigests(kv, context.windowFormat);
    this.remaking = this.#openRemaking();
    this.mending = this.#openMending();
    this.packs = options.pack === undefined ? null : this.#openPacks(options.pack);
    this.mover = new Mover({
      ...{ session: this.id, cache: kv, log, meter: this.meter, tally: this.tally },
      ...{ canaries: this.canaries, digests: this.digests, mending: this.mending },
      ...{ originals: this.originals, packs: this.packs },
      dropsLatents: context.latents !== undefined,
      onMove: (move, bytesBefore) => this.kin.moved(move, bytesBefore),
      arrows: this.arrows,
      stateOf: this.#stateOf,
    });
    this.sliding = new SlidingWindows(
      this.#pages,
      options.native.slidingWindow ?? [],
      terms.policy.evicts || this.packs !== null,
    );
    this.watch = new LayerWatch(this.id, this.meter);
    this.stated = terms.kldBudget === null ? null : this.#openStated(terms.kldBudget);
    this.growing = this.#openGrowing();
    this.pacing = new Pacing(context, kv.sealBytes * shape.layers);
    this.latents =
      options.latents === undefined
        ? null
        : new Latents(options.latents, kv, shape, latents === undefined ? [] : context.skipLayers);
    this.foresight = options.opened.foresight ?? null;
    this.masses = new MassTrace(kv);
    this.told = terms.policy.readsMasses === true ? new Masses(kv) : null;
    this.kin = new Kin(this.canaries, { moved: this.#moved, mended: this.#mended }, origin?.kin);
    this.promised = new Promised(pool, this.kin);
    // A lower latent is made beside the kept one.
    const lower = LATENT_NAMES.filter((name) => name !== latents?.kept).map((name) => pageBytes[name] ?? 0);
    this.room = new Room({
      asking: this,
      kv,
      kin: this.kin,
      ...{ canaries: this.canaries, promoted: this.promoted },
      ...{ sharedPool: options.pool, group: this.group, neighbours: options.neighbours },
      promised: this.promised,
      budgetBytes: origin === undefined ? terms.budgetBytes : origin.room.ownBytes,
      reserveBytes:
        this.promoted === null || terms.budgetBytes === null
          ? 0
          : reserveFor(options.originals?.promote ?? 0, shape, terms.budgetBytes),
      spareBytes: Math.max(spareBytes(pageBytes, context.windowFormat), ...lower),
    });
  }

  /** Throws what a plan, a pool, a cache or latents refuse; nothing is left behind then. */
  static open(options: GovernedOptions): Governed {
    const pool = options.pool ?? openPool(memoryBytes());
    let kv: KvCache | null = null;
    try {
      kv = openNative(options, pool, options.terms.budgetBytes);
      const governed = new Governed(options, kv, pool);
      if (governed.shared !== null && governed.shared.trouble !== null)
        governed.meter.fallbacks.add({ reason: 'shared' });
      governed.#tellStart();
      governed.group?.join(governed);
      return governed;
    } catch (error) {
      kv?.close();
      if (options.pool === undefined) pool.close();
      throw error;
    }
  }

  /**
   * A cache that goes on from here. Pages that have moved on from the window are shared, and so are the budget and
   * every change of a shared page, which counts once; the others are copied. Each decides by itself and writes entries
   * of its own. Latents stay with this one.
   */
  fork(): Governed {
    const { foresight: _, proposal: _proposal, ...opened } = this.#options.opened;
    const shared = this.settledPages;
    const forkOf = { forkOf: this.id, tokens: this.length, heldTokens: firstToken(shared) };
    const options = {
      ...this.#options,
      latents: undefined,
      originals: undefined,
      meter: this.meter,
      opened: { ...opened, effective: { ...opened.effective, ...forkOf } },
    };
    this.promoted?.giveBack();
    const kv = this.kv.fork();
    let fork: Governed;
    try {
      ownPages(kv, this.kv, shared);
      fork = new Governed(options, kv, this.pool, this);
    } catch (error) {
      kv.close();
      throw error;
    }
    if (this.packs !== null) fork.packs?.follow(this.packs);
    fork.descent.begins(this.lineage, this.length, 'fork');
    fork.#length = this.#length;
    fork.#lowMemory = this.#lowMemory;
    fork.trials.follow(this.trials.left());
    this.kin.share(fork.kin, shared);
    this.group?.join(fork);
    return fork;
  }

  /** Bytes that a fork takes: of its open pages, and of those that it does not share. */
  get forkBytes(): number {
    return this.room.forkBytes + this.ownBytes;
  }

  /** Bytes that are free when its pages go: without those that others hold as well. */
  get aloneBytes(): number {
    return this.kv.usedBytes - copyBytes(this.kv, this.terms.context, 0, this.kin.sharedPages);
  }

  /** Bytes of the sealed pages that a fork does not share. */
  get ownBytes(): number {
    return copyBytes(this.kv, this.terms.context, this.settledPages);
  }

  /**
   * Pages that have left the window, and that a rule which measures nothing has moved to where they stay. It moves what
   * has just left over some steps, and is done with a page before the next one leaves. Nothing ever moves under policy
   * none.
   */
  get settledPages(): number {
    const { policy, context } = this.terms;
    if (policy.id === 'none') return sealedPages(this.#length);
    const isDone = policy.needsTrials || policy.evicts === true || this.pacing.isIdle;
    return Math.max(0, movablePages(this.#length, context.windowTokens) - (isDone ? 0 : 1));
  }

  get formats(): Lender['formats'] {
    const { windowFormat, openFormat = 'f16' } = this.terms.context;
    return { window: windowFormat, open: openFormat };
  }

  /** What bounds it and others of its pool together; null: nothing does. */
  get group(): Group | null {
    return this.#options.group ?? null;
  }

  /** What it and its family have of a shared pool whoever needs some. */
  get stake(): Stake {
    return this.#options.stake ?? { floorBytes: 0, weight: 1 };
  }

  /** Bytes that it may give up for others: what its floor leaves, whole moves alone. */
  get givableBytes(): number {
    const { floorBytes } = this.stake;
    if (floorBytes === 0) return Number.POSITIVE_INFINITY;
    return Math.max(0, this.room.usedBytes - floorBytes - this.room.spareBytes);
  }

  /** In what those agree that hold pages together with this one; null: it holds none with others. */
  get sharedTerms(): string | null {
    const isAlone =
      this.#options.pool === undefined || this.latents !== null || this.originals !== null || this.packs !== null;
    // A page of it that others move would go below its floor.
    return isAlone || this.stake.floorBytes > 0 ? null : sharedTermsOf(this.terms, this.pool);
  }

  get lineage(): Descent | null {
    const { log, originals, latents, descent } = this;
    return log === null || originals !== null || latents !== null || this.packs !== null ? null : descent;
  }

  trialsLeft(): TrialsLeft {
    return this.trials.left();
  }

  /**
   * An empty native cache like its own, without a budget, for pages alone: nothing is tried in it. Whoever asked closes
   * it.
   */
  emptied(): KvCache {
    return openNative({ ...this.#options, sketches: [] }, this.pool, null);
  }

  /**
   * Has, empty, the first `pages` pages of another cache of its pool, as the other one has them, and room for what is
   * its own. Neither knows yet. Throws 'unsupported' where some are just moving, 'budget-exceeded'.
   */
  adopt(lender: Lender, pages: number): void {
    const { fixedBytes } = this.terms.context;
    this.room.find(fixedBytes, 'named');
    this.kv.adopt(lender.kv, pages);
  }

  /**
   * Begins, empty, with pages of another cache of its pool, as far as there is room for those that are copied. → how
   * many. Throws 'unsupported' where the other one is just moving some of them.
   */
  beginWith(lender: Lender, { heldPages, pages }: Loan): number {
    const { kv, kin, shape } = this;
    if (heldPages > 0) {
      this.adopt(lender, heldPages);
      lender.kin.share(kin, heldPages);
    }
    const end = this.#copiedPages(lender, heldPages, pages);
    for (let layer = 0; layer < shape.layers; layer++)
      for (let page = heldPages; page < end; page++) kv.importPage(layer, lender.kv.exportPage(layer, page));
    if (end === 0) return 0;
    this.filled(firstToken(end), heldPages > 0 ? trialsOf(lender.trialsLeft(), end) : undefined);
    this.descent.begins(lender.lineage, firstToken(end), 'pages-of-others');
    return end;
  }

  /**
   * The last of the pages of a lender that can be copied: the next tokens have room beside them as they come, since
   * nothing moves before the first of those has looked at it.
   */
  #copiedPages(lender: Lender, first: number, end: number): number {
    const { kv, room, terms } = this;
    const { layers, windowTokens = PAGE_TOKENS, windowFormat, pageBytes, fixedBytes } = terms.context;
    const besideBytes =
      fixedBytes + (pageOf(windowTokens) + 2) * layers * SIDES.length * pageBytes[windowFormat] + room.spareBytes;
    room.find(copyBytes(lender.kv, terms.context, first, end) + besideBytes, 'waiting');
    const roomBytes = Math.min(kv.roomBytes, room.poolRoomBytes ?? kv.roomBytes) - besideBytes;
    let pages = end;
    while (pages > first && copyBytes(lender.kv, terms.context, first, pages) > roomBytes) pages--;
    return pages;
  }

  /** Tokens that every layer holds; while its pages are parked, those that it holds when they are back. */
  get length(): number {
    return this.#length;
  }

  /** So many tokens were appended to every layer. */
  advanced(tokensNew: number): void {
    this.promised.end();
    this.#holds(this.#length + tokensNew);
  }

  /**
   * Stored pages and rows of so many tokens were put into this cache, which was empty. trials: what the queue of the
   * cache that they come from had found.
   */
  filled(tokens: number, trials?: TrialsLeft): void {
    assert(this.#length === 0, `a cache of ${this.#length} tokens was filled with ${tokens}`);
    this.#holds(tokens);
    if (trials !== undefined) this.trials.follow(trials);
  }

  /**
   * The native cache holds so many tokens in its first layer and in its last, and so in those between, which steps go
   * through in order.
   */
  #holds(tokens: number): void {
    const [first, last] = [this.kv.length(0), this.kv.length(this.shape.layers - 1)];
    if (first !== tokens || last !== tokens)
      assert(false, `layers of cache ${this.id} hold ${first} to ${last} tokens, and ${tokens} are counted`);
    this.#length = tokens;
  }

  /** True if memory is short, as somebody outside says. */
  get lowMemory(): boolean {
    return this.#lowMemory;
  }

  /** Somebody outside says that memory is short, or no longer; seen at the next scheduling point. */
  memoryIsLow(isLow: boolean): void {
    this.#lowMemory = isLow;
  }

  /** Something was learnt of its text, and the next situation tells it: of each kind the newest. */
  heard(evidence: Heard): void {
    this.#heard = { ...this.#heard, ...evidence };
  }

  /** What was asked of its beginning; null: nothing yet. */
  get prefix(): Prefix | null {
    return this.#prefix;
  }

  /** What it leaves to those who begin alike. */
  remember(prefix: Prefix): void {
    this.#prefix = prefix;
  }

  /** What kind of text it holds, as far as its owner knows. */
  get content(): Content {
    return this.#content;
  }

  /** Its owner has found out what kind of text it holds. */
  recognized(content: Content): void {
    this.#content = content;
  }

  /** What helpers said of its text; null: nothing. */
  get hint(): TextHint | null {
    return this.#hint;
  }

  /** A helper said something of its text. */
  hinted(hint: TextHint): void {
    this.#hint = hint;
  }

  /** What is known of its pages while they are parked and the native cache is empty; null: they are there. */
  get away(): Away | null {
    return this.#away;
  }

  /** Its pages have been stored elsewhere: their memory is freed. */
  parked(away: Away): void {
    assert(this.#away === null, `cache ${this.id} is parked twice`);
    this.vacate();
    this.#away = away;
  }

  /**
   * Its parked pages are in the native cache again, or are of no use: then that is empty, and its tokens must be read
   * again.
   */
  cameBack(): void {
    const held = this.kv.length();
    const away = this.#away;
    assert(away !== null, `cache ${this.id} came back and was not parked`);
    assert(held === 0 || held === this.#length, `cache ${this.id} came back with ${held} of ${this.#length} tokens`);
    this.#away = null;
    // What was predicted has lost a little, and the log does not tell by what.
    if (held > 0 && away.place === 'memory') this.descent.leaves('parked');
    if (held > 0) this.#tellMovedMeanwhile(away);
  }

  /** Those with whom it holds pages together may have moved them while it was away. */
  #tellMovedMeanwhile({ tables, kvBytes }: Away): void {
    const { heldPages } = this.kin;
    const changes = tables.flatMap((table, layer) => {
      const [before, now] = [formsBySide(table), formsBySide(this.kv.table(layer))];
      return Array.from({ length: heldPages }, (_, page) => page).flatMap((page) =>
        SIDES.flatMap((side): FormChange[] => {
          const [from, to] = [before[side][page]!, now[side][page]!];
          return from === 'freed' || to === 'freed' || from === to ? [] : [{ layer, page, side, from, to }];
        }),
      );
    });
    this.mover.tell({ cause: 'shared', tokens: this.#length }, changes, Math.min(kvBytes, this.peakBytes));
  }

  /** Sequence number of the first log entry, −1 before it and where none is written. */
  get openSeq(): number {
    return this.#openSeq;
  }

  /** What it keeps of pages outside of its budget; null: nothing. */
  get originalsReport(): OriginalsReport | null {
    return this.originals?.report(this.promoted?.everRaised) ?? null;
  }

  /** The budget that could not be kept beside the other one. */
  get gaveWay(): Priority | null {
    return this.#gaveWay;
  }

  /** Lets the lower-ranked of two budgets give way, because both cannot be kept. The log says so once. */
  giveWay(which: Priority, neededBytes = 0): void {
    const { budgetBytes, terms, length } = this;
    const session = this.id;
    if (which === 'bytes') this.room.gaveWay(neededBytes);
    if (this.#gaveWay === which) return;
    this.#gaveWay = which;
    this.meter.fallbacks.add({ reason: which === 'kld' ? 'kld-budget' : 'byte-budget' });
    if (which === 'bytes')
      this.meter.tell('byte-budget-gave-way', { session, tokens: length, budgetBytes: budgetBytes!, neededBytes });
    else {
      const nats = { budgetNats: terms.kldBudget!, predictedNats: this.summary.predictedKld };
      this.meter.tell('divergence-budget-gave-way', { session, tokens: length, ...nats });
    }
    this.mover.write('note', { gaveWay: which, tokens: length, budgetBytes, kldBudget: terms.kldBudget });
  }

  /**
   * The byte budget of this cache and its forks without the bytes of kept originals: as planned until it has given way
   * to the divergence budget, and at most what others leave of a shared pool, what idle ones would give up included.
   */
  get budgetBytes(): number | null {
    return this.room.budgetBytes;
  }

  /** Bytes without those of kept originals, and without what promoted pages take more. */
  get usedBytes(): number {
    return this.room.usedBytes;
  }

  /** Bytes of the originals that this cache and its relatives keep. */
  get canaryBytes(): number {
    return this.room.canaryBytes;
  }

  /** Tokens that are best read at once: up to where the next page fills up or leaves the window. */
  get tokensAtOnce(): number {
    const { windowTokens = PAGE_TOKENS } = this.terms.context;
    return windowTokens - (this.length % windowTokens);
  }

  get peakBytes(): number {
    return Math.max(this.#peakBytes, this.kv.peakBytes);
  }

  get summary(): PolicySummary {
    return this.policy.summary();
  }

  /** What computes it, as the log names it. */
  get machine(): NonNullable<OpenBody['machine']> {
    return machineOf(this.#options.native.threads ?? 1);
  }

  /** Writes the first entry, once. */
  begin(): void {
    if (this.log === null || this.#openSeq >= 0) return;
    const { policy, policyOptions, policyModule, context, budgetBytes } = this.terms;
    const { model, adapters, proposal, activations, requested, effective, foresight } = this.#options.opened;
    const seq = this.log.append(this.id, 'open', {
      model,
      shape: this.shape,
      machine: this.machine,
      ...given({ adapters, proposal, activations }),
      policy: {
        id: policy.id,
        version: policy.version,
        options: policyOptions,
        machine: machineDigest(),
        ...(policyModule === undefined ? {} : { module: policyModule }),
      },
      context,
      ...given({ foresight }),
      requested,
      effective: { budgetBytes, policy: policy.id, windowFormat: context.windowFormat, ...effective },
    });
    this.#openSeq = seq ?? -1;
    const { lookup, fingerprint } = this.#options.evidence ?? {};
    if (lookup == null || fingerprint === undefined) return;
    this.log.append(this.id, 'evidence', {
      fingerprint,
      neighbours: lookup.neighbours,
      thresholds: context.thresholds,
    });
  }

  #openStated(budgetNats: number): Stated {
    const { id: session, meter } = this;
    return new Stated({ session, budgetNats, meter, note: (body) => this.mover.write('note', body) });
  }

  #openGrowing(): Growing {
    const { id: session, meter } = this;
    return new Growing({
      ...{ session, meter, tokensExpected: this.terms.tokensExpected },
      contextTokens: this.#options.contextTokens ?? null,
      note: (body) => this.mover.write('note', body),
    });
  }

  #openPromoted(originals: Originals): Promoted {
    return new Promoted({
      cache: this.kv,
      originals,
      isShared: () => this.hasForks,
      note: (body) => this.mover.write('note', body),
      arrows: this.arrows,
      stateOf: this.#stateOf,
    });
  }

  #openPacks(pack: SessionPack): PackPages {
    return new PackPages({
      ...{ pack, kv: this.kv, attention: this.#options.native, lowest: lowestPair(this.terms.context.floor) },
      mayGoBack: () => this.sliding.hasWays,
      isShared: (page) => page < this.kin.heldPages,
      onLeft: (why, pages) =>
        this.mover.write('note', { packLeft: this.terms.context.pack?.id, pages, why, tokens: this.#length }),
    });
  }

  /**
   * Attention of the last rows of a layer, with what pages in the pack of the session add to it. `beside`: what the
   * caller has of that already.
   */
  attend(layer: number, q: Float32Array, out: Float32Array, xNorms: Float32Array | undefined): void {
    const beside = this.packs === null ? undefined : this.#beside(layer, q);
    this.kv.attend(layer, q, out, given({ xNorms, beside }));
  }

  #beside(layer: number, q: Float32Array): Beside | undefined {
    const { queryHeads, headDim } = this.shape;
    const tokens = q.length / (queryHeads * headDim);
    const beside = { lse: new Float32Array(tokens * queryHeads), out: new Float32Array(q.length) };
    const first = this.kv.length(layer) - tokens;
    return this.packs!.beside(layer, q, first, beside.lse, beside.out) ? beside : undefined;
  }

  /** No page goes to the pack from now on, and those that are there go on in a format of ours. */
  leavePack(): void {
    this.packs?.leave();
  }

  #openRemaking(): Remaking {
    const { kv: cache, digests, originals, promoted } = this;
    const latentBytes = (format: LatentName): number => this.latents!.bytesOf(format);
    return new Remaking({ cache, digests, originals, promoted, latentBytes });
  }

  #openMending(): Mending {
    const { id: session, kv: cache, digests, remaking, meter } = this;
    return new Mending({
      session,
      cache,
      digests,
      remaking,
      meter,
      note: (body) => this.mover.write('note', body),
      onMended: (side) => this.kin.mended(side),
      isShared: () => this.hasForks,
      lowest: (side) => this.terms.context.floor?.[side] ?? LOWEST_FORMATS[side],
      change: (layer, page, work) => {
        this.mover.change({ cause: 'restore', layer, page, tokens: this.#length }, work);
      },
    });
  }

  #openOriginals(terms: OriginalsTerms): Originals {
    const { windowFormat } = this.terms.context;
    const onLost = (error: KvError): void => this.#lostOriginals(error);
    return new Originals({ cache: this.kv, terms, windowFormat, onLost });
  }

  /** Originals are gone for good: whoever keeps the engine is told, and the log is. */
  #lostOriginals(error: KvError): void {
    if (this.#closed) return;
    const { id: session, length: tokens } = this;
    this.meter.tell('originals-lost', { session, tokens, code: error.code });
    this.log?.append(session, 'note', { originalsLost: error.code, tokens });
  }

  /** The server that start values were asked of, as it was then; null: none was. */
  get shared(): SharedStatus | null {
    return this.#options.evidence?.lookup?.shared ?? null;
  }

  /** Tells whether earlier sessions were found to start from, where any were asked for. */
  #tellStart(): void {
    const lookup = this.#options.evidence?.lookup ?? null;
    if (lookup === null) return;
    const { id: session, meter } = this;
    const { length: sessions } = lookup.neighbours;
    if (sessions > 0) meter.tell('thresholds-found', { session, sessions });
    else meter.tell('thresholds-not-found', { session });
  }

  /**
   * The way back to a length, where the cache is now unless another is named, for one that reads `tokensNew` behind it.
   * Whoever asked closes it. Throws 'unsupported' where pages are freed that would be seen from there.
   */
  wayBack(tokensNew: number, tokens = this.length): WayBack {
    const { kv, kin, shape, latents, hasForks, terms, room, sliding } = this;
    const { windowFormat } = terms.context;
    const hasRoom = (): boolean => room.leaves(room.forkBytes);
    sliding.checkBack(tokens);
    // Pages in a pack cannot be put into a cache that is opened anew, so they are held by a fork of this one.
    const inPack = (this.packs?.count ?? 0) > 0;
    const way = new WayBack(
      { kv, shape, latents, hasForks: hasForks || inPack, isShared: kin.isShared || inPack, hasRoom, windowFormat },
      tokens,
      tokensNew,
      () => sliding.forget(way),
    );
    // Where it goes right away, nothing comes between.
    if (tokensNew > 0) sliding.keepFor(way);
    return way;
  }

  /** True if it can go back to this length: nothing that is freed is seen from there. */
  reaches(tokens: number): boolean {
    return this.sliding.reaches(tokens);
  }

  /** Frees the pages that sliding windows have left behind. */
  freeBehind(): void {
    const pages = this.sliding.due(this.#length);
    if (pages.length === 0) return;
    for (const { layer, page } of pages) this.promoted?.release(layer, page, 'kv');
    this.mover.free(pages, this.#length);
    this.packs?.changed();
    // The next plan tells it.
    this.pacing.reported();
  }

  /** Takes `way`: moves of pages that are still there stay made. `takeBack` of step.ts tells the policy. */
  goBack(way: WayBack): void {
    const { tokens } = way;
    if (tokens < firstToken(this.kv.table(0).pages) || tokens < this.mover.changedAt)
      this.descent.leaves('taken-back', tokens);
    this.promised.end();
    this.trials.takeBack(tokens);
    this.pacing.takeBack(tokens);
    this.sliding.takeBack(tokens);
    this.#peakBytes = this.peakBytes;
    const pages = pageOf(tokens);
    this.#backInWindow(tokens);
    const pagesGo = this.kv.table(0).pages > pages;
    // A fork may hold these pages on, and nobody would count their originals.
    if (pagesGo && way.isInPlace) this.canaries.dropAll(pages);
    const holds = this.kin.heldPages > 0 && !this.hasForks;
    const isSame = way.take(() => this.#reopen(), holds);
    this.mending.cut(isSame ? pages : 0);
    this.packs?.changed();
    if (!isSame || pagesGo) this.masses.forget(tokens);
    this.canaries.sync();
    this.promoted?.cut(pages);
    this.originals?.cut(pages);
    // What was put in the place of its pages is its own.
    this.kin.cut(way.isRebuilt ? 0 : pages);
    this.#holds(tokens);
  }

  /** Pages that are in the window at this length again, or gone, take their arrow. */
  #backInWindow(tokens: number): void {
    const { windowTokens } = this.terms.context;
    const [first, end] = [movablePages(tokens, windowTokens), movablePages(this.#length, windowTokens)];
    for (let layer = 0; first < end && layer < this.shape.layers; layer++) {
      const forms = formsBySide(this.table(layer));
      for (let page = first; page < end; page++) {
        for (const side of SIDES) {
          const form = forms[side][page]!;
          // What is promoted stays so, unless its page goes.
          const isPromoted = (this.promoted?.lowForm(layer, page, side) ?? null) !== null;
          if (isPromoted && page < pageOf(tokens)) continue;
          const kept = form === 'freed' ? this.terms.context.windowFormat : form;
          this.arrows.take(isPromoted ? 'promoted' : this.#stateOf(page, form), 'takeBack', kept);
        }
      }
    }
  }

  /**
   * Frees the memory of the native cache, which is empty then; whoever has taken what was in it puts it back. What
   * attention has seen is forgotten.
   */
  vacate(): void {
    if (this.kv.length() > 0) this.trials.finish();
    this.promoted?.giveBack();
    this.canaries.dropAll();
    this.mending.cut();
    this.#peakBytes = this.peakBytes;
    this.kv.become(() => this.#reopen());
    this.packs?.emptied();
    this.kin.cut(0);
    this.masses.forget(this.length);
  }

  #reopen(): KvCache {
    const kv = openNative(this.#options, this.pool, this.room.ownBytes);
    setShares(kv, this.terms);
    return kv;
  }

  /** True if a fork shares its pages. */
  get hasForks(): boolean {
    return this.kin.hasOthers;
  }

  /** The pages of a layer; while they are parked, as they come back. */
  table(layer: number): PageTable {
    return this.#away?.tables[layer] ?? this.kv.table(layer);
  }

  /**
   * What latents are made of x, the inputs of a layer [T, width]; nothing where none are kept. Throws what
   * Latents.check throws.
   */
  inputs(layer: number, x: Float32Array | undefined, tokens: number): CheckedInputs | undefined {
    return this.latents?.check(layer, x, tokens, this.length);
  }

  /** Appends T tokens to a layer. A refused call has appended nothing. */
  append(layer: number, k: Float32Array, v: Float32Array, inputs: CheckedInputs | undefined): void {
    const bytes = this.bytesBefore();
    this.kv.append(layer, k, v);
    this.appended(layer, { tokens: k.length / (this.shape.kvHeads * this.shape.headDim), inputs, bytes });
  }

  /** What `appended` is told by a caller that appends to the native cache by itself, beside others; null: nothing. */
  bytesBefore(): number | null {
    return this.promised.bytes > 0 ? this.kv.usedBytes : null;
  }

  /** A layer of the native cache has tokens more. */
  appended(
    layer: number,
    {
      tokens,
      inputs,
      bytes,
    }: { readonly tokens: number; readonly inputs: CheckedInputs | undefined; readonly bytes: number | null },
  ): void {
    if (inputs !== undefined)
      for (const page of this.latents!.add(layer, inputs, tokens, this.length)) this.digests.after(layer, page, 'kv');
    if (bytes !== null) this.promised.took(this.kv.usedBytes - bytes);
  }

  /** Situations that the policy has seen so far. */
  get situations(): number {
    return this.#index;
  }

  /** Makes the situation that the policy sees now. Its budget is smaller than the real one by what must stay free. */
  situate(now: Now): Situation {
    const { budgetBytes, canaryBytes } = this;
    const canaries = this.canaries.take();
    const damaged = this.mending.take();
    const { kldBudget, tokensExpected, stepLatencyBudgetMs } = this.terms;
    const { changes, again, masses } = now;
    const heard = this.#heard;
    this.#heard = {};
    const sharers = this.#newSharers();
    return {
      index: this.#index++,
      tokens: this.length,
      bytes: now.bytes,
      sealBytes: now.sealBytes,
      // Others may leave less than must stay free.
      budgetBytes: budgetBytes === null ? null : Math.max(0, budgetBytes - this.room.spareBytes),
      kldBudget,
      tokensExpected,
      movesMax: now.movesMax,
      urgent: now.urgent,
      lowMemory: this.#lowMemory,
      stepLatencyMsP95: now.stepLatencyMsP95,
      stepLatencyBudgetMs,
      trials: now.trials,
      outcomes: now.outcomes,
      ...(changes.length === 0 ? {} : { changes }),
      ...(again.length === 0 ? {} : { again }),
      ...heard,
      ...given({ sharers }),
      ...(canaryBytes === 0 ? {} : { canaryBytes }),
      ...(canaries.length === 0 ? {} : { canaries }),
      ...(damaged.length === 0 ? {} : { damaged }),
      ...(masses.length === 0 ? {} : { masses }),
    };
  }

  /** Who holds pages together with it, where that is not as a situation told it last. */
  #newSharers(): readonly SharedPages[] | undefined {
    const sharers = this.kin.sharers();
    const told = JSON.stringify(sharers);
    if (told === this.#sharersTold) return undefined;
    this.#sharersTold = told;
    return sharers;
  }

  get hasFailed(): boolean {
    return this.#failure !== null;
  }

  /**
   * Does work and counts its time. After a failure the policy has seen what the log has not: nothing is decided any
   * more, every later call fails the same way.
   */
  governing(work: () => void): void {
    if (this.#failure !== null) throw this.#failure.error;
    try {
      this.tally.deciding(work);
    } catch (error) {
      // Running out of room is not a failure: nothing was half done, and there may be room later.
      if (!(error instanceof KvError && error.code === 'budget-too-small')) this.#failure = { error };
      throw error;
    }
  }

  /** Does what PolicyCache.restore says. */
  restore(layer: number, page: number, format: FormatName = this.terms.context.windowFormat): number {
    const { latents, originals } = this;
    // Leave a page that does not exist to the native cache, which names it.
    const isIn = (index: number, count: number): boolean => Number.isInteger(index) && index >= 0 && index < count;
    const isThere = isIn(layer, this.shape.layers) && isIn(page, sealedPages(this.#length));
    if (originals !== null && isThere && latentOf(this.kv.table(layer), page) === null)
      return restoreOriginals(this, { layer, page, format });
    if (latents === null) throw noLatents(layer, page);
    if (!isThere) return latents.restore(layer, page, format);
    if (originals !== null) checkUnshared(this, { layer, page });
    const usedBytes = this.kv.usedBytes;
    if (!this.mending.beforeRestoring(layer, page, format)) {
      this.#restoreDamaged(layer, page, format);
      return this.kv.usedBytes - usedBytes;
    }
    return this.mover.change({ cause: 'restore', layer, page, tokens: this.#length }, () => {
      const grown = latents.restore(layer, page, format);
      this.remaking.refine(layer, page, format);
      return grown;
    });
  }

  /** Of a page whose latent is damaged: what was made of originals already is made as it was asked for. */
  #restoreDamaged(layer: number, page: number, format: FormatName): void {
    const isHeld = latentOf(this.kv.table(layer), page)?.isHeld === true;
    if (isHeld || this.originals === null)
      throw new KvError('checksum-mismatch', `the latent of page ${page} of layer ${layer} is damaged`, {
        values: { layer, page, format },
        hint: "give sessions originals: 'disk', and room for the format",
      });
    restoreOriginals(this, { layer, page, format });
  }

  memoryUsage(): MemoryUsage {
    const memory = this.kv.memory();
    return {
      ...memory,
      scratchBytes: memory.scratchBytes + (this.latents?.scratchBytes ?? 0),
      latentBytes: this.latents?.keptBytes ?? 0,
      parkedBytes: this.#away?.heldBytes ?? 0,
      budgetBytes: this.terms.budgetBytes,
      peakBytes: this.peakBytes,
      reservedBytes: this.pool.reservedBytes,
      f16Bytes: f16CacheBytes(this.shape, this.length),
    };
  }

  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.group?.leave(this);
    this.promised.end();
    // Nobody would probe what relatives still share.
    if (this.hasForks) this.canaries.dropAll();
    this.originals?.close();
    this.packs?.close();
    this.kv.close();
    // Forks count bytes in the same pool: the last one closes it.
    const isLast = this.kin.leave();
    if (isLast && this.#options.pool === undefined) this.pool.close();
  }
}

/** What computes a cache, as the log names it. */
function machineOf(threads: number): NonNullable<OpenBody['machine']> {
  const { isa, binding, abi, compiler } = nativeInfo();
  return { isa, binding, build: `palimpsest ${packageVersion()}, binary ${abi}, ${compiler}`, threads };
}

/** What a session with pages in a pack does not do. */
export const withoutPack = (what: string, why: string): KvError =>
  new KvError('unsupported', `a session with the option 'pack' cannot ${what}: ${why}`, {
    values: { option: 'pack' },
    hint: 'open it without a pack',
  });

/** What attention may leave out. The policy has checked the thresholds. */
function setShares(kv: KvCache, { context: { thresholds } }: Terms): void {
  kv.setSkipShare(thresholdOf(thresholds, 'attention.skip').value);
}
