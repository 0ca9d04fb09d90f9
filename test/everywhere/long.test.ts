// What takes minutes and is not about builds: a minute of damaged files for every parser, two parsers at a time, a thousand kills of a process
// that writes its log, and the branches that tests take. Only CI does it (PALIMPSEST_EVERYWHERE); a few of each run with every test.
import { execFile } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';
import { PARSERS } from '../fuzz/parsers.ts';
import { expectWell, MINUTES, node } from './node.ts';

const run = promisify(execFile);

test(
  'a minute of damaged files for every parser',
  async () => {
    const waiting = Object.keys(PARSERS);
    const said: string[] = [];
    const work = async (): Promise<void> => {
      for (let name = waiting.pop(); name !== undefined; name = waiting.pop())
        // A finding ends with code 1, and so with an error that holds what was said.
        said.push(
          (await run(process.execPath, ['--import', 'tsx', 'test/fuzz/main.ts', 'parsers', name, '--seconds', '60']))
            .stdout,
        );
    };
    await Promise.all([work(), work()]);
    console.log(said.join(''));
    expect(said).toHaveLength(Object.keys(PARSERS).length);
  },
  45 * MINUTES,
);

test(
  'a thousand kills of a process that writes its log',
  () => {
    const dir = mkdtempSync(join(tmpdir(), 'palimpsest-soak-'));
    try {
      const kills = ['kills', '--only', 'log', '--count', '1000', '--file', join(dir, 'kills.json')];
      const ran = node(['--import', 'tsx', 'test/soak/main.ts', ...kills]);
      expectWell(ran);
      console.log(ran.said.split('\n').slice(-5).join('\n'));
    } finally {
      rmSync(dir, { recursive: true, force: true });
    }
  },
  45 * MINUTES,
);

test(
  'every branch of what appends, recovers, verifies and imports is taken by a test',
  () => {
    const ran = node([
      'node_modules/vitest/vitest.mjs',
      'run',
      '--config',
      'test/mutation/coverage.config.ts',
      '--coverage',
    ]);
    expectWell(ran);
    console.log(ran.said.split('\n').slice(-30).join('\n'));
  },
  45 * MINUTES,
);
