/**
 * Sessions with pages in the codec of a pack: with one that loses nothing they write what the exact cache does; moves
 * there are decisions that a replay makes again, with every byte counted; a pack that breaks its contract, or is left,
 * leaves its pages in formats of ours, and nothing else changes.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { PackStanding, SessionPack } from '../../../../engine/cache/pack-pages.ts';
import { createEngine } from '../../../../engine/index.ts';
import { PackInstance } from '../../../../engine/packs/instance.ts';
import { instrumentModule } from '../../../../engine/packs/instrument.ts';
import { PackKeeper } from '../../../../engine/packs/lifecycle.ts';
import type { CodecManifest } from '../../../../engine/packs/manifest.ts';
import { Session } from '../../../../engine/session/session.ts';
import type { SessionSetup } from '../../../../engine/session/setup.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { Runtime } from '../../../../engine/transformer/runtime/runtime.ts';
import { isForeign, openPool } from '../../../../native/index.ts';
import { defaultThresholds } from '../../../../policy/index.ts';
import { type Entry, explain, openWitnessLog, readLog, replay } from '../../../../witness/index.ts';
import { familyTokens, hfFiles, readFamily } from '../../../model/family-files.ts';
import { refusal, refused, refusedLater } from '../../../refusal.ts';
import { TIER } from '../../../tier.ts';
import { breaking, coarse, keptRows, packOf } from '../cache/pack-codecs.ts';
import { ids, MODEL } from '../on-reference.ts';
import { logged } from '../on-runtime.ts';
import { NOW_MS, packOf as signedPack, signTrust, trustWith } from '../packs/signed.ts';
import { temporaryFolder } from '../transformer/model-files.ts';

/** What the contract tests find of a module that keeps its promises: contract.test.ts has them run. */
const trial = {
  instrument: instrumentModule,
  test: async () => ({ kept: true, calls: 1, problems: [], fuelPerToken: 1, error: 0 }),
};

/** Pages of a layer that are in a pack. */
const inPack = ({ cache }: Pick<Session, 'cache'>, layer: number): number[] => {
  const table = cache.table(layer);
  return Array.from({ length: table.pages }, (_, page) => page).filter((page) => isForeign(table, page));
};
const count = (session: Session): number =>
  Array.from({ length: session.governed.shape.layers }, (_, layer) => inPack(session, layer).length).reduce(
    (sum, one) => sum + one,
    0,
  );

async function greedy(session: Session, prompt: readonly number[], maxTokens = 12): Promise<number[]> {
  const before = session.length + prompt.length;
  for await (const _ of session.generate(prompt, { maxTokens, temperature: 0 }));
  return session.tokens.slice(before);
}

const sound = ({ cache, pool }: Pick<Session, 'cache' | 'pool'>): void => {
  expect(cache.auditBytes()).toBe(cache.usedBytes);
  expect(pool.auditBytes()).toBe(pool.usedBytes);
};

const models = temporaryFolder();
afterAll(() => models.remove());

