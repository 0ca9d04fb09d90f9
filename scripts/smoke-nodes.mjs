/**
 * Fetches the other Node versions that palimpsest promises to run on, into .cache/nodes/. They come as npm packages that
 * carry the binary; nothing is installed on the machine. test/smoke/nodes.test.ts then runs the command line on each.
 *   node scripts/smoke-nodes.mjs
 * A version that cannot be had is named, and its tests are skipped by name: no failure of ours.
 */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, realpathSync, rmSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const folder = join(dirname(fileURLToPath(import.meta.url)), '..', '.cache', 'nodes');
const own = Number(process.versions.node.split('.')[0]);

/** The promised majors, less the one that runs us: the whole suite runs on that. */
export const MAJORS = [20, 22, 24].filter((major) => major !== own);

/** Name of the package with the binary for this machine. */
function packageName() {
  const platform = process.platform === 'win32' ? 'win' : process.platform;
  const prefix = platform === 'darwin' && process.arch === 'arm64' ? 'node-bin' : 'node';
  return `${prefix}-${platform}-${process.arch}`;
}

/** → path of the binary of a major version, or null when it was not fetched. */
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
      console.log(`Node ${major} for the smoke run: ${fetchNode(major)}`);
    } catch (error) {
      console.log(`Node ${major} cannot be had (${error.message}); its smoke run will be skipped`);
    }
  }
}
