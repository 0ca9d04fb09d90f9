// Tries the flags of sampling in the command itself: both names of a flag, several answers to one prompt, log
// probabilities as a table and as JSON, and what is refused before a model is loaded.
import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { dir, expectRefused, lastLine, palimpsest, type Result, widest } from './command.ts';

const prompt = join(dir, 'prompt.txt');
const run = (...args: string[]): Promise<Result> =>
  palimpsest(['run', '-m', 'reference', '-p', prompt, '--state', join(dir, 'state'), '-n', '6', ...args]);

beforeAll(() => writeFileSync(prompt, 'Once upon a time there was a keeper of bees, and '));
afterAll(() => rmSync(dir, { recursive: true, force: true }));

interface Told {
  readonly logprobs: {
    readonly id: number;
    readonly text: string;
    readonly logprob: number;
    readonly top: unknown[];
  }[];
  readonly completions: { readonly text: string; readonly tokens: number }[];
}
const toldBy = ({ out }: Result): Told => lastLine(out) as unknown as Told;
const idsOf = (result: Result): number[] => toldBy(result).logprobs.map(({ id }) => id);

describe('run', () => {
  it('draws alike by either name of a flag, by a file and by the environment', async () => {
    const json = ['--json', '--logprobs', '0', '--seed', '3'];
    const file = join(dir, 'settings.toml');
    writeFileSync(file, 'temperature = 1.5\ntypical-p = 0.8\nlogit-bias = ["300+2", "301-inf"]\nrepeat-last-n = -1\n');
    const bias = ['--logit-bias', '300+2', '301-inf'];
    const ways = await Promise.all([
      run(...json, '--temp', '1.5', '--typical', '0.8', '--repeat-last-n', '-1', ...bias),
      run(...json, '--temperature', '1.5', '--typical-p', '0.8', ...bias),
      run(...json, '--config', file),
    ]);
    for (const way of ways) expect(way).toMatchObject({ code: 0 });
    expect(idsOf(ways[0])).toHaveLength(6);
    expect(idsOf(ways[1])).toEqual(idsOf(ways[0]));
    expect(idsOf(ways[2])).toEqual(idsOf(ways[0]));
    expect(idsOf(await run(...json, '--temp', '1.5', '--typical', '0.8', '--seed', '4'))).not.toEqual(idsOf(ways[0]));
  });

  it('prints how likely each token was, no wider than 80 columns', async () => {
    const { code, out } = await run('--logprobs', '3');
    expect(code).toBe(0);
    expect(out).toMatch(/token +id +log probability +most likely/);
    expect(out.match(/^".*" +\d+ +-?\d+\.\d{3} +".*" -\d/gm)).toHaveLength(6);
    expect(widest(out)).toBeLessThanOrEqual(80);
  });

  it('writes several answers, and tells of each', async () => {
    const { code, out } = await run('--temp', '1', '--completions', '3', '--logprobs', '1', '--seed', '5', '--json');
    expect(code).toBe(0);
    for (const line of ['[1 of 3, seed 5]', '[2 of 3, seed 6]', '[3 of 3, seed 7]']) expect(out).toContain(line);
    const { completions } = lastLine(out) as unknown as Told;
    expect(completions.map(({ tokens }) => tokens)).toEqual([6, 6, 6]);
    for (const { text } of completions) expect(out).toContain(text);
  });

  it.each([
    ['a bias that cannot be read', ['--logit-bias', 'bees+1'], 'bad-argument', /15043\+1/],
    ['a bias of +inf', ['--logit-bias', '3+inf'], 'bad-argument', /15043\+1/],
    ['several greedy answers', ['--completions', '2'], 'bad-argument', /temperature/],
    ['a share above 1', ['--min-p', '1.5'], '', /from 0 to 1/],
    ['a window of −2', ['--repeat-last-n', '-2'], '', /0 for none or −1 for all tokens/],
    ['too many log probabilities', ['--logprobs', '21'], '', /from 0 to 20/],
    ['a nucleus of nothing', ['--temp', '1', '--top-p', '0'], '', /topP must be above 0/],
  ])('refuses %s', async (_, args, code, words) => {
    expectRefused(await run(...args), code, words);
  });
});
