/**
 * Rewrites the golden files by running every scripts/golden-*.{mjs,ts,py}. Read the diff before you commit it.
 *   node scripts/golden.mjs [WORD]      a word selects the scripts whose name contains it
 * If this machine lacks a module that a Python script imports, that script is named and left out, and its files stay as
 * they are.
 */
import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const scripts = dirname(fileURLToPath(import.meta.url));
const words = process.argv.slice(2);

const PROBE = 'import sys, importlib.util as u; print(",".join(m for m in sys.argv[1:] if u.find_spec(m) is None))';

/** The Python modules that a script imports and python3 cannot find, or null if there is no python3. */
function missingModules(file) {
  const names = [...readFileSync(file, 'utf8').matchAll(/^\s*(?:import|from)\s+([A-Za-z_]\w*)/gm)].map((m) => m[1]);
  const probe = spawnSync('python3', ['-c', PROBE, ...new Set(names)], { encoding: 'utf8', cwd: scripts });
  if (probe.error !== undefined || probe.status !== 0) return null;
  return probe.stdout.trim().split(',').filter(Boolean);
}

function command(name) {
  const file = join(scripts, name);
  if (name.endsWith('.mjs')) return [process.execPath, file];
  if (name.endsWith('.ts')) return [process.execPath, '--import', 'tsx', file];
  const missing = missingModules(file);
  if (missing === null) return 'python3 is not installed';
  return missing.length > 0 ? `python3 lacks ${missing.join(', ')}` : ['python3', file];
}

const names = readdirSync(scripts)
  .filter((name) => /^golden-.*\.(mjs|ts|py)$/.test(name) && words.every((word) => name.includes(word)))
  .sort();

for (const name of names) {
  const run = command(name);
  if (typeof run === 'string') {
    console.log(`left out ${name}: ${run}`);
    continue;
  }
  const { status } = spawnSync(run[0], run.slice(1), { stdio: 'inherit', cwd: join(scripts, '..') });
  console.log(`${status === 0 ? 'written ' : 'FAILED  '} ${name}`);
  if (status !== 0) process.exitCode = 1;
}
if (names.length === 0) console.log('no golden script has a name like that');
