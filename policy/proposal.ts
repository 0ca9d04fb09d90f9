/**
 * Which adapters a text may want, by what sessions with texts like it used and how these ended. All that it goes by is
 * data that stands in the log, so it can be decided again. It proposes; nobody applies it without being asked.
 */
import type { Because } from './types.ts';

/** An adapter by its digest, and the factor on what it adds. */
export interface ScaledDigest {
  /** SHA-256 over what it adds. */
  readonly digest: string;
  /** Factor on what it adds. */
  readonly scale: number;
}

/** An earlier session with a text like the one that is asked about. */
export interface Precedent {
  /** Its id in the log. */
  readonly session: string;
  /** Seq of its 'close' entry. */
  readonly seq: number;
  /** The log of another machine that it stands in; left out: this one's. */
  readonly log?: string;
  /** Squared distance between what is known of the two texts; 0: the same. */
  readonly distance: number;
  /** How it ended. */
  readonly reason: string;
  /** What was added to its answers, in the order of its log; none: the model answered by itself. */
  readonly adapters: readonly ScaledDigest[];
  /** Bits per number of its cache. */
  readonly bits: number;
  /** What most of its pages ended in, K:V; null: none left the window, or its log does not say. */
  readonly formats: string | null;
}

/** What is proposed for a text, and why. */
export interface AdapterProposal {
  /** The sessions that it rests on, nearest first. */
  readonly seen: readonly Precedent[];
  /** What most of them used, by their weights; none: the model by itself, or nothing is known. */
  readonly adapters: readonly ScaledDigest[];
  /** How much the sessions count that used it; 1: one with the same text that came to its end. */
  readonly weight: number;
  /** Their share of what all count. */
  readonly share: number;
  /** Bits per number of their caches, in the mean; null: there are none. */
  readonly bits: number | null;
  /** What most of their pages ended in, K:V; null: nothing is known of it. */
  readonly formats: string | null;
  /** Why. */
  readonly because: Because;
}

/** Fewer tokens of a text say too little of its kind: by 128, more was wrong than right (docs/benchmarks.md). */
export const PROPOSAL_TOKENS = 256;
/** Distance, before it is squared, at which a session counts e^−½: one step of bytes per token. Chosen. */
const BANDWIDTH = 0.125;
/** What sessions count by how they ended; others: nothing. Chosen. */
const BY_END: ReadonlyMap<string, number> = new Map([
  ['done', 1],
  ['aborted', 0.5],
]);
/** What counts less is no evidence. */
const WEIGHT_LEAST = 0.05;
/** What must speak for a proposal: more than any one session can. Chosen. */
const EVIDENCE_LEAST = 1.25;
/** The share that must be of one mind: with three fifths, far more was wrong (docs/benchmarks.md). */
const SHARE_LEAST = 2 / 3;

export const precedentWeight = ({ distance, reason }: Precedent): number => {
  const weight = Math.exp(-distance / (2 * BANDWIDTH ** 2)) * (BY_END.get(reason) ?? 0);
  return weight < WEIGHT_LEAST ? 0 : weight;
};

/** Those that used the same. */
interface Side {
  readonly adapters: readonly ScaledDigest[];
  readonly told: readonly Precedent[];
  readonly weight: number;
}

const keyOf = (adapters: readonly ScaledDigest[]): string =>
  adapters.map(({ digest, scale }) => `${digest}:${scale}`).join(' ');
const sum = (numbers: readonly number[]): number => numbers.reduce((all, one) => all + one, 0);

/** Most weight first; of equals the one whose name comes first. */
function sidesOf(seen: readonly Precedent[]): Side[] {
  const sides = new Map<string, Precedent[]>();
  for (const one of seen) {
    if (precedentWeight(one) === 0) continue;
    const key = keyOf(one.adapters);
    sides.set(key, [...(sides.get(key) ?? []), one]);
  }
  return [...sides]
    .map(([key, told]) => ({ key, adapters: told[0]!.adapters, told, weight: sum(told.map(precedentWeight)) }))
    .sort((a, b) => b.weight - a.weight || (a.key < b.key ? -1 : 1));
}

/** Decides it. The same sessions give the same answer. tokens: known of the text. */
export function proposeAdapters(seen: readonly Precedent[], tokens: number): AdapterProposal {
  if (tokens < PROPOSAL_TOKENS)
    return none([], { ...bound('proposal.tokens', tokens, PROPOSAL_TOKENS, 'tokens'), rule: 'proposal-text' });
  const sides = sidesOf(seen);
  const [most] = sides;
  if (most === undefined || most.weight < EVIDENCE_LEAST)
    return none(seen, {
      ...bound('proposal.evidence', most?.weight ?? 0, EVIDENCE_LEAST, '1'),
      rule: 'proposal-evidence',
    });
  const share = most.weight / sum(sides.map(({ weight }) => weight));
  const shares = bound('proposal.share', share, SHARE_LEAST, 'share');
  if (share < SHARE_LEAST) return none(seen, { ...shares, rule: 'proposal-divided' });
  return {
    ...{ seen, adapters: most.adapters, weight: most.weight, share },
    bits: sum(most.told.map((one) => one.bits * precedentWeight(one))) / most.weight,
    formats: formatsOf(most.told),
    because: { ...shares, rule: most.adapters.length === 0 ? 'proposal-plain' : 'proposal-alike' },
  };
}

/** Decides it again, by what it went by. */
export const proposeAgain = ({ seen, because: { rule, measured } }: AdapterProposal): AdapterProposal =>
  proposeAdapters(seen, rule === 'proposal-text' ? measured : PROPOSAL_TOKENS);

const none = (seen: readonly Precedent[], because: Because): AdapterProposal => ({
  ...{ seen, adapters: [], weight: 0, share: 0, bits: null, formats: null, because },
});

const bound = (threshold: string, measured: number, least: number, unit: string) =>
  ({ threshold, measured, bound: least, unit, origin: 'default' }) as const;

function formatsOf(told: readonly Precedent[]): string | null {
  const weights = new Map<string, number>();
  for (const one of told)
    if (one.formats !== null) weights.set(one.formats, (weights.get(one.formats) ?? 0) + precedentWeight(one));
  const [most] = [...weights].sort(([a, one], [b, two]) => two - one || (a < b ? -1 : 1));
  return most?.[0] ?? null;
}

/** Of what sessions with such texts count, the share of those that used each adapter, by its digest. */
export function likelyUse(seen: readonly Precedent[]): ReadonlyMap<string, number> {
  const all = sum(seen.map(precedentWeight));
  const uses = new Map<string, number>();
  if (all < EVIDENCE_LEAST) return uses;
  for (const one of seen)
    for (const { digest } of one.adapters) uses.set(digest, (uses.get(digest) ?? 0) + precedentWeight(one) / all);
  return uses;
}
