// The price policy chooses a format of one's own where it is cheapest: values that lie on the levels of int4 go there,
// keys that lie on those of chan4 (scales of channels, a few outliers) go there, whatever else there is. The log names
// them, explains the moves, and replays.
import { expect, it } from 'vitest';
import { openCache } from '../../engine/index.ts';
import { logDir } from '../../engine/state/folder.ts';
import type { FormatName } from '../../native/index.ts';
import { type DecisionBody, explain, readLog, replaySession } from '../../witness/index.ts';
import { normals, uniform } from '../native/dense.ts';
import { scratchFolders } from '../unit/witness/folder.ts';

const folder = scratchFolders();
const D = 64;
const SHAPE = { layers: 2, queryHeads: 2, kvHeads: 1, headDim: D };
const PAGES = 8;
const INT4 = 'int4' as FormatName;
const CHAN4 = 'chan4' as FormatName;

/** A page of whole numbers up to 7 times what `scale` says of a row and channel. */
function onLevels(random: () => number, scale: (t: number, c: number) => number): Float32Array {
  return Float32Array.from({ length: 128 * D }, (_, i) => {
    const [t, c] = [Math.floor(i / D), i % D];
    const level = t === c || c === t % D ? 7 : Math.round(14 * random()) - 7;
    return level * scale(t, c);
  });
}

it('int4 for values on its levels, chan4 for keys on its own; explained and replayed', async () => {
  const dir = folder();
  const random = uniform(7);
  const cache = await openCache({
    ...SHAPE,
    policy: 'price',
    kvBudget: '40%',
    tokensExpected: PAGES * 128,
    stateDir: dir,
  });
  const channel = Float64Array.from({ length: D }, () => 2 ** Math.round(-6 * random()));
  for (let page = 0; page < PAGES; page++) {
    const rows = Array.from({ length: SHAPE.layers }, () => {
      const k = onLevels(random, (_, c) => channel[c]! / 4);
      const token = Float64Array.from({ length: 128 }, () => 2 ** Math.round(-3 * random()));
      return { k, v: onLevels(random, (t) => token[t]!) };
    });
    for (const [layer, { k, v }] of rows.entries()) {
      cache.append(layer, k, v);
      cache.attention(layer, normals(random, 128 * SHAPE.queryHeads * D));
    }
  }
  const { layers, decisions } = cache.report();
  for (const { kPages, vPages } of layers) {
    expect(kPages[CHAN4]).toBeGreaterThan(0);
    expect(vPages[INT4]).toBeGreaterThan(0);
  }
  await cache.close();
  const entries = [...readLog(logDir(dir), { session: cache.session })];
  expect(replaySession(entries)).toMatchObject({ equal: true, complete: true, decisions });
  for (const name of [INT4, CHAN4]) {
    const move = entries.find(({ kind, body }) => kind === 'decision' && (body as DecisionBody).decision.to === name)!;
    expect(explain(logDir(dir), move.seq).decision.to).toBe(name);
  }
});
