/**
 * Runs before every test file: notes what the file cost, processes that it started and waited for included.
 * scripts/summary-reporter.ts reads it.
 */
import { afterAll } from 'vitest';
import { cpuSeconds } from '../scripts/cost.mjs';

declare module 'vitest' {
  interface TaskMeta {
    /** CPU seconds of a file; missing where the system does not tell. */
    cpuSeconds?: number;
  }
}

/**
 * CPU seconds that the process had spent before this file: those of the files before it, where files share a process.
 */
const spent = (globalThis as { palimpsestSpent?: number }).palimpsestSpent ?? 0;

// biome-ignore lint/correctness/noEmptyPattern: vitest wants a pattern there.
afterAll(({}, suite) => {
  const seconds = cpuSeconds();
  if (seconds === null) return;
  suite.file.meta.cpuSeconds = seconds - spent;
  (globalThis as { palimpsestSpent?: number }).palimpsestSpent = seconds;
});
