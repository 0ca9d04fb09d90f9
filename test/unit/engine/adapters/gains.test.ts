// Gains of DoRA are computed once for the same weights, factors and magnitudes, also for other processes with the same
// state folder; what was damaged or went is computed again, and what is kept stays within its bounds.
import { readdirSync, readFileSync, truncateSync, utimesSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { KeptGains, type Magnified } from '../../../../engine/adapters/gains.ts';
import { temporaryFolder } from '../transformer/model-files.ts';

const folder = temporaryFolder();
afterAll(() => folder.remove());

const OUTPUTS = 6;
const MODEL = 'a'.repeat(64);
const wantedOf = (seed: number, count = 2): Magnified[] =>
  Array.from({ length: count }, (_, layer) => ({
    matrix: { layer, slot: 'q', rank: 1, a: Float32Array.of(seed, 1), b: new Float32Array(OUTPUTS).fill(seed) },
    magnitudes: new Float32Array(OUTPUTS).fill(2),
  }));

/** Asks for gains of a seed; `computed` says how often they were computed. */
function asked(kept: KeptGains, seed: number, model = MODEL) {
  let computed = 0;
  const wanted = wantedOf(seed);
  const gains = kept.of(model, wanted, () => {
    computed++;
    return wanted.map((_, at) => new Float32Array(OUTPUTS).fill(seed + at));
  });
  expect(gains).toEqual(wanted.map((_, at) => new Float32Array(OUTPUTS).fill(seed + at)));
  return computed;
}

let count = 0;
const fresh = (): { state: string; dir: string } => {
  const state = join(folder.dir, `state-${count++}`);
  return { state, dir: join(state, 'adapters', 'gains') };
};

test('they are computed once, in memory and in a state folder', () => {
  const { state } = fresh();
  for (const kept of [new KeptGains(null), new KeptGains(state)])
    expect([1, 1, 2, 1].map((seed) => asked(kept, seed))).toEqual([1, 0, 1, 0]);
  const again = new KeptGains(state);
  expect([asked(again, 1), asked(again, 2), asked(again, 1, 'b'.repeat(64))]).toEqual([0, 0, 1]);
  expect(asked(new KeptGains(null), 1)).toBe(1);
});

test('what is answered may be written to', () => {
  const kept = new KeptGains(null);
  const wanted = wantedOf(1);
  kept.of(MODEL, wanted, () => wanted.map((_, at) => new Float32Array(OUTPUTS).fill(1 + at)))[0]!.fill(9);
  expect(asked(kept, 1)).toBe(0);
});

test('a file that is not what was written, or under the name of another, is computed again and replaced', () => {
  const { state, dir } = fresh();
  asked(new KeptGains(state), 1);
  const path = join(dir, readdirSync(dir)[0]!);
  const good = readFileSync(path);
  const turned = Buffer.from(good);
  turned[good.length - 1]! ^= 1;
  const damages = [
    () => writeFileSync(path, turned),
    () => truncateSync(path, good.length - 4),
    () => truncateSync(path, 0),
    () => writeFileSync(path, Buffer.concat([good, Buffer.alloc(4)])),
    () => {
      asked(new KeptGains(state), 2);
      const other = readdirSync(dir).find((name) => join(dir, name) !== path)!;
      writeFileSync(path, readFileSync(join(dir, other)));
    },
  ];
  for (const damage of damages) {
    damage();
    expect(asked(new KeptGains(state), 1)).toBe(1);
    expect(readFileSync(path)).toEqual(good);
  }
});

test('gains that are not finite are not kept', () => {
  const { state } = fresh();
  const kept = new KeptGains(state);
  const wanted = wantedOf(3);
  const infinite = wanted.map(() => new Float32Array(OUTPUTS).fill(Number.POSITIVE_INFINITY));
  for (let i = 0; i < 2; i++) expect(kept.of(MODEL, wanted, () => infinite)).toEqual(infinite);
  expect(asked(kept, 3)).toBe(1);
});

test('those that were asked for longest ago go first', () => {
  const { state, dir } = fresh();
  const bytes = 2 * OUTPUTS * 4;
  const bounds = { memoryBytes: 2 * bytes, folderBytes: 3 * (bytes + 32) };
  const memory = new KeptGains(null, bounds);
  expect([1, 2, 1, 3, 1, 2].map((seed) => asked(memory, seed))).toEqual([1, 1, 0, 1, 0, 1]);
  const nameOf = new Map<number, string>();
  for (const seed of [1, 2, 3]) {
    const before = seed === 1 ? [] : readdirSync(dir);
    asked(new KeptGains(state, bounds), seed);
    nameOf.set(seed, readdirSync(dir).find((name) => !before.includes(name))!);
    utimesSync(join(dir, nameOf.get(seed)!), seed, seed);
  }
  // The oldest is asked for, and is then the newest.
  expect(asked(new KeptGains(state, bounds), 1)).toBe(0);
  asked(new KeptGains(state, bounds), 4);
  expect(readdirSync(dir)).toHaveLength(3);
  expect([1, 2, 3].map((seed) => readdirSync(dir).includes(nameOf.get(seed)!))).toEqual([true, false, true]);
});

test('a state folder that takes nothing costs time and nothing else', () => {
  const path = folder.write('file', 'no folder');
  expect(asked(new KeptGains(join(path, 'state')), 1)).toBe(1);
});
