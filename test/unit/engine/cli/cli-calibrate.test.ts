// `palimpsest calibrate` in a process of its own, on the reference model: the file that it writes starts sessions, what
// it measured is not measured again, Ctrl-C keeps it, and what was measured otherwise is refused.
import { copyFileSync, existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { readMeasured } from '../../../../engine/calibrate/measured.ts';
import { ownText } from '../../../../engine/evaluate/own-text.ts';
import { readThresholdFile } from '../../../../memory/index.ts';
import type { Law } from '../../../../policy/index.ts';
import { dir, expectRefused, lastLine, palimpsest, type Result } from './command.ts';

const STORY = join(dir, 'story.txt');
const calibrate = (
  output: string,
  more: readonly string[] = [],
  ways: Parameters<typeof palimpsest>[1] = {},
): Promise<Result> =>
  palimpsest(
    ['calibrate', '-m', 'reference', '-t', '1', '--text', STORY, '--tokens', '896', '-o', output, '--json', ...more],
    ways,
  );

beforeAll(() => writeFileSync(STORY, ownText().slice(0, 9000)));
afterAll(() => rmSync(dir, { recursive: true, force: true }));

describe('calibrate', () => {
  it('writes a file that sessions start with, and measures nothing twice', async () => {
    const first = await calibrate('learned.json');
    expect(first).toMatchObject({ code: 0 });
    expect(first.out).toContain('keys, nats of a page');
    expect(first.out).toMatch(/--activations auto: 8 bits in \d+ of 43\s+matrices/);
    expect(first.out).toMatch(/No text was long enough to see how divergence\s+grows beyond 2048\s+tokens/);
    const { law, windows } = lastLine(first.out) as { law: unknown; windows: number };
    expect(windows).toBe(1);
    const file = readThresholdFile(join(dir, 'learned.json'));
    // The file keeps how coefficients lie apart; what was measured is printed.
    const ratios = ({ coefficient: { k, v } }: Law): number[] => [...k, ...v].map(({ value }) => value / k[0]!.value);
    for (const [i, ratio] of ratios(law as Law).entries()) expect(ratios(file.law!)[i]! / ratio).toBeCloseTo(1, 3);
    expect(file.law!.coefficient.k.map(({ samples }) => samples)).toEqual(Array(6).fill(1));
    expect(file.activations!.matrices.down.map(({ samples }) => samples)).toEqual(Array(6).fill(1));
    const inspected = await palimpsest(['inspect', 'learned.json']);
    expect(inspected.out).toMatch(
      /Activations in 8 bits, divergence of each matrix by itself in nats, from 1\s+window/,
    );
    const bytes = readFileSync(join(dir, 'learned.json'));
    const again = await calibrate('learned.json');
    expect(lastLine(again.out)['law']).toEqual(law);
    expect(readFileSync(join(dir, 'learned.json'))).toEqual(bytes);
    const run = await palimpsest([
      'run',
      '-m',
      'reference',
      '-p',
      STORY,
      '-n',
      '4',
      '--thresholds',
      'learned.json',
      '--json',
    ]);
    expect(run).toMatchObject({ code: 0 });
  });

  it('says how divergence grows with the length where a text is long enough, and goes on where it was stopped', async () => {
    const long = ['--long-tokens', '3072'];
    writeFileSync(STORY, ownText().slice(0, 16_000));
    expect(await calibrate('long.json', [...long])).toMatchObject({ code: 0 });
    const { thresholds } = readThresholdFile(join(dir, 'long.json'));
    expect(thresholds['divergence.length']).toMatchObject({ samples: 1 });
    expect(readMeasured(join(dir, 'long.json.measured')).long).toHaveLength(1);
    const again = await calibrate('long.json', [...long]);
    expect(again.out).toMatch(/Beyond 2048 tokens divergence\s+grows as the\s+power/);
    expect(lastLine(again.out)['growth']).toMatchObject({ value: thresholds['divergence.length']!.value });
    writeFileSync(STORY, ownText().slice(0, 9000));
  });

  it('without an output is taken into the state folder, where sessions start with it', async () => {
    const state = ['--state', 'own-state'];
    const args = ['calibrate', '-m', 'reference', '-t', '1', '--text', STORY, '--tokens', '896', ...state];
    expect(await palimpsest(args)).toMatchObject({ code: 0 });
    const run = ['run', '-m', 'reference', '-p', STORY, '-n', '4', '--kv-budget', '40%', ...state, '--json'];
    expect(await palimpsest(run)).toMatchObject({ code: 0 });
    const rounded = await palimpsest([...run, '--activations', 'auto']);
    expect(lastLine(rounded.out)['activations']).toMatchObject({ eightBit: [...Array(6).fill(127), 1], share: 1 });
    const shown = await palimpsest(['thresholds', 'show', '-m', 'reference', ...state, '--json']);
    const { law, activations } = lastLine(shown.out) as {
      law: { coefficient: { k: { samples: number }[] } };
      activations: { output: { samples: number } };
    };
    expect(activations.output.samples).toBe(1);
    expect(law.coefficient.k.map(({ samples }) => samples)).toEqual(Array(6).fill(1));
  });

  it('keeps on Ctrl-C what was measured, and says so', async () => {
    let isSent = false;
    const result = await calibrate('stopped.json', ['--progress', 'jsonl'], {
      // Not yet while the model is loaded, and once: a second one would end the process at once.
      with: (child) =>
        child.stderr!.on('data', (said) => {
          if (!isSent && String(said).includes('"label":"probing"')) isSent = child.kill('SIGINT');
        }),
    });
    expect(result.code).toBe(130);
    expect(result.err).toContain('goes on from there');
    expect(existsSync(join(dir, 'stopped.json'))).toBe(false);
    const { windows } = readMeasured(join(dir, 'stopped.json.measured'));
    expect(windows.length).toBeLessThanOrEqual(1);
    expect(await calibrate('stopped.json')).toMatchObject({ code: 0 });
    expect(readFileSync(join(dir, 'stopped.json'))).toEqual(readFileSync(join(dir, 'learned.json')));
  });

  it('refuses what was measured otherwise, what is broken, and to do without a text', async () => {
    copyFileSync(join(dir, 'learned.json.measured'), join(dir, 'other.json.measured'));
    expectRefused(await calibrate('other.json', ['--tokens', '1024']), 'model-mismatch', /another history/);
    const bytes = readFileSync(join(dir, 'learned.json.measured'));
    writeFileSync(join(dir, 'cut.json.measured'), bytes.subarray(0, 500));
    expectRefused(await calibrate('cut.json'), 'bad-file', /remove it/);
    expectRefused(await calibrate('short.json', ['--tokens', '512']), 'bad-argument', /at least/);
    expectRefused(await palimpsest(['calibrate', '-m', 'reference', '-o', 'x.json']), 'bad-argument', /no text/);
  });
});
