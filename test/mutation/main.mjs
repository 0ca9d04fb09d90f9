#!/usr/bin/env node
/**
 * Runs Stryker over one file after the other, each with the few tests that `tests.ts` names for it: node
 * test/mutation/main.mjs FILE[:FROM-TO]… A change after which a test waits for ever takes ten seconds, and each other
 * one a second or two, so a long file is done by ranges of lines.
 */
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';

const stryker = join(import.meta.dirname, 'node_modules/@stryker-mutator/core/bin/stryker.js');
const files = process.argv.slice(2);
if (files.length === 0 || !existsSync(stryker)) {
  process.stderr.write(
    'npm run mutate -- FILE[:FROM-TO]…, after npm --prefix test/mutation ci --ignore-scripts --legacy-peer-deps\n',
  );
  process.exit(2);
}
for (const file of files) {
  const { status } = spawnSync(process.execPath, [stryker, 'run', 'test/mutation/stryker.config.mjs'], {
    cwd: join(import.meta.dirname, '../..'),
    env: { ...process.env, PALIMPSEST_MUTATE: file },
    stdio: 'inherit',
  });
  if (status !== 0) process.exit(status ?? 1);
}
