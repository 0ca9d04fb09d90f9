// Does the bootstrap install and build what is not fresh, once, and say nothing otherwise? It runs for real, as a copy
// in a small checkout of its own in which npm, the compilers and the checks are stand-ins that keep a diary of their
// calls.
import { execFile, spawn } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { hostname, tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

const source = join(import.meta.dirname, '../../../scripts/bootstrap.mjs');
const { installedMatches, nodeProblem } = (await import(source)) as {
  installedMatches: (lock: unknown, installed: unknown) => boolean;
  nodeProblem: (version: string) => string | null;
};

const LOCK = { packages: { '': {}, 'node_modules/a': { version: '1.0.0', integrity: 'x' } } };
/** Writes a line into the diary; waits; writes another. */
const diary = (name: string, waitMs = 0): string =>
  `const fs = require('node:fs');
   fs.appendFileSync('diary', '${name} begins\\n');
   Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ${waitMs});
   fs.appendFileSync('diary', '${name} ends\\n');\n`;

let dir: string;
const put = (path: string, text: string): void => {
  mkdirSync(dirname(join(dir, path)), { recursive: true });
  writeFileSync(join(dir, path), text);
};
const entries = (): string[] =>
  existsSync(join(dir, 'diary')) ? readFileSync(join(dir, 'diary'), 'utf8').trim().split('\n') : [];

const bootstrap = (...args: string[]) => bootstrapIn('home', ...args);

function bootstrapIn(tier: string, ...args: string[]): Promise<{ code: number; stdout: string; stderr: string }> {
  return new Promise((resolve) => {
    // The stand-in for npm is found as npm finds itself: through npm_execpath.
    const { PALIMPSEST_TEST_STAGES: _, PALIMPSEST_TEST_COMMIT: _commit, ...own } = process.env;
    const env = { ...own, PALIMPSEST_TEST_TIER: tier, npm_execpath: join(dir, 'npm/npm-cli.js') };
    execFile(
      process.execPath,
      ['scripts/bootstrap.mjs', ...args],
      { cwd: dir, env, encoding: 'utf8' },
      (error, stdout, stderr) => {
        resolve({ code: error === null ? 0 : Number(error.code), stdout, stderr });
      },
    );
  });
}

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'palimpsest-bootstrap-'));
  for (const name of ['bootstrap', 'processes', 'tests', 'cost'])
    put(`scripts/${name}.mjs`, readFileSync(join(source, `../${name}.mjs`), 'utf8'));
  put('scripts/roll-up-types.mjs', '');
  put('scripts/build-native.mjs', '');
  put('package.json', '{ "type": "commonjs" }');
  put('package-lock.json', JSON.stringify(LOCK));
  put('node_modules/.package-lock.json', JSON.stringify(LOCK));
  put('node_modules/hnswlib-node/build/Release/addon.node', '');
  put('node_modules/typescript/package.json', '{ "version": "7" }');
  put(
    'node_modules/typescript/bin/tsc',
    `if (process.argv.some((one) => /^(witness.report|engine.serve).page$/.test(one))) process.exit();
    ${diary('tsc', 100)}
    const at = process.argv.indexOf('--outDir');
    if (fs.existsSync('broken')) { console.log('a.ts(1,1): error'); process.exit(2); }
    if (at > 0) {
      fs.mkdirSync(process.argv[at + 1] + '/engine/cli', { recursive: true });
      fs.writeFileSync(process.argv[at + 1] + '/engine/cli/main.js', "console.log(JSON.stringify(process.argv.slice(2))); process.exit(7);");
    }`,
  );
  put('node_modules/@biomejs/biome/bin/biome', '');
  put(
    'node_modules/oxlint/bin/oxlint',
    "if (require('node:fs').existsSync('lint')) { console.log('engine/a.ts: a promise floats'); process.exit(1); }",
  );
  put(
    'node_modules/vitest/vitest.mjs',
    `import fs from 'node:fs';
    if (process.argv[3] === 'crash') process.exit(134);
    fs.writeFileSync(process.env.PALIMPSEST_TEST_SUMMARY, JSON.stringify({ passed: 10, failed: 0, skipped: 2,
      files: [{ title: 'test/slow.test.ts', seconds: 90, cpuSeconds: null }] }));`,
  );
  put(
    'npm/npm-cli.js',
    `${diary('npm', 200)} fs.copyFileSync('package-lock.json', 'node_modules/.package-lock.json');
    fs.writeFileSync('npm-arguments', process.argv.slice(2).join(' '));`,
  );
  put('tsconfig.json', '{}');
  put('tsconfig.build.json', '{}');
  put('engine/a.ts', 'export {};');
});
afterEach(() => {
  rmSync(dir, { recursive: true, force: true });
});

