/**
 * A pack is taken back while sessions have pages in it, with the state folder, the log and the pack of ours as they
 * are: it only reads until the last of these pages is gone, in whatever order the sessions let them go, and is retired
 * then; nothing of it stays in memory.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { instrumentModule } from '../../../../engine/packs/instrument.ts';
import { PackKeeper } from '../../../../engine/packs/lifecycle.ts';
import type { CodecManifest } from '../../../../engine/packs/manifest.ts';
import { Session } from '../../../../engine/session/session.ts';
import { SessionPacks } from '../../../../engine/thread/session-packs.ts';
import { Runtime } from '../../../../engine/transformer/runtime/runtime.ts';
import { defaultThresholds } from '../../../../policy/index.ts';
import { openWitnessLog, type PackBody, readLog, type WitnessLog } from '../../../../witness/index.ts';
import { refusedLater } from '../../../refusal.ts';
import { ids, MODEL } from '../on-reference.ts';
import { NOW_MS, packOf, signTrust, trustWith } from '../packs/signed.ts';
import { temporaryFolder } from '../transformer/model-files.ts';

const folder = join(import.meta.dirname, '..', '..', '..', '..', 'packs', 'block6');
const manifest = JSON.parse(readFileSync(join(folder, 'manifest.json'), 'utf8')) as CodecManifest;
const module = readFileSync(join(folder, 'block6.wasm'));
const trial = {
  instrument: instrumentModule,
  test: async () => ({ kept: true, calls: 1, problems: [], fuelPerToken: 1, error: 0 }),
};

const files = temporaryFolder();
let runtime: Runtime;
let log: WitnessLog;
beforeAll(async () => {
  runtime = await Runtime.open({ model: MODEL, threads: 1 });
  log = await openWitnessLog({ dir: join(files.dir, 'log'), clock: () => NOW_MS });
  const versions = { from: '1.0.0', below: '2.0.0' };
  await kept((keeper) => keeper.installTrust(signTrust(trustWith({ allow: [{ name: 'block6', versions }] })), 'trust'));
  await kept((keeper) => keeper.install(packOf({ manifest, module }), trial));
});
afterAll(async () => {
  await runtime.close();
  await log.close();
  files.remove();
});

async function kept<T>(work: (keeper: PackKeeper) => Promise<T>): Promise<T> {
  const keeper = await PackKeeper.open({ stateDir: files.dir, log, clock: () => NOW_MS });
  try {
    return await work(keeper);
  } finally {
    keeper.close();
  }
}

const open = (packs: SessionPacks): Session =>
  Session.open(runtime, {
    ...{ log: null, thresholds: defaultThresholds(runtime.shape.layers), tokensExpected: 700 },
    ...{ pack: 'block6', sessionPack: packs.of('block6'), cacheTypes: 'trellis2' },
  });
const state = (): Promise<string> => kept(async (keeper) => keeper.find('block6').state);
const events = (): string[] =>
  [...readLog(join(files.dir, 'log'), { kinds: ['pack'] })].map(({ body }) => (body as PackBody).event);

it('is retired when the last session that has pages of it lets them go', async () => {
  const [packs, others] = [1, 2].map(() => new SessionPacks({ dir: files.dir, log })) as [SessionPacks, SessionPacks];
  await kept((keeper) => keeper.activate('block6'));
  const [writing, waiting, elsewhere] = [open(packs), open(packs), open(others)];
  for (const session of [writing, waiting, elsewhere]) {
    await session.read(ids(400));
    expect(session.governed.packs!.count).toBeGreaterThan(0);
  }
  const digest = packs.kept[0]!;
  await kept((keeper) => keeper.rollback());
  expect((await refusedLater(() => packs.of('block6'))).code).toBe('not-found');

  // One goes on, and lets its pages go at the end of the next one; another is closed where it is.
  await writing.read(ids(130, 3));
  expect(writing.governed.packs!.count).toBe(0);
  expect(await kept((keeper) => keeper.retire())).toEqual([]);
  waiting.close();
  await packs.close();
  expect(await state()).toBe('draining');
  elsewhere.close();
  await others.close();
  expect(await state()).toBe('draining');
  // The pages were left in the middle of a prompt that might have been given up.
  for await (const _ of writing.generate(ids(100, 4), { maxTokens: 40, temperature: 0 }));
  await packs.close();
  expect(await state()).toBe('retired');
  expect([packs.kept, others.kept]).toEqual([[], []]);
  expect(events().slice(-2)).toEqual(['replace', 'drain']);

  // It may come again, under the same digest.
  await kept((keeper) => keeper.activate('block6'));
  const again = open(packs);
  expect(packs.kept).toEqual([digest]);
  await kept((keeper) => keeper.rollback());
  again.close();
  await packs.close();
  expect(await state()).toBe('retired');
  writing.close();
});

it('has no page where it was found out before one was written', async () => {
  const packs = new SessionPacks({ dir: files.dir, log });
  await kept((keeper) => keeper.activate('block6'));
  const pack = packs.of('block6');
  await kept((keeper) => keeper.distrust(pack.digest, 'it was found out'));
  const session = Session.open(runtime, {
    ...{ log: null, thresholds: defaultThresholds(runtime.shape.layers), tokensExpected: 700 },
    ...{ pack: 'block6', sessionPack: pack, cacheTypes: 'trellis2' },
  });
  await session.read(ids(400));
  expect(session.governed.packs!.count).toBe(0);
  session.close();
  await packs.close();
  expect(packs.kept).toEqual([]);
});
