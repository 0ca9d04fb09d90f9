// What goes by the clock or by chance and is not about builds: damaged files for every parser, two parsers at a time,
// and kills of a process that writes its log and of an engine of sixteen sessions. A night takes a minute for each
// parser, a thousand kills and five hundred (test/tier.ts); a few of each run with every test. Nothing shorter than
// many random files meets the lengths and counts that a parser forgot to check.
import { execFile } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';
import { PARSERS } from '../fuzz/parsers.ts';
import { volume } from '../tier.ts';
import { expectWell, MINUTES, node } from './node.ts';

const run = promisify(execFile);

const SECONDS = volume('parser seconds');
const LOG_KILLS = volume('log kills');
const ENGINE_KILLS = volume('engine kills');

/**
 * Seconds of damaged files. Throws with all that is known where it fails or does not end: parser, round, seed, and what
 * was said.
 */
async function secondsOf(parser: string, dir: string): Promise<string> {
  const trail = join(dir, parser);
  const args = [
    '--import',
    'tsx',
    'test/fuzz/main.ts',
    'parsers',
    parser,
    '--seconds',
    String(SECONDS),
    '--trail',
    trail,
  ];
  try {
    return (await run(process.execPath, args, { timeout: 15 * MINUTES, killSignal: 'SIGKILL' })).stdout;
  } catch (error) {
    const { code, signal, stdout, stderr } = error as Readonly<Record<string, unknown>>;
    const last = existsSync(trail) ? readFileSync(trail, 'utf8').trim() : `${parser} before its first round`;
    throw new Error(`${parser} ended with ${signal ?? code}\n${stdout}${stderr}\nIt was last seen: ${last}`);
  }
}

test(
  `${SECONDS} seconds of damaged files for every parser`,
  async () => {
    const dir = mkdtempSync(join(tmpdir(), 'palimpsest-trails-'));
    const waiting = Object.keys(PARSERS);
    const said: string[] = [];
    const failed: string[] = [];
    const work = async (): Promise<void> => {
      for (let name = waiting.pop(); name !== undefined; name = waiting.pop())
        await secondsOf(name, dir).then(
          (text) => said.push(text),
          (error: Error) => failed.push(error.message),
        );
    };
    await Promise.all([work(), work()]);
    rmSync(dir, { recursive: true, force: true });
    console.log([...said, ...failed].join(''));
    expect(failed).toEqual([]);
    expect(said).toHaveLength(Object.keys(PARSERS).length);
  },
  45 * MINUTES,
);

test.each([
  ['a process that writes its log', 'log', LOG_KILLS],
  ['an engine of sixteen sessions', 'engine', ENGINE_KILLS],
] as const)(
  'kills of %s: nothing is lost (%s, %d)',
  (_, victim, count) => {
    const dir = mkdtempSync(join(tmpdir(), 'palimpsest-soak-'));
    try {
      const kills = ['kills', '--only', victim, '--count', String(count), '--file', join(dir, 'kills.json')];
      const ran = node(['--import', 'tsx', 'test/soak/main.ts', ...kills]);
      expectWell(ran);
      console.log(ran.said.split('\n').slice(-5).join('\n'));
    } finally {
      rmSync(dir, { recursive: true, force: true });
    }
  },
  45 * MINUTES,
);