describe('judging', () => {
  test('Node versions', () => {
    expect(nodeProblem('20.19.0')).toBeNull();
    expect(nodeProblem('24.1.0')).toBeNull();
    expect(nodeProblem('20.18.9')).toContain('20.19');
    expect(nodeProblem('18.20.0')).toContain('18.20.0');
  });

  test('what npm installed against the lockfile', () => {
    const a = { version: '1.0.0', integrity: 'x' };
    const optional = { version: '2.0.0', integrity: 'y', optional: true };
    const lock = { packages: { '': {}, 'node_modules/a': a, 'node_modules/other-platform': optional } };
    expect(installedMatches(lock, { packages: { 'node_modules/a': a } })).toBe(true);
    expect(installedMatches(lock, { packages: { 'node_modules/a': a, 'node_modules/other-platform': optional } })).toBe(
      true,
    );
    expect(installedMatches(lock, { packages: {} })).toBe(false);
    expect(installedMatches(lock, null)).toBe(false);
    expect(installedMatches(lock, { packages: { 'node_modules/a': { ...a, version: '1.0.1' } } })).toBe(false);
    expect(installedMatches(lock, { packages: { 'node_modules/a': { ...a, integrity: 'z' } } })).toBe(false);
    expect(installedMatches(lock, { packages: { 'node_modules/a': a, 'node_modules/stray': a } })).toBe(false);
  });
});

describe('building', () => {
  test('happens once; the second time nothing is started and nothing is said', async () => {
    expect((await bootstrap('build')).stderr).toContain('Compiling TypeScript');
    expect(entries()).toEqual(['tsc begins', 'tsc ends']);
    expect(await bootstrap('build')).toEqual({ code: 0, stdout: '', stderr: '' });
    expect(entries()).toHaveLength(2);
  });

  test('happens again when a source changed, and only then', async () => {
    await bootstrap('build');
    put('engine/a.ts', 'export {};'); // same content, new time
    await bootstrap('build');
    expect(entries()).toHaveLength(2);
    put('engine/a.ts', 'export const a = 1;');
    await bootstrap('build');
    expect(entries()).toHaveLength(4);
  });

  test('of a package says what the machine lacks before anything is compiled', async () => {
    put(
      'scripts/prebuild.mjs',
      "if (process.argv.includes('--tools')) { console.error('linux-arm64: no compiler'); process.exit(1); }",
    );
    const { code, stderr } = await bootstrap('prepack');
    expect(code).toBe(1);
    expect(stderr).toContain('linux-arm64: no compiler');
    expect(entries()).toEqual([]);
    put('scripts/prebuild.mjs', '');
    expect((await bootstrap('prepack')).code).toBe(0);
    expect(entries()).toEqual(['tsc begins', 'tsc ends']);
  });

  test('that fails shows the output, says what to do, and leaves the old dist/ alone', async () => {
    await bootstrap('build');
    put('engine/a.ts', 'export const a: string = 1;');
    put('broken', '');
    const { code, stderr } = await bootstrap('build');
    expect(code).toBe(1);
    expect(stderr).toContain('a.ts(1,1): error');
    expect(stderr).toContain('npx tsc --noEmit');
    expect(existsSync(join(dir, 'dist/engine/cli/main.js'))).toBe(true);
    rmSync(join(dir, 'broken'));
    expect((await bootstrap('build')).code).toBe(0);
  });

  test('five at once install and build once, one after the other', async () => {
    put(
      'package-lock.json',
      JSON.stringify({ packages: { ...LOCK.packages, 'node_modules/b': { version: '1.0.0' } } }),
    );
    const runs = await Promise.all(Array.from({ length: 5 }, () => bootstrap('build')));
    expect(runs.map((run) => run.code)).toEqual([0, 0, 0, 0, 0]);
    expect(entries()).toEqual(['npm begins', 'npm ends', 'tsc begins', 'tsc ends']);
  });

  test('a lock whose holder died is taken over', async () => {
    put('.cache/bootstrap.lock', JSON.stringify({ pid: 2 ** 22 + 1, host: hostname() }));
    expect((await bootstrap('build')).code).toBe(0);
    expect(existsSync(join(dir, '.cache/bootstrap.lock'))).toBe(false);
  });
});

describe('installing', () => {
  test('is npm ci, development packages included, whenever the lockfile asks for something else', async () => {
    put('package-lock.json', JSON.stringify({ packages: { '': {}, 'node_modules/a': { version: '1.1.0' } } }));
    expect((await bootstrap('install')).stderr).toContain('Installing packages');
    expect(readFileSync(join(dir, 'npm-arguments'), 'utf8')).toMatch(/^ci --include=dev/);
    expect(await bootstrap('install')).toEqual({ code: 0, stdout: '', stderr: '' });
  });

  test('a package that was not compiled is reported when compiling does not help', async () => {
    rmSync(join(dir, 'node_modules/hnswlib-node'), { recursive: true });
    const { code, stderr } = await bootstrap('install');
    expect(code).toBe(1);
    expect(stderr).toContain('npm rebuild hnswlib-node --foreground-scripts');
  });
});

