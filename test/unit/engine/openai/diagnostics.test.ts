// Why a response could not go on in the cache of another one, over random edits of conversations: what was edited says
// what the reason must be, and prompts rendered beside it say which tokens are shared.
import { expect, test } from 'vitest';
import type { ChatMessage, ChatTool } from '../../../../engine/index.ts';
import { diagnose } from '../../../../engine/openai/diagnostics.ts';
import { pageStart } from '../../../../native/index.ts';
import { seeded } from '../../../random.ts';
import { seedFrom, volume } from '../../../tier.ts';
import { type Served, withServer } from './served.ts';

let served: Served;
withServer((one) => {
  served = one;
});

const WORDS = ['wax', 'hive', 'keeper', 'the', 'old', 'wall', 'counted', 'and', 'home', '\n'];
const TOOLS: readonly ChatTool[][] = [[], [{ name: 'count', parameters: { type: 'object', properties: {} } }]];

test('every edit has its reason, and tokens are those of the prompts', async () => {
  const next = seeded(seedFrom(20261128));
  const below = (most: number): number => Math.floor(next() * most);
  const text = (): string => Array.from({ length: 1 + below(30) }, () => WORDS[below(WORDS.length)]!).join(' ');
  const seen = new Set<string>();
  for (let edit = 0; edit < volume('prompt edits'); edit++) {
    const prompt: ChatMessage[] = Array.from({ length: 1 + 2 * below(3) }, (_, at) => ({
      role: at % 2 === 0 ? 'user' : 'assistant',
      content: text(),
    }));
    const [tools, salt] = [TOOLS[below(2)]!, below(2) === 0 ? undefined : 'a'];
    const terms = { tools, template: 'hermes', session: salt === undefined ? {} : { cacheSalt: salt } };
    const later: ChatMessage[] = [...prompt, { role: 'assistant', content: text() }, { role: 'user', content: text() }];
    const now = { terms, prompt: later };
    let expected: string = 'cache_hit';
    const kind = below(5);
    if (kind === 1) {
      const at = below(prompt.length);
      now.prompt = later.with(at, { ...later[at]!, content: `${later[at]!.content} ${text()}!` });
      expected = 'input_changed';
    } else if (kind === 2) {
      now.terms = { ...terms, tools: TOOLS[tools.length === 0 ? 1 : 0]! };
      expected = 'tools_changed';
    } else if (kind === 3) {
      now.terms = { ...terms, session: { cacheSalt: 'b' } };
      expected = 'prompt_cache_key_changed';
    } else if (kind === 4) {
      now.prompt = later.slice(1);
      expected = 'input_changed';
    }
    const render = (asked: typeof now): Promise<number[]> =>
      served.engine.renderTokens(asked.prompt, { tools: asked.terms.tools, template: 'hermes' });
    const [old, own] = await Promise.all([render({ terms, prompt }), render(now)]);
    let shared = 0;
    while (shared < Math.min(old.length, own.length) && old[shared] === own[shared]) shared++;
    const stored = { response: { id: 'resp_1' }, items: [], prompt, terms, owner: undefined, sessions: [], bytes: 0 };
    const held = pageStart(shared);
    const told = await diagnose(served.engine, stored, { ...now, cachedTokens: held });
    seen.add(expected);
    if (expected === 'cache_hit') {
      expect(told).toEqual({ type: 'cache_hit' });
      if (held > 0)
        expect(await diagnose(served.engine, stored, { ...now, cachedTokens: held - 1 })).toEqual({
          type: 'unavailable',
        });
      continue;
    }
    const reusable = expected === 'prompt_cache_key_changed' ? 0 : shared;
    expect(told).toEqual({
      type: 'cache_miss',
      reason: expected,
      cache_missed_tokens: own.length - reusable,
      comparison_reusable_tokens: reusable,
    });
  }
  expect(seen.size).toBe(4);
});

test('a client asks for them', async () => {
  const asked = async (body: object): Promise<Record<string, unknown> & { id: string }> =>
    (
      await fetch(`${served.url}/v1/responses`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ max_output_tokens: 3, ...body }),
      })
    ).json() as never;
  const first = await asked({ input: 'What is wax?' });
  expect(first['prompt_cache_diagnostics']).toBeUndefined();
  const compared = { prompt_cache_options: { comparison_response_id: first.id } };
  const on = await asked({ input: 'And honey?', previous_response_id: first.id, ...compared });
  expect(on['prompt_cache_diagnostics']).toEqual({ type: 'cache_hit' });
  const other = await asked({ input: 'Who are you?', ...compared });
  expect(other['prompt_cache_diagnostics']).toMatchObject({ type: 'cache_miss', reason: 'input_changed' });
  const key = await asked({ input: 'What is wax?', prompt_cache_key: 'k', ...compared });
  expect(key['prompt_cache_diagnostics']).toMatchObject({ reason: 'prompt_cache_key_changed' });
  const none = await asked({ input: 'x', prompt_cache_options: { comparison_response_id: 'resp_none' } });
  expect(none['prompt_cache_diagnostics']).toEqual({ type: 'comparison_response_not_found' });
});
