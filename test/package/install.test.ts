// Can somebody without a compiler use the package? It is packed, installed into an empty folder with a PATH that has node, npm
// and a shell and nothing else, and used there as a library and as a command, with the binary and with WebAssembly.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';

const root = join(import.meta.dirname, '../..');
const target = `${process.platform}-${process.arch}`;

/** Whether the prebuilt binaries are those of these sources. */
const isFresh = (...targets: string[]): boolean =>
  spawnSync(process.execPath, ['scripts/prebuild.mjs', '--check', ...targets], { cwd: root }).status === 0;
const hasBinary = isFresh(target);
const hasWasm = isFresh('wasm');

const folder = mkdtempSync(join(tmpdir(), 'palimpsest-package-'));
const bin = join(folder, 'bin');
const home = join(folder, 'home');
const app = join(folder, 'app');
afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** npm's script, from the npm that runs us or beside Node. */
function npmScript(): string {
  const caller = process.env.npm_execpath ?? '';
  if (caller.endsWith('npm-cli.js')) return caller;
  const found = (process.env.PATH ?? '').split(delimiter).map((dir) => join(dir, 'npm'));
  const { stdout } = spawnSync('readlink', ['-f', ...found], { encoding: 'utf8' });
  return stdout.split('\n').find((path) => path.endsWith('npm-cli.js')) ?? join(dirname(process.execPath), 'npm');
}

interface Ran {
  readonly status: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

/** Runs Node with a PATH that has no compiler. */
function node(args: readonly string[], cwd = app): Ran {
  const { PALIMPSEST_BINDING: _binding, NODE_OPTIONS: _options, ...env } = process.env;
  return spawnSync(process.execPath, args, {
    cwd,
    encoding: 'utf8',
    env: { ...env, PATH: bin, PALIMPSEST_STATE: home },
  });
}

const npm = (args: readonly string[], cwd?: string): Ran =>
  node([npmScript(), ...args, '--no-audit', '--no-fund', '--loglevel=error'], cwd);

const PROGRAM = `
import { openCache } from 'palimpsest';
const cache = await openCache({ layers: 1, queryHeads: 4, kvHeads: 2, headDim: 64 });
const rows = Float32Array.from({ length: 300 * 128 }, (_, i) => Math.sin(i));
cache.append(0, rows, rows);
const out = cache.attention(0, Float32Array.from({ length: 256 }, (_, i) => Math.cos(i)));
console.log(JSON.stringify({ numbers: out.length, finite: out.every(Number.isFinite), bytes: cache.memoryUsage().totalBytes > 0 }));
await cache.close();
`;

describe.skipIf(!hasBinary)(`the packed package on ${target} without a compiler (needs npm run prebuilds)`, () => {
  let listed: string[] = [];

  beforeAll(() => {
    for (const dir of [bin, home, app]) mkdirSync(dir);
    symlinkSync(process.execPath, join(bin, 'node'));
    symlinkSync('/bin/sh', join(bin, 'sh'));
    const packed = npm(['pack', '--ignore-scripts', '--json', '--pack-destination', folder], root);
    expect(packed.stderr).toBe('');
    const [about] = JSON.parse(packed.stdout) as [{ filename: string; files: { path: string }[] }];
    listed = about.files.map(({ path }) => path);
    writeFileSync(join(app, 'package.json'), '{ "type": "module", "private": true }\n');
    writeFileSync(join(app, 'program.mjs'), PROGRAM);
    const installed = npm(['install', join(folder, about.filename)]);
    expect(installed).toMatchObject({ status: 0 });
  });

  it('holds the binaries, and no sources that somebody would have to compile', () => {
    expect(listed).toContain(`prebuilds/${target}/palimpsest.napi.glibc.node`);
    // Read as text when a report is made, so nothing imports it.
    expect(listed).toContain('dist/witness/report/page/main.js');
    expect(listed.filter((path) => /\.(cc|gyp)$/.test(path))).toEqual([]);
    expect(listed.filter((path) => path.startsWith('test/') || path.startsWith('scripts/'))).toEqual([]);
  });

  it('brings no client of a vector server: it is an optional peer, for whoever gives the URL of one', () => {
    expect(existsSync(join(app, 'node_modules/@qdrant'))).toBe(false);
  });

  it('brings no SQL database: the log is asked without one, and tables of it say what to install', () => {
    const ran = node([
      'node_modules/palimpsest/dist/engine/cli/main.js',
      'run',
      '-m',
      'reference',
      '-p',
      'program.mjs',
      '--max-tokens',
      '1',
    ]);
    expect(ran.status, ran.stderr).toBe(0);
    const audit = (...args: string[]): Ran =>
      node(['node_modules/palimpsest/dist/engine/cli/main.js', 'audit', ...args]);
    expect(audit('verify').status).toBe(0);
    const asked = audit('query', 'select 1');
    expect(asked.status).toBe(2);
    const { peerDependencies } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
    for (const name of ['drizzle-orm', '@electric-sql/pglite']) {
      expect(existsSync(join(app, 'node_modules', name))).toBe(false);
      expect(asked.stderr.replace(/\s+/g, ' ')).toContain(`${name}@${peerDependencies[name]}`);
    }
    expect(asked.stderr).toContain('[missing-dependency]');
  });

  it('takes 25 MB or less besides the package itself', () => {
    const { stdout } = spawnSync('du', ['-sk', '--exclude=palimpsest', 'node_modules'], { cwd: app, encoding: 'utf8' });
    expect(Number.parseInt(stdout, 10)).toBeGreaterThan(1000);
    expect(Number.parseInt(stdout, 10)).toBeLessThan(25_000);
  });

  it('runs nothing when it is installed', () => {
    const manifest = JSON.parse(readFileSync(join(app, 'node_modules/palimpsest/package.json'), 'utf8'));
    const events = ['preinstall', 'install', 'postinstall', 'prepare'];
    expect(events.filter((event) => event in manifest.scripts)).toEqual([]);
  });

  it('serves as a library', () => {
    const { status, stdout, stderr } = node(['program.mjs']);
    expect({ status, stderr, ...JSON.parse(stdout || '{}') }).toEqual({
      status: 0,
      stderr: '',
      numbers: 256,
      finite: true,
      bytes: true,
    });
  });

  const doctor = (...args: string[]): Record<string, unknown> => {
    const { stdout, stderr } = node(['node_modules/palimpsest/dist/engine/cli/main.js', 'doctor', '--json', ...args]);
    expect(stderr).toBe('');
    return JSON.parse(stdout);
  };

  it('says by `palimpsest doctor` that it runs the prebuilt binary', () => {
    expect(doctor()).toMatchObject({ bindingEffective: 'prebuilt', bindingPassedOver: null });
  });

  it.skipIf(!hasWasm)('falls back on WebAssembly where no binary fits, and says why (needs npm run build:wasm)', () => {
    expect(doctor('--binding', 'wasm')).toMatchObject({ bindingEffective: 'wasm', isaEffective: 'wasm-simd128' });
    const binary = join(app, 'node_modules/palimpsest/prebuilds', target, 'palimpsest.napi.glibc.node');
    writeFileSync(binary, 'a file for some other machine');
    expect(doctor()).toMatchObject({
      bindingEffective: 'wasm',
      bindingPassedOver: expect.stringContaining('cannot be loaded'),
    });
    const { status, stdout } = node(['program.mjs']);
    expect({ status, ...JSON.parse(stdout || '{}') }).toMatchObject({ status: 0, finite: true });
    rmSync(binary);
    expect(doctor()).toMatchObject({ bindingEffective: 'wasm', bindingPassedOver: null });
  });
});
