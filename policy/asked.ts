/**
 * The one way to open a session of a policy, a policy of one's own included. Each move that it plans is asked of
 * `unsafe` just before it would be carried out, when the moves before it have been made or refused, and an unsafe one
 * is refused: the log has the reason, and the policy hears of it among the outcomes, as of any other refusal. Deciding
 * again from the log goes the same way.
 */
import { type FormatName, isFormatName, movablePages, PARTS, SIDES, type Side } from '../native/index.ts';
import type { Course } from './course.ts';
import { rank } from './ladder.ts';
import { type GuardSeen, LatentGuard } from './latent-guard.ts';
import { PackOffers } from './packs.ts';
import { isRemade, type Remade } from './sides.ts';
import type {
  Because,
  CanaryReport,
  Decision,
  LayerChange,
  Policy,
  PolicyContext,
  PolicySession,
  PolicySummary,
  Situation,
  Verdict,
  WantedSide,
} from './types.ts';
import { type Unsafe, unsafe, unsafeRule } from './unsafe.ts';

/** Begins a session whose unsafe moves are refused. Throws what `open` of the policy throws. */
export const openPolicy = (policy: Policy, context: PolicyContext): PolicySession =>
  new AskedSession(policy.open(context), context, policy.evicts === true);

const NO_CANARIES: readonly CanaryReport[] = [];
const NO_SIDES: readonly WantedSide[] = [];

type Moved = Pick<Decision, 'layer' | 'page' | 'side' | 'to'>;

class AskedSession implements PolicySession {
  readonly #session: PolicySession;
  readonly #context: PolicyContext;
  readonly #evicts: boolean;
  /** Forms of the page sides that are not in the window format. */
  readonly #forms = new Map<number, FormatName>();
  /** Pages of which nothing is left, by the keys of their keys. */
  readonly #freed = new Set<number>();
  /** Pages that are held as latents, likewise. */
  readonly #held = new Set<number>();
  readonly #guard: LatentGuard;
  /** Null where no pack may have pages. */
  readonly #packs: PackOffers | null;
  /** What the guard of latents compares; null: nothing yet, or it is urgent, so that it gives way. */
  #guarded: GuardSeen | null = null;
  #tokens = 0;
  #canaries = NO_CANARIES;

  constructor(session: PolicySession, context: PolicyContext, evicts: boolean) {
    this.#session = session;
    this.#context = context;
    this.#evicts = evicts;
    this.#guard = new LatentGuard(context);
    const { pack } = context;
    this.#packs = pack === undefined ? null : new PackOffers(context, pack, (...side) => this.#form(...side));
  }

