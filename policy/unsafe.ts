/**
 * Moves and pairs that are known to lose more than they save, as data with their reasons. No policy can make one: every
 * move that any of them plans is asked here before it is carried out (`asked.ts`). Those of this room plan none, which
 * tests find at every state that can be reached. Which form may follow which is for the machine to say
 * (form-machine.ts); what stands here beside its refusals is about formats and pairs of them.
 */
import {
  FORMAT_NAMES,
  FORMATS,
  type FormatName,
  type FormatPair,
  isAutomatic,
  KvError,
  type Part,
  type Side,
  servesSide,
} from '../native/index.ts';
import { type FormEventType, type FormRefusal, type FormState, kindOf, refusalOf } from './form-machine.ts';
import { isLatent, rank, STEPS } from './ladder.ts';
import type { LaterForm, PageForm } from './types.ts';

export interface Move {
  readonly side: Part;
  readonly from: PageForm;
  readonly to: LaterForm;
  /**
   * Format of the same page's other side; of both sides where `side` is both, and while they come from a latent that of
   * the window.
   */
  readonly partner: FormatName;
  /**
   * The page has left the window: at least one page of newer tokens stands behind it. Sinks are rows of their own and
   * never in a page's codes.
   */
  readonly movable: boolean;
  /** Nothing is left of the page. */
  readonly isFreed?: boolean;
  /** The page is held as a latent; its sides count as in the format of the window. */
  readonly isHeld?: boolean;
  /** It starts from a finer form than the side has. */
  readonly isElsewhere?: boolean;
  /** The policy says that it lets pages go. */
  readonly evicts?: boolean;
  /** The original of the side was kept, has just been measured, and is put back. */
  readonly isBack?: boolean;
  /** The guard of latents says that its keys and values stay for now. */
  readonly stays?: boolean;
}

export interface Unsafe {
  readonly id: string;
  readonly reason: string;
  /** `refusal`: what the machine refuses it for. */
  readonly applies: (move: Move, refusal: FormRefusal | null) => boolean;
}

/** Values of this many bits or more are so much better than 2-bit keys that the pair wastes memory. */
const VALUE_BITS_BESIDE_COARSE_KEYS = 4;
/** Keys of this many bits or fewer are a waste beside such values. */
export const COARSE_KEY_BITS = 2;

/** A move after which the page is still there. */
interface Remaking extends Move {
  readonly to: PageForm;
}

/** For rules about the form that a page gets: nothing is left of one that is let go. */
const remade =
  (applies: (move: Remaking, refusal: FormRefusal | null) => boolean): Unsafe['applies'] =>
  (move, refusal) =>
    isRemaking(move) && applies(move, refusal);

const isRemaking = (move: Move): move is Remaking => move.to !== 'freed';

const keysAndValues = ({ side, to, partner }: Remaking): Readonly<Record<Side, FormatName>> =>
  side === 'k' && !isLatent(to) ? { k: to, v: partner } : { k: partner, v: isLatent(to) ? partner : to };

/** What a side is in before a move; of both sides what the lower is in, which a latent would take the place of. */
function stateOf({ side, from, partner, movable, isFreed = false, isHeld = false }: Move): FormState {
  if (isFreed) return 'freed';
  if (!movable) return 'window';
  if (isHeld && side !== 'kv') return 'latent';
  return kindOf(side === 'kv' && kindOf(partner) !== 'tried' ? partner : from);
}

/** What a move is to the machine. */
function eventOf({ from, to, isBack = false }: Move): FormEventType {
  if (to === 'freed') return 'free';
  if (to === from) return 'rewrite';
  if (rank(to) < rank(from)) return isBack ? 'putBack' : 'refine';
  return isLatent(to) ? 'rematerialize' : 'demote';
}

/** The rule under which the machine has no arrow for a move, or null. */
const refusalFor = (move: Move): FormRefusal | null =>
  refusalOf(stateOf(move), eventOf(move), kindOf(move.to === 'freed' ? move.from : move.to), move.stays);

/** True where that is this rule. */
const refused =
  (rule: FormRefusal): Unsafe['applies'] =>
  (_, refusal) =>
    refusal === rule;

