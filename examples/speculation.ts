/**
 * Speculative decoding with `truncate`: a draft of some tokens is read at once, the model says which of them it would
 * have written itself, and the others are taken back. Greedy, so the tokens are those of plain decoding. The draft is
 * what followed the newest two tokens where they stood before.
 *
 *   node --import tsx examples/speculation.ts
 */
import { openCache, type PolicyCache } from 'palimpsest';
import { likeliest, TOY_SHAPE, ToyModel } from './toy-runtime.ts';

/** Pages of the cache; a draft that ends with its page can always be taken back. */
const PAGE_TOKENS = 128;

export interface Speculated {
  readonly tokens: readonly number[];
  /** How often the model was run for them. */
  readonly passes: number;
}

/** What followed the newest two tokens of `text` where they stood last before, at most `most` tokens. */
export function draftOf(text: readonly number[], most: number): readonly number[] {
  const [before, last] = text.slice(-2);
  for (let at = text.length - 3; at >= 1; at--)
    if (text[at] === last && text[at - 1] === before) return text.slice(at + 1, at + 1 + most);
  return [];
}

/** Writes `count` tokens behind a prompt. `draftTokens`: most tokens of a draft, 0 for plain decoding. */
export function generate(
  model: ToyModel,
  cache: PolicyCache,
  prompt: readonly number[],
  count: number,
  draftTokens: number,
): Speculated {
  const text = [...prompt, likeliest(model.read(cache, prompt).at(-1)!)];
  let passes = 1;
  while (text.length < prompt.length + count) {
    // The newest token is certain but not read yet. A draft ends where the page does.
    const room = PAGE_TOKENS - (cache.length % PAGE_TOKENS) - 1;
    const draft = draftOf(text, Math.min(draftTokens, room, prompt.length + count - text.length - 1));
    const start = cache.length;
    const logits = model.read(cache, [text.at(-1)!, ...draft]);
    passes++;
    let accepted = 0;
    while (accepted < draft.length && likeliest(logits[accepted]!) === draft[accepted]) accepted++;
    text.push(...draft.slice(0, accepted), likeliest(logits[accepted]!));
    cache.truncate(start + 1 + accepted);
  }
  return { tokens: text.slice(prompt.length), passes };
}

if (process.argv[1] === import.meta.filename)
  for (const draftTokens of [0, 5]) {
    const cache = await openCache({ ...TOY_SHAPE, cacheTypes: 'q8:q8' });
    const { tokens, passes } = generate(new ToyModel(3), cache, [0, 2, 4, 1, 3, 0, 2, 4], 400, draftTokens);
    console.log(`drafts of ${draftTokens}: ${tokens.length} tokens in ${passes} runs, …${tokens.slice(-12).join(' ')}`);
    await cache.close();
  }
