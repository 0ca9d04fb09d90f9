/** Runs before every test file: notes what the file cost, processes that it started and waited for included. scripts/summary-reporter.ts reads it. */
import { afterAll } from 'vitest';
import { cpuSeconds } from '../scripts/cost.mjs';

declare module 'vitest' {
  interface TaskMeta {
    /** CPU seconds of a file; missing where the system does not tell. */
    cpuSeconds?: number;
  }
}

// biome-ignore lint/correctness/noEmptyPattern: vitest wants a pattern there.
afterAll(({}, suite) => {
  const seconds = cpuSeconds();
  if (seconds !== null) suite.file.meta.cpuSeconds = seconds;
});
