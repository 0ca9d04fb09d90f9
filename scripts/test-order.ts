/**
 * The order in which test files run: those that take minutes first, then the others, the largest file first, as vitest
 * orders files that it has not timed. Left to their size, the minutes would come last, and one core would wait for the
 * other.
 */
import { BaseSequencer, type TestSpecification } from 'vitest/node';

/** Longest first. */
const MINUTES = [
  ...['addresses', 'arm64', 'races', 'machines', 'long'].map((name) => `test/everywhere/${name}.test.ts`),
  ...['cli', 'cli-examples', 'idle', 'erase', 'record'].map((name) => `test/unit/engine/${name}.test.ts`),
  'test/suite/store.test.ts',
  'test/package/install.test.ts',
];

export default class TestOrder extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const others = await super.sort(files);
    const place = ({ moduleId }: TestSpecification): number => {
      const index = MINUTES.findIndex((file) => moduleId.endsWith(file));
      return index < 0 ? MINUTES.length : index;
    };
    return others.toSorted((a, b) => place(a) - place(b));
  }
}
