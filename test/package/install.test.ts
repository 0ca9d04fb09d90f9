// Can somebody without a compiler use the package? It is packed, installed into an empty folder with a PATH that has
// node, npm and a shell and nothing else, and used there as a library and as a command, with the binary and with
// WebAssembly. Nothing shorter shows that what npm makes of a folder, and of the lines of README, works elsewhere.
import { spawnSync } from 'node:child_process';
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type PrebuiltTarget, prebuiltPackage, prebuiltTarget, thisMachine } from '../../native/prebuilt.ts';

const root = join(import.meta.dirname, '../..');
const target = prebuiltTarget(thisMachine()) ?? 'no binary';

/** True if the prebuilt binaries are those of these sources. */
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

const COMMAND = ['node_modules/palimpsest/dist/engine/cli/main.js'];

interface Packed {
  readonly filename: string;
  readonly files: readonly { readonly path: string }[];
}

/** Packs what is in `dir` into the folder. */
function pack(dir: string): Packed {
  const packed = npm(['pack', '--ignore-scripts', '--json', '--pack-destination', folder], dir);
  expect(packed.stderr).toBe('');
  return (JSON.parse(packed.stdout) as [Packed])[0];
}

/** Bytes of all files of an installed package, or of all packages. */
const filesIn = (name: string): number =>
  readdirSync(join(app, 'node_modules', name), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .reduce((sum, entry) => sum + statSync(join(entry.parentPath, entry.name)).size, 0);

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
    const about = pack(root);
    listed = about.files.map(({ path }) => path);
    writeFileSync(join(app, 'package.json'), '{ "type": "module", "private": true }\n');
    writeFileSync(join(app, 'program.mjs'), PROGRAM);
    const binary = pack(join(root, 'prebuilds', target));
    expect(binary.files.map(({ path }) => path).sort()).toEqual([
      'LICENSE',
      'README.md',
      'package.json',
      'palimpsest.node',
    ]);
    const installed = npm(['install', join(folder, about.filename), join(folder, binary.filename)]);
    expect(installed).toMatchObject({ status: 0 });
  });

  it('holds WebAssembly for every machine, and no sources that somebody would have to compile', () => {
    expect(listed.filter((path) => path.endsWith('.node'))).toEqual([]);
    expect(listed.filter((path) => path.startsWith('prebuilds/')).sort()).toEqual(
      ['manifest.json', ...(hasWasm ? ['wasm/palimpsest.wasm'] : [])].map((name) => `prebuilds/${name}`),
    );
    // Read when a report is made, or asked for by a browser, so nothing imports them.
    expect(listed).toContain('dist/witness/report/page/main.js');
    for (const name of ['index.html', 'style.css', 'icon.svg', 'main.js'])
      expect(listed).toContain(`dist/engine/serve/page/${name}`);
    expect(listed.filter((path) => /\.(cc|gyp)$/.test(path))).toEqual([]);
    expect(listed.filter((path) => path.startsWith('test/') || path.startsWith('scripts/'))).toEqual([]);
  });

  it('brings no client of a vector server: it is an optional peer, for whoever gives the URL of one', () => {
    expect(existsSync(join(app, 'node_modules/@qdrant'))).toBe(false);
  });

  it('has the reference model in a package of its own, and says so where that is missing', () => {
    const run = (): Ran => node([...COMMAND, 'run', '-m', 'reference', '-p', 'program.mjs', '--max-tokens', '1']);
    expect(listed.filter((path) => path.startsWith('models/')).sort()).toEqual(
      [
        'README.md',
        'helpers/kinds.onnx',
        'helpers/places.onnx',
        'laws/reference.json',
        'laws/smollm2-135m.json',
        'text/chronicle.txt',
      ].map((name) => `models/${name}`),
    );
    const without = run();
    expect(without.stderr.replace(/\s+/g, ' ')).toContain('[missing-dependency]');
    expect(without.stderr.replace(/\s+/g, ' ')).toContain('npm install palimpsest-models@');
    expect(without.status).toBe(2);
    const models = pack(join(root, 'models'));
    expect(npm(['install', join(folder, models.filename)])).toMatchObject({ status: 0 });
    const ran = run();
    expect(ran.status, ran.stderr).toBe(0);
    const [version, other] = [root, join(root, 'models')].map(
      (dir) => (JSON.parse(readFileSync(join(dir, 'package.json'), 'utf8')) as { version: string }).version,
    );
    expect(other).toBe(version);
  });

  it('brings no SQL database: the log is asked without one, and tables of it say what to install', () => {
    const audit = (...args: string[]): Ran => node([...COMMAND, 'audit', ...args]);
    expect(audit('verify').status).toBe(0);
    const asked = audit('query', 'select 1');
    expect(asked.status).toBe(2);
    const { peerDependencies } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
    for (const name of ['drizzle-orm', '@electric-sql/pglite']) {
      expect(existsSync(join(app, 'node_modules', name))).toBe(false);
      expect(asked.stderr.replace(/\s+/g, ' ')).toContain(`${name}@${peerDependencies[name]}`);
    }
    expect(asked.stderr).toContain('[missing-dependency]');
    // A store takes less than the tables: what is said is of a store, and of its one package.
    const served = node([...COMMAND, 'serve', '-m', 'reference', '--store', 'postgres://nobody@127.0.0.1:1/none']);
    const said = served.stderr.replace(/\s+/g, ' ');
    expect(said).toContain('a store in PostgreSQL');
    expect(said).toContain(`npm install drizzle-orm@${peerDependencies['drizzle-orm']},`);
    expect(said).toContain('[missing-dependency]');
    expect(served.status).toBe(2);
  });

  it('takes less than 25 MB, with what others wrote and without the models', () => {
    const [own, binary] = [filesIn('palimpsest'), filesIn(prebuiltPackage(target as PrebuiltTarget))];
    const all = filesIn('') - filesIn('palimpsest-models');
    console.log(`installed: ${all} bytes, of which ${own} of its own and ${binary} of its binary`);
    expect(own).toBeGreaterThan(1_000_000);
    expect(binary).toBeGreaterThan(1_000_000);
    expect(all).toBeLessThan(25_000_000);
  });

  it('names the packages of binaries in what is packed, so that npm installs the one that fits', () => {
    const copy = join(folder, 'named');
    mkdirSync(join(copy, 'scripts'), { recursive: true });
    for (const name of [
      'package.json',
      'prebuilds',
      ...['native-toolchain', 'platform-packages'].map((n) => `scripts/${n}.mjs`),
    ])
      cpSync(join(root, name), join(copy, name), { recursive: true });
    const before = readFileSync(join(copy, 'package.json'), 'utf8');
    const change = (flag: string): string => {
      const { status, stderr } = node([join(copy, 'scripts/platform-packages.mjs'), flag], copy);
      expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
      return readFileSync(join(copy, 'package.json'), 'utf8');
    };
    const { optionalDependencies, version } = JSON.parse(change('--name'));
    const named = Object.keys(optionalDependencies).filter((name) => name.startsWith('palimpsest-'));
    expect(named).toContain(prebuiltPackage(target as PrebuiltTarget));
    for (const name of named) {
      const about = JSON.parse(
        readFileSync(join(root, 'prebuilds', name.slice('palimpsest-'.length), 'package.json'), 'utf8'),
      );
      const [os, cpu, libc = 'glibc'] = name.slice('palimpsest-'.length).split('-');
      expect(about).toMatchObject({ name, version, os: [os], cpu: [cpu], ...(os === 'linux' ? { libc: [libc] } : {}) });
      expect(optionalDependencies[name]).toBe(version);
    }
    expect(change('--forget')).toBe(before);
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
    const { stdout, stderr } = node([...COMMAND, 'doctor', '--json', ...args]);
    expect(stderr).toBe('');
    return JSON.parse(stdout);
  };

  it('says by `palimpsest doctor` that it runs the prebuilt binary', () => {
    expect(doctor()).toMatchObject({ bindingEffective: 'prebuilt', bindingPassedOver: null });
  });

  it.skipIf(!hasWasm)('falls back on WebAssembly where no binary fits, and says why (needs npm run build:wasm)', () => {
    expect(doctor('--binding', 'wasm')).toMatchObject({ bindingEffective: 'wasm', isaEffective: 'wasm-simd128' });
    const binary = join(app, 'node_modules', prebuiltPackage(target as PrebuiltTarget), 'palimpsest.node');
    writeFileSync(binary, 'a file for some other machine');
    expect(doctor()).toMatchObject({
      bindingEffective: 'wasm',
      bindingPassedOver: expect.stringContaining('cannot be loaded'),
    });
    const { status, stdout } = node(['program.mjs']);
    expect({ status, ...JSON.parse(stdout || '{}') }).toMatchObject({ status: 0, finite: true });
    rmSync(binary);
    expect(doctor()).toMatchObject({
      bindingEffective: 'wasm',
      bindingPassedOver: expect.stringContaining(`${prebuiltPackage(target as PrebuiltTarget)}@`),
    });
  });
});

describe.skipIf(!hasBinary || target !== 'linux-x64')(
  'the lines of README (needs npm run prebuilds, on linux-x64)',
  () => {
    it('install it into a project, which runs the reference model', () => {
      const readme = readFileSync(join(root, 'README.md'), 'utf8');
      const project = join(folder, 'my-project');
      const lines = [...readme.matchAll(/^ {4}(npm run prebuilds.*\n {4}npm pack.*\n {4}cd .* npm install.*)$/gm)];
      expect(lines).toHaveLength(1);
      const script = lines[0]![1]!.replaceAll('../my-project', project);
      expect(script.split(project)).toHaveLength(3);
      mkdirSync(project);
      writeFileSync(join(project, 'package.json'), '{ "private": true }\n');
      writeFileSync(join(project, 'prompt.txt'), 'Once upon a time');
      const sh = (words: string): Ran => spawnSync('sh', ['-ec', words], { cwd: root, encoding: 'utf8' });
      const installed = sh(script);
      expect(installed.status, installed.stderr).toBe(0);
      const ran = sh(`cd ${project} && npx palimpsest run -m reference -p prompt.txt -n 4`);
      expect(ran.status, ran.stderr).toBe(0);
      expect(ran.stdout).toContain('KV cache');
    });
  },
);