describe.each(['reference', 'mistral'])('a session of %s with a pack', (name) => {
  let runtime: Runtime;
  beforeAll(async () => {
    if (name === 'reference') runtime = await Runtime.open({ model: MODEL, threads: 1 });
    else {
      for (const [file, content] of Object.entries(hfFiles(readFamily(name)))) models.write(`${name}/${file}`, content);
      runtime = await Runtime.open({ model: join(models.dir, name), threads: 1 });
    }
  });
  afterAll(() => runtime.close());
  const text = name === 'reference' ? ids(520) : familyTokens(520);
  const open = (pack: SessionPack | undefined, more: Partial<SessionSetup> = {}): Session =>
    Session.open(runtime, {
      ...{ log: null, thresholds: defaultThresholds(runtime.shape.layers), tokensExpected: 560 },
      ...(pack === undefined ? {} : { pack: pack.name, sessionPack: pack }),
      ...more,
    });

  it('writes what the cache writes that loses nothing else, where the codec loses nothing', async () => {
    const exact = open(undefined, { policy: 'none' });
    const session = open(packOf('kept', 'b', keptRows), { cacheTypes: 'trellis2' });
    const answer = await greedy(exact, text);
    expect(await greedy(session, text)).toEqual(answer);
    expect(count(session)).toBeGreaterThan(runtime.shape.layers);
    sound(session);
    // Tokens are taken back over pages in the pack, and come again; sliding windows do not go back so far.
    const back = name === 'reference' ? 256 : 520;
    for (const one of [exact, session]) one.rewind(back);
    expect(await greedy(session, text.slice(256))).toEqual(await greedy(exact, text.slice(256)));
    sound(session);
    expect(count(session)).toBeGreaterThan(0);
    session.close();
    exact.close();
  });

  // The small model of the other family has too few pages for that.
  if (name === 'reference')
    it('moves there what costs no more for a byte, keeps its budget, and is decided again from its log', async () => {
      const dir = join(models.dir, `${name}-log`);
      const pack = packOf('four', 'c', () => coarse());
      const { entries, session } = await logged(
        dir,
        (log) => open(pack, { kvBudget: '22%', tokensExpected: 960, log }),
        async (one) => {
          await one.read(ids(900));
          await greedy(one, []);
          expect(one.cache.usedBytes).toBeLessThanOrEqual(one.governed.terms.budgetBytes!);
          sound(one);
        },
      );
      const id = `pack:four@${'c'.repeat(12)}`;
      const decisions = entries.filter((entry): entry is Entry<'decision'> => entry.kind === 'decision');
      const offered = decisions.filter(({ body }) => body.decision.because.threshold === id);
      expect(offered.length).toBeGreaterThan(0);
      for (const { body } of offered) {
        expect(body.decision.to).toBe('freed');
        const { because, accepted } = body.verdict;
        expect(because.threshold).toBe(id);
        if (because.unit === 'ε²/byte') expect(accepted).toBe(because.measured <= because.bound);
      }
      // Where no move of the policy made room, pages of the oldest tokens left the pack for the lowest format.
      const left = entries.flatMap(({ body }) => ('packLeft' in body ? [(body as { why?: unknown }).why] : []));
      expect(new Set(left)).toEqual(new Set(['room']));
      const found = replay(dir, session.id);
      expect(found.firstDifference).toBeNull();
      expect(found).toMatchObject({ equal: true, complete: true });
      expect(JSON.stringify(explain(dir, offered[0]!.seq))).toContain(id);
    });

  if (name === 'reference')
    it('keeps the least budget that a session without it keeps', async () => {
      const pack = packOf('four', 'e', () => coarse());
      const tokensExpected = 960;
      const { neededBytes } = refusal(() => open(pack, { kvBudget: 1000, tokensExpected })).values;
      for (const one of [undefined, pack]) {
        const session = open(one, { kvBudget: Number(neededBytes), tokensExpected });
        await session.read(ids(tokensExpected));
        expect(session.cache.usedBytes).toBeLessThanOrEqual(session.governed.terms.budgetBytes!);
        sound(session);
        session.close();
      }
    });

  it.each(['encode', 'dots', 'mix'] as const)('goes on in formats of ours where its pack fails in %s', async (call) => {
    const dir = join(models.dir, `${name}-${call}`);
    let broken = 0;
    const pack = packOf('breaks', 'd', () =>
      broken++ === 1 ? breaking(coarse(), call, call === 'encode' ? 20 : 100) : coarse(),
    );
    const { entries, session } = await logged(
      dir,
      (log) => open(pack, { cacheTypes: 'trellis2', log }),
      async (one) => {
        await one.read(text);
        expect(await greedy(one, [])).toHaveLength(12);
        expect(count(one)).toBe(0);
        expect(one.governed.packs!.isOpen).toBe(false);
        sound(one);
      },
    );
    // One asked for the size of pages, one that broke, and one that read what that had written.
    expect(pack.opened).toBe(3);
    const notes = entries.filter((entry) => entry.kind === 'note' && 'packLeft' in entry.body);
    expect(notes).toHaveLength(1);
    expect((notes[0]!.body as { pages?: number }).pages).toBeGreaterThan(0);
    expect(replay(dir, session.id)).toMatchObject({ equal: true, complete: true });
  });

  it('ends with an error where its pack was revoked, and asks it for nothing more', async () => {
    let standing: PackStanding = 'writes';
    const pack = { ...packOf('gone', 'f', () => coarse()), standing: () => standing };
    const session = open(pack, { cacheTypes: 'trellis2' });
    await session.read(text.slice(0, 400));
    expect(count(session)).toBeGreaterThan(0);
    standing = 'gone';
    for (let time = 0; time < 2; time++)
      expect((await refused(session.read(text.slice(0, 130)))).code).toBe('bad-pack');
    session.close();
  });

  it('has no page of a pack again where a prompt is given up that it was left in', async () => {
    const abort = new AbortController();
    const pack = packOf('left', 'a', () => coarse());
    const left = open(pack, { cacheTypes: 'trellis2' });
    await left.read(text.slice(0, 300));
    left.governed.leavePack();
    const standing = (): PackStanding => {
      if (again.length > 300) abort.abort();
      return again.length > 300 ? 'reads' : 'writes';
    };
    const again = open({ ...pack, standing }, { cacheTypes: 'trellis2' });
    await again.read(text.slice(0, 300));
    expect(count(again)).toBeGreaterThan(0);
    expect((await refused(again.read(text.slice(300), { signal: abort.signal }))).code).toBe('aborted');
    expect([again.length, count(again)]).toEqual([300, 0]);
    sound(again);
    expect(await greedy(again, text.slice(300, 310))).toEqual(await greedy(left, text.slice(300, 310)));
    for (const one of [left, again]) one.close();
  });

  it('keeps no latents and no originals', async () => {
    const pack = packOf('kept', 'e', keptRows);
    for (const more of [{ latents: { format: 'xq4' } }, { originals: 'memory' }] as Partial<SessionSetup>[])
      expect((await refusedLater(() => open(pack, more))).code).toBe('unsupported');
    expect((await refusedLater(() => open(undefined, { pack: 'kept' }))).code).toBe('unsupported');
  });
});

