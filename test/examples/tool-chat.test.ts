// The chat that calls tools (examples/tool-chat.ts), run as it is with SmolLM2: each of its 20 answers is a call that a tool takes, or words in the shape that was asked for,
// most calls are those that the questions ask for, and the cache stays within its budget. Skipped by name where the model was not fetched.
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { fetchedPath } from '../../engine/model/fetch.ts';
import { run } from '../../examples/tool-chat.ts';

const cacheDir = process.env['PALIMPSEST_CACHE'] ?? join(import.meta.dirname, '..', '..', '.cache');
const fetched = existsSync(fetchedPath('smollm2-135m', cacheDir));

it.skipIf(!fetched)(
  'a chat of 20 answers calls its tools (skipped when SmolLM2 is not fetched: npm run fetch:model)',
  async () => {
    const told: string[] = [];
    const { answers, kvBytes, budgetBytes } = await run('smollm2-135m', (line) => void told.push(line), cacheDir);
    const [calls, replies] = [0, 1].map((odd) =>
      answers.filter((_, i) => i % 2 === odd).map((text) => JSON.parse(text)),
    );
    expect([calls!.length, replies!.length, told.length]).toEqual([10, 10, 11]);
    for (const call of calls!) {
      expect(['price', 'total']).toContain(call.tool);
      expect(['honey', 'wax', 'candle', 'hive']).toContain(call.arguments.item);
      expect(Object.keys(call.arguments)).toEqual(call.tool === 'price' ? ['item'] : ['item', 'count']);
    }
    for (const reply of replies!) expect(reply).toEqual({ answer: expect.any(String) });
    expect(calls![0]).toEqual({ tool: 'price', arguments: { item: 'honey' } });
    expect(calls!.filter(({ tool }) => tool === 'total').length).toBeGreaterThan(2);
    expect(kvBytes).toBeLessThanOrEqual(budgetBytes!);
  },
);
