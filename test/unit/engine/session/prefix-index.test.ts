// The index of whose pages sessions begin with is kept as pages come and go. After every step of random histories it is
// the one that is made anew of what the caches hold, and what it finds is no less than anybody lends.
import { describe, expect, it } from 'vitest';
import { Meter } from '../../../../engine/metrics/meter.ts';
import { PrefixIndex } from '../../../../engine/session/prefix-index.ts';
import { Session } from '../../../../engine/session/session.ts';
import { SharedMemory } from '../../../../engine/session/shared-memory.ts';
import { Rotary } from '../../../../engine/transformer/rotary.ts';
import { PageChain } from '../../../../memory/index.ts';
import { openPool } from '../../../../native/index.ts';
import { defaultThresholds } from '../../../../policy/index.ts';
import { pick, uniform } from '../../../native/dense.ts';
import { seedFrom, volume } from '../../../tier.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { ids } from '../on-reference.ts';
import { onRuntime } from '../on-runtime.ts';

const folder = scratchFolders();
const KEY = new Uint8Array(32);

describe('an index of digests', () => {
  it('finds those that hold a page, as long as they do', () => {
    const index = new PrefixIndex<{ readonly name: string }>();
    const [a, b] = [{ name: 'a' }, { name: 'b' }];
    index.set(a, ['1', '2', '3'], 2);
    index.set(b, ['1', '4']);
    expect([...index.of('1')]).toEqual([a, b]);
    expect([...index.of('3')]).toEqual([]);
    index.set(a, ['1', '2', '3']);
    expect([...index.of('3')]).toEqual([a]);
    index.cut(a, 1);
    index.set(b, ['5']);
    expect([...index].map(([digest, holders]) => [digest, ...holders])).toEqual([
      ['1', a],
      ['5', b],
    ]);
    for (const one of [a, b, a]) index.delete(one);
    expect([...index]).toEqual([]);
  });
});

describe('random histories of sessions that begin alike', () => {
  const { runtime } = onRuntime();
  const STEPS = volume('index steps');
  const SEED = seedFrom(20261129);

  it(`keep the index that is made anew, over ${STEPS} steps`, async () => {
    console.log(`index steps, seed ${SEED}`);
    const random = uniform(SEED);
    const pool = openPool(2 ** 27);
    let sessions: Session[] = [];
    const form = { place: 'disk', stateDir: folder() } as const;
    const prefixes = { key: KEY, keepsClosed: true };
    const shared = new SharedMemory({ pool, meter: new Meter(), form, prefixes, sessions: () => sessions });
    const thresholds = defaultThresholds(runtime().shape.layers);
    const salts = ['', 'salt'];
    const saltOf = new Map<object, string>();
    const count = { begun: 0, grown: 0, forked: 0, cut: 0, parked: 0, woken: 0, closed: 0, kept: 0, aborted: 0 };
    const { plan } = Rotary.planned(runtime().model.config, undefined);
    const { model, dense, activations } = runtime();
    const rounding = [dense.name, dense.weightTypes, activations?.eightBit ?? null];
    const chainOf = (salt: string): PageChain =>
      new PageChain(KEY, JSON.stringify([model.digest, rounding, plan, salt]));

    const anew = (): string[] => {
      const told: string[] = [];
      const add = (id: string, salt: string, tokens: readonly number[], pages: number): void => {
        const chain = chainOf(salt);
        chain.extend(tokens, pages);
        for (const digest of chain.digests) told.push(`${digest} ${id}`);
      };
      for (const { id, setup, tokens, governed, cache } of sessions)
        if (governed.away === null) add(id, setup.cacheSalt ?? '', tokens, cache.table(cache.shape.layers - 1).pages);
      for (const { lender, tokens } of shared.prefixes!.kept)
        add(`kept ${lender.id}`, saltOf.get(lender.kv)!, tokens, lender.kv.table(0).pages);
      return told.sort();
    };
    const kept = (): string[] => {
      const keptLenders = new Set([...shared.prefixes!.kept].map(({ lender }) => lender));
      return [...shared.prefixes!.index]
        .flatMap(([digest, holders]) =>
          [...holders].map(({ lender }) => `${digest} ${keptLenders.has(lender) ? 'kept ' : ''}${lender.id}`),
        )
        .sort();
    };
    const idle = (): Session[] => sessions.filter(({ governed }) => governed.away === null);
    const close = (session: Session): void => {
      sessions = sessions.filter((one) => one !== session);
      session.close();
      shared.forget(session);
      count.closed++;
    };
    const steps: (() => Promise<void> | void)[] = [
      async () => {
        const cacheSalt = pick(random, salts);
        const session = Session.open(runtime(), { exact: true, pool, shared, thresholds, log: null, cacheSalt });
        sessions.push(session);
        const common = pick(random, [128, 256, 300]);
        count.begun += await session.read([
          ...ids(common, 99),
          ...ids(1 + Math.floor(150 * random()), Math.ceil(3 * random())),
        ]);
      },
      async () => {
        await pick(random, sessions).read(ids(1 + Math.floor(200 * random()), 5));
        count.grown++;
      },
      async () => {
        const origin = pick(random, sessions);
        sessions.push(await origin.awake(() => origin.fork()));
        count.forked++;
      },
      async () => {
        const session = pick(random, sessions);
        await session.awake(() => session.rewind(128 * Math.floor((random() * session.length) / 128)));
        count.cut++;
      },
      async () => {
        const session = pick(random, sessions);
        const controller = new AbortController();
        const onProgress = (): void => controller.abort();
        await session.read(ids(400, 8), { signal: controller.signal, onProgress }).catch(() => {});
        count.aborted++;
      },
      () => {
        shared.parkAll(pick(random, sessions).governed);
        count.parked += sessions.length - idle().length;
      },
      async () => {
        const session = pick(random, sessions);
        if (session.governed.away !== null) count.woken++;
        await session.awake(() => {});
      },
      () => {
        const session = pick(random, sessions);
        const before = new Set(shared.prefixes!.kept);
        shared.keep(session);
        for (const one of shared.prefixes!.kept)
          if (!before.has(one)) {
            saltOf.set(one.lender.kv, session.setup.cacheSalt ?? '');
            count.kept++;
          }
        close(session);
      },
      () => close(pick(random, sessions)),
    ];
    for (let step = 0; step < STEPS; step++) {
      const isFull = sessions.length > 6;
      await (sessions.length === 0 ? steps[0]! : isFull ? pick(random, steps.slice(-2)) : pick(random, steps))();
      expect(kept()).toEqual(anew());
    }
    for (const session of [...sessions]) close(session);
    for (const [what, times] of Object.entries(count)) expect([what, times > 0]).toEqual([what, true]);
    shared.close();
    expect([...shared.prefixes!.index]).toEqual([]);
    expect([pool.usedBytes, pool.auditBytes()]).toEqual([0, 0]);
    pool.close();
  });
});
