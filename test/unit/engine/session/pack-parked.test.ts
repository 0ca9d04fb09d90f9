/**
 * Parked sessions with pages in a pack: the file has these pages as the pack coded them and names the pack by its
 * digest; a session that comes back with exactly that version goes on as one that was never parked. What does not fit
 * is read again, and a version that is gone is refused; a file that lies harms nobody.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { crc32 } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { SessionPack } from '../../../../engine/cache/pack-pages.ts';
import { type Chat, createEngine, type EngineSession } from '../../../../engine/index.ts';
import { PackInstance } from '../../../../engine/packs/instance.ts';
import { instrumentModule } from '../../../../engine/packs/instrument.ts';
import { PackKeeper } from '../../../../engine/packs/lifecycle.ts';
import type { CodecManifest } from '../../../../engine/packs/manifest.ts';
import { parkedPacks, removeParked } from '../../../../engine/session/park/folder.ts';
import { parkedBytes } from '../../../../engine/session/park/park.ts';
import { formParked, type Parked, parseParked } from '../../../../engine/session/park/parked-file.ts';
import { resumeSession } from '../../../../engine/session/park/resume.ts';
import { Session } from '../../../../engine/session/session.ts';
import type { SessionSetup } from '../../../../engine/session/setup.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { openStore } from '../../../../engine/store/open.ts';
import { chatBytes, keptChat } from '../../../../engine/thread/kept-chat.ts';
import { Runtime } from '../../../../engine/transformer/runtime/runtime.ts';
import { defaultThresholds } from '../../../../policy/index.ts';
import { openWitnessLog } from '../../../../witness/index.ts';
import { refused } from '../../../refusal.ts';
import { HAS_POSTGRES, PostgresProcess } from '../../../suite/postgres-server.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { inPack, packOf } from '../cache/pack-codecs.ts';
import { ids, MODEL } from '../on-reference.ts';
import { NOW_MS, packOf as signedPack, signTrust, trustWith } from '../packs/signed.ts';

const folder = scratchFolders();
const packFolder = join(import.meta.dirname, '..', '..', '..', '..', 'packs', 'block6');
const wasm = readFileSync(join(packFolder, 'block6.wasm'));
const module = instrumentModule(wasm);
const [TEXT, MORE] = [ids(400), ids(150, 5)];

describe('a parked session with a pack', () => {
  let runtime: Runtime;
  beforeAll(async () => {
    runtime = await Runtime.open({ model: MODEL, threads: 1 });
  });
  afterAll(() => runtime.close());
  const faults: string[] = [];
  const block6 = (digit = 'a'): SessionPack => ({
    ...packOf('block6', digit, () => PackInstance.open(module, { fuelPerToken: 1200 })),
    onFault: ({ message }) => faults.push(message),
  });
  const setupOf = (pack: SessionPack | undefined, more: Partial<SessionSetup> = {}): SessionSetup => ({
    ...{ log: null, thresholds: defaultThresholds(runtime.shape.layers), tokensExpected: 720 },
    ...{ cacheTypes: 'trellis2', ...(pack === undefined ? {} : { pack: pack.name, sessionPack: pack }) },
    ...more,
  });
  const resume = (bytes: Uint8Array, pack: SessionPack | undefined, more: Partial<SessionSetup> = {}) =>
    resumeSession(runtime, setupOf(pack, more), parseParked(bytes, 'parked'));
  const greedy = async (session: Session, prompt: readonly number[]): Promise<number[]> => {
    const before = session.length + prompt.length;
    for await (const _ of session.generate(prompt, { maxTokens: 12, temperature: 0 }));
    return session.tokens.slice(before);
  };

  it.each([
    ['', {}],
    [', under a budget', { cacheTypes: undefined, kvBudget: '22%', tokensExpected: 960 }],
  ] as const)(
    'comes back with the bytes that its pack made, and writes what it would have written%s',
    async (_, options) => {
      const session = Session.open(runtime, setupOf(block6(), options as Partial<SessionSetup>));
      const isBound = 'kvBudget' in options;
      await session.read(isBound ? ids(900) : TEXT);
      const pages = inPack(session);
      expect(pages.length).toBeGreaterThan(0);
      const bytes = parkedBytes(session);
      const { head, cache } = parseParked(bytes, 'parked');
      expect(head.pack).toMatchObject({ name: 'block6', digest: 'a'.repeat(64) });
      const { session: back, resumed } = await resume(bytes, block6(), options as Partial<SessionSetup>);
      expect(resumed).toMatchObject({ by: 'pages', why: null });
      expect(inPack(back)).toEqual(pages);
      for (const [layer, page] of pages)
        expect(back.cache.foreignBytes(layer!, page!)).toEqual(session.cache.foreignBytes(layer!, page!));
      const again = parseParked(parkedBytes(back), 'again');
      expect(Buffer.from(again.cache).equals(cache)).toBe(true);
      expect(again.head.pack).toEqual(head.pack);
      for (const one of [session, back]) expect(one.cache.auditBytes()).toBe(one.cache.usedBytes);
      // Fewer tokens than a page: under a budget, each decides by itself from then on.
      const more = isBound ? MORE.slice(0, 40) : MORE;
      expect(await greedy(back, more)).toEqual(await greedy(session, more));
      for (const one of [session, back]) one.close();
    },
  );

  it('is read again where another pack is there or none, and names none where it had left its own', async () => {
    const session = Session.open(runtime, setupOf(block6()));
    await session.read(TEXT);
    const bytes = parkedBytes(session);
    for (const pack of [block6('b'), undefined]) {
      const { session: back, resumed } = await resume(bytes, pack);
      expect(resumed.by).toBe('reading');
      expect(resumed.why).toMatch(/another pack: pack:block6@a{12}, not (none|pack:block6@b{12})/);
      back.close();
    }
    session.governed.leavePack();
    const left = parkedBytes(session);
    expect(parseParked(left, 'left').head).not.toHaveProperty('pack');
    expect(parseParked(left, 'left').head.options).not.toHaveProperty('pack');
    const { session: back, resumed } = await resume(left, undefined);
    expect(resumed.by).toBe('pages');
    for (const one of [session, back]) one.close();
  });

  it('is believed nothing that its pack does not read', async () => {
    const session = Session.open(runtime, setupOf(block6()));
    await session.read(TEXT);
    const parked = parseParked(parkedBytes(session), 'parked');
    const form = (change: Partial<Parked>): Buffer => formParked({ ...parked, ...change });
    const { pack: _, ...headless } = parked.head;
    const withPages = (pages: number[][]): Parked['head'] => ({
      ...parked.head,
      pack: { ...parked.head.pack!, pages },
    });
    const [first] = inPack(session);
    const pageBytes = session.cache.foreignBytes(first![0]!, first![1]!).length;
    // The first page that the pack has, in the bytes of the cache: its stored form says how long it is.
    const at = Buffer.from(parked.cache).indexOf('KVPAGE01');
    const noNumbers = Buffer.from(parked.cache);
    for (let from = at; from >= 0; from = noNumbers.indexOf('KVPAGE01', from + 1)) {
      const length = noNumbers.readUInt32LE(from - 5) - 1;
      if (noNumbers.readUInt32LE(from + 8) !== 5) continue;
      noNumbers.fill(255, from + 128, from + 128 + pageBytes);
      noNumbers.writeUInt32LE(crc32(noNumbers.subarray(from, from + length - 4)), from + length - 4);
    }
    const cases: [Buffer, RegExp, SessionPack | undefined][] = [
      [form({ head: headless as Parked['head'] }), /in a pack that its session has not/, undefined],
      [form({ head: withPages(parked.head.pack!.pages.slice(1)) }), /does not fit its cache/, block6()],
      [form({ head: withPages(parked.head.pack!.pages.map(() => [77])) }), /does not fit its cache/, block6()],
      [form({ cache: noNumbers }), /none of the pack block6/, block6()],
      // One whose pages have another size.
      [form({}), /none of the pack block6/, { ...block6(), open: () => wider(block6().open()) }],
    ];
    for (const [bytes, why, pack] of cases) {
      const { session: back, resumed } = await resume(bytes, pack);
      expect(resumed.why).toMatch(why);
      expect(resumed.by).toBe('reading');
      expect(back.cache.auditBytes()).toBe(back.cache.usedBytes);
      back.close();
    }
    expect(faults).toEqual([]);
    for (const pages of [[[-1]], [[0.5]], 'all', [['0']]])
      expect(() => parseParked(form({ head: withPages(pages as number[][]) }), 'parked')).toThrow(/makes no sense/);
    session.close();
  });
});

/** The same with two bytes more in each page. */
const wider = (codec: ReturnType<SessionPack['open']>): ReturnType<SessionPack['open']> => ({
  pageBytes: (...given) => codec.pageBytes(...given) + 2,
  encode: (...given) => Buffer.concat([codec.encode(...given), Buffer.alloc(2)]),
  decode: (page, ...given) => codec.decode(page.subarray(0, -2), ...given),
  dots: (page, ...given) => codec.dots(page.subarray(0, -2), ...given),
  mix: (page, ...given) => codec.mix(page.subarray(0, -2), ...given),
  close: () => codec.close(),
});

