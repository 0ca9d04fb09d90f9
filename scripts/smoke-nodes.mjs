/**
 * Fetches the other versions of Node that palimpsest supports into .cache/nodes/. They are npm packages that contain the
 * binary, so nothing is installed on the machine. test/smoke/nodes.test.ts then runs the command line on each of them.
 *   node scripts/smoke-nodes.mjs
 * If a version cannot be fetched, that is printed and its tests are skipped; it does not count as a failure.
 */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, realpathSync, rmSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const folder = join(dirname(fileURLToPath(import.meta.url)), '..', '.cache', 'nodes');
const own = Number(process.versions.node.split('.')[0]);

/** The supported major versions, except the one that runs us, which the whole test suite covers. */
export const MAJORS = [20, 22, 24].filter((major) => major !== own);

/** The name of the package that contains the binary for this machine. */
function packageName() {
  const platform = process.platform === 'win32' ? 'win' : process.platform;
  const prefix = platform === 'darwin' && process.arch === 'arm64' ? 'node-bin' : 'node';
  return `${prefix}-${platform}-${process.arch}`;
}

/** The path of the binary of a major version, or null if it has not been fetched. */
export function nodeBinary(major) {
  const name = packageName();
  const file = join(
    folder,
    String(major),
    'node_modules',
    name,
    'bin',
    process.platform === 'win32' ? 'node.exe' : 'node',
  );
  return existsSync(file) ? file : null;
}

function fetchNode(major) {
  const prefix = join(folder, String(major));
  mkdirSync(prefix, { recursive: true });
  const quiet = ['--no-save', '--no-package-lock', '--no-audit', '--no-fund', '--ignore-scripts', '--loglevel=error'];
  const run = spawnSync('npm', ['install', '--prefix', prefix, ...quiet, `${packageName()}@${major}`], {
    cwd: prefix,
    encoding: 'utf8',
    shell: process.platform === 'win32',
  });
  const file = nodeBinary(major);
  const version = file === null ? null : spawnSync(file, ['--version'], { encoding: 'utf8' }).stdout?.trim();
  if (version?.startsWith(`v${major}.`)) return version;
  rmSync(prefix, { recursive: true, force: true });
  throw new Error(
    (run.stderr || String(run.error ?? 'the package has no binary that runs here')).trim().split('\n')[0],
  );
}

if (process.argv[1] !== undefined && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) {
  for (const major of MAJORS) {
    if (nodeBinary(major) !== null) continue;
    try {
      console.log(`Node ${major} for the smoke tests: ${fetchNode(major)}`);
    } catch (error) {
      console.log(`Node ${major} cannot be fetched (${error.message}); its smoke tests will be skipped`);
    }
  }
}
