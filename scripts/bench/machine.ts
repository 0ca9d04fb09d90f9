/** The machine, versions and commit with which figures were measured. */
import { execFileSync } from 'node:child_process';
import { cpus } from 'node:os';
import { fileURLToPath } from 'node:url';
import { nativeInfo } from '../../native/index.ts';
import type { BenchFile } from './rows.ts';

function commit(): string {
  const cwd = fileURLToPath(new URL('../..', import.meta.url));
  const git = (...words: string[]): string =>
    execFileSync('git', words, { cwd, stdio: ['ignore', 'pipe', 'ignore'] })
      .toString()
      .trim();
  try {
    return `${git('rev-parse', '--short', 'HEAD')}${git('status', '--porcelain', '--untracked-files=no') === '' ? '' : ' and changes'}`;
  } catch {
    return 'unknown';
  }
}

export function machine(): BenchFile['machine'] {
  const { isa, compiler } = nativeInfo();
  const list = cpus();
  return {
    cpu: list[0]?.model.trim() ?? 'unknown',
    cores: Math.max(1, list.length),
    isa,
    compiler,
    node: process.version,
    commit: commit(),
  };
}