  decide(situation: Situation): readonly Decision[] {
    this.#see(situation);
    if (this.#packs === null) return this.#session.decide(situation);
    return this.#packs.among(this.#session.decide(this.#packs.told(situation)));
  }

  judge(decision: Decision, epsilonNow: number | null): Verdict {
    const inPack = this.#packs?.judge(decision, epsilonNow) ?? null;
    if (inPack?.accepted === true) this.#take(decision);
    if (inPack !== null) return inPack;
    const found = this.#ask(decision);
    if (found !== null) return refusal(found, this.#whyStays(decision));
    const verdict = this.#session.judge(decision, epsilonNow);
    if (verdict.accepted) this.#take(decision);
    return verdict;
  }

  summary(): PolicySummary {
    return this.#session.summary();
  }

  cheapest(): number | null | undefined {
    return this.#session.cheapest?.();
  }

  movesLeft(): number | undefined {
    return this.#session.movesLeft?.();
  }

  takeChanges(): readonly LayerChange[] {
    return this.#session.takeChanges?.() ?? [];
  }

  haste(layer: number): number {
    return this.#session.haste?.(layer) ?? 1;
  }

  repeats(layer: number, page: number, newest: number): boolean {
    return this.#session.repeats?.(layer, page, newest) ?? true;
  }

  course(): Course | null {
    return this.#session.course?.() ?? null;
  }

  wanted(): readonly WantedSide[] {
    return this.#session.wanted?.() ?? NO_SIDES;
  }

  /**
   * Takes in what forms page sides have, in the order in which a situation tells it. Moves of the last plan were taken
   * in when they were judged.
   */
  #see(situation: Situation): void {
    const { tokens, changes = [], trials, canaries = NO_CANARIES, urgent } = situation;
    if (tokens < this.#tokens) this.#forget(tokens);
    this.#tokens = tokens;
    this.#guarded = urgent ? null : situation;
    this.#canaries = canaries;
    for (const change of changes) this.#take(change);
    for (const { layer, page, side, from } of trials) this.#become({ layer, page, side, to: from });
  }

  #take(change: Moved): void {
    if (isRemade(change)) this.#become(change);
    else this.#free(change);
  }

  #become({ layer, page, side, to }: Remade<Moved>): void {
    // While a page is held as a latent, its sides count as if they were in the window format still.
    if (side === 'kv') {
      const key = this.#key(layer, page, 'k');
      if (!isFormatName(to)) this.#held.add(key);
      // Both sides are in the form in which they were made again.
      else if (this.#held.delete(key)) for (const one of SIDES) this.#become({ layer, page, side: one, to });
      return;
    }
    if (!isFormatName(to)) return;
    const key = this.#key(layer, page, side);
    if (to === this.#context.windowFormat) this.#forms.delete(key);
    else this.#forms.set(key, to);
  }

  #free({ layer, page }: Moved): void {
    this.#freed.add(this.#key(layer, page, 'k'));
    this.#held.delete(this.#key(layer, page, 'k'));
    for (const side of SIDES) this.#forms.delete(this.#key(layer, page, side));
  }

  /** Pages that are in the window at this length, or gone, are reported anew when they have left it. */
  #forget(tokens: number): void {
    const first = this.#key(0, movablePages(tokens, this.#context.windowTokens), 'k');
    for (const key of this.#forms.keys()) if (key >= first) this.#forms.delete(key);
    for (const pages of [this.#freed, this.#held]) for (const key of pages) if (key >= first) pages.delete(key);
  }

  #ask(decision: Decision): Unsafe | null {
    const { layer, page, side, from, to } = decision;
    const [k, v] = [this.#form(layer, page, 'k'), this.#form(layer, page, 'v')];
    const lower = rank(k) > rank(v) ? k : v;
    return unsafe({
      side,
      from,
      to,
      partner: side === 'kv' ? lower : side === 'k' ? v : k,
      movable: page < movablePages(this.#tokens, this.#context.windowTokens),
      evicts: this.#evicts,
      isFreed: this.#freed.has(this.#key(layer, page, 'k')),
      isHeld: this.#held.has(this.#key(layer, page, 'k')),
      isElsewhere: side !== 'kv' && rank(side === 'k' ? k : v) > rank(from),
      isBack: this.#canaries.some(
        (it) =>
          it.rows === undefined &&
          it.layer === layer &&
          it.page === page &&
          it.side === side &&
          it.to === from &&
          it.from === to,
      ),
      stays: this.#whyStays(decision) !== null,
    });
  }

  /** Why keys and values of its page have to stay, where a move would make them a latent; null: they have not. */
  #whyStays({ page, from, to }: Decision): Because | null {
    if (this.#guarded === null || !isFormatName(from) || to === 'freed' || isFormatName(to)) return null;
    return this.#guard.refuses(page, this.#guarded);
  }

  #form(layer: number, page: number, side: Side): FormatName {
    return this.#forms.get(this.#key(layer, page, side)) ?? this.#context.windowFormat;
  }

  #key(layer: number, page: number, side: Side): number {
    return (page * this.#context.layers + layer) * PARTS.length + PARTS.indexOf(side);
  }
}

/** `bound`: what the guard of latents compared, which is what a move is refused for that it holds back. */
const refusal = ({ id }: Unsafe, bound: Because | null): Verdict => ({
  accepted: false,
  because: {
    ...{ threshold: 'unsafe', measured: 1, bound: 0, unit: '1', origin: 'default' },
    ...(id === 'stays' ? bound : {}),
    rule: unsafeRule(id),
  },
});
