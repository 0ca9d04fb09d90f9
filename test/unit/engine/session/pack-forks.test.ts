/**
 * Forks of sessions with pages in a pack: each goes on as a session that was never forked, with an instance of its own;
 * what one does to its pages leaves those of the other readable, and no instance that has seen the text of one makes a
 * page that the other reads.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { SessionPack } from '../../../../engine/cache/pack-pages.ts';
import { PackInstance } from '../../../../engine/packs/instance.ts';
import { instrumentModule } from '../../../../engine/packs/instrument.ts';
import type { PackCodec } from '../../../../engine/packs/types.ts';
import { Session } from '../../../../engine/session/session.ts';
import type { SessionSetup } from '../../../../engine/session/setup.ts';
import { Runtime } from '../../../../engine/transformer/runtime/runtime.ts';
import { defaultThresholds } from '../../../../policy/index.ts';
import { openWitnessLog, replay } from '../../../../witness/index.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { breaking, coarse, inPack, packOf } from '../cache/pack-codecs.ts';
import { ids, MODEL } from '../on-reference.ts';

const folder = scratchFolders();
const module = instrumentModule(
  readFileSync(join(import.meta.dirname, '..', '..', '..', '..', 'packs', 'block6', 'block6.wasm')),
);
const block6 = (): PackCodec => PackInstance.open(module, { fuelPerToken: 1200 });

let runtime: Runtime;
beforeAll(async () => {
  runtime = await Runtime.open({ model: MODEL, threads: 1 });
});
afterAll(() => runtime.close());
const open = (pack: SessionPack, more: Partial<SessionSetup> = {}): Session =>
  Session.open(runtime, {
    ...{ log: null, thresholds: defaultThresholds(runtime.shape.layers), tokensExpected: 720 },
    ...{ pack: pack.name, sessionPack: pack, cacheTypes: 'trellis2', ...more },
  });

async function greedy(session: Session, prompt: readonly number[], maxTokens = 12): Promise<number[]> {
  const before = session.length + prompt.length;
  for await (const _ of session.generate(prompt, { maxTokens, temperature: 0 }));
  return session.tokens.slice(before);
}

const sound = ({ cache, pool }: Session): void => {
  expect(cache.auditBytes()).toBe(cache.usedBytes);
  expect(pool.auditBytes()).toBe(pool.usedBytes);
};

const [TEXT, ONE, OTHER] = [ids(400), ids(150, 5), ids(160, 6)];

describe('a fork of a session with a pack', () => {
  it.each([
    ['a codec here', coarse],
    ['block6', block6],
  ])('goes on as its origin does, each as if it were alone (%s)', async (_name, make) => {
    const pack = packOf('codec', 'a', make);
    const answers: number[][] = [];
    for (const prompt of [ONE, OTHER]) {
      const alone = open(pack);
      await alone.read(TEXT);
      answers.push(await greedy(alone, prompt));
      alone.close();
    }
    const origin = open(pack);
    await origin.read(TEXT);
    const [pages, opened, bytes] = [inPack(origin), pack.opened, origin.pool.usedBytes];
    expect(pages.length).toBeGreaterThan(runtime.shape.layers);
    const fork = origin.fork();
    expect(pack.opened).toBe(opened + 1);
    expect(inPack(fork)).toEqual(pages);
    // Nothing of what has left the window is there twice.
    expect(origin.pool.usedBytes - bytes).toBeLessThan(origin.governed.forkBytes + 1);
    expect(await Promise.all([greedy(origin, ONE), greedy(fork, OTHER)])).toEqual(answers);
    for (const one of [origin, fork]) {
      expect(inPack(one).length).toBeGreaterThan(pages.length);
      sound(one);
    }
    origin.close();
    expect(await greedy(fork, ids(140, 7))).toHaveLength(12);
    sound(fork);
    fork.close();
  });

  it('is taken back over its pages and keeps those of its origin', async () => {
    const pack = packOf('codec', 'b', coarse);
    const origin = open(pack);
    await origin.read(TEXT);
    const fork = origin.fork();
    const pages = inPack(origin);
    fork.rewind(128);
    expect(inPack(origin)).toEqual(pages);
    const [alone, never] = [open(pack), open(pack)];
    await alone.read(TEXT);
    await never.read(TEXT);
    never.rewind(128);
    expect(await greedy(fork, TEXT.slice(128))).toEqual(await greedy(never, TEXT.slice(128)));
    expect(await greedy(origin, ONE)).toEqual(await greedy(alone, ONE));
    for (const one of [origin, fork, alone, never]) {
      sound(one);
      one.close();
    }
  });

  it.each(['leaves its pack', 'has one that breaks'])('goes on where the other %s', async (how) => {
    const dir = folder();
    const log = await openWitnessLog({ dir });
    let made = 0;
    // The fork has the third: one was asked for sizes, one is of the origin.
    const pack = packOf('codec', 'c', () =>
      made++ === 2 && how === 'has one that breaks' ? breaking(coarse(), 'dots', 200) : coarse(),
    );
    const origin = open(pack, { log });
    await origin.read(TEXT);
    const fork = origin.fork();
    await origin.read(ONE);
    await fork.read(OTHER.slice(0, 80));
    const own = inPack(origin).filter(([, page]) => page! >= origin.governed.kin.heldPages);
    expect(own.length).toBeGreaterThan(0);
    if (how === 'leaves its pack') fork.governed.leavePack();
    // In the same passes, so that one fails beside the other.
    await Promise.all([greedy(origin, [5]), greedy(fork, OTHER)]);
    expect([inPack(fork), inPack(origin)]).toEqual([[], own]);
    expect(fork.governed.packs!.isOpen).toBe(false);
    expect(origin.governed.packs!.isOpen).toBe(true);
    const second = fork.fork();
    expect(second.governed.packs!.isOpen).toBe(false);
    expect(await greedy(origin, ids(140, 7))).toHaveLength(12);
    expect(await greedy(second, ids(140, 8))).toHaveLength(12);
    expect([inPack(second), inPack(origin).length > own.length]).toEqual([[], true]);
    for (const one of [origin, fork, second]) {
      sound(one);
      one.close();
    }
    await log.close();
    for (const { id } of [origin, fork, second]) expect(replay(dir, id)).toMatchObject({ equal: true, complete: true });
  });

  it('has no page from an instance that has seen what the other reads', async () => {
    // Every instance leaves a mark of what it has seen in all that it makes, as one that cheats could.
    let instances = 0;
    const seen: Set<string>[] = [];
    const makers: { readonly instance: number; readonly knew: number }[] = [];
    const pack = packOf('codec', 'd', () => {
      const [instance, codec] = [instances++, coarse()];
      seen[instance] = new Set();
      return {
        ...codec,
        encode: (x, tokens, dim) => {
          seen[instance]!.add(x.join());
          return codec.encode(x, tokens, dim);
        },
        decode: (page, tokens, dim) => {
          makers.push({ instance, knew: seen[instance]!.size });
          return codec.decode(page, tokens, dim);
        },
      };
    });
    const origin = open(pack);
    await origin.read(TEXT);
    const fork = origin.fork();
    await origin.read(ONE);
    const shared = inPack(fork);
    const before = new Map(shared.map(([layer, page]) => [`${layer}/${page}`, fork.cache.foreignBytes(layer!, page!)]));
    for (const [layer, page] of shared)
      expect(origin.cache.foreignBytes(layer!, page!)).toEqual(before.get(`${layer}/${page}`));
    makers.length = 0;
    const own = inPack(origin).length - shared.length;
    origin.governed.leavePack();
    expect(inPack(fork).length).toBeLessThan(shared.length);
    const { kvHeads } = runtime.shape;
    const ofFresh = makers.filter(({ knew }) => knew === 0).length;
    // What the fork had of the pages of both was made of by instances that knew nothing else.
    expect(ofFresh).toBe((shared.length - inPack(fork).length) * 2 * kvHeads);
    expect(makers.length - ofFresh).toBe((own + inPack(fork).length) * 2 * kvHeads);
    for (const one of [origin, fork]) {
      sound(one);
      one.close();
    }
  });
});
