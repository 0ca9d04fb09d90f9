// Does a test run close with the truth? Vitest runs small test files of every outcome in a folder of their own with the
// reporter, and the end of its output is read.
import { execFile } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { closingLine, skipLines, skipReason } from '../../../scripts/summary-reporter.ts';

const root = join(import.meta.dirname, '../../..');
let dir: string;

beforeEach(() => {
  // Inside the checkout, so that `vitest` is found.
  mkdirSync(join(root, '.cache'), { recursive: true });
  dir = mkdtempSync(join(root, '.cache', 'reporter-'));
  writeFileSync(join(dir, 'vitest.config.mjs'), 'export default {};');
});
afterEach(() => {
  rmSync(dir, { recursive: true, force: true });
});

/** → exit code, and the lines printed after vitest's own. */
function vitest(files: Record<string, string>): Promise<{ code: number; lines: string[] }> {
  for (const [name, text] of Object.entries(files))
    writeFileSync(join(dir, name), `import { describe, test, expect } from 'vitest';\n${text}`);
  const args = ['run', '--root', dir, '--reporter', join(root, 'scripts/summary-reporter.ts')];
  const { PALIMPSEST_TEST_SUMMARY: _, ...env } = process.env;
  return new Promise((resolve) => {
    execFile(
      process.execPath,
      [join(root, 'node_modules/vitest/vitest.mjs'), ...args],
      { encoding: 'utf8', cwd: dir, env },
      (error, stdout) => {
        resolve({ code: error === null ? 0 : Number(error.code), lines: stdout.trimEnd().split('\n') });
      },
    );
  });
}

test('passes are counted, and a skip is told by name with its reason', async () => {
  const { code, lines } = await vitest({
    'a.test.ts': `test('one', () => {}); test('two', () => {});
      describe('store', () => { test('opens', (context) => context.skip('no server on this machine')); });
      test.skipIf(true)('big model (needs 98 MB)', () => {});`,
  });
  expect(lines.slice(-5)).toEqual([
    'skipped: no server on this machine',
    '  store > opens',
    'skipped: needs 98 MB',
    '  big model (needs 98 MB)',
    '2 passed, 0 failed, 2 skipped',
  ]);
  expect(code).toBe(0);
});

test('a failing test, a file that does not load and a promise nobody awaits count as failed', async () => {
  const failing = await vitest({ 'a.test.ts': "test('one', () => { expect(1).toBe(2); }); test('two', () => {});" });
  expect(failing.lines.at(-1)).toBe('1 passed, 1 failed, 0 skipped');
  expect(failing.code).toBe(1);
  const unloaded = await vitest({ 'a.test.ts': "test('one', () => {});", 'b.test.ts': "throw new Error('x');" });
  expect(unloaded.lines.at(-1)).toBe('1 passed, 1 failed, 0 skipped');
  expect(unloaded.code).toBe(1);
  rmSync(join(dir, 'b.test.ts'));
  const loose = await vitest({
    'a.test.ts':
      "test('one', async () => { void Promise.reject(new Error('x')); await new Promise((r) => setTimeout(r, 50)); });",
  });
  expect(loose.lines.at(-1)).toBe('1 passed, 1 failed, 0 skipped');
  expect(loose.code).toBe(1);
});

test('the words', () => {
  expect(closingLine({ passed: 3, failed: 0, skipped: 1 })).toBe('3 passed, 0 failed, 1 skipped');
  expect(skipReason('a (needs x) > b (needs y)', undefined)).toBe('needs y');
  expect(skipReason('a (needs x)', 'the note wins')).toBe('the note wins');
  expect(skipReason('a', undefined)).toBe('no reason given');
  expect(
    skipLines([
      { name: 'a', reason: 'r' },
      { name: 'b', reason: 's' },
      { name: 'c', reason: 'r' },
    ]),
  ).toEqual(['skipped: r', '  a', '  c', 'skipped: s', '  b']);
});
