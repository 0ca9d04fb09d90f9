/**
 * Fills a pool with 200 MB of pages, moves each to the lowest format in random order, some of them in the background,
 * and writes what was counted and held before and after. All pages got the same rows, so that whatever the heap moved
 * must still decode to the same.
 */
import { openKvCache, openPool, SERVED_FORMATS, SIDES } from '../../native/index.ts';
import { residentBytes } from '../../scripts/bench/memory.ts';
import { normals, pick, uniform } from '../native/dense.ts';

const shape = { layers: 8, queryHeads: 16, kvHeads: 8, headDim: 128 };
const PAGES = 96;
const LOWEST = SERVED_FORMATS.at(-1)!;
const random = uniform(7);
const rows = normals(random, 128 * 8 * 128);
const baseBytes = residentBytes();
const pool = openPool(2 ** 40);
const cache = openKvCache({ shape, pool });
const look = (step: number) => ({
  step,
  caches: 1,
  countedBytes: pool.usedBytes,
  reservedBytes: pool.reservedBytes,
  residentBytes: residentBytes(),
  baseBytes,
});
const sides: { layer: number; page: number; side: 'k' | 'v' }[] = [];
for (let page = 0; page <= PAGES; page++) {
  for (let layer = 0; layer < shape.layers; layer++) {
    cache.append(layer, rows, rows);
    if (page < PAGES) for (const side of SIDES) sides.push({ layer, page, side });
  }
}
const before = look(0);
while (sides.length > 0) {
  const one = pick(random, sides);
  sides.splice(sides.indexOf(one), 1);
  if (random() < 0.3) cache.startMove(one.layer, one.page, one.side, LOWEST);
  else cache.transcode(one.layer, one.page, one.side, LOWEST);
  if (cache.movesUnderWay > 5) cache.finishMoves(random() < 0.5);
}
cache.finishMoves(true);
const after = look(1);
let different = 0;
for (const side of SIDES) {
  const same = cache.decode(0, 1, side);
  for (let layer = 0; layer < shape.layers; layer++) {
    for (let page = 1; page < PAGES; page++) {
      if (cache.decode(layer, page, side).some((x, i) => x !== same[i])) different++;
    }
  }
}
console.log(JSON.stringify({ before, after, different }));
