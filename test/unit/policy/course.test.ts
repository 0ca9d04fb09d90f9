// What sessions leave of errors behind their first trials: ranges are held, what was told stands in for what a session
// has not seen yet, is bounded, and gives way to what it sees; several sessions are joined by their trials.
import { expect, test } from 'vitest';
import { believed, joinCourses } from '../../../memory/courses.ts';
import { Fading } from '../../../policy/fading.ts';
import { type Course, checkCourse, defaultLaw, defaultThresholds } from '../../../policy/index.ts';
import { Layers } from '../../../policy/layers.ts';
import { Persistence } from '../../../policy/persistence.ts';
import { Agreement, isSampled } from '../../../policy/trust.ts';

const estimate = (value: number, samples = 1) => ({ value, sd: 0.1, samples });
const course = (value: number, samples = 100): Course => ({
  persistence: { k: [estimate(value, samples), estimate(1)], v: [estimate(1), estimate(1)] },
  left: [estimate(0.2, samples)],
  noise: { found: 0.5, page: 0.1, chance: 0.3 },
});

test('a course that no session can have is refused with the number that is wrong', () => {
  expect(() => checkCourse(course(1), 2)).not.toThrow();
  expect(() => checkCourse(course(1), 3)).toThrow(/course\.persistence\.k\.length is 2/);
  expect(() => checkCourse(course(Number.NaN), 2)).toThrow(/course\.persistence\.k\.0\.value/);
  const noise = { found: 2, page: 0, chance: 0 };
  expect(() => checkCourse({ ...course(1), noise }, 2)).toThrow(/course\.noise\.found/);
});

test('persistence begins with what was told, and what a session finds outweighs it', () => {
  const places = new Persistence(4, 'sums', course(4));
  expect(places.factor(0)).toBe(4);
  expect(places.factor(1)).toBe(1);
  for (let i = 0; i < 1000; i++) places.learn(0, 1, 0.25);
  places.settle();
  expect(places.factor(0)).toBeCloseTo(0.25, 1);
  expect(places.found(0)).toMatchObject({ value: expect.closeTo(0.25, 6), samples: 1000 });
});

test('fading begins with what was told within a factor of four of the law, and only at its ages', () => {
  const law = defaultLaw(2);
  expect(new Fading(law, course(1)).energyAt(2)).toBeCloseTo(0.2, 12);
  expect(new Fading(law, course(1)).energyAt(4)).toBeCloseTo(1 / 4, 12);
  const strange: Course = { ...course(1), left: [estimate(0.001)] };
  expect(new Fading(law, strange).energyAt(2)).toBeCloseTo(0.5 / 4, 12);
  const found = new Fading(law);
  for (let i = 0; i < 10; i++) found.learn(2, 1, 0.3);
  expect(found.found).toMatchObject([{ value: expect.closeTo(0.3, 12), samples: 10 }]);
});

test('sessions are joined in logarithms, by weight and trials; layers of another model are left out', () => {
  const joined = joinCourses(
    [
      { course: course(4), weight: 1 },
      { course: course(1), weight: 1 },
      { course: course(1000, 0), weight: 1 },
      { course: { ...course(1), persistence: { k: [], v: [] } }, weight: 1 },
    ],
    2,
  )!;
  expect(joined.persistence.k[0]).toEqual({ value: 2, sd: 0.6322, samples: 2 });
  // A factor of four in one of two is so unsure that less than half of it is believed.
  expect(believed(joined).persistence.k[0]).toEqual({ value: 1.306, sd: 0.6322, samples: 2 });
  expect(believed(joined)).toMatchObject({ left: joined.left, noise: joined.noise });
  expect(joined.left[0]!.value).toBeCloseTo(0.2, 3);
  expect(joined.noise).toEqual({ found: 0.5, page: 0.1, chance: 0.3 });
  expect(joinCourses([{ course: course(4), weight: 0 }], 2)).toBeNull();
});

test('a layer whose trials find what is expected is trusted, and no longer where they do not', () => {
  const agreement = new Agreement(1);
  const layers = new Layers(1, { ...defaultThresholds(1), course: course(1) });
  const settle = (): string => {
    layers.set('agreement', 0, agreement.of(0));
    layers.update();
    return layers.stateName(0).split('/').at(-1)!;
  };
  for (let i = 0; i < 95; i++) agreement.note(0, 1, 1);
  expect(settle(), 'too few of a session').toBe('unknown');
  for (let page = 0; page < 12; page++) agreement.fade();
  agreement.note(0, 1, 1);
  expect(settle(), 'too few of late').toBe('unknown');
  for (let i = 0; i < 27; i++) agreement.note(0, 1, 1);
  expect(settle()).toBe('trusted');
  expect(layers.sampled[0]).toBe(1);
  for (let i = 0; i < 40; i++) agreement.note(0, 1, 12);
  expect(settle()).toBe('watched');
  expect(layers.sampled[0]).toBe(0);
  for (let page = 0; page < 60; page++) {
    agreement.fade();
    for (let i = 0; i < 8; i++) agreement.note(0, 1, 1);
  }
  expect(settle()).toBe('trusted');
});

test('where no session told anything, nothing is said of trust', () => {
  expect(new Layers(1, defaultThresholds(1)).stateName(0)).toBe('exact/healthy/relaxed/headroom');
});

test('of the pages of a sample the youngest are all tried, and of older ones each has its turn', () => {
  const turns = [4, 5, 6, 7].map((newest) => [0, 1].map((page) => isSampled(0, page, newest)));
  for (const turn of turns) expect(turn.filter(Boolean)).toHaveLength(1);
  expect(turns.map(([first]) => first)).toEqual([true, false, true, false]);
  for (const newest of [4, 5]) expect([newest - 1, newest - 2].every((page) => isSampled(0, page, newest))).toBe(true);
});