export const UNSAFE: readonly Unsafe[] = [
  {
    id: 'freed',
    reason:
      'the page was let go, or the sliding window of the layer has left it behind: nothing of it is there to be moved',
    applies: refused('freed'),
  },
  {
    id: 'promotion',
    reason:
      'bytes come back, information does not: a finer format would hold the coarser one’s decode. It takes an original that was kept, and there is none',
    applies: refused('promotion'),
  },
  {
    id: 're-encode',
    reason: 'writing a page again in the format it has is pure loss',
    applies: refused('re-encode'),
  },
  {
    id: 'window',
    reason: 'the newest tokens carry most of the attention and their page has no newer queries to be tried with',
    applies: refused('window'),
  },
  {
    id: 'eviction',
    reason:
      'a page that is let go is lost, with its keys and its values: only a policy that says so (`evicts`) may do that, and only to both at once',
    applies: ({ side, to, evicts = false }) => to === 'freed' && (side !== 'kv' || !evicts),
  },
  {
    id: 'other-side',
    reason:
      'the format is for the other side: 1-bit keys beside 2-bit values cost two to six times what 2-bit keys beside 1-bit values cost (measured)',
    applies: remade(({ side, to }) => side !== 'kv' && !isLatent(to) && !servesSide(to, side)),
  },
  {
    id: 'latent-of-codes',
    reason:
      'a latent is coded when its page is sealed and stays as long as the page is as it was then: keys and values in lower formats do not lead to one',
    applies: remade(({ side, to }, refusal) => (side === 'kv') !== isLatent(to) || refusal === 'latent-of-codes'),
  },
  {
    id: 'keys-below-values',
    reason:
      '2-bit keys beside values of 4 bits or more: 2-bit keys cost twenty times what 2-bit values cost (measured), so the bytes are better taken from the values',
    applies: remade((move) => {
      const pair = keysAndValues(move);
      return isUselessPair(pair.k, pair.v) && (move.side === 'k' || move.isBack === true);
    }),
  },
  {
    id: 'held',
    reason: 'the page is held as the inputs of its layer: it has no keys and values of its own that could move',
    applies: refused('held'),
  },
  {
    id: 'stays',
    reason:
      'keys and values are computed again at every step once they are a latent: they stay while memory is not short, and right behind the window, where nothing but that can keep the budget',
    applies: refused('stays'),
  },
  {
    id: 'elsewhere',
    reason: 'the side of the page is not in the form that the move starts from, but in a lower one',
    applies: ({ isElsewhere = false }) => isElsewhere,
  },
];

/** 2-bit keys beside much finer values. */
export function isUselessPair(k: FormatName, v: FormatName): boolean {
  return FORMATS[k].codeBits <= COARSE_KEY_BITS && FORMATS[v].codeBits >= VALUE_BITS_BESIDE_COARSE_KEYS;
}

/** True if a format errs less than another of as many bytes, whose place it takes. */
const takesPlace = (name: FormatName): boolean => FORMATS[name].replaces !== undefined;

/**
 * A pair as it is, or with finer keys where coarse ones would be useless beside its values: those of the coarsest
 * format above them that policies choose, of those that take the place of others if the keys are in one, else of the
 * others.
 */
export function usefulPair({ k, v }: FormatPair): FormatPair {
  if (!isUselessPair(k, v)) return { k, v };
  const finer = FORMAT_NAMES.findLast(
    (name) => isAutomatic(name) && FORMATS[name].codeBits > COARSE_KEY_BITS && takesPlace(name) === takesPlace(k),
  );
  return { k: finer!, v };
}

/** Why a move must not be made, or null. */
export function unsafe(move: Move): Unsafe | null {
  const refusal = refusalFor(move);
  return UNSAFE.find(({ applies }) => applies(move, refusal)) ?? null;
}

/** The rule under which a move that is unsafe is refused, in logs and in words. */
export const unsafeRule = (id: Unsafe['id']): string => `unsafe-${id}`;

/** Checks a K:V pair that a person asked for. Throws 'unsupported' for one that nothing should be set to. */
export function checkPair(k: FormatName, v: FormatName): void {
  const isOtherSide = !servesSide(k, 'k') || !servesSide(v, 'v');
  if (!isOtherSide && !isUselessPair(k, v)) return;
  const rule = isOtherSide ? 'other-side' : 'keys-below-values';
  const reason = UNSAFE.find(({ id }) => id === rule)!.reason;
  const pairs = STEPS.slice(1).map((step) => `${step.k}:${step.v}`);
  throw new KvError('unsupported', `${k}:${v} is not served: ${reason}`, {
    values: { k, v },
    hint: `use ${pairs.slice(0, -1).join(', ')} or ${pairs.at(-1)} (keys:values)`,
  });
}
