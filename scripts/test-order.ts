/**
 * The order in which test files run: those that take minutes first, then the others, the largest file first, as vitest
 * orders files that it has not timed. Left to their size, the minutes would come last, and one core would wait for the
 * other. Files that share a process (test/together.ts) come behind those that have one each, because vitest ends a
 * process as soon as the next file is not to share it.
 */
import { BaseSequencer, type TestSpecification } from 'vitest/node';
import { MINUTES } from '../test/tier.ts';

/** Whether a file has a process of its own, and its place among the longest. */
function placeOf({ moduleId, project }: TestSpecification): [shares: number, place: number] {
  const place = MINUTES.findIndex((file) => moduleId.endsWith(file));
  return [project.config.isolate ? 0 : 1, place < 0 ? MINUTES.length : place];
}

export default class TestOrder extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const others = await super.sort(files);
    const places = new Map(others.map((file) => [file, placeOf(file)]));
    return others.toSorted((a, b) => {
      const [[sharesA, placeA], [sharesB, placeB]] = [places.get(a)!, places.get(b)!];
      return sharesA - sharesB || placeA - placeB;
    });
  }
}
