// The files of docs/deploy name flags and metrics that there are.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { type Served, withServer } from '../openai/served.ts';
import { parseExposition } from './exposition.ts';

const root = join(import.meta.dirname, '..', '..', '..', '..');
const fileIn = (name: string): string => readFileSync(join(root, 'docs', name), 'utf8');

let served: Served;
withServer((one) => {
  served = one;
});

test('the dashboard names metrics that a server has', async () => {
  const response = await fetch(`${served.url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ messages: [{ role: 'user', content: 'Wax?' }], max_tokens: 4 }),
  });
  expect(response.status).toBe(200);
  // Decisions are told once there was one.
  const session = await served.engine.openSession({ kvBudget: '30%', tokensExpected: 700 });
  await session.generate('It was a bright cold day. '.repeat(100), { maxTokens: 2 }).result;
  await session.close();
  const text = await (await fetch(`${served.url}/metrics`)).text();
  const known = parseExposition(text).map(({ name }) => name);
  const { panels } = JSON.parse(fileIn('deploy/dashboard.json')) as { panels: { targets: { expr: string }[] }[] };
  const named = panels.flatMap(({ targets }) => targets.flatMap(({ expr }) => expr.match(/palimpsest_\w+/g) ?? []));
  expect(named.length).toBeGreaterThan(panels.length);
  for (const name of named) expect(known, name).toContain(name.replace(/_bucket$/, ''));
});

test('the unit and the manifests name flags that there are', () => {
  const options = fileIn('cli.md') + fileIn('options.md');
  for (const name of ['palimpsest.service', 'kubernetes.yaml']) {
    const flags = fileIn(`deploy/${name}`).match(/(?<=\s)--[a-z][a-z-]*/g) ?? [];
    expect(flags.length).toBeGreaterThan(2);
    for (const flag of flags) expect(options, `${flag} of ${name}`).toMatch(new RegExp(`${flag}\\b`));
  }
});
