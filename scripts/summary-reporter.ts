/**
 * Prints the end of a test run: every skipped test by name with its reason, then the line `N passed, N failed, N
 * skipped`. Failures outside tests (a file that does not load, an unhandled rejection) count as failed, so that this
 * line agrees with the exit code.
 */
import { writeFileSync, writeSync } from 'node:fs';
import type { Reporter, SerializedError, TestModule } from 'vitest/node';

export interface Summary {
  passed: number;
  failed: number;
  skipped: number;
}

export interface Skip {
  readonly name: string;
  readonly reason: string;
}

export interface Cost {
  readonly title: string;
  readonly seconds: number;
  /** null where the system does not tell. */
  readonly cpuSeconds: number | null;
}

/**
 * The reason for a skip is the note given to `context.skip(note)`, or what the title says in brackets: `… (needs X)`.
 */
export function skipReason(fullName: string, note: string | undefined): string {
  if (note !== undefined && note !== '') return note;
  const inTitle = [...fullName.matchAll(/\(([^()]*)\)/g)].at(-1)?.[1];
  return inTitle ?? 'no reason given';
}

export function summarize(modules: readonly TestModule[], unhandled: number): { summary: Summary; skips: Skip[] } {
  const summary: Summary = { passed: 0, failed: unhandled, skipped: 0 };
  const skips: Skip[] = [];
  for (const module of modules) {
    // A file that could not be loaded or a hook that failed is an error outside any test.
    summary.failed += module.errors().length;
    for (const suite of module.children.allSuites()) summary.failed += suite.errors().length;
    for (const test of module.children.allTests()) {
      const result = test.result();
      if (result.state === 'passed') summary.passed++;
      else if (result.state === 'failed') summary.failed++;
      else {
        summary.skipped++;
        const note = result.state === 'skipped' ? result.note : 'not run';
        skips.push({ name: test.fullName, reason: skipReason(test.fullName, note) });
      }
    }
  }
  return { summary, skips };
}

/** What a file took by the clock, imports and setup included, and in CPU seconds (test/cost.ts). */
function costOf(module: TestModule): Cost {
  const { duration, collectDuration, setupDuration, prepareDuration } = module.diagnostic();
  const seconds = (duration + collectDuration + setupDuration + prepareDuration) / 1000;
  const { cpuSeconds = null } = module.meta() as { cpuSeconds?: number };
  return { title: module.relativeModuleId, seconds, cpuSeconds };
}

export const closingLine = ({ passed, failed, skipped }: Summary): string =>
  `${passed} passed, ${failed} failed, ${skipped} skipped`;

/** Tests that were skipped for the same reason are listed together, below the reason. */
export function skipLines(skips: readonly Skip[]): string[] {
  const byReason = new Map<string, string[]>();
  for (const { name, reason } of skips) byReason.set(reason, [...(byReason.get(reason) ?? []), name]);
  return [...byReason].flatMap(([reason, names]) => [`skipped: ${reason}`, ...names.map((name) => `  ${name}`)]);
}

export default class SummaryReporter implements Reporter {
  onTestRunEnd(modules: readonly TestModule[], unhandled: readonly SerializedError[]): void {
    const { summary, skips } = summarize(modules, unhandled.length);
    const file = process.env.PALIMPSEST_TEST_SUMMARY;
    const lines = skipLines(skips);
    // scripts/tests.mjs adds its own checks and prints the closing line itself.
    if (file !== undefined) writeFileSync(file, JSON.stringify({ ...summary, files: modules.map(costOf) }));
    else lines.push(closingLine(summary));
    // This is printed at exit, so that it comes after everything else.
    process.once('exit', () => {
      for (const line of lines) writeSync(1, `${line}\n`);
    });
  }
}
