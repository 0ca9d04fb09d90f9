/**
 * Runs compiled test files under this Node, one after the other, and says what came of each test.
 *   node run.mjs SETUP FILE…
 * Last line: N passed, N failed, N skipped. Exit code 1 when one failed or none ran.
 */
import { relative } from 'node:path';
import { pathToFileURL } from 'node:url';
import { startTests } from '@vitest/runner';

const [setup, ...files] = process.argv.slice(2);

const runner = {
  config: {
    root: process.cwd(),
    setupFiles: [],
    passWithNoTests: false,
    allowOnly: false,
    sequence: { seed: 1, hooks: 'stack', setupFiles: 'list' },
    maxConcurrency: 1,
    // Emulated code is slow; what hangs is ended by whoever started us.
    testTimeout: 600_000,
    hookTimeout: 600_000,
    retry: 0,
    includeTaskLocation: false,
    diffOptions: {},
    tags: [],
  },
  importFile: (path) => import(pathToFileURL(path).href),
};

const counts = { pass: 0, fail: 0, skip: 0 };

function count(task, name) {
  if (task.type !== 'test') {
    if (task.result?.errors?.length > 0 && task.tasks.length === 0) fail(name, task.result.errors);
    for (const child of task.tasks) count(child, `${name} > ${child.name}`);
    return;
  }
  const state = task.result?.state;
  if (state === 'pass') counts.pass++;
  else if (state === 'fail') fail(name, task.result.errors);
  else counts.skip++;
}

function fail(name, errors) {
  counts.fail++;
  console.log(`FAILED ${name}`);
  for (const error of errors ?? []) console.log(`  ${error.stack ?? error.message ?? error}`);
}

await import(pathToFileURL(setup).href);
for (const file of files) {
  const start = performance.now();
  const [result] = await startTests([file], runner);
  count(result, file);
  console.log(`${relative(process.cwd(), file)} (${((performance.now() - start) / 1000).toFixed(1)} s)`);
}
console.log(`${counts.pass} passed, ${counts.fail} failed, ${counts.skip} skipped`);
process.exitCode = counts.fail > 0 || counts.pass === 0 ? 1 : 0;
