// Does `npm i palimpsest-lab` beside the product make its methods and formats known to `palimpsest evaluate`? Both are
// packed as they are published, the lab with a WebAssembly build of its formats, and installed into an empty folder.
// Nothing shorter would prove it: in the checkout the lab's imports of palimpsest/lab lead to sources, and only npm
// lays two packages side by side.
import { spawnSync } from 'node:child_process';
import { copyFileSync, cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type PrebuiltTarget, prebuiltPackage, prebuiltTarget, thisMachine } from '../../native/prebuilt.ts';

const root = join(import.meta.dirname, '../..');
const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { version: string };
const folder = mkdtempSync(join(tmpdir(), 'palimpsest-lab-'));
const app = join(folder, 'app');
const target = prebuiltTarget(thisMachine());
afterAll(() => rmSync(folder, { recursive: true, force: true }));

interface Ran {
  readonly status: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

function run(program: string, args: readonly string[], cwd: string): Ran {
  const { PALIMPSEST_BINDING: _binding, NODE_OPTIONS: _options, ...env } = process.env;
  return spawnSync(program, args, { cwd, encoding: 'utf8', env: { ...env, PALIMPSEST_STATE: join(folder, 'state') } });
}

/** Packs what is in `dir`, with the scripts that build it if asked for. → the file */
function pack(dir: string, ...flags: readonly string[]): string {
  const { status, stdout, stderr } = run('npm', ['pack', ...flags, '--silent', '--pack-destination', folder], dir);
  expect(status, stderr).toBe(0);
  return join(folder, stdout.trim().split('\n').at(-1)!);
}

const install = (...packages: readonly string[]): void => {
  const { status, stderr } = run('npm', ['install', '--no-audit', '--no-fund', '--prefer-offline', ...packages], app);
  expect(status, stderr).toBe(0);
};

const CLI = 'node_modules/palimpsest/dist/engine/cli/main.js';
const evaluate = (caches: string, { node = [], tokens = 640 }: { node?: string[]; tokens?: number } = {}): Ran =>
  run(
    process.execPath,
    [
      ...[...node, CLI, 'evaluate', '-m', 'reference'],
      ...['--text', 'node_modules/palimpsest/models/text/chronicle.txt'],
      ...['--tokens', String(tokens), '--dense', 'auto', '--json', '--caches', caches],
    ],
    app,
  );

/** The rows that a run printed as JSON behind its tables. */
const rowsOf = ({
  stdout,
}: Ran): { readonly cache: string; readonly meanKld: number; readonly effectiveBits: number }[] =>
  JSON.parse(stdout.slice(stdout.indexOf('\n{') + 1)).rows;

/** The binary of this checkout as a package, whether or not prebuilt ones are here. */
function binaryPackage(): string {
  const dir = join(folder, 'binary');
  mkdirSync(dir);
  copyFileSync(join(root, 'native/build/Release/palimpsest.node'), join(dir, 'palimpsest.node'));
  const name = prebuiltPackage(target as PrebuiltTarget);
  writeFileSync(join(dir, 'package.json'), JSON.stringify({ name, version, files: ['palimpsest.node'] }));
  return pack(dir);
}

const makesFormats = run(process.execPath, ['scripts/build-wasm.mjs', '--tools'], root).status === 0;

describe.skipIf(target === null || !makesFormats)(
  'palimpsest-lab beside palimpsest (needs a machine that binaries are made for, and clang)',
  () => {
    beforeAll(() => {
      mkdirSync(app);
      writeFileSync(join(app, 'package.json'), '{ "type": "module", "private": true }\n');
      install(pack(root, '--ignore-scripts'), pack(join(root, 'models'), '--ignore-scripts'), binaryPackage());
    });

    it('is what an error names while it is missing', () => {
      const { status, stderr } = evaluate('q8,kvarn3');
      expect(status).toBe(2);
      const { error } = JSON.parse(stderr) as { error: { code: string; message: string; hint: string } };
      expect(error.code).toBe('missing-dependency');
      expect(error.message).toBe("'kvarn3' is a method of palimpsest-lab, which is not installed");
      expect(error.hint).toContain(`npm install palimpsest-lab@${version}`);
      expect(evaluate('q8,turbo3').stderr).toContain("'turbo3' is a method of palimpsest-lab, which is not installed");
      const unknown = evaluate('kvarm3');
      expect(unknown.status).toBe(2);
      expect(unknown.stderr).not.toContain('palimpsest-lab');
    });

    it('adds its methods to those of evaluate when it is installed', () => {
      install(pack(join(root, 'lab')));
      const ran = evaluate('trellis2,kvarn4,kvarn2,streaming@90%');
      expect(ran.status, ran.stderr).toBe(0);
      const rows = rowsOf(ran);
      expect(rows.map(({ cache }) => cache)).toEqual(['trellis2', 'kvarn4', 'kvarn2', 'streaming@90%']);
      for (const { meanKld, effectiveBits } of rows) {
        expect(meanKld).toBeGreaterThan(0);
        expect(effectiveBits).toBeGreaterThan(2);
        expect(effectiveBits).toBeLessThan(16);
      }
      const [, four, two] = rows;
      expect(four!.meanKld).toBeLessThan(two!.meanKld);
      expect(four!.effectiveBits).toBeGreaterThan(two!.effectiveBits);
      expect(evaluate('kvarm3').stderr).toContain('kvarm3');
    });

    it('knows every system that the documents name, in one run', () => {
      // A quarter of them is more than the 512 that are scored, which snapkv keeps all.
      const ran = evaluate('price@20%,turbo3,kvquant3,snapkv@25%', { tokens: 2304 });
      expect(ran.status, ran.stderr).toBe(0);
      expect(ran.stderr).toContain('The wasm binding computes, and is slower');
      const rows = rowsOf(ran);
      expect(rows.map(({ cache }) => cache)).toEqual(['price@20%', 'turbo3', 'kvquant3', 'snapkv@25%']);
      for (const { meanKld } of rows) expect(meanKld).toBeGreaterThan(0);
      // Three bits and a scale a row, and the window and the open page in more.
      expect(rows[1]!.effectiveBits).toBeGreaterThan(3.25);
      expect(rows[1]!.effectiveBits).toBeLessThan(6);
    });

    it('has a cache of single tokens for programs of any kind', () => {
      const program = `
        import { TokenCache } from 'palimpsest-lab';
        const cache = new TokenCache({ tokens: 4, kvHeads: 1, headDim: 8, bits: 4, rule: { id: 'h2o' } });
        for (let token = 0; token < 6; token++) cache.append(new Float32Array(8).fill(token), new Float32Array(8));
        console.log(JSON.stringify([cache.positions, cache.rows([5]).keys[0][0], cache.usedBytes]));`;
      const ran = run(process.execPath, ['--input-type=module', '-e', program], app);
      expect(ran.stderr).toBe('');
      // What came before had no attention, so the newest stay; 4 bytes of codes, a step and an offset, keys and values.
      expect(JSON.parse(ran.stdout)).toEqual([[2, 3, 4, 5], 5, 4 * 2 * 8]);
    });

    it('has sessions of other programs use its formats', () => {
      const text = readFileSync(join(root, 'models/text/chronicle.txt'), 'utf8').slice(0, 3000);
      writeFileSync(join(app, 'story.txt'), text);
      const asked = ['run', '-m', 'reference', '-p', 'story.txt', '-n', '4', '--cache-type-k', 'turbo3'];
      const without = run(process.execPath, [CLI, ...asked], app);
      expect(without.status).toBe(2);
      expect(without.stderr).toContain('node --import palimpsest-lab/register');
      const ran = run(process.execPath, ['--import', 'palimpsest-lab/register', CLI, ...asked], app);
      expect(ran.status, ran.stderr).toBe(0);
    });

    it('declares what it exports, for a strict project that checks libraries too', () => {
      for (const name of ['@types/node', 'undici-types'])
        cpSync(join(root, 'node_modules', name), join(app, 'node_modules', name), { recursive: true });
      const options = { strict: true, module: 'nodenext', target: 'es2023', types: ['node'], noEmit: true };
      const compilerOptions = { ...options, skipLibCheck: false, exactOptionalPropertyTypes: true };
      writeFileSync(join(app, 'tsconfig.json'), JSON.stringify({ compilerOptions, include: ['*.ts'] }));
      const compile = (): Ran => run(process.execPath, [join(root, 'node_modules/typescript/bin/tsc'), '-p', '.'], app);
      const program = (name: string): string =>
        `import 'palimpsest-lab/register';
import { type CacheMethod, findCaches, registerMethods } from 'palimpsest/lab';
import { formatsModule, methodCaches, methodOf, methods } from 'palimpsest-lab';
const own: CacheMethod | null = methodOf('kvarn3');
registerMethods({ ...methods, from: 'own', find: (cache) => (cache === '${name}' ? own : null) });
console.log(formatsModule.length, methodCaches().join(), (await findCaches(['${name}'])).length);
`;
      writeFileSync(join(app, 'consumer.ts'), program('own'));
      const { status, stdout } = compile();
      expect({ status, stdout }).toEqual({ status: 0, stdout: '' });
      // The check can fail: what is not exported is an error.
      writeFileSync(join(app, 'consumer.ts'), program('own').replace('methodCaches,', 'methodCachez,'));
      expect(compile().stdout).toMatch(/consumer\.ts.*methodCachez/);
      rmSync(join(app, 'consumer.ts'));
    });

    it('is of the version that it belongs to', () => {
      const about = JSON.parse(readFileSync(join(app, 'node_modules/palimpsest-lab/package.json'), 'utf8'));
      expect(about).toMatchObject({ version, peerDependencies: { palimpsest: version } });
    });

    it('has a door that methods of others come through as well', () => {
      writeFileSync(
        join(app, 'mine.mjs'),
        `import { f16CacheBytes, registerMethods } from 'palimpsest/lab';
      const read = async ({ model, shape }, { ids, scored }) => {
        const bytes = f16CacheBytes(shape, ids.length) / 2;
        return { hidden: new Float32Array(scored * model.config.hiddenSize).fill(1), bytes, bytesAtRest: bytes, bytesF16: 2 * bytes };
      };
      registerMethods({ from: 'mine', find: (cache) => (cache === 'mine' ? read : null) });\n`,
      );
      const ran = evaluate('mine', { node: ['--import', './mine.mjs'] });
      expect(ran.status, ran.stderr).toBe(0);
      expect(rowsOf(ran)).toMatchObject([{ cache: 'mine', effectiveBits: 8 }]);
    });
  },
);
