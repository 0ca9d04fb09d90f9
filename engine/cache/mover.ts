/**
 * The mover: the one place where a page changes its form. A change happens and becomes an entry of the log, or neither;
 * a planned move that was refused becomes an entry as well.
 */
import { assert, FORMATS, isFreed, type KvCache, SIDES, type Side } from '../../native/index.ts';
import {
  type Decision,
  type FormArrows,
  type FormChange,
  type FormEventType,
  type FormState,
  isLatent,
  isToPack,
  type LaterForm,
  type Outcome,
  type PageForm,
  type Situation,
  type Verdict,
} from '../../policy/index.ts';
import { type ChangeBody, checkWritten, type EntryBodies, type WitnessLog } from '../../witness/index.ts';
import type { Meter } from '../metrics/meter.ts';
import type { Originals } from '../originals/originals.ts';
import type { Canaries } from './canaries.ts';
import { formsOf, latentOf } from './forms.ts';
import type { OnMove } from './kin.ts';
import type { Mending } from './mending.ts';
import type { PackPages } from './pack-pages.ts';
import type { PageDigests } from './page-digests.ts';
import type { PageOfLayer } from './sliding.ts';
import type { Tally } from './tally.ts';

/** Which way of the machine of forms a page goes that changes without a decision. */
const WAYS = { restore: 'materialize', degraded: 'materialize', 'give-back': 'giveBack' } as const satisfies Readonly<
  Partial<Record<ChangeBody['cause'], FormEventType>>
>;

/** What a mover works on and with. */
interface MoverParts {
  /** The id under which it writes. */
  readonly session: string;
  readonly cache: KvCache;
  readonly log: WitnessLog | null;
  readonly meter: Meter;
  readonly tally: Tally;
  readonly canaries: Canaries;
  /** Whether the codes of demoted sides are what they were. */
  readonly digests: PageDigests;
  readonly mending: Mending;
  /** Null where none are kept. */
  readonly originals: Originals | null;
  /** Pages in the codec of a pack; null where there is none. */
  readonly packs: PackPages | null;
  /** Latents go with the first of a page's sides that moves. */
  readonly dropsLatents: boolean;
  /** Hears of every move that was decided. */
  readonly onMove: OnMove;
  /** What pages' sides are asked for before they change, and counted in. */
  readonly arrows: FormArrows;
  /** The state of a side of a page that is in this form and not promoted. */
  readonly stateOf: (page: number, form: LaterForm) => FormState;
}

/** A decision on which the policy has given its verdict. */
interface JudgedMove {
  readonly situation: Situation;
  /** Its place among the decisions of that situation. */
  readonly order: number;
  readonly decision: Decision;
  readonly epsilonNow: number | null;
  readonly verdict: Verdict;
  /** Bytes before the move, without kept originals. */
  readonly usedBytes: number;
  /** Bytes that kept originals may take. */
  readonly canaryBytesMax: number;
}

/** What changed the form of pages, at how many tokens. */
interface Cause {
  readonly cause: ChangeBody['cause'];
  readonly tokens: number;
}

/** An accepted move and its entry in the log. */
interface NotableMove extends FormChange {
  readonly seq: number;
  readonly epsilon: number;
}

export class Mover {
  #notable: NotableMove | null = null;
  readonly #session: string;
  readonly #cache: KvCache;
  readonly #log: WitnessLog | null;
  readonly #meter: Meter;
  readonly #tally: Tally;
  readonly #canaries: Canaries;
  readonly #digests: PageDigests;
  readonly #mending: Mending;
  readonly #originals: Originals | null;
  readonly #packs: PackPages | null;
  readonly #dropsLatents: boolean;
  readonly #onMove: OnMove;
  readonly #arrows: FormArrows;
  readonly #stateOf: MoverParts['stateOf'];
  #outcomes: Outcome[] = [];
  #changes: FormChange[] = [];
  #changesSoFar = 0;
  #changedAt = 0;
  #lastSeq = -1;

  constructor(parts: MoverParts) {
    const { session, cache, log, meter, tally, canaries, digests, mending, originals } = parts;
    const { packs, dropsLatents, onMove, arrows, stateOf } = parts;
    this.#session = session;
    this.#cache = cache;
    this.#log = log;
    this.#meter = meter;
    this.#tally = tally;
    this.#canaries = canaries;
    this.#digests = digests;
    this.#mending = mending;
    this.#originals = originals;
    this.#packs = packs;
    this.#dropsLatents = dropsLatents;
    this.#onMove = onMove;
    this.#arrows = arrows;
    this.#stateOf = stateOf;
  }

  /** The accepted move with the largest ε so far: the one worth asking about. */
  get notable(): NotableMove | null {
    return this.#notable;
  }

