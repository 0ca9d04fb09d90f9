/**
 * Why a response could not go on in the cache of another one: `prompt_cache_diagnostics` of the API. Its reasons are
 * those that change what is read here. Formats of answers, effort and verbosity do not, so they never are one.
 */
import { pageStart } from '../../native/index.ts';
import type { Engine } from '../thread/engine.ts';
import type { ChatMessage } from '../transformer/types.ts';
import type { ConversationTerms } from './conversation.ts';
import type { StoredResponse } from './response-store.ts';

export type Diagnostics =
  | { readonly type: 'cache_hit' }
  | { readonly type: 'comparison_response_not_found' }
  | { readonly type: 'unavailable' }
  | {
      readonly type: 'cache_miss';
      readonly reason: 'prompt_cache_key_changed' | 'tools_changed' | 'input_changed';
      readonly cache_missed_tokens: number;
      readonly comparison_reusable_tokens: number;
    };

/** What a response was asked with, and how many tokens of it were not read. */
export interface Compared {
  readonly terms: ConversationTerms;
  readonly prompt: readonly ChatMessage[];
  readonly cachedTokens: number;
}

/** before: the response that it is compared with; null: it is not there. */
export async function diagnose(engine: Engine, before: StoredResponse | null, now: Compared): Promise<Diagnostics> {
  if (before === null) return { type: 'comparison_response_not_found' };
  const { template } = now.terms;
  const tokensOf = ({ terms, prompt }: Pick<Compared, 'terms' | 'prompt'>): Promise<number[]> =>
    engine.renderTokens(prompt, { tools: terms.tools, ...(template === undefined ? {} : { template }) });
  const [old, own] = await Promise.all([tokensOf(before), tokensOf(now)]);
  // The end of a prompt, which begins the answer, is no part of what is said.
  const shared = sharedTokens(old, own);
  const reason = reasonOf(before, now, shared < old.length && !saysAll(before.prompt, now.prompt));
  const reusable = reason === 'prompt_cache_key_changed' ? 0 : shared;
  if (reason !== null)
    return {
      type: 'cache_miss',
      reason,
      cache_missed_tokens: own.length - reusable,
      comparison_reusable_tokens: reusable,
    };
  // What it shares was there in whole pages, unless others needed the memory.
  const whole = pageStart(Math.min(shared, own.length - 1));
  return now.cachedTokens >= whole ? { type: 'cache_hit' } : { type: 'unavailable' };
}

function reasonOf(
  { terms }: StoredResponse,
  now: Compared,
  isOther: boolean,
): 'prompt_cache_key_changed' | 'tools_changed' | 'input_changed' | null {
  if (terms.session.cacheSalt !== now.terms.session.cacheSalt) return 'prompt_cache_key_changed';
  if (JSON.stringify(terms.tools) !== JSON.stringify(now.terms.tools)) return 'tools_changed';
  return isOther ? 'input_changed' : null;
}

/** True if all messages of one conversation begin the other. */
const saysAll = (before: readonly ChatMessage[], now: readonly ChatMessage[]): boolean =>
  JSON.stringify(now.slice(0, before.length)) === JSON.stringify(before);

/** How many tokens two prompts begin with alike. */
function sharedTokens(one: readonly number[], other: readonly number[]): number {
  const most = Math.min(one.length, other.length);
  for (let at = 0; at < most; at++) if (one[at] !== other[at]) return at;
  return most;
}
