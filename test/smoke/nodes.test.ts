// Does what was built with one Node run on the others? With each promised version that scripts/smoke-nodes.mjs fetched, the
// built command line says what it found (doctor), and reads and answers a short prompt on the reference model.
import { execFile } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';

const root = join(import.meta.dirname, '..', '..');
const main = join(root, 'dist/engine/cli/main.js');
const nodes = (await import(join(root, 'scripts/smoke-nodes.mjs'))) as {
  MAJORS: readonly number[];
  nodeBinary: (major: number) => string | null;
};

/** The last line of stdout is one JSON object. */
async function json(binary: string, args: readonly string[]): Promise<Record<string, unknown>> {
  const { stdout } = await promisify(execFile)(binary, [main, ...args], { encoding: 'utf8', maxBuffer: 2 ** 26 });
  return JSON.parse(stdout.trimEnd().split('\n').at(-1)!);
}

describe.each(nodes.MAJORS)('Node %i', (major) => {
  let dir: string;
  beforeAll(() => {
    dir = mkdtempSync(join(tmpdir(), 'palimpsest-smoke-'));
  });
  afterAll(() => {
    rmSync(dir, { recursive: true, force: true });
  });

  const binaryOr = (skip: (reason: string) => never): string =>
    nodes.nodeBinary(major) ?? skip(`Node ${major} was not fetched: node scripts/smoke-nodes.mjs`);

  test('doctor reports the native kernels it found', async (context) => {
    const binary = binaryOr(context.skip);
    expect(existsSync(main), 'dist/ is built: npm run build').toBe(true);
    const report = await json(binary, ['doctor', '--json', '--state', join(dir, 'doctor')]);
    expect(JSON.stringify(report)).toMatch(/scalar|avx2|avx512|neon/);
  });

  test('run reads a prompt under a budget and answers', async (context) => {
    const binary = binaryOr(context.skip);
    const prompt = join(dir, 'prompt.txt');
    writeFileSync(prompt, 'A page was scraped and written over, and the older writing can still be read. '.repeat(24));
    const budget = ['--kv-budget', '60%', '--max-tokens', '4'];
    const report = await json(binary, [
      'run',
      '--model',
      'reference',
      '--prompt',
      prompt,
      ...budget,
      '--state',
      join(dir, 'run'),
      '--json',
    ]);
    expect(report.model).toBe('reference');
    expect(report.kvBytes).toBeGreaterThan(0);
    expect(report.kvBytes).toBeLessThan(report.kvBytesF16 as number);
  });
});