describe('a state folder with parked sessions whose pages are in a pack', () => {
  const manifest = JSON.parse(readFileSync(join(packFolder, 'manifest.json'), 'utf8')) as CodecManifest;
  const trial = {
    instrument: instrumentModule,
    test: async () => ({ kept: true, calls: 1, problems: [], fuelPerToken: 1, error: 0 }),
  };
  const asked = { pack: 'block6', cacheTypes: 'trellis2', tokensExpected: 420 };
  const allow = [{ name: 'block6', versions: { from: '1.0.0', below: '2.0.0' } }];

  async function kept<T>(stateDir: string, work: (keeper: PackKeeper) => T | Promise<T>): Promise<T> {
    const log = await openWitnessLog({ dir: logDir(stateDir), clock: () => NOW_MS });
    const parked = (): ReadonlySet<string> => parkedPacks(stateDir);
    const keeper = await PackKeeper.open({ stateDir, log, parked, clock: () => NOW_MS });
    try {
      return await work(keeper);
    } finally {
      keeper.close();
      await log.close();
    }
  }

  async function installed(): Promise<string> {
    const stateDir = folder();
    await kept(stateDir, async (keeper) => {
      await keeper.installTrust(signTrust(trustWith({ allow })), 'trust');
      await keeper.install(signedPack({ manifest, module: wasm }), trial);
      await keeper.activate('block6');
    });
    return stateDir;
  }
  const answer = (session: EngineSession): Promise<string> =>
    session.generate(ids(5, 9), { maxTokens: 8, temperature: 0 }).text();

  it('keeps the pack as long as they name it, and refuses by name where it is gone', async () => {
    const stateDir = await installed();
    const engine = await createEngine({ model: MODEL, threads: 1, stateDir });
    const never = await engine.openSession(asked);
    await never.read(TEXT);
    const expected = await answer(never);
    await never.close();
    const session = await engine.openSession(asked);
    await session.read(TEXT);
    const { path } = await session.park();
    await engine.close();
    // Whoever was killed behind the parking has left no lock that counts, and the file alone keeps the pack.
    expect([...parkedPacks(stateDir)]).toHaveLength(1);
    await kept(stateDir, async (keeper) => {
      await keeper.rollback();
      expect(await keeper.retire()).toEqual([]);
      expect(keeper.find('block6').state).toBe('draining');
    });
    const next = await createEngine({ model: MODEL, threads: 1, stateDir });
    try {
      const back = await next.resume(path);
      expect(back.resumed).toMatchObject({ by: 'pages' });
      expect(await answer(back)).toBe(expected);
      await back.close();
      expect((await refused(next.resume(path, { pack: 'block6' }))).code).toBe('not-found');
    } finally {
      await next.close();
    }
    const copy = readFileSync(path);
    removeParked(path);
    await kept(stateDir, async (keeper) => expect(await keeper.retire()).toMatchObject([{ state: 'retired' }]));
    for (const [state, code] of [
      ['retired', 'not-found'],
      ['quarantined', 'bad-pack'],
    ]) {
      if (state === 'quarantined')
        await kept(stateDir, async (keeper) => {
          await keeper.activate('block6');
          const trust = trustWith({ allow, version: 2, revoked: [keeper.find('block6').digest] });
          await keeper.installTrust(signTrust(trust), 'trust');
        });
      const last = await createEngine({ model: MODEL, threads: 1, stateDir });
      const elsewhere = join(folder(), 'a.parked');
      writeFileSync(elsewhere, copy);
      const error = await refused(last.resume(elsewhere));
      expect(error).toMatchObject({ code, values: { pack: 'block6', state } });
      expect(error.hint).toContain('read again');
      await last.close();
    }
  });

  it.skipIf(!HAS_POSTGRES)(
    'are kept in PostgreSQL, for a server that has the same pack (needs PostgreSQL 15)',
    async () => {
      const server = await PostgresProcess.start();
      const [here, there, without] = [await installed(), await installed(), folder()];
      const question = { role: 'user', content: 'And what was scraped off? '.repeat(20) } as const;
      const goesOn = async (chat: Chat): Promise<string> =>
        (await chat.send(question, { maxTokens: 8, temperature: 0 }).result).text;
      try {
        const store = await openStore(server.url);
        await using engine = await createEngine({ model: MODEL, threads: 1, stateDir: here });
        await using chat = await engine.chat({ ...asked, template: 'hermes' });
        await chat.send({ ...question, content: 'He wrote on old pages. '.repeat(60) }, { maxTokens: 8 }).result;
        await store.put('conversation', 'said', chatBytes(await chat.save()));
        const expected = await goesOn(chat);
        await store.close();

        const other = await openStore(server.url);
        const found = keptChat((await other.first('conversation', ['said']))!.bytes);
        await other.close();
        await using next = await createEngine({ model: MODEL, threads: 1, stateDir: there });
        await using back = await next.resumeChat(found, { template: 'hermes' });
        expect(back.session.resumed).toMatchObject({ by: 'pages' });
        const { layers } = await back.session.report();
        expect(layers.some(({ kPages }) => (kPages['freed'] ?? 0) > 0)).toBe(true);
        expect(await goesOn(back)).toBe(expected);
        // Nobody can say what those bytes are where the pack is not.
        await using last = await createEngine({ model: MODEL, threads: 1, stateDir: without });
        expect((await refused(last.resumeChat(found, { template: 'hermes' }))).code).toBe('not-found');
      } finally {
        await server.remove();
      }
    },
  );

  it('has sessions that wait on disk come back with their pages, and leaves them where they are in memory', async () => {
    const stateDir = await installed();
    const texts: string[] = [];
    for (const idleSessions of ['keep', 'disk', 'reread', 'memory'] as const) {
      const engine = await createEngine({ model: MODEL, threads: 1, stateDir, idleSessions });
      try {
        const session = await engine.openSession(asked);
        await session.read(TEXT);
        await engine.setLowMemory(true);
        const { parked } = await session.report();
        expect([idleSessions, parked?.place]).toEqual([idleSessions, idleSessions === 'disk' ? 'disk' : undefined]);
        await engine.setLowMemory(false);
        texts.push(await answer(session));
        if (idleSessions === 'memory')
          expect((await refused(session.park(undefined, { predict: true }))).code).toBe('unsupported');
      } finally {
        await engine.close();
      }
    }
    expect(new Set(texts).size).toBe(1);
  });
});
