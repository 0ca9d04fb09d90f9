// `palimpsest serve` as its users run it: the built command over a state folder, asked over HTTP, and ended by a
// signal.
import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import type { SessionRow } from '../../../../engine/index.ts';
import { dir, expectRefused, palimpsest } from '../cli/command.ts';
import { ask, refusal } from './ask.ts';
import { parseExposition } from './exposition.ts';

const state = join(dir, 'state');
afterAll(() => rmSync(dir, { recursive: true, force: true }));

/** Runs the command, asks it, and ends it by a signal. → what it printed */
async function served(
  args: readonly string[],
  asked: (url: string) => Promise<void>,
  signal: NodeJS.Signals = 'SIGTERM',
): Promise<string> {
  const answers: Promise<void>[] = [];
  const result = await palimpsest(['serve', '--view', '--state', state, '--port', '0', '--json', ...args], {
    with: (child) =>
      child.stdout!.once('data', (line) => {
        const { url } = JSON.parse(String(line)) as { url: string };
        answers.push(asked(url).finally(() => child.kill(signal)));
      }),
  });
  expect(answers).toHaveLength(1);
  await Promise.all(answers);
  expect(result).toMatchObject({ code: 0, err: '' });
  return result.out;
}

test('answers while a log is there, and ends with code 0', async () => {
  expectRefused(await palimpsest(['serve', '--view', '--state', state]), 'not-found', /run something first/);
  writeFileSync(join(dir, 'prompt.txt'), 'It was a bright cold day. '.repeat(120));
  const run = ['run', '-m', 'reference', '-p', 'prompt.txt', '-n', '8', '--kv-budget', '40%', '--state', state];
  expect((await palimpsest(run)).code).toBe(0);
  await served(['--metrics'], async (url) => {
    const { rows } = await ask<{ rows: SessionRow[] }>(url, '/v1/sessions');
    expect(rows).toMatchObject([{ model: 'reference', end: 'done' }]);
    const text = await (await fetch(`${url}/metrics`)).text();
    expect(parseExposition(text).map(({ name }) => name)).toContain('palimpsest_decisions_total');
  });
  const isWithoutMetrics = async (url: string): Promise<void> =>
    expect(await refusal(url, '/metrics')).toEqual([404, 'not-found']);
  // A terminal that is closed ends it as well as Ctrl-C does.
  await served([], isWithoutMetrics, 'SIGHUP');
});

test('listens elsewhere only with a token from a file', async () => {
  expectRefused(await palimpsest(['serve', '--view', '--state', state, '--host', '0.0.0.0']), 'bad-argument', /token/);
  writeFileSync(join(dir, 'token'), 'a token with spaces is none\n');
  expectRefused(
    await palimpsest(['serve', '--view', '--state', state, '--token-file', 'token']),
    'bad-config',
    /16 characters/,
  );
  writeFileSync(join(dir, 'token'), 'bG9uZyBlbm91Z2g0MDAw\n');
  await served(['--host', '0.0.0.0', '--token-file', 'token'], async (url) => {
    const here = url.replace('0.0.0.0', '127.0.0.1');
    expect(await refusal(here, '/v1/sessions')).toEqual([401, 'not-allowed']);
    expect(await ask(here, '/v1/memory', { authorization: 'Bearer bG9uZyBlbm91Z2g0MDAw' })).toHaveProperty('rows');
  });
});

test('does not begin where the budget holds no conversation', async () => {
  const serving = ['serve', '-m', 'reference', '--state', state, '--port', '0', '--kv-budget', '1KiB'];
  expectRefused(await palimpsest(serving), 'budget-too-small', /give at least [0-9.]+MiB/);
});
