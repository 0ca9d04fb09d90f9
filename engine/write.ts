/** Writes an answer behind what a session has read: the loop of drawing a token, reading it and showing its text. */
import type { Answer } from './answer.ts';
import type { Governed } from './governed.ts';
import { endPrompt } from './step.ts';
import type { Generated } from './types.ts';

/** What the loop needs of a session. */
export interface Writing {
  readonly governed: Governed;
  /** All that the cache holds. */
  readonly tokens: readonly number[];
  /** Of the token behind these, [V]; they may be overwritten by the next step. */
  logits(): Promise<Float32Array>;
  /** Reads tokens behind these. */
  forward(ids: readonly number[]): Promise<void>;
}

/** The prompt that was read for this answer. */
export interface Asked {
  readonly tokens: number;
  /** When its reading began. */
  readonly startMs: number;
}

/** Yields text as it is written; returns the summary. The reading of the prompt ended when this is called. */
export async function* write(
  { governed, tokens, logits, forward }: Writing,
  answer: Answer,
  asked: Asked,
  signal: AbortSignal | undefined,
): AsyncGenerator<string, Generated> {
  const { meter } = governed;
  let start = performance.now();
  let readMs = start - asked.startMs;
  let last = asked.startMs;
  while (answer.finish === null) {
    if (signal?.aborted) {
      answer.finish = 'aborted';
      break;
    }
    const id = answer.next(await logits(), tokens);
    if (id === null) break;
    // Only now is it certain that something follows the prompt; sealing its last page still counts as the prompt's work.
    if (answer.count === 0 && asked.tokens > 0) {
      const before = performance.now();
      endPrompt(governed);
      const roomMs = performance.now() - before;
      readMs += roomMs;
      start += roomMs;
    }
    await forward([id]);
    const now = performance.now();
    if (answer.count > 0) meter.betweenTokensSeconds.observe((now - last) / 1000);
    else if (asked.tokens > 0) meter.firstTokenSeconds.observe((now - last) / 1000);
    last = now;
    meter.generatedTokens.add({});
    const piece = await answer.push(id);
    if (piece !== '') yield piece;
  }
  const rest = answer.end();
  if (rest !== '') yield rest;
  const seconds = (performance.now() - start) / 1000;
  return {
    ...answer.generated,
    promptTokens: asked.tokens,
    prefillTokensPerSecond: asked.tokens === 0 ? 0 : (asked.tokens * 1000) / readMs,
    tokensPerSecond: answer.count === 0 ? 0 : answer.count / seconds,
  };
}