  get waitingOutcomes(): number {
    return this.#outcomes.length;
  }

  /** What became of the moves since the last call, the first `most` of it. */
  takeOutcomes(most: number): readonly Outcome[] {
    const outcomes = this.#outcomes;
    this.#outcomes = outcomes.slice(most);
    return outcomes.length <= most ? outcomes : outcomes.slice(0, most);
  }

  /** Times that pages changed their form, by a decision or otherwise: where it is the same, so are they. */
  get changesSoFar(): number {
    return this.#changesSoFar;
  }

  /** Tokens of the cache when a page last changed its form. */
  get changedAt(): number {
    return this.#changedAt;
  }

  /** Of the last entry that the log took, −1 before it. */
  get lastSeq(): number {
    return this.#lastSeq;
  }

  /**
   * Carries out a decision if its verdict accepts it, and logs it either way. → bytes freed. Throws 'bad-value' for
   * one that the log cannot hold.
   */
  carryOut({ situation, order, decision, epsilonNow, verdict, usedBytes, canaryBytesMax }: JudgedMove): number {
    const { index, tokens } = situation;
    const { layer, page, side, from, to } = decision;
    const { accepted } = verdict;
    const made = { situation: index, order, decision, epsilonNow, verdict, bytesBefore: usedBytes, tokens };
    // What a policy of one's own answered may be what no entry can hold: then the page stays as it is.
    checkWritten('decision', { ...made, bytesAfter: usedBytes });
    const bytesFreed = accepted ? this.#move(decision, tokens, canaryBytesMax) : 0;
    if (accepted) this.#onMove({ layer, page, side, from, to }, usedBytes);
    if (accepted) this.#tally.moved(layer, decision.epsilonTo);
    else this.#tally.refusedMove(layer);
    this.#meter.decision(decision, verdict);
    this.#outcomes.push({ layer, page, side, from, to, accepted, epsilonNow, bytesFreed });
    const seq = this.write('decision', { ...made, bytesAfter: usedBytes - bytesFreed });
    if (seq === null && this.#log !== null) this.#meter.dropped.add({});
    const epsilon = decision.epsilonTo ?? 0;
    if (accepted && seq !== null && epsilon >= (this.#notable?.epsilon ?? 0))
      this.#notable = { seq, epsilon, layer, page, side, from, to };
    return bytesFreed;
  }

  /** Makes a change of a page that no policy decided, and tells the policy and the log. → bytes freed */
  change(
    { layer, page, ...cause }: Cause & { cause: keyof typeof WAYS; layer: number; page: number },
    work: () => number,
  ): number {
    this.#changedAt = cause.tokens;
    const before = formsOf(this.#cache, layer, page);
    const bytesBefore = this.#cache.usedBytes;
    const bytesFreed = work();
    this.#canaries.sync();
    const after = formsOf(this.#cache, layer, page);
    // Both sides of a page that was held as a latent are in the format in which they were made again.
    const changes = before.flatMap(({ side, form: from }, i) => {
      const to = after[i]!.form;
      return from === 'freed' || to === 'freed' || from === to ? [] : [{ layer, page, side, from, to }];
    });
    for (const one of changes) this.goes(cause.cause, one);
    this.tell(cause, changes, bytesBefore);
    return bytesFreed;
  }

  /** A side goes the way that this cause stands for: one that the machine of forms does not have is a fault. */
  goes(cause: keyof typeof WAYS, { page, from, to }: { page: number; from: PageForm; to: PageForm }): void {
    this.#arrows.take(this.#stateOf(page, from), WAYS[cause], to);
  }

  /** Frees pages that the sliding windows of their layers have left behind, with what was kept of them. */
  free(pages: readonly PageOfLayer[], tokens: number): void {
    const bytesBefore = this.#cache.usedBytes;
    const changes = pages.flatMap(({ layer, page }) =>
      formsOf(this.#cache, layer, page).flatMap(({ side, form }) =>
        form === 'freed' ? [] : [{ layer, page, side, from: form, to: 'freed' } as const],
      ),
    );
    for (const { page, from } of changes) this.#arrows.take(this.#stateOf(page, from), 'free', from);
    for (const { layer, page } of pages) {
      this.#canaries.drop(layer, page);
      this.#originals?.drop(layer, page);
      this.#cache.freePage(layer, page);
    }
    this.tell({ cause: 'sliding-window', tokens }, changes, bytesBefore);
  }

  /** Pages have changed their form: the log has it, and the next situation tells the policy. */
  tell({ cause, tokens }: Cause, changes: readonly FormChange[], bytesBefore: number): void {
    if (changes.length === 0) return;
    this.#changedAt = tokens;
    this.#changesSoFar++;
    this.#changes.push(...changes);
    this.write('change', { cause, changes, bytesBefore, bytesAfter: this.#cache.usedBytes, tokens });
  }

  takeChanges(): readonly FormChange[] {
    const changes = this.#changes;
    this.#changes = [];
    return changes;
  }

  write<K extends keyof EntryBodies>(kind: K, body: EntryBodies[K]): number | null {
    if (this.#log === null) return null;
    const start = performance.now();
    const seq = this.#log.append(this.#session, kind, body);
    const ms = performance.now() - start;
    this.#tally.entryTook(ms);
    this.#meter.appendSeconds.observe(ms / 1000);
    this.#lastSeq = seq ?? this.#lastSeq;
    return seq;
  }

  #move(decision: Decision, tokens: number, canaryBytesMax: number): number {
    const { side } = decision;
    this.#changedAt = tokens;
    this.#changesSoFar++;
    const start = performance.now();
    const bytesFreed =
      decision.to === 'freed'
        ? this.#evict(decision)
        : side === 'kv'
          ? this.#toLatent(decision)
          : this.#transcode(decision, side, tokens, canaryBytesMax);
    if (!this.#isIn(decision)) this.#meter.mismatches.add({});
    this.#tally.moveTook(performance.now() - start);
    return bytesFreed;
  }

  /** True if a page is in the form that was decided: asked of the cache, not of what was asked of it. */
  #isIn({ layer, page, side, to }: Decision): boolean {
    if (to === 'freed') return isFreed(this.#cache.table(layer), page);
    if (side !== 'kv') return this.#cache.format(layer, page, side) === to;
    const latent = latentOf(this.#cache.table(layer), page);
    return latent?.isHeld === true && latent.name === to;
  }

  /** Lets go of a page, with what was kept of it, or has it go to the pack. */
  #evict(decision: Decision): number {
    const { layer, page } = decision;
    for (const { form } of formsOf(this.#cache, layer, page))
      if (form !== 'freed') this.#arrows.take(this.#stateOf(page, form), 'free', form);
    this.#canaries.drop(layer, page);
    this.#originals?.drop(layer, page);
    return isToPack(decision) ? this.#packs!.hold(layer, page) : this.#cache.evictPage(layer, page);
  }

  #toLatent({ layer, page, from, to }: Decision): number {
    assert(
      to !== 'freed' && isLatent(to),
      `layer ${layer} page ${page} is to go from ${from} to ${to}, which is no latent`,
    );
    for (const { form } of formsOf(this.#cache, layer, page))
      this.#arrows.take(this.#stateOf(page, form), 'rematerialize', to);
    // Keys and values go with this move; those of a page that is a latent already are gone.
    if (!isLatent(from)) for (const side of SIDES) this.#originals?.before(layer, page, side);
    // A lower one that is made of codes that were damaged is damaged.
    const isSound = this.#digests.isSound(layer, page, 'kv');
    const bytesFreed = this.#cache.toLatent(layer, page, to);
    this.#digests.after(layer, page, 'kv', isSound);
    return bytesFreed;
  }

  #transcode(decision: Decision, side: Side, tokens: number, canaryBytesMax: number): number {
    const { layer, page, from, to } = decision;
    assert(
      !isLatent(from) && to !== 'freed' && !isLatent(to),
      `the ${side} side of layer ${layer} page ${page} is to go from ${from} to ${to}`,
    );
    // It can no longer take the place of both sides.
    const latentBytes =
      this.#dropsLatents && latentOf(this.#cache.table(layer), page) !== null ? this.#cache.dropLatent(layer, page) : 0;
    this.#originals?.before(layer, page, side);
    const now = this.#cache.format(layer, page, side);
    // A page that was restored from its latent is better than the policy knows, and may still be moved.
    if (FORMATS[now].rank > FORMATS[from].rank)
      assert(false, `decision of layer ${layer} page ${page} ${side} says ${from}, the cache says ${now}`);
    const isFiner = FORMATS[to].rank < FORMATS[now].rank;
    if (to !== now) this.#arrows.take(this.#stateOf(page, now), isFiner ? 'putBack' : 'demote', to);
    const move = { ...decision, side, from, to };
    this.#mending.before(layer, page, side);
    const bytesFreed = isFiner
      ? this.#canaries.restore(layer, page, side)
      : this.#canaries.before(move, tokens, canaryBytesMax) + this.#cache.transcode(layer, page, side, to);
    if (!isFiner) this.#canaries.after(move);
    this.#digests.after(layer, page, side);
    return latentBytes + bytesFreed;
  }
}