describe('packs of two generations', () => {
  const flips = { home: 40, merge: 60, night: 1000 }[TIER];
  const module = instrumentModule(
    readFileSync(join(import.meta.dirname, '..', '..', '..', '..', 'packs', 'block6', 'block6.wasm')),
  );
  const generations = [
    packOf('codec', '1', () => PackInstance.open(module, { fuelPerToken: 1200 })),
    packOf('codec', '2', () => coarse()),
  ];
  let runtime: Runtime;
  beforeAll(async () => {
    runtime = await Runtime.open({ model: MODEL, threads: 1 });
  });
  afterAll(() => runtime.close());
  const text = ids(300, 9);

  it('change between tokens of four sessions that write, and each session has the pages of one alone', async () => {
    const pool = openPool(2 ** 28);
    const open = (pack: SessionPack): Session =>
      Session.open(runtime, {
        ...{ log: null, thresholds: defaultThresholds(runtime.shape.layers), cacheTypes: 'trellis2' },
        ...{ pack: pack.name, sessionPack: pack, pool },
      });
    const alone = [];
    for (const pack of generations) {
      const session = open(pack);
      alone.push(await greedy(session, text));
      expect(count(session)).toBeGreaterThan(0);
      session.close();
    }
    let active = 0;
    let flipped = 0;
    const flip = (): number => {
      flipped++;
      return (active = 1 - active);
    };
    while (flipped < flips) {
      const opened = generations.map((pack) => pack.opened);
      const sessions = Array.from({ length: 4 }, () => {
        const generation = flip();
        return { generation, session: open(generations[generation]!) };
      });
      const answers = await Promise.all(
        sessions.map(async ({ session }, at) => {
          const tokens: number[] = [];
          for await (const _ of session.generate(text, { maxTokens: 12, temperature: 0 })) {
            flip();
            // The last one is taken back by its operator.
            if (at === 3) session.governed.leavePack();
            tokens.push(session.length);
          }
          return session.tokens.slice(text.length);
        }),
      );
      for (const [at, { session, generation }] of sessions.entries()) {
        if (at < 3) expect(answers[at]).toEqual(alone[generation]);
        else expect(answers[at]).toHaveLength(12);
        expect(count(session) > 0).toBe(at < 3);
        expect(session.governed.terms.context.pack?.id).toBe(`pack:codec@${String(generation + 1).repeat(12)}`);
        sound(session);
      }
      // Two instances for each session that was opened: one is asked for sizes, one is its own.
      for (const [at, pack] of generations.entries())
        expect(pack.opened - opened[at]!).toBe(2 * sessions.filter(({ generation }) => generation === at).length);
      for (const { session } of sessions) session.close();
      expect([pool.usedBytes, pool.auditBytes()]).toEqual([0, 0]);
    }
    pool.close();
  });
});

