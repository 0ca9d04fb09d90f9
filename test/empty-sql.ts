/**
 * Embedded databases for tests that fill one: a copy of one with empty tables. Making one takes six CPU seconds
 * (initdb), opening one half a second, so it is made once for all test files and kept in .cache/.
 */
import { createHash } from 'node:crypto';
import { cpSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, renameSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { openAuditIndex, openWitnessLog } from '../witness/index.ts';

const root = join(import.meta.dirname, '..');

/** Where it is kept: another one for other migrations, and for another PGlite. */
function keptIn(): string {
  const migrations = join(root, 'migrations');
  const files = readdirSync(migrations, { recursive: true, encoding: 'utf8' }).filter((name) => /\.\w+$/.test(name));
  const hash = createHash('sha256').update(createRequire(import.meta.url).resolve('@electric-sql/pglite'));
  const lock = readFileSync(join(root, 'package-lock.json'), 'utf8');
  hash.update(/"node_modules\/@electric-sql\/pglite": \{[^}]*/.exec(lock)![0]);
  for (const name of files.sort()) hash.update(name).update(readFileSync(join(migrations, name)));
  return join(root, '.cache', `empty-sql-${hash.digest('hex').slice(0, 16)}`);
}

async function make(kept: string): Promise<void> {
  mkdirSync(join(root, '.cache'), { recursive: true });
  const scratch = mkdtempSync(`${kept}.`);
  const logDir = join(scratch, 'log');
  await (await openWitnessLog({ dir: logDir })).close();
  await (await openAuditIndex({ logDir, dir: join(scratch, 'sql') })).close();
  // Another process may have made it meanwhile, and has it in use.
  if (!existsSync(kept)) renameSync(join(scratch, 'sql'), kept);
  rmSync(scratch, { recursive: true, force: true });
}

/** Puts it into `dir`, the `sql` folder of a state folder, where nothing is yet. */
export async function placeEmptySql(dir: string): Promise<void> {
  const kept = keptIn();
  if (!existsSync(kept)) await make(kept);
  cpSync(kept, dir, { recursive: true });
}
