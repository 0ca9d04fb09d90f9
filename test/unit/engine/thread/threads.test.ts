// More threads than cores only take turns: a process that was left one core of the machine says that it uses one
// thread.
import { spawnSync } from 'node:child_process';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it } from 'vitest';

const main = join(import.meta.dirname, '../../../..', 'dist/engine/cli/main.js');

it.skipIf(spawnSync('taskset', ['--version']).status !== 0)(
  'are no more than the cores of the process (skipped where taskset is missing)',
  () => {
    const { stdout } = spawnSync('taskset', ['-c', '0', process.execPath, main, 'doctor', '--json'], { cwd: tmpdir() });
    const facts = JSON.parse(stdout.toString().trim().split('\n').at(-1)!) as Record<string, unknown>;
    expect(facts).toMatchObject({ threadsRequested: null, threadsEffective: 1 });
  },
);
