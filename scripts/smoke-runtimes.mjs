/**
 * Fetches what else palimpsest runs on into .cache/runtimes/: the other versions of Node that it supports, Bun and
 * Deno. They are npm packages that contain the binary, so nothing is installed on the machine.
 * test/smoke/runtimes.test.ts then runs the command line on each of them.
 *   node scripts/smoke-runtimes.mjs
 * If one cannot be fetched, that is printed and its tests are skipped; it does not count as a failure.
 */
import { spawnSync } from 'node:child_process';
import { chmodSync, existsSync, mkdirSync, realpathSync, rmSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const folder = join(dirname(fileURLToPath(import.meta.url)), '..', '.cache', 'runtimes');
const { platform, arch } = process;
const own = Number(process.versions.node.split('.')[0]);
const system = platform === 'win32' ? 'windows' : platform;
const ending = platform === 'win32' ? '.exe' : '';

/** A Node of another major version. The one that runs us has the whole test suite. */
function node(major) {
  const prefix = platform === 'darwin' && arch === 'arm64' ? 'node-bin' : 'node';
  const name = `${prefix}-${platform === 'win32' ? 'win' : platform}-${arch}`;
  return {
    name: `Node ${major}`,
    package: `${name}@${major}`,
    file: `${name}/bin/node${ending}`,
    args: [],
    version: `v${major}.`,
  };
}

const bunArch = arch === 'arm64' ? 'aarch64' : arch;
const bun = `@oven/bun-${system}-${bunArch}`;
const denoEnd = platform === 'linux' ? '-glibc' : '';
const deno = `@deno/${platform}-${arch}${denoEnd}`;

/** Each with the arguments that stand before a script, and how its version begins. */
export const RUNTIMES = [
  ...[20, 22, 24].filter((major) => major !== own).map(node),
  { name: 'Bun', package: `${bun}@1.4.5`, file: `${bun}/bin/bun${ending}`, args: [], version: '1.' },
  { name: 'Deno', package: `${deno}@2.9.6`, file: `${deno}/deno${ending}`, args: ['run', '-A'], version: 'deno 2.' },
];

const homeOf = ({ name }) => join(folder, name.toLowerCase().replace(' ', '-'));

/** The path of the binary, or null if it has not been fetched. */
export function binaryOf(runtime) {
  const file = join(homeOf(runtime), 'node_modules', runtime.file);
  return existsSync(file) ? file : null;
}

/** → its version */
function fetchRuntime(runtime) {
  const prefix = homeOf(runtime);
  mkdirSync(prefix, { recursive: true });
  const quiet = ['--no-save', '--no-package-lock', '--no-audit', '--no-fund', '--ignore-scripts', '--loglevel=error'];
  const run = spawnSync('npm', ['install', '--prefix', prefix, ...quiet, runtime.package], {
    cwd: prefix,
    encoding: 'utf8',
    shell: platform === 'win32',
  });
  const file = binaryOf(runtime);
  if (file !== null) chmodSync(file, 0o755);
  const version =
    file === null ? null : spawnSync(file, ['--version'], { encoding: 'utf8' }).stdout?.trim().split('\n')[0];
  if (version?.startsWith(runtime.version)) return version;
  rmSync(prefix, { recursive: true, force: true });
  throw new Error(
    (run.stderr || String(run.error ?? 'the package has no binary that runs here')).trim().split('\n')[0],
  );
}

if (process.argv[1] !== undefined && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) {
  for (const runtime of RUNTIMES) {
    if (binaryOf(runtime) !== null) continue;
    try {
      console.log(`${runtime.name} for the smoke tests: ${fetchRuntime(runtime)}`);
    } catch (error) {
      console.log(`${runtime.name} cannot be fetched (${error.message}); its smoke tests will be skipped`);
    }
  }
}
