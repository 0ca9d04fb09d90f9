import { expect } from 'vitest';

/** Fails the test where a rule is broken. `expect` takes 30 µs, which is most of a loop that asks for every number. */
export function must(holds: boolean, rule: () => string): void {
  if (!holds) expect.fail(rule());
}
