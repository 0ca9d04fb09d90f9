/**
 * Sliding window with sinks: the first four tokens and the newest. A token's rotary position is its place in the cache,
 * so sinks stay as near as the window begins. StreamingLLM, arXiv 2309.17453. It reads any length and remembers the
 * window alone.
 */

import type { Kept, Yardstick } from 'palimpsest/lab';
import { SINKS, split } from './tokens.ts';

function keep(held: readonly number[], budgetTokens: number): Kept {
  const sinks = held.filter((position) => position < SINKS).slice(0, budgetTokens);
  const others = held.filter((position) => position >= SINKS);
  return { tokens: [...sinks, ...split(others, budgetTokens - sinks.length).recent] };
}

export const streaming: Yardstick = {
  id: 'streaming',
  source: 'StreamingLLM, arXiv 2309.17453: 4 sinks, the window takes the rest',
  when: 'step',
  positions: 'slot',
  observes: false,
  open: () => ({ observe: () => {}, keep }),
};
