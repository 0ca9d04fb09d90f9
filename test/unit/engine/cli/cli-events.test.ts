// Events of an engine on stderr of a command: from the level on that is asked for, once, and as objects where a program
// reads.
import { expect, it } from 'vitest';
import { palimpsest } from './command.ts';

/** Nobody listens there. */
const AWAY = ['--qdrant-url', 'http://127.0.0.1:1'];
const run = (...args: string[]) =>
  palimpsest(['run', '-m', 'reference', '-p', '-', '-n', '4', ...args], { input: 'Once upon a time' });

it('a Qdrant that is away is told from --log-level warn on, once, and not unasked', async () => {
  const unasked = await run(...AWAY);
  expect([unasked.code, unasked.err]).toEqual([0, '']);
  const told = await run(...AWAY, '--log-level', 'warn');
  expect(told.err.match(/warning: Qdrant does not answer/g)).toHaveLength(1);
  expect(told.err).not.toContain('debug');
  const json = await run(...AWAY, '--log-level', 'warn', '--json');
  expect(JSON.parse(json.err)).toMatchObject({ level: 'warn', event: 'qdrant-away', timeMs: expect.any(Number) });
});

it('--priority says which of two budgets gives way, and the event by how much', async () => {
  const budgets = ['--kv-budget', '60%', '--kld-budget', '0.000001', '-n', '200', '--log-level', 'warn'];
  const { code, err } = await run(...budgets, '--priority', 'kld');
  expect(code).toBe(0);
  expect(err.replaceAll(/\s+/g, ' ')).toMatch(
    /^warning: The byte budget of session \w{8} gave way to its divergence budget: [\d.]+ KiB became [\d.]+ KiB\. $/,
  );
});
