/**
 * Pages for the codec of a kernel pack. Before a side of a page is moved to a format of the archive, the whole page is
 * tried in the pack's codec, by the same ε on the same queries, and moved there where that costs no more for a byte:
 * ε² for bytes, both sides of the page at once. Policies that measure nothing have it moved untried. To policies such a
 * page is freed, as one that was let go: its moves are decisions for 'freed' under the rule 'pack', and their threshold
 * is the name of the pack, `pack:<name>@<digest>`. What was planned in its place is refused under 'in-pack', and the
 * policy hears of it as if it had been made, so that what it expects of its moves counts that.
 */
import { FORMATS, isFormatName, movablePages, SIDES, type Side } from '../native/index.ts';
import { isRemade } from './sides.ts';
import type { Because, Decision, FormChange, LaterForm, Outcome, PolicyContext, Situation, Verdict } from './types.ts';

/** Rule of a move to a pack, and of those that it takes the place of. */
export const PACK_RULE = 'pack';
const IN_PACK = 'in-pack';
/** Rules under which a page does not go there. */
const DEARER = 'pack-dearer';
const UNMEASURED = 'pack-unmeasured';

/** True for how decisions, parked files and threshold files name a version of a pack: `pack:<name>@<digest>`. */
export const isPackId = (text: string): boolean => /^pack:[a-z][a-z0-9-]{0,39}@[0-9a-f]{12}$/.test(text);

type FormOf = (layer: number, page: number, side: Side) => LaterForm;

/** True for a planned move to the codec of a pack. */
export const isToPack = ({ to, because }: Pick<Decision, 'to' | 'because'>): boolean =>
  to === 'freed' && because.rule === PACK_RULE;

const keyOf = ({ layer, page }: { readonly layer: number; readonly page: number }): string => `${layer}/${page}`;

/** A page that was offered to the pack, and what was planned for it. */
interface Offer {
  readonly move: Decision;
  readonly planned: Decision;
  accepted: boolean | null;
}

export class PackOffers {
  readonly #context: PolicyContext;
  readonly #pack: NonNullable<PolicyContext['pack']>;
  readonly #formOf: FormOf;
  /** Of the plan that is judged. */
  #offers = new Map<string, Offer>();
  /** Pages that were offered before, by which each is offered once. */
  readonly #offered = new Map<string, number>();

  constructor(context: PolicyContext, pack: NonNullable<PolicyContext['pack']>, formOf: FormOf) {
    this.#context = context;
    this.#pack = pack;
    this.#formOf = formOf;
  }

  /** What the policy is told of the last plan: it planned no moves to the pack. */
  told(situation: Situation): Situation {
    const pages = movablePages(situation.tokens, this.#context.windowTokens);
    for (const [key, page] of this.#offered) if (page >= pages) this.#offered.delete(key);
    const offers = this.#offers;
    this.#offers = new Map();
    if (offers.size === 0) return situation;
    const changes: FormChange[] = [];
    const outcomes = situation.outcomes.flatMap((outcome): Outcome[] => {
      const offer = offers.get(keyOf(outcome));
      if (offer === undefined) return [outcome];
      if (outcome.to === 'freed' && outcome.side === 'kv') return [];
      return [offer.accepted === true ? { ...outcome, accepted: true } : outcome];
    });
    for (const { move, accepted } of offers.values()) {
      if (accepted !== true) continue;
      const { layer, page } = move;
      for (const side of SIDES) changes.push({ layer, page, side, from: move.from, to: 'freed' });
    }
    return changes.length === 0
      ? { ...situation, outcomes }
      : { ...situation, outcomes, changes: [...changes, ...(situation.changes ?? [])] };
  }

  /** The plan, with a move to the pack before the first of each page that would go below its rung. */
  among(planned: readonly Decision[]): readonly Decision[] {
    return planned.flatMap((decision) => {
      const move = this.#moveFor(decision);
      return move === null ? [decision] : [move, decision];
    });
  }

  /** The verdict on a move to the pack, or on one of a page that has gone there; null: it is not concerned. */
  judge(decision: Decision, epsilonNow: number | null): Verdict | null {
    const offer = this.#offers.get(keyOf(decision));
    if (offer === undefined) return null;
    if (decision.side !== 'kv' || !isToPack(decision))
      return offer.accepted === true ? { accepted: false, because: this.#because(IN_PACK, 1, 0, '1') } : null;
    const verdict = this.#verdict(offer, epsilonNow);
    offer.accepted = verdict.accepted;
    return verdict;
  }

  #moveFor(decision: Decision): Decision | null {
    const { layer, page, side, to } = decision;
    if (side === 'kv' || to === 'freed' || !isFormatName(to) || FORMATS[to].tier !== 'archive') return null;
    const key = keyOf(decision);
    if (this.#offered.has(key)) return null;
    this.#offered.set(key, page);
    const [from, other] = [this.#formOf(layer, page, 'k'), this.#formOf(layer, page, 'v')];
    if (!isRemade({ to: from }) || !isRemade({ to: other })) return null;
    const { pageBytes } = this.#context;
    const bytesFreed = (pageBytes[from as never] ?? 0) + (pageBytes[other as never] ?? 0) - this.#pack.pageBytes;
    if (bytesFreed <= 0) return null;
    const move: Decision = {
      ...{ layer, page, side: 'kv', from: from as Decision['from'], to: 'freed' },
      ...{
        epsilonFrom: decision.epsilonFrom,
        epsilonTo: null,
        price: null,
        bytesFreed,
        retry: decision.epsilonTo !== null,
      },
      because: this.#because(PACK_RULE, bytesFreed, 0, 'bytes'),
    };
    this.#offers.set(key, { move, planned: decision, accepted: null });
    return move;
  }

  /** Whether a byte costs no more there: what is added to ε² by the byte, of the page against what was planned. */
  #verdict({ move, planned }: Offer, epsilonNow: number | null): Verdict {
    const { epsilonTo, epsilonFrom } = planned;
    if (epsilonTo === null) return { accepted: true, because: this.#because(PACK_RULE, move.bytesFreed, 0, 'bytes') };
    if (epsilonNow === null) return { accepted: false, because: this.#because(UNMEASURED, 1, 0, '1') };
    const before = (epsilonFrom ?? 0) ** 2;
    const bound = (epsilonTo ** 2 - before) / planned.bytesFreed;
    const measured = (epsilonNow ** 2 - before) / move.bytesFreed;
    const accepted = measured <= bound;
    return { accepted, because: this.#because(accepted ? PACK_RULE : DEARER, measured, bound, 'ε²/byte') };
  }

  #because(rule: string, measured: number, bound: number, unit: string): Because {
    return { threshold: this.#pack.id, measured, bound, unit, origin: 'option', rule };
  }
}
