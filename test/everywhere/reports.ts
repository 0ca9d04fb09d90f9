/**
 * Builds with sanitizers, and what they report. A report fails a test and is shown, whatever the program around it made of it. Faults on purpose
 * come first: a sanitizer that misses them proves nothing.
 */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { isNightFor } from '../tier.ts';
import { node, type Ran } from './node.ts';

/**
 * The instruction sets of a build with sanitizers, as flags of build-native.mjs: the best of this machine (which is that without the flags) for
 * what does not depend on them, the narrow vectors and the best for what does, and at night all.
 */
export const setsUnder = (merge: readonly string[]): readonly string[] =>
  isNightFor('every instruction set under sanitizers') ? ['--all'] : merge;

/** Path of one of gcc's libraries, or null when this compiler has none. */
function gccLibrary(name: string): string | null {
  const { stdout } = spawnSync('gcc', [`-print-file-name=${name}`], { encoding: 'utf8' });
  return stdout?.trim().startsWith('/') ? stdout.trim() : null;
}
/** What a process loads before anything else, or null where that is not here. */
export const preload = (...names: string[]): string | null => {
  const files = names.map(gccLibrary);
  return files.includes(null) ? null : files.join(' ');
};

/** Runs `work` with a folder for reports. → what it answered, and the reports, in files and among what was said. */
export function reported(
  settings: (log: string) => Record<string, string>,
  work: (env: Record<string, string>) => Ran,
) {
  const folder = mkdtempSync(join(tmpdir(), 'palimpsest-reports-'));
  try {
    const ran = work(settings(`log_path=${join(folder, 'report')}`));
    const files = readdirSync(folder).flatMap((name) => readFileSync(join(folder, name), 'utf8').split(/^={18,}$/m));
    // Undefined behaviour is told on stderr alone: a line, and its stack.
    const lines = ran.said.match(/^.*: runtime error: .*(\n +#.*)*/gm) ?? [];
    return {
      ran,
      reports: [...files, ...lines].filter((report) => report.trim() !== '').map((report) => report.slice(0, 6000)),
    };
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** Calls one of native/test_canaries.cc. */
export const canary = (folder: string, call: string) => (env: Record<string, string>) =>
  node(['-e', `require('./native/build/${folder}/kernels_test.node').${call}`], env);
