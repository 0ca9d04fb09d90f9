/**
 * Runs every generator, scripts/generate-*.mjs and .ts. A generator writes its files. With --check it compares them
 * with what it would write, and fails when they differ; a test does this, so that no generated file is out of date.
 *   node scripts/generate.mjs [--check] [WORD]      a word selects the generators whose name contains it
 */
import { spawnSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const scripts = dirname(fileURLToPath(import.meta.url));
const check = process.argv.includes('--check');
const words = process.argv.slice(2).filter((word) => !word.startsWith('--'));

/** Writes the lists of formats, which the others read. */
const FIRST = 'generate-layout.ts';

const generators = readdirSync(scripts)
  .filter((name) => /^generate-.*\.(mjs|ts)$/.test(name) && words.every((word) => name.includes(word)))
  .sort((a, b) => Number(b === FIRST) - Number(a === FIRST) || a.localeCompare(b));

for (const name of generators) {
  const run = spawnSync(process.execPath, ['--import', 'tsx', join(scripts, name), ...(check ? ['--check'] : [])], {
    stdio: 'inherit',
  });
  console.log(`${run.status === 0 ? (check ? 'fresh  ' : 'written') : 'FAILED '} ${name}`);
  if (run.status !== 0) process.exitCode = 1;
}
if (generators.length === 0) console.log('no generator has a name like that');