describe('commands', () => {
  test('get every argument after their name, and their exit code is ours', async () => {
    const { code, stdout } = await bootstrap('start', '--json', 'a b');
    expect(JSON.parse(stdout)).toEqual(['start', '--json', 'a b']);
    expect(code).toBe(7);
    expect(JSON.parse((await bootstrap('fetch', 'smollm2-135m')).stdout)).toEqual(['fetch', 'smollm2-135m']);
    expect(JSON.parse((await bootstrap('palimpsest', 'audit', 'list')).stdout)).toEqual(['audit', 'list']);
  });

  test('that do not exist are answered with those that do', async () => {
    const { code, stderr } = await bootstrap('tset');
    expect(code).toBe(1);
    expect(stderr).toContain('build|check|test');
    expect((await bootstrap('toString')).stderr).toContain('usage');
  });
});

describe('a request to stop', () => {
  test('is passed on to the command, which ends in its own way', async () => {
    await bootstrap('build');
    put(
      'dist/engine/cli/main.js',
      "process.on('SIGTERM', () => { console.log('log is whole'); process.exit(3); }); setInterval(() => {}, 1000); console.log('up');",
    );
    const child = spawn(process.execPath, ['scripts/bootstrap.mjs', 'start'], {
      cwd: dir,
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    let heard = '';
    child.stdout.on('data', (chunk: Buffer) => {
      if (heard === '') child.kill('SIGTERM');
      heard += chunk.toString();
    });
    const code = await new Promise((resolve) => child.on('close', resolve));
    expect(heard).toBe('up\nlog is whole\n');
    expect(code).toBe(3);
  });
});

describe('npm test', () => {
  const last = (stdout: string): string => stdout.trimEnd().split('\n').at(-1)!;

  test('of a merge runs what must take every branch by itself, builds everything, and ends with what it cost', async () => {
    put(
      'scripts/build-native.mjs',
      "import fs from 'node:fs'; fs.writeFileSync('native-flags', process.argv.slice(2).join(' '));",
    );
    const { code, stdout, stderr } = await bootstrapIn('merge', 'test');
    expect(stderr).toContain('PALIMPSEST_TEST_TIER=merge PALIMPSEST_TEST_COMMIT=0 npm test');
    expect(readFileSync(join(dir, 'native-flags'), 'utf8')).toBe('--tests --all');
    expect(last(stdout)).toBe('23 passed, 0 failed, 4 skipped');
    expect(stdout).toMatch(
      /CPU min {2}stage\n.* build\n.* types, lint, format\n.* tests that take every branch\n.* tests\n/,
    );
    expect(stdout).toMatch(/longest test files\n.* test\/slow\.test\.ts\n/);
    const { tier, stages, files } = JSON.parse(readFileSync(join(dir, '.cache/cost.json'), 'utf8'));
    expect({ tier, stages: stages.length, files: files.length }).toEqual({ tier: 'merge', stages: 4, files: 2 });
    expect(code).toBe(0);
  });

  test('of a tier that nobody knows is refused', async () => {
    const { code, stdout, stderr } = await bootstrapIn('noon', 'test');
    expect(stderr).toContain("home, merge or night, not 'noon'");
    expect(last(stdout)).toBe('0 passed, 1 failed, 0 skipped');
    expect(code).toBe(1);
  });

  test('closes with one line that counts tests and checks', async () => {
    const { code, stdout } = await bootstrap('test');
    expect(last(stdout)).toBe('13 passed, 0 failed, 2 skipped');
    expect(code).toBe(0);
  });

  test('a failed check is a failure, and the tests run all the same', async () => {
    put('lint', '');
    const { code, stdout, stderr } = await bootstrap('test');
    expect(stderr).toContain('a promise floats');
    expect(last(stdout)).toBe('12 passed, 1 failed, 2 skipped');
    expect(code).toBe(1);
  });

  test('a runner that dies, or a build that fails, is no success', async () => {
    const crashed = await bootstrap('test', 'crash');
    expect(last(crashed.stdout)).toBe('3 passed, 1 failed, 0 skipped');
    expect(crashed.code).toBe(1);
    put('engine/a.ts', 'export const b = 2;');
    put('broken', '');
    const unbuilt = await bootstrap('test');
    expect(last(unbuilt.stdout)).toBe('0 passed, 1 failed, 0 skipped');
    expect(unbuilt.code).toBe(1);
  });
});
