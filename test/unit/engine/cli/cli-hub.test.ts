// The built command with a hub of the test's own: fetching by name, looking at a model before it is here, running it,
// and what is said when it cannot be had.

import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { seeded } from '../../../random.ts';
import { HubServer, sha256 } from '../transformer/hub/hub-server.ts';
import { referenceModel, tinyGguf } from '../transformer/model-files.ts';
import { dir, expectRefused, lastLine, palimpsest, type Result, root } from './command.ts';

const gguf = tinyGguf(seeded(1));
let hub: HubServer;
let env: Record<string, string>;
let run = 0;
const command = (args: readonly string[], more: Record<string, string> = {}): Promise<Result> =>
  palimpsest(args, { env: { ...env, ...more } });

beforeAll(async () => {
  hub = await HubServer.open();
  hub.add('org/tiny-GGUF', { 'tiny.Q8_0.gguf': gguf, 'tiny.F16.gguf': gguf });
  hub.add(
    'org/reference',
    Object.fromEntries(readdirSync(referenceModel).map((name) => [name, readFileSync(join(referenceModel, name))])),
  );
});
beforeEach(() => {
  hub.reset();
  const home = join(dir, `home-${run++}`);
  mkdirSync(home);
  env = { HOME: home, HF_ENDPOINT: hub.url };
});
afterAll(async () => {
  await hub.close();
  rmSync(dir, { recursive: true, force: true });
});

const cacheOf = (): string => join(env['HOME']!, '.cache/huggingface/hub');

describe('fetch', () => {
  it('prints where the model is, and progress for programs', async () => {
    const { code, out, err } = await command(['fetch', 'hf:org/tiny-GGUF', '--progress', 'jsonl']);
    expect({ code, err: err.split('\n').filter((line) => !line.startsWith('{')) }).toEqual({ code: 0, err: [''] });
    expect(out.trim()).toMatch(/models--org--tiny-GGUF\/snapshots\/[0-9a-f]{40}\/tiny\.Q8_0\.gguf$/);
    expect(readFileSync(out.trim()).equals(gguf)).toBe(true);
    const told = err
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line));
    expect(told[0]).toMatchObject({ stage: 'download', file: 'tiny.Q8_0.gguf', total: gguf.length });
    expect(told.at(-1)).toMatchObject({ stage: 'verify', done: gguf.length });
    expect(lastLine((await command(['fetch', 'hf:org/tiny-GGUF:F16', '--json'])).out)).toMatchObject({
      name: 'hf:org/tiny-GGUF:F16',
    });
  });

  it('goes on where a killed one ended', async () => {
    const big = Buffer.concat([gguf, Buffer.alloc(2 ** 21, 'weights')]);
    hub.add('org/big-GGUF', { 'big.gguf': big });
    hub.trick = () => ({ kind: 'stall', after: 2 ** 20 });
    const blobs = join(cacheOf(), 'models--org--big-GGUF/blobs');
    const killed = await palimpsest(['fetch', 'hf:org/big-GGUF', '--progress', 'jsonl'], {
      env,
      with: (child) =>
        child.stderr!.on('data', (chunk) => String(chunk).includes(`"done":${2 ** 20}`) && child.kill('SIGKILL')),
    });
    expect(killed.signal).toBe('SIGKILL');
    expect(readdirSync(blobs)).toEqual([expect.stringMatching(/\.partial$/)]);
    hub.reset();
    const { code, out } = await command(['fetch', 'hf:org/big-GGUF']);
    expect(code).toBe(0);
    expect(hub.downloads.map(({ range }) => range)).toEqual([`bytes=${2 ** 20}-`]);
    expect(sha256(readFileSync(out.trim()))).toBe(sha256(big));
    expect(readdirSync(blobs)).toEqual([sha256(big)]);
  });

  it('says in one error what cannot be had, and what to do', async () => {
    expectRefused(await command(['fetch', 'hf:org/none']), 'not-found', /no model org\/none/, /check the name/);
    expectRefused(await command(['fetch', 'hf:org/tiny-GGUF:Q2_K']), 'not-found', /tiny\.F16\.gguf/);
    expectRefused(await command(['fetch', 'hf:org']), 'bad-argument', /hf:ORG\/REPO/);
    expectRefused(await command(['fetch', 'org/tiny-GGUF']), 'bad-argument', /hf:org\/tiny-GGUF/);
    expectRefused(await command(['fetch', 'ollama:none']), 'not-found', /ollama pull/);
    expectRefused(await command(['fetch', 'hf:org/tiny-GGUF'], { HF_ENDPOINT: 'x' }), 'bad-config', /HF_ENDPOINT/);
    hub.answer = () => ({ status: 401, body: '{}' });
    expectRefused(await command(['fetch', 'hf:org/tiny-GGUF']), 'not-allowed', /HF_TOKEN/);
    const before = hub.seen.length;
    expectRefused(await command(['fetch', 'hf:org/tiny-GGUF'], { HF_HUB_OFFLINE: '1' }), 'network', /offline/);
    expectRefused(await command(['fetch', 'smollm2-135m'], { HF_HUB_OFFLINE: '1' }), 'network', /offline/);
    expect(hub.seen.length).toBe(before);
  });
});

