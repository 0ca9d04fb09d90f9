// Prompt look-up decoding writes what plain decoding writes: greedy, drawn with a seed, under a grammar, with logprobs,
// across page ends and under a budget with an open page in f16; the cache then holds the same tokens and goes on alike.
// What is proposed is what followed before. Where a wide step cannot be the same, nothing is proposed.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import type { GenerateOptions, SessionOptions } from '../../../../engine/options/types.ts';
import { followers } from '../../../../engine/session/prompt-lookup.ts';
import type { Generated } from '../../../../engine/session/types.ts';
import { palimpsest } from '../cli/command.ts';
import { openEngine } from '../on-reference.ts';
import { onRuntime } from '../on-runtime.ts';

const { runtime, open } = onRuntime();
const PROMPT = 'The keeper of bees had seven hives. The keeper of bees had seven cats. The keeper of bees had '.repeat(
  6,
);

async function written(
  session: ReturnType<typeof open>,
  prompt: string | null,
  options: GenerateOptions,
): Promise<Generated> {
  const stream = session.generate(prompt, options);
  for (;;) {
    const next = await stream.next();
    if (next.done === true) return next.value;
  }
}

it('proposes what followed the newest tokens where they stood last', () => {
  expect(followers([1, 2, 3, 4, 1], 2, 2)).toEqual([3, 4]);
  expect(followers([1, 2, 3, 4, 1], 2, 9)).toEqual([3, 4, 1, 2]);
  expect(followers([5, 1, 2, 3, 6, 1, 2, 4, 5, 1], 2, 1)).toEqual([3]);
  expect(followers([1, 2, 3], 4, 4)).toEqual([]);
  expect(followers([], 4, 4)).toEqual([]);
  expect(followers([7, 7], 7, 3)).toEqual([7]);
});

it.each<[GenerateOptions, SessionOptions]>([
  [{}, {}],
  [{ logprobs: 2 }, { exact: true }],
  [{ temperature: 0.7, seed: 3 }, {}],
  [{ temperature: 1, topK: 0, topP: 1, minP: 0, seed: 9, repeatPenalty: 1.1, dryMultiplier: 0.5 }, {}],
  [{ grammar: { gbnf: 'root ::= ("The keeper of bees had " ("seven" | "ten") " " [a-z]+ ". ")+' } }, {}],
  [{ stop: ['cats'] }, {}],
])('writes the same with %j in %j', async (options, sessionOptions) => {
  const all: { answer: Generated; more: Generated; tokens: number[] }[] = [];
  for (const promptLookupTokens of [0, 6]) {
    const session = open(sessionOptions);
    const answer = await written(session, PROMPT, { maxTokens: 160, ...options, promptLookupTokens });
    const more = await written(session, null, { maxTokens: 4 });
    all.push({ answer, more, tokens: [...session.tokens] });
    expect(session.cache.length(0)).toBe(session.length);
    session.close();
  }
  const [plain, fast] = all;
  const { tokensPerSecond: _, prefillTokensPerSecond: _p, drafted, accepted, ...same } = fast!.answer;
  expect(plain!.answer).toMatchObject({ ...same, drafted: 0, accepted: 0 });
  expect([fast!.tokens, fast!.more.text]).toEqual([plain!.tokens, plain!.more.text]);
  expect(accepted).toBeLessThanOrEqual(drafted);
  expect(drafted).toBeGreaterThan(0);
});

it('proposes nothing where a step of several tokens would not be the same', async () => {
  const session = open({ kvBudget: '60%', tokensExpected: 1024 });
  const answer = await written(session, PROMPT, { maxTokens: 40, promptLookupTokens: 6 });
  expect([answer.tokens, answer.drafted]).toEqual([40, 0]);
  session.close();
  expect(runtime().dense.name).toBe('native');
});

it.each([-1, 65, 1.5, '8'])('refuses %j tokens', async (promptLookupTokens) => {
  const session = open({});
  const options = { promptLookupTokens } as GenerateOptions;
  await expect(written(session, PROMPT, options)).rejects.toMatchObject({ code: 'bad-argument' });
  session.close();
});

it('leaves a log that replays, in a session that moves pages', async () => {
  const dir = mkdtempSync(join(tmpdir(), 'palimpsest-lookup-'));
  const engine = await openEngine(dir);
  const session = await engine.openSession({ kldBudget: 0.05, tokensExpected: 1024, openFormat: 'f16' });
  const { drafted, accepted } = await session.generate(PROMPT, { maxTokens: 400, promptLookupTokens: 6 }).result;
  expect(drafted).toBeGreaterThan(accepted);
  expect((await session.report()).decisions).toBeGreaterThan(0);
  await session.close();
  await engine.close();
  const { code, out } = await palimpsest(['audit', 'replay', session.id, '--state', dir]);
  expect([code, out]).toEqual([0, expect.stringMatching(/replay/i)]);
  rmSync(dir, { recursive: true });
});
