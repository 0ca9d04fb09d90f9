/**
 * Builds with sanitizers, and what they report. A report fails a test and is shown, whatever the program around it made
 * of it. Faults on purpose come first: a sanitizer that misses them proves nothing.
 */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { nativeInfo } from '../../native/index.ts';
import { isNightFor, NIGHTLY } from '../tier.ts';
import { node, type Ran } from './node.ts';

/**
 * The instruction sets of a build with sanitizers beside the scalar one: the narrowest vectors always, wider ones at
 * night and when it is their turn. gcc takes eight minutes to check every access of the widest, and two for the
 * narrowest.
 */
export function setsUnderSanitizers(): string {
  const isAsked = (isa: string): boolean => {
    const name = `${isa} under sanitizers`;
    return (
      isa === 'avx2' || isa === 'neon' || (Object.hasOwn(NIGHTLY, name) && isNightFor(name as keyof typeof NIGHTLY))
    );
  };
  return nativeInfo().available.filter(isAsked).join(',');
}

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
