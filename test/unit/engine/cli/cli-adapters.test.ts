// Adapters on the command line: looked at and verified, and added to an answer by --lora. The built command in
// processes of its own, on the reference model, because only a whole run shows that what a flag names reaches the
// answer.
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { loraOf } from '../../../../engine/cli/lora.ts';
import { loadModel } from '../../../../engine/transformer/load.ts';
import { refusal } from '../../../refusal.ts';
import { lowRank, matricesOf, peftConfig, peftTensors, writePeft } from '../adapters/adapter-files.ts';
import { answered, dir, expectRefused, lastLine, palimpsest } from './command.ts';

const adapter = join(dir, 'adapter');
const prompt = join(dir, 'prompt.txt');
const folder = {
  dir,
  write(name: string, content: string | Uint8Array): string {
    mkdirSync(join(dir, name, '..'), { recursive: true });
    writeFileSync(join(dir, name), content);
    return join(dir, name);
  },
};

beforeAll(async () => {
  writeFileSync(prompt, 'It was a bright cold day, and the old man went down to the river.');
  const model = await loadModel('reference');
  const factors = lowRank(matricesOf(model.config), () => 8, 3, 0.4);
  model.weights.close();
  writePeft(folder, 'adapter', peftConfig(), peftTensors(factors));
  writePeft(folder, 'biased', peftConfig({ bias: 'all' }), peftTensors(factors));
});
afterAll(() => rmSync(dir, { recursive: true, force: true }));

describe('adapters', () => {
  it('are inspected and verified', async () => {
    const { code, out } = await answered(['adapters', 'inspect', adapter, '--json']);
    const info = lastLine(out) as { digest: string };
    expect(code).toBe(0);
    expect(info).toMatchObject({ format: 'PEFT', matrices: 42, ranks: [8, 8], model: 'reference' });
    const plain = await answered(['adapters', 'inspect', adapter]);
    expect(plain.out).toContain(info.digest);
    for (const digest of [info.digest, info.digest.slice(0, 8)])
      expect(await answered(['adapters', 'verify', adapter, digest])).toMatchObject({ code: 0, err: '' });
    const other = info.digest.startsWith('0') ? '1'.repeat(64) : '0'.repeat(64);
    expectRefused(await answered(['adapters', 'verify', adapter, other]), 'checksum-mismatch');
    expectRefused(await answered(['adapters', 'verify', adapter, 'xyz']), 'bad-argument');
    expectRefused(await answered(['adapters', 'inspect', join(dir, 'biased')]), 'unsupported', 'bias');
    expectRefused(await answered(['adapters', 'inspect', join(dir, 'nothing')]), 'not-found');
  });

  it('have names in a state folder, by which --lora takes them', async () => {
    const state = ['--state', join(dir, 'registered')];
    const say = async (...words: string[]) => answered(['adapters', ...words, ...state, '--json']);
    const added = lastLine((await say('add', 'style', adapter)).out) as { digest: string };
    expect(added).toMatchObject({ name: 'style', matrices: 42 });
    expect(lastLine((await say('list')).out)).toEqual([added]);
    const run = async (lora: string): Promise<string> =>
      (await answered(['run', '-m', 'reference', '-p', prompt, '-n', '8', ...state, '--lora', lora])).out.split(
        '\n\n',
      )[0]!;
    expect(await run('style')).toBe(await run(`other=${adapter}`));
    expect(lastLine((await say('remove', 'style')).out)).toEqual(added);
    expect(lastLine((await say('list')).out)).toEqual([]);
    expectRefused(await say('remove', 'style'), 'not-found');
  });

  it('are proposed with what helpers say of a text, as other commands ask them', async () => {
    const story = folder.write('story.txt', 'Then they walked to the old house by the sea, step by step. '.repeat(30));
    const state = ['--state', join(dir, 'proposing')];
    const run = ['run', '-m', 'reference', '-p', story, '-n', '2', ...state, '--helpers', '--lora', `style=${adapter}`];
    expect(await palimpsest(run)).toMatchObject({ code: 0 });
    const propose = (...more: string[]) =>
      answered(['adapters', 'propose', story, '-m', 'reference', ...state, '--json', ...more]);
    for (const { code, out } of [await propose(), await propose('--helpers')]) {
      expect(code).toBe(0);
      expect(lastLine(out)['seen']).toHaveLength(1);
    }
    expectRefused(await propose('--embedder', join(dir, 'none.onnx')), 'not-found', 'none.onnx');
  });

  it('change an answer by --lora, as far as their scale says', async () => {
    const run = async (...lora: string[]): Promise<string> => {
      const args = ['run', '-m', 'reference', '-p', prompt, '-n', '12', '--state', join(dir, 'state')];
      const { code, out, err } = await palimpsest([...args, ...lora]);
      expect(code, err).toBe(0);
      return out.split('\n\n')[0]!;
    };
    const plain = await run();
    const adapted = await run('--lora', `style=${adapter}`);
    expect(adapted).not.toBe(plain);
    expect(await run('--lora', `style=${adapter}:0`)).toBe(plain);
    expect(await run('--lora', `a=${adapter}:0.5`, `b=${adapter}:0.5`)).not.toBe(plain);
  });

  it('are refused before a model answers', async () => {
    const run = (...lora: string[]) => palimpsest(['run', '-m', 'reference', '-p', prompt, '--lora', ...lora]);
    expectRefused(await run(adapter), 'bad-argument', 'NAME=PATH');
    expectRefused(await run(`a=${join(dir, 'biased')}`), 'unsupported', 'bias');
  });
});

describe('--lora', () => {
  it('is read as it is meant', () => {
    const read = (...lora: string[]) => loraOf({ lora });
    expect(loraOf({})).toBeNull();
    expect(read('a=/x/y')).toEqual({ paths: { a: '/x/y' }, adapters: [{ name: 'a' }] });
    expect(read('a=/x/y:0.5', 'b=C:\\z:-2', 'c=z.gguf:1e-1')).toEqual({
      paths: { a: '/x/y', b: 'C:\\z', c: 'z.gguf' },
      adapters: [
        { name: 'a', scale: 0.5 },
        { name: 'b', scale: -2 },
        { name: 'c', scale: 0.1 },
      ],
    });
    expect(read('a', 'b:0.5', 'c=/x')).toEqual({
      paths: { c: '/x' },
      adapters: [{ name: 'a' }, { name: 'b', scale: 0.5 }, { name: 'c' }],
    });
    for (const bad of [['./x'], [''], ['=x'], ['a='], ['a=x:200'], ['a=x', 'a=y'], ['a=1', 'b=2', 'c=3', 'd=4', 'e=5']])
      expect(refusal(() => read(...bad)).code).toBe('bad-argument');
  });
});
