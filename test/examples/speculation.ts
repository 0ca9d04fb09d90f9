/**
 * Speculative decoding with `truncate`: a draft of some tokens is read at once, the model says which of them it would have written itself, and the
 * others are taken back. Greedy, so the tokens are those of plain decoding. The draft is what followed the newest two tokens where they stood before.
 */
import type { PolicyCache } from '../../engine/index.ts';
import { likeliest, type ToyModel } from './toy-runtime.ts';

/** Pages of the cache; a page that is full is sealed by the next token, and its rows cannot be taken back then. */
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
