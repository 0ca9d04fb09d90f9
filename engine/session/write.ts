/** Writes an answer behind what a session has read: the loop of drawing a token, reading it and showing its text. */

import { endPrompt } from '../cache/step.ts';
import type { Answer } from './answer.ts';
import type { PromptLookup } from './prompt-lookup.ts';
import type { Reader } from './reader.ts';
import type { Generated } from './types.ts';

/** The prompt that was read for this answer, and how the answer is to be written. */
export interface Asked {
  /** Of the prompt. */
  readonly tokens: number;
  /** When its reading began. */
  /** How many of them were in a cache already. */
  readonly cachedTokens: number;
  readonly startMs: number;
  readonly signal: AbortSignal | undefined;
  /** Proposes tokens; null: none are proposed. */
  readonly lookup: PromptLookup | null;
}

/** Yields text as it is written; returns the summary. The reading of the prompt ended when this is called. */
export async function* write(reader: Reader, answer: Answer, asked: Asked): AsyncGenerator<string, Generated> {
  const { governed, tokens } = reader;
  const { signal, lookup } = asked;
  const { meter } = governed;
  let start = performance.now();
  let readMs = start - asked.startMs;
  let last = asked.startMs;
  /** Drawn already, where a proposal was left. */
  let drawn: number | undefined;
  while (answer.finish === null) {
    if (signal?.aborted) {
      answer.abort();
      break;
    }
    const id = drawn ?? (await answer.next(await reader.logits(), tokens));
    if (id === null) break;
    // Only now is it certain that something follows the prompt; sealing its last page still counts as the prompt's
    // work.
    if (answer.count === 0 && asked.tokens > 0) {
      const before = performance.now();
      endPrompt(governed);
      const roomMs = performance.now() - before;
      readMs += roomMs;
      start += roomMs;
    }
    const before = performance.now();
    const draft = lookup?.propose(governed, tokens, id, answer.maxTokens - answer.count - 1) ?? [];
    const count = answer.count;
    const followed = await follow(reader, answer, id, draft);
    drawn = followed.drawn;
    const now = performance.now();
    const written = answer.count - count;
    lookup?.tell(draft.length, written - 1, now - before);
    if (count > 0 || asked.tokens === 0) {
      if (count > 0)
        for (let i = 0; i < written; i++) meter.betweenTokensSeconds.observe((now - last) / 1000 / written);
    } else meter.firstTokenSeconds.observe((now - last) / 1000);
    last = now;
    meter.generatedTokens.add({}, written);
    // Only now, since whoever reads may leave, and the cache holds what was written and nothing else.
    for (const piece of followed.pieces) if (piece !== '') yield piece;
  }
  const rest = answer.end();
  if (rest !== '') yield rest;
  const seconds = (performance.now() - start) / 1000;
  const readTokens = asked.tokens - asked.cachedTokens;
  return {
    ...(await answer.generated()),
    drafted: lookup?.drafted ?? 0,
    accepted: lookup?.accepted ?? 0,
    receipt: null,
    promptTokens: asked.tokens,
    cachedTokens: asked.cachedTokens,
    prefillTokensPerSecond: readTokens === 0 ? 0 : (readTokens * 1000) / readMs,
    tokensPerSecond: answer.count === 0 ? 0 : answer.count / seconds,
  };
}

/**
 * Reads a token and those that were proposed behind it, writes it and as many of them as would have been drawn, and
 * takes the others back. → the texts, and what was drawn instead
 */
async function follow(
  reader: Reader,
  answer: Answer,
  id: number,
  draft: readonly number[],
): Promise<{ readonly pieces: readonly string[]; readonly drawn: number | undefined }> {
  const { tokens } = reader;
  // Its grammar finds what may come next in a thread of its own, while the model reads the token in this one.
  const pushed = answer.push(id);
  pushed.catch(() => {});
  const rows = await reader.forward([id, ...draft]);
  const width = rows.length / (1 + draft.length);
  const row = (index: number): Float32Array => rows.subarray(index * width, (index + 1) * width);
  const first = tokens.length - draft.length;
  const pieces = [await pushed];
  let drawn: number | undefined;
  let taken = 0;
  try {
    while (taken < draft.length && answer.finish === null) {
      const next = await answer.next(await reader.logits(row(taken)), tokens.slice(0, first + taken));
      if (next === null) break;
      if (next !== draft[taken]) {
        drawn = next;
        break;
      }
      taken++;
      pieces.push(await answer.push(next));
    }
  } finally {
    if (taken < draft.length) reader.retract(first + taken, row(taken).slice());
  }
  return { pieces, drawn };
}
