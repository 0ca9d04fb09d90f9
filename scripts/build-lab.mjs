/**
 * Builds lab/dist, what the package palimpsest-lab holds. `npm pack ./lab` runs it first. The compiler follows the
 * lab's imports of palimpsest/lab to the sources of this checkout and compiles those as well; only the lab's own
 * modules are kept.
 */
import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
const cache = join(root, '.cache');
mkdirSync(cache, { recursive: true });
const all = mkdtempSync(join(cache, 'lab-'));
try {
  const compiler = join(root, 'node_modules/typescript/bin/tsc');
  const args = [compiler, '-p', join(root, 'lab/tsconfig.build.json'), '--outDir', all];
  const { status } = spawnSync(process.execPath, args, { stdio: ['ignore', 'inherit', 'inherit'] });
  if (status !== 0) process.exitCode = 1;
  else {
    rmSync(join(root, 'lab/dist'), { recursive: true, force: true });
    cpSync(join(all, 'lab'), join(root, 'lab/dist'), { recursive: true });
  }
} finally {
  rmSync(all, { recursive: true, force: true });
}
