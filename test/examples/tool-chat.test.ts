// The chat that calls tools (examples/tool-chat.ts), run as it is with SmolLM2: each of its ten questions is answered
// by calls that a tool takes and then in words, most calls are those that the questions ask for, and the cache stays
// within its budget. Skipped by name where the model was not fetched.
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { fetchedPath } from '../../engine/transformer/fetch.ts';
import { run } from '../../examples/tool-chat.ts';

const cacheDir = process.env['PALIMPSEST_CACHE'] ?? join(import.meta.dirname, '..', '..', '.cache');
const fetched = existsSync(fetchedPath('smollm2-135m', cacheDir));

it.skipIf(!fetched)(
  'a chat of 20 answers calls its tools (skipped when SmolLM2 is not fetched: npm run fetch:model)',
  async () => {
    const told: string[] = [];
    const { rounds, kvBytes, budgetBytes } = await run('smollm2-135m', (line) => void told.push(line), cacheDir);
    expect([rounds.length, told.length]).toEqual([10, 11]);
    const calls = rounds.flatMap((round) => round.calls);
    expect(calls.length).toBeGreaterThanOrEqual(10);
    for (const { name, arguments: given } of calls) {
      expect(['price', 'total']).toContain(name);
      expect(['honey', 'wax', 'candle', 'hive']).toContain(given['item']);
      expect(Object.keys(given)).toEqual(name === 'price' ? ['item'] : ['item', 'count']);
    }
    for (const { text } of rounds) expect(text).toMatch(/\w/);
    expect(rounds[0]!.calls[0]).toMatchObject({ name: 'price', arguments: { item: 'honey' } });
    expect(calls.filter(({ name }) => name === 'total').length).toBeGreaterThan(2);
    expect(kvBytes).toBeLessThanOrEqual(budgetBytes!);
  },
);
