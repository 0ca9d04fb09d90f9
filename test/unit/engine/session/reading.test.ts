// Reading never writes: every command that only asks is run on a state folder that an earlier build left with a torn
// tail, by a user who may not write there, two of each at once. Each answers, and afterwards every file is byte for
// byte what it was.
import { execFile } from 'node:child_process';
import { chmodSync, cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createEngine, openCache } from '../../../../engine/index.ts';
import { isForHome } from '../../../tier.ts';
import { codeOf, MODEL } from '../on-reference.ts';

const root = join(import.meta.dirname, '../../../..');
const main = join(root, 'dist/engine/cli/main.js');
const scratch = mkdtempSync(join(tmpdir(), 'palimpsest-reading-'));
const state = join(scratch, 'state');
/** Root may write everywhere, so it asks as nobody. */
const isRoot = process.getuid?.() === 0;
const who = isRoot ? { uid: 65_534, gid: 65_534 } : {};

const below = (dir: string): string[] =>
  readdirSync(dir, { recursive: true, withFileTypes: true }).map((one) => join(one.parentPath, one.name));
const picture = (): [string, number, string][] =>
  below(state)
    .filter((path) => statSync(path).isFile())
    .map((path) => [path, statSync(path).mtimeMs, readFileSync(path, 'latin1')]);

beforeAll(() => {
  chmodSync(scratch, 0o755);
  cpSync(join(root, 'test/fixtures/base-state'), state, { recursive: true });
  for (const path of [state, ...below(state)]) chmodSync(path, statSync(path).isDirectory() ? 0o555 : 0o444);
});
afterAll(() => {
  for (const path of [state, ...below(state)]) if (statSync(path).isDirectory()) chmodSync(path, 0o755);
  rmSync(scratch, { recursive: true, force: true });
});

function palimpsest(args: readonly string[]): Promise<{ code: number; out: string; err: string }> {
  return new Promise((resolve) => {
    execFile(process.execPath, [main, ...args], { cwd: root, ...who }, (error, out, err) =>
      resolve({ code: typeof error?.code === 'number' ? error.code : error === null ? 0 : -1, out, err }),
    );
  });
}

describe('reading', () => {
  const commands = [
    [['audit', 'verify'], 'Sound: 196 entries'],
    [['audit', 'list', '--limit', '3'], '95221492'],
    [['audit', 'sessions'], 'e48a4c5f'],
    [['audit', 'show', '3'], 'Entry 3'],
    [['audit', 'explain', '195'], 'record'],
    [['audit', 'replay', '6ab9'], 'every byte is the same'],
    [['audit', 'similar', '3'], 'distance'],
    [['thresholds', 'show', '-m', 'reference'], 'price.start'],
    [['doctor'], 'state'],
  ] as const;
  it.each(commands.filter((_, place) => isForHome(place, 3)))('%j writes nothing', async (args, words) => {
    const before = picture();
    for (const { code, out, err } of await Promise.all([1, 2].map(() => palimpsest([...args, '--state', state])))) {
      expect([code, err]).toEqual([0, '']);
      expect(out).toContain(words);
    }
    expect(picture()).toEqual(before);
  });

  it('an inspection writes nothing', async () => {
    const before = picture();
    const { code, out } = await palimpsest(['inspect', state]);
    expect(code).toBe(0);
    expect(out).toContain('stands behind the last whole entry');
    expect(picture()).toEqual(before);
  });
});

describe('a state folder without a name', () => {
  it('is refused by every command and by the library', async () => {
    for (const args of [['audit', 'verify'], ['doctor'], ['run', '-m', 'reference', '-p', '-']]) {
      const { code, err } = await palimpsest([...args, '--state', '']);
      expect([code, err]).toEqual([2, expect.stringContaining('a folder needs a name')]);
    }
    expect(await codeOf(createEngine({ model: MODEL, stateDir: '' }))).toBe('bad-argument');
    expect(await codeOf(openCache({ layers: 1, queryHeads: 2, kvHeads: 2, headDim: 64, stateDir: '' }))).toBe(
      'bad-argument',
    );
  });
});
