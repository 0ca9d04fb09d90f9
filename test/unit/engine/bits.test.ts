// Where bits may differ and where not (engine/README.md). One prompt is read and continued by sessions of the reference
// model on every instruction set of this machine, some of them twice, and what their logs say of every decision, and
// the tokens that were drawn, are compared byte for byte.
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { createEngine } from '../../../engine/index.ts';
import { logDir } from '../../../engine/state/folder.ts';
import { type Isa, nativeInfo } from '../../../native/index.ts';
import { readLog, replaySession } from '../../../witness/index.ts';
import { scratchFolders } from '../witness/folder.ts';
import { entriesOf, ids, MODEL } from './on-reference.ts';

const folder = scratchFolders();
const { available, isa: best } = nativeInfo();
/** Multiply and add in one rounding; the scalar build and WebAssembly round twice. */
const fusing = available.filter((isa) => isa !== 'scalar' && nativeInfo().binding !== 'wasm');

/** What each token was drawn by: everything that changes logits or narrows tokens down. */
const SAMPLING = { temperature: 1, typicalP: 0.95, repeatPenalty: 1.1, dryMultiplier: 0.8, seed: 4 };

/** The bodies of all decisions of a session, in order, and behind them its tokens and how likely they were. */
async function decisions(isa: Isa, threads: number, dense: 'auto' | 'exact'): Promise<string[]> {
  const stateDir = join(folder(), 'state');
  const engine = await createEngine({ model: MODEL, stateDir, threads, isa, dense });
  const session = await engine.openSession({ kvBudget: '30%', tokensExpected: 1440 });
  const { logprobs } = await session.generate(ids(1400), { maxTokens: 40, ...SAMPLING, logprobs: 2 }).result;
  expect(logprobs).toHaveLength(40);
  await session.close();
  await engine.close();
  const entries = [...readLog(logDir(stateDir), { session: session.id })];
  expect(replaySession(entries).equal).toBe(true);
  return [...entriesOf(stateDir, session.id, 'decision').map(({ body }) => body), logprobs].map((one) =>
    JSON.stringify(one),
  );
}

describe('the same inputs give the same decisions and tokens', () => {
  let first: string[] = [];
  beforeAll(async () => {
    first = await decisions(best, 1, 'exact');
    expect(first.length).toBeGreaterThan(100);
  });

  it('with one thread and with three', async () => {
    expect(await decisions(best, 3, 'exact')).toEqual(first);
  });

  it('every time, with two threads', async () => {
    expect(await decisions(best, 2, 'exact')).toEqual(first);
    expect(await decisions(best, 2, 'auto')).toEqual(await decisions(best, 2, 'auto'));
  });

  it.each(fusing)('on %s, with the same dense half', async (isa) => {
    expect(await decisions(isa, 1, 'exact')).toEqual(first);
  });

  // How many there are may differ there: a trial that is off in its last bits can turn a comparison.
  it.skipIf(!available.includes('scalar'))(
    'on the scalar build every time the same, and they replay (needs the scalar build)',
    async () => {
      const scalar = await decisions('scalar', 1, 'exact');
      expect(await decisions('scalar', 1, 'exact')).toEqual(scalar);
      expect(Math.abs(scalar.length - first.length)).toBeLessThan(0.1 * first.length);
    },
  );
});
