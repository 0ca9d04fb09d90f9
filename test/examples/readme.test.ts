// Do the programs in the documents (DOCUMENTS) run as printed? Each block marked `// example: NAME` is written into an
// empty folder beside which the package stands as `palimpsest`, and run with tsx. A program passes when it ends by
// itself with exit code 0. Nothing shorter shows that they run as printed: each is a process of its own, and most load
// a model.
import { execFile } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { isWritten, read, walk } from '../tidy/files.ts';
import { examplesIn, examplesOf } from './examples.ts';

const root = join(import.meta.dirname, '..', '..');
const examples = examplesOf(root);

describe('examples of the documents', () => {
  let dir: string;
  beforeAll(() => {
    dir = mkdtempSync(join(tmpdir(), 'palimpsest-examples-'));
    writeFileSync(join(dir, 'package.json'), '{ "type": "module", "private": true }');
    mkdirSync(join(dir, 'node_modules'));
    symlinkSync(root, join(dir, 'node_modules', 'palimpsest'), 'junction');
    // Clients, which whoever runs those programs has installed.
    for (const name of ['openai', 'ai'])
      symlinkSync(join(root, 'node_modules', name), join(dir, 'node_modules', name), 'junction');
  });
  afterAll(() => {
    rmSync(dir, { recursive: true, force: true });
  });

  test('are found by their first line', () => {
    const text = '```ts\n// example: one\nlet a = 1;\n```\n```ts\nlet b = 2;\n```\n```sh\n# example: no\n```\n';
    expect(examplesIn(text)).toEqual([{ name: 'one', source: '// example: one\nlet a = 1;\n' }]);
  });

  test('are all programs that any document shows', () => {
    const shown = walk()
      .filter((path) => path.endsWith('.md') && isWritten(path))
      .map(read)
      .join('\n');
    expect(shown.match(/^```\w+/gm)).toEqual(examples.map(() => '```ts'));
  });

  test('name only npm scripts that there are', () => {
    const { scripts } = JSON.parse(read('package.json')) as { scripts: Readonly<Record<string, string>> };
    const texts = walk().filter((path) => isWritten(path) && /\.(md|ts|mjs)$/.test(path) && !path.startsWith('test/'));
    const named = texts.flatMap((path) => [...read(path).matchAll(/npm run ([\w:]+)/g)].map(([, script]) => script!));
    expect(named.length).toBeGreaterThan(20);
    expect([...new Set(named)].filter((script) => !Object.hasOwn(scripts, script))).toEqual([]);
  });

  test.each(examples)('$name runs', async ({ name, source }) => {
    expect(existsSync(join(root, 'dist/engine/index.js')), 'dist/ is built: npm run build').toBe(true);
    writeFileSync(join(dir, `${name}.ts`), source);
    const tsx = join(root, 'node_modules/tsx/dist/cli.mjs');
    const { stdout } = await promisify(execFile)(process.execPath, [tsx, `${name}.ts`], {
      cwd: dir,
      encoding: 'utf8',
      maxBuffer: 2 ** 24,
    });
    // What the library is for can be seen in what the program prints.
    expect(stdout).toMatch(/ [1-9]\d* decisions\n$/);
  });

  test('cover both ways into the library', () => {
    const names = examples.map(({ name }) => name);
    expect(names).toContain('engine');
    expect(names).toContain('cache');
  });
});