describe('inspect and doctor', () => {
  it('say whether a model fits before it is here, and the same when it is', async () => {
    const away = await command(['inspect', 'hf:org/reference', '--tokens', '4096']);
    expect(away).toMatchObject({ code: 0, err: '' });
    // Cells are wrapped.
    for (const words of ['model that is not here', 'fits', 'free now', 'about', 'at 4,096 tokens'])
      expect(away.out.replace(/\s+/g, ' ')).toContain(words);
    const facts = lastLine((await command(['doctor', '-m', 'hf:org/reference', '--tokens', '4096', '--json'])).out);
    expect(facts).toMatchObject({ modelPath: null, fit: { tokens: 4096 } });
    expect((await command(['doctor', '-m', 'hf:org/reference', '--tokens', '8192'])).out).toMatch(
      /not here: .* to fetch.*is made for 4096/s,
    );
    expect(hub.downloads.every(({ range, path }) => range !== undefined || path.endsWith('.json'))).toBe(true);
    expectRefused(await command(['inspect', 'hf:org/reference', '--offline']), 'not-found', /palimpsest fetch/);
    for (const words of [
      ['inspect', 'hf:org/reference'],
      ['doctor', '-m', 'hf:org/reference'],
    ]) {
      expectRefused(await command([...words, '--offline']), 'not-found', /offline mode/);
      expectRefused(await command(words, { HF_HUB_OFFLINE: '1' }), 'not-found', /offline mode/);
    }
    expect((await command(['fetch', 'hf:org/reference'])).code).toBe(0);
    hub.reset();
    const here = lastLine((await command(['inspect', 'hf:org/reference', '--tokens', '4096', '--json'])).out);
    expect(here).toMatchObject({ kind: 'model', fetched: true });
    const { weightsBytes, cache } = here['fit'] as { weightsBytes: number; cache: object };
    expect(facts['fit']).toMatchObject({ weightsBytes, cache });
    expect((await command(['doctor', '-m', 'hf:org/reference'])).code).toBe(0);
    expect(hub.seen).toEqual([]);
  });
});

describe('without the package that asks the Hub', () => {
  it('what is not here is refused with what to install, and what is here is used', async () => {
    const hook = `export async function resolve(name, context, next) {
      if (name === '@huggingface/hub') throw new Error('not installed');
      return next(name, context);
    }`;
    const url = (text: string): string => `data:text/javascript,${encodeURIComponent(text)}`;
    const register = `import { register } from 'node:module'; register(${JSON.stringify(url(hook))});`;
    const without = { NODE_OPTIONS: `--import ${url(register)}` };
    expectRefused(
      await command(['fetch', 'hf:org/reference'], without),
      'missing-dependency',
      /npm install @huggingface\/hub@/,
    );
    expect((await command(['fetch', 'hf:org/reference'])).code).toBe(0);
    expect((await command(['inspect', 'hf:org/reference'], without)).code).toBe(0);
  });

  it('the version to install is the one that is tested', () => {
    const { peerDependencies, devDependencies } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
    const version = peerDependencies['@huggingface/hub'] as string;
    expect(devDependencies['@huggingface/hub']).toBe(version);
    expect(readFileSync(join(root, 'engine/transformer/hub/listing.ts'), 'utf8')).toContain(
      `@huggingface/hub@${version}`,
    );
  });
});

describe('run', () => {
  it('fetches what is not here, and offline does without a server or refuses', async () => {
    writeFileSync(join(dir, 'prompt.txt'), 'Once upon a time');
    const args = ['run', '-m', 'hf:org/reference', '-p', 'prompt.txt', '-n', '4'];
    expectRefused(await command([...args, '--offline']), 'not-found', /offline/);
    expectRefused(await command(args, { HF_HUB_OFFLINE: '1' }), 'not-found', /offline/);
    expect(hub.seen).toEqual([]);
    const first = await command(args);
    expect(first).toMatchObject({ code: 0 });
    hub.reset();
    const second = await command([...args, '--offline']);
    expect(second).toMatchObject({ code: 0 });
    expect(hub.seen).toEqual([]);
  });
});
