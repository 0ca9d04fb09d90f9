/**
 * Writes the next numbered migration when migrations/schema.ts has changed since the last one.
 *   node scripts/generate-migrations.mjs            writes migrations/NNNN_*.sql and its snapshot; no database is
 *   needed
 *   node scripts/generate-migrations.mjs --check    writes nothing, and fails when a migration is missing
 */
import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = join(dirname(fileURLToPath(import.meta.url)), '..');
const check = process.argv.includes('--check');
const migrations = join(root, 'migrations');

function generate(out) {
  const kit = join(root, 'node_modules', 'drizzle-kit', 'bin.cjs');
  const args = [
    'generate',
    '--dialect',
    'postgresql',
    '--schema',
    './migrations/schema.ts',
    '--out',
    relative(root, out),
  ];
  const run = spawnSync(process.execPath, [kit, ...args], { cwd: root, encoding: 'utf8' });
  if (run.status !== 0) throw new Error(`drizzle-kit generate failed:\n${run.stdout}${run.stderr}`);
}

const sqlFiles = (folder) => readdirSync(folder).filter((name) => name.endsWith('.sql'));

if (!check) generate(migrations);
else {
  mkdirSync(join(root, '.cache'), { recursive: true });
  const copy = mkdtempSync(join(root, '.cache', 'migrations-'));
  try {
    cpSync(migrations, copy, { recursive: true });
    const before = new Set(sqlFiles(copy));
    generate(copy);
    const missing = sqlFiles(copy).filter((name) => !before.has(name));
    if (missing.length > 0) {
      console.error('a migration for the changes of migrations/schema.ts is missing; run npm run generate');
      process.exitCode = 1;
    }
  } finally {
    rmSync(copy, { recursive: true, force: true });
  }
}
