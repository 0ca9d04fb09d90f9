/**
 * Which adapters a text may want: the session index is asked what earlier sessions with texts like it used. A hint, of
 * which whoever asks makes what they like.
 */
import type { TextHint, ThresholdBook } from '../../memory/index.ts';
import type { CacheShape } from '../../native/index.ts';
import { type AdapterProposal, PROPOSAL_TOKENS, proposeAdapters } from '../../policy/index.ts';
import { beginningOf, contentOf } from '../cache/content.ts';
import { printOf } from '../cache/fingerprint.ts';
import type { LoadedModel } from '../transformer/types.ts';

/** Where an adapter is: used by an open session, in memory for whoever comes, or to be read when it is asked for. */
export type Placement = 'in-use' | 'idle' | 'on-disk';

/** An adapter that is proposed, by the name that it has here. */
export interface PlacedAdapter {
  /** The name, which sessions can be opened with. */
  readonly name: string;
  /** SHA-256 over what it adds. */
  readonly digest: string;
  /** Factor on what it adds. */
  readonly scale: number;
  /** Where it is. */
  readonly placement: Placement;
}

/** What is proposed, as far as it is here. */
export interface ProposedAdapters extends AdapterProposal {
  /** What sessions can be opened with; none where something of it is not here. */
  readonly placed: readonly PlacedAdapter[];
  /** Digests of what is proposed and has no name here. */
  readonly missing: readonly string[];
}

/** Sessions that are asked, as many as for thresholds: with more, those of other kinds of text outvote the nearest. */
const PRECEDENTS = 8;

/** What a proposal is made from. */
export interface ProposalSource {
  readonly model: Pick<LoadedModel, 'tokenizer' | 'digest'>;
  readonly shape: CacheShape;
  /** null: nothing is remembered. */
  readonly book: Pick<ThresholdBook, 'precedents'> | null;
  readonly hintOf?: ((text: Uint8Array) => Promise<TextHint | null>) | undefined;
}

/** What sessions of the model with texts like this one used. Throws nothing for want of evidence. */
export async function proposalFor(
  { model: { tokenizer, digest }, shape, book, hintOf }: ProposalSource,
  ids: readonly number[],
): Promise<AdapterProposal> {
  if (book === null || ids.length < PROPOSAL_TOKENS) return proposeAdapters([], ids.length);
  const hint = (await hintOf?.(beginningOf(tokenizer, ids))) ?? undefined;
  const fingerprint = printOf(shape, ids.length, null, contentOf(tokenizer, ids));
  const asked = { plainDigest: digest, fingerprint, hint, k: PRECEDENTS, tokensLeast: PROPOSAL_TOKENS };
  return proposeAdapters(await book.precedents(asked), ids.length);
}
