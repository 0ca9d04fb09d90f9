/** Adapters that are proposed for what will be read, and the options of a session that asks for them. */
import type { TextHint, ThresholdBook } from '../../memory/index.ts';
import { KvError } from '../../native/index.ts';
import { type AdapterProposal, likelyUse } from '../../policy/index.ts';
import type { AdapterSet, Adapters } from '../adapters/adapters.ts';
import { type ProposedAdapters, proposalFor } from '../adapters/proposal.ts';
import { isProposedFor } from '../options/table.ts';
import type { Prompt, SessionOptions } from '../options/types.ts';
import { checkIds, countedTokens, tokenizeInTurns } from '../session/prompt.ts';
import type { Runtime } from '../transformer/runtime/runtime.ts';

/** What is asked for a proposal: a model, its adapters, and what is remembered of its sessions. */
export interface Proposing {
  readonly runtime: Runtime;
  readonly adapters: Adapters;
  readonly state: { readonly book: ThresholdBook | null } | null;
  readonly commons: { readonly helpers: { hintOf(text: Uint8Array): Promise<TextHint | null> } | null };
}

/** What earlier sessions with such a text used. Throws what making tokens of it throws. */
export async function propose(host: Proposing, prompt: Prompt, signal?: AbortSignal): Promise<ProposedAdapters> {
  const { model, shape } = host.runtime;
  const ids = await tokenizeInTurns(model.tokenizer, prompt, true, { tokensMax: countedTokens(model), signal });
  if (ids.length > 0) checkIds(ids, model.config.vocabSize);
  const { helpers } = host.commons;
  const hintOf = helpers === null ? undefined : (text: Uint8Array) => helpers.hintOf(text);
  const proposal = await proposalFor({ model, shape, book: host.state?.book ?? null, hintOf }, ids);
  const placed = host.adapters.placed(proposal.adapters).filter((one) => one !== null);
  const here = new Set(placed.map(({ digest }) => digest));
  const missing = proposal.adapters.map(({ digest }) => digest).filter((digest) => !here.has(digest));
  return { ...proposal, placed: missing.length > 0 ? [] : placed, missing };
}

/** What a session is opened with as far as adapters go. */
export interface Adapted {
  /** With the adapters themselves in place of what asks for them. */
  readonly options: SessionOptions;
  readonly proposal?: AdapterProposal;
  readonly adapterSet?: AdapterSet;
}

/** Throws what the engine's adapters throw for those that are named. */
export async function adaptedOptions(host: Proposing, options: SessionOptions): Promise<Adapted> {
  const { adapters } = options;
  if (adapters === undefined) return { options };
  if (!isProposedFor(adapters)) return { options, adapterSet: host.adapters.set(adapters) };
  const { placed, missing: _, ...proposal } = await propose(host, adapters.proposedFor);
  host.adapters.expects(likelyUse(proposal.seen));
  const named = placed.map(({ name, scale }) => ({ name, scale }));
  const adapterSet = named.length === 0 ? null : setWhereThereIsRoom(host, named);
  if (adapterSet === null) return { options: { ...options, adapters: [] }, proposal };
  return { options: { ...options, adapters: named }, proposal, adapterSet };
}

/** Nobody has named them, so a session that they leave no room for begins without. */
function setWhereThereIsRoom(host: Proposing, named: readonly { name: string; scale: number }[]): AdapterSet | null {
  try {
    return host.adapters.set(named);
  } catch (error) {
    if (error instanceof KvError && error.code === 'budget-exceeded') return null;
    throw error;
  }
}
