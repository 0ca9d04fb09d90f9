// How many newer tokens keep a page in the window is one rule: whoever gives another number (a flag, a variable, a file
// of settings, a session, a cache, a file that a cache was saved to, a cache of an evaluation) is refused with the same
// words.
import { createHash } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Command } from 'commander';
import { expect, it } from 'vitest';
import { addSettings, environmentName, readSettings } from '../../../../engine/cli/settings.ts';
import { parseCache } from '../../../../engine/evaluate/evaluate.ts';
import { loadCache, openCache } from '../../../../engine/index.ts';
import { KvError, WINDOW_TOKENS } from '../../../../native/index.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { openEngine } from '../on-reference.ts';

const folder = scratchFolders();
const SHAPE = { layers: 1, queryHeads: 1, kvHeads: 1, headDim: 64 };
const RULE = 'windowTokens must be 128 or 64';

const refusal = async (work: () => unknown): Promise<Error> => {
  try {
    await work();
  } catch (error) {
    return error as Error;
  }
  throw new Error('was not refused');
};

function command(...args: string[]): unknown {
  let seen: unknown;
  const root = new Command().exitOverride().configureOutput({ writeErr: () => {} });
  addSettings(root.command('x').exitOverride(), ['config', 'windowTokens']).action((...parameters: unknown[]) => {
    seen = readSettings(parameters.at(-1) as Command, process.env).windowTokens;
  });
  root.parse(['node', 'palimpsest', 'x', ...args]);
  return seen;
}

async function fromEnvironment(text: string): Promise<unknown> {
  const name = environmentName('windowTokens');
  process.env[name] = text;
  try {
    return command();
  } finally {
    delete process.env[name];
  }
}

const BAD = [127, 65, 32, 1, 0, -64, 129, 256, 64.5];

it('what is served is taken from every place, as a number', async () => {
  const file = join(folder(), 'settings.toml');
  for (const tokens of WINDOW_TOKENS) {
    writeFileSync(file, `window-tokens = ${tokens}\n`);
    expect([command(`--window-tokens=${tokens}`), command('--config', file)]).toEqual([tokens, tokens]);
    expect(await fromEnvironment(`${tokens}`)).toBe(tokens);
    expect(parseCache(`price@25%+${tokens}`).options.windowTokens).toBe(tokens);
    await (await openCache({ ...SHAPE, windowTokens: tokens })).close();
  }
});

it('any other number is refused by the command line, the environment and files of settings', async () => {
  const dir = folder();
  const [toml, json] = [join(dir, 'settings.toml'), join(dir, 'settings.json')];
  for (const bad of BAD) {
    writeFileSync(toml, `window-tokens = ${bad}\n`);
    writeFileSync(json, JSON.stringify({ 'window-tokens': bad }));
    const refused = [
      await refusal(() => command(`--window-tokens=${bad}`)),
      await refusal(() => fromEnvironment(`${bad}`)),
      await refusal(() => command('--config', toml)),
      await refusal(() => command('--config', json)),
    ];
    for (const { message } of refused) expect(message).toContain(RULE);
  }
});

it('by sessions, caches and caches of an evaluation', async () => {
  const engine = await openEngine(null);
  for (const bad of [...BAD, '64', null]) {
    const windowTokens = bad as number;
    const refused = [
      await refusal(() => openCache({ ...SHAPE, windowTokens })),
      await refusal(() => engine.openSession({ windowTokens })),
    ];
    if (Number.isInteger(bad) && windowTokens >= 0)
      refused.push(await refusal(() => engine.openSession(parseCache(`price@50%+${windowTokens}`).options)));
    for (const error of refused) {
      expect(error).toBeInstanceOf(KvError);
      expect([(error as KvError).code, error.message]).toEqual(['bad-argument', RULE]);
    }
  }
  await engine.close();
});

it('and by files that caches were saved to', async () => {
  const path = join(folder(), 'saved.cache');
  const cache = await openCache({ ...SHAPE, windowTokens: 128 });
  cache.save(path);
  await cache.close();
  const sound = readFileSync(path);
  const body = sound.subarray(0, -32);
  const digest = (bytes: Buffer): Buffer => createHash('sha256').update(bytes).digest();
  expect(digest(body).equals(sound.subarray(-32))).toBe(true);
  const [before, name] = ['"windowTokens":128', '"windowTokens":'];
  const at = body.indexOf(before);
  for (const bad of ['127', '6.5', '"6"', '32 ', '256']) {
    const changed = Buffer.from(body);
    changed.write(bad, at + name.length, 'latin1');
    writeFileSync(path, Buffer.concat([changed, digest(changed)]));
    const error = (await refusal(() => loadCache(path, { windowTokens: 128 }))) as KvError;
    expect(error.code).toBe('bad-file');
    expect(error.message).toContain(RULE);
  }
});
