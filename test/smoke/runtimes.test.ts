// Does what was built with one Node run on the others, on Bun and on Deno? On each that scripts/smoke-runtimes.mjs
// fetched, the built command line says what it found (doctor), and reads and answers a short prompt on the reference
// model, under a budget and with a log.
import { execFile } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';

const root = join(import.meta.dirname, '..', '..');
const main = join(root, 'dist/engine/cli/main.js');
interface Runtime {
  readonly name: string;
  readonly args: readonly string[];
}
const { RUNTIMES, binaryOf } = (await import(join(root, 'scripts/smoke-runtimes.mjs'))) as {
  RUNTIMES: readonly Runtime[];
  binaryOf: (runtime: Runtime) => string | null;
};

/** The last line of stdout is one JSON object. */
async function json(binary: string, args: readonly string[]): Promise<Record<string, unknown>> {
  const { stdout } = await promisify(execFile)(binary, args, { encoding: 'utf8', maxBuffer: 2 ** 26 });
  return JSON.parse(stdout.trimEnd().split('\n').at(-1)!);
}

describe.each(RUNTIMES)('$name', (runtime) => {
  let dir: string;
  beforeAll(() => {
    dir = mkdtempSync(join(tmpdir(), 'palimpsest-smoke-'));
  });
  afterAll(() => {
    rmSync(dir, { recursive: true, force: true });
  });

  const binaryOr = (skip: (reason: string) => never): string =>
    binaryOf(runtime) ?? skip(`${runtime.name} was not fetched: node scripts/smoke-runtimes.mjs`);
  const command = (...args: string[]): string[] => [...runtime.args, main, ...args];

  test('doctor reports the native kernels it found', async (context) => {
    const binary = binaryOr(context.skip);
    expect(existsSync(main), 'dist/ is built: npm run build').toBe(true);
    const report = await json(binary, command('doctor', '--json', '--state', join(dir, 'doctor')));
    expect(JSON.stringify(report)).toMatch(/scalar|avx2|avx512|neon/);
  });

  test('run reads a prompt under a budget and answers', async (context) => {
    const binary = binaryOr(context.skip);
    const prompt = join(dir, 'prompt.txt');
    writeFileSync(prompt, 'A page was scraped and written over, and the older writing can still be read. '.repeat(24));
    const budget = ['--kv-budget', '60%', '--max-tokens', '4'];
    const state = ['--state', join(dir, 'run')];
    const report = await json(
      binary,
      command('run', '--model', 'reference', '--prompt', prompt, ...budget, ...state, '--json'),
    );
    expect(await json(binary, command('audit', 'verify', ...state, '--json'))).toMatchObject({ ok: true });
    expect(report.model).toBe('reference');
    expect(report.kvBytes).toBeGreaterThan(0);
    expect(report.kvBytes).toBeLessThan(report.kvBytesF16 as number);
  });
});