describe('an engine with packs in its state folder', () => {
  const folder = join(import.meta.dirname, '..', '..', '..', '..', 'packs', 'block6');
  const manifest = JSON.parse(readFileSync(join(folder, 'manifest.json'), 'utf8')) as CodecManifest;
  const module = readFileSync(join(folder, 'block6.wasm'));

  it('gives sessions the one that is active when they are opened, and they keep it', async () => {
    const stateDir = join(models.dir, 'state');
    const log = await openWitnessLog({ dir: join(models.dir, 'packs-log'), clock: () => NOW_MS });
    const keeper = await PackKeeper.open({ stateDir, log, clock: () => NOW_MS });
    const allow = [{ name: manifest.name, versions: { from: '1.0.0', below: '2.0.0' } }];
    await keeper.installTrust(signTrust(trustWith({ allow })), 'trust');
    await keeper.install(signedPack({ manifest, module }), trial);
    const engine = await createEngine({ model: MODEL, threads: 1, stateDir });
    try {
      const asked = { pack: manifest.name, cacheTypes: 'trellis2', tokensExpected: 320 };
      expect((await refused(engine.openSession(asked))).code).toBe('not-found');
      await keeper.activate(manifest.name);
      const session = await engine.openSession(asked);
      await session.generate(ids(300), { maxTokens: 4, temperature: 0 }).result;
      const gone = (await session.report()).layers.reduce((sum, { kPages }) => sum + (kPages['freed'] ?? 0), 0);
      expect(gone).toBeGreaterThan(0);
      // Each of several answers is written by a fork with an instance of its own, and leaves the session as it was.
      const alike = { maxTokens: 4, temperature: 1, seed: 3 };
      const answers = await session.continuations(ids(5, 2), { ...alike, n: 2 });
      expect(answers).toHaveLength(2);
      const fork = await session.fork();
      expect(await fork.generate(null, alike).text()).toBe(answers[0]!.text);
      await fork.close();
      expect((await refused(engine.openSession({ ...asked, pack: 'block6@canary' }))).code).toBe('not-found');
      await keeper.rollback();
      expect(await keeper.retire()).toEqual([]);
      expect((await refused(engine.openSession(asked))).code).toBe('not-found');
      // It may only read from now on, so its pages go on in a format of ours at the end of the next one.
      expect((await session.generate(ids(130), { maxTokens: 4, temperature: 0 }).result).tokens).toBe(4);
      await session.close();
      expect(await keeper.retire()).toMatchObject([{ state: 'retired' }]);
      const notes = [...readLog(logDir(stateDir), { kinds: ['note'] })].filter(({ body }) => 'packLeft' in body);
      expect(notes.map(({ body }) => (body as { pages?: number }).pages)).toEqual([gone]);
    } finally {
      await engine.close();
      keeper.close();
      await log.close();
    }
  });

  it('takes back for everybody what breaks its contract in a session', async () => {
    const stateDir = join(models.dir, 'broken-state');
    const kept = async <T>(work: (keeper: PackKeeper) => T | Promise<T>): Promise<T> => {
      const log = await openWitnessLog({ dir: logDir(stateDir), clock: () => NOW_MS });
      const keeper = await PackKeeper.open({ stateDir, log, clock: () => NOW_MS });
      try {
        return await work(keeper);
      } finally {
        keeper.close();
        await log.close();
      }
    };
    const allow = [{ name: manifest.name, versions: { from: '1.0.0', below: '2.0.0' } }];
    // It promises less fuel than it takes, which these trials do not ask.
    const formats = manifest.formats.map((format) => ({ ...format, fuelPerToken: 1 }));
    await kept(async (keeper) => {
      await keeper.installTrust(signTrust(trustWith({ allow })), 'trust');
      await keeper.install(signedPack({ manifest: { ...manifest, formats }, module }), trial);
      await keeper.activate(manifest.name);
    });
    const engine = await createEngine({ model: MODEL, threads: 1, stateDir });
    const asked = { pack: manifest.name, cacheTypes: 'trellis2', tokensExpected: 320 };
    try {
      const session = await engine.openSession(asked);
      expect((await session.generate(ids(300), { maxTokens: 4, temperature: 0 }).result).tokens).toBe(4);
      expect(['bad-pack', 'not-found']).toContain((await refused(engine.openSession(asked))).code);
    } finally {
      await engine.close();
    }
    expect(await kept((keeper) => keeper.find(manifest.name).state)).toBe('retired');
    const arrows = [...readLog(logDir(stateDir), { kinds: ['pack'] })].map(({ body }) => body as { because: string });
    expect(arrows.slice(-2)).toMatchObject([
      { event: 'replace', to: 'draining' },
      { event: 'drain', to: 'retired' },
    ]);
    expect(arrows.at(-2)!.because).toContain('fuel');
  });
});
