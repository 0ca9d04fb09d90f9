// The life of packs in a state folder, with its log: what is installed, activated and taken back, what a new trust file
// does to packs that are there, and that the log has every arrow. Modules are not run here (contract.test.ts does).
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { ActivePacks } from '../../../../engine/packs/active.ts';
import { PackKeeper, type PackTrial } from '../../../../engine/packs/lifecycle.ts';
import { PackReaders } from '../../../../engine/packs/readers.ts';
import { packsDir } from '../../../../engine/packs/store.ts';
import { nextPackState } from '../../../../policy/index.ts';
import { openWitnessLog, type PackBody, readLog, verifyLog, type WitnessLog } from '../../../../witness/index.ts';
import { refusal, refused } from '../../../refusal.ts';
import {
  EXPIRED,
  later,
  manifestWith,
  moduleOf,
  NOW_MS,
  PACKERS,
  packOf,
  REVOKED,
  ROOTS,
  sha,
  signerOf,
  signTrust,
  trustWith,
} from './signed.ts';

/** Modules are taken as they are. */
const trial: PackTrial = {
  instrument: (module) => Buffer.concat([module, moduleOf('counted').subarray(8)]),
  test: async (_, { version }) =>
    version === '1.6.6'
      ? {
          ...{ kept: false, calls: 1, fuelPerToken: 0, error: 1 },
          problems: [{ check: 'error', message: 'rows differ', values: {} }],
        }
      : { kept: true, calls: 9, problems: [], fuelPerToken: 7, error: 0.125 },
};

let dir: string;
let log: WitnessLog;
let keeper: PackKeeper;
let nowMs = NOW_MS;

async function begin(): Promise<void> {
  log = await openWitnessLog({ dir: join(dir, 'log'), clock: () => nowMs });
  keeper = await PackKeeper.open({ stateDir: dir, log, clock: () => nowMs });
}
async function end(): Promise<void> {
  keeper.close();
  await log.close();
}
async function again(): Promise<void> {
  await end();
  await begin();
}
beforeEach(async () => {
  dir = mkdtempSync(join(tmpdir(), 'palimpsest-packs-'));
  nowMs = NOW_MS;
  await begin();
});
afterEach(async () => {
  await end();
  rmSync(dir, { recursive: true, force: true });
});

const version = (number: string, name = 'example') => packOf({ manifest: manifestWith({ name, version: number }) });
const digestOfPack = ({ module }: { readonly module: Uint8Array }): string => sha(module);
const digestOf = (number: string): string => digestOfPack(version(number));
const states = (): Record<string, string> =>
  Object.fromEntries((keeper.generation?.packs ?? []).map((pack) => [pack.version, pack.state]));
const told = (): PackBody[] => [...readLog(join(dir, 'log'), { kinds: ['pack'] })].map(({ body }) => body as PackBody);
const loaded = () => new ActivePacks({ stateDir: dir, instrument: trial.instrument });

const trust = () => keeper.installTrust(signTrust(trustWith()), 'trust');

describe('a state folder without a trust file', () => {
  it('takes no pack and loads none', async () => {
    expect((await refused(keeper.install(version('1.0.0'), trial))).code).toBe('not-found');
    expect(loaded()).toMatchObject({ generation: null, names: [] });
    expect(loaded().active('example')).toBeNull();
    expect(told()).toEqual([]);
  });
});

describe('a pack', () => {
  it('is installed, tried by some, activated, replaced, and taken back', async () => {
    await trust();
    const { record, isKnown } = await keeper.install(version('1.0.0'), trial);
    expect(record).toMatchObject({ name: 'example', state: 'tested', keyIds: [PACKERS[0].id], trustVersion: 1 });
    expect(record.numbers).toMatchObject({ calls: 9, fuelPerToken: 7, error: 0.125 });
    expect(isKnown).toBe(false);
    expect((await keeper.install(version('1.0.0'), trial)).isKnown).toBe(true);
    expect(loaded().active('example')).toBeNull();

    await keeper.activate('example', true);
    expect(loaded().active('example')).toBeNull();
    expect(loaded().canary('example')).toMatchObject({ version: '1.0.0', state: 'canary' });
    await keeper.activate('example');
    const first = loaded().active('example')!;
    expect(first).toMatchObject({ version: '1.0.0', digest: digestOf('1.0.0'), manifest: manifestWith() });
    expect(Buffer.from(first.instrumented)).toEqual(trial.instrument(version('1.0.0').module));

    await again();
    await keeper.install(version('1.1.0'), trial);
    const packs = loaded();
    await keeper.activate('example@1.1.0');
    expect(packs.active('example')!.version).toBe('1.0.0');
    expect(packs.refresh()).toBe(true);
    expect(packs.refresh()).toBe(false);
    expect(packs.active('example')!.version).toBe('1.1.0');
    expect(packs.reader(digestOf('1.0.0').slice(0, 12))).toMatchObject({ version: '1.0.0', state: 'draining' });

    await keeper.rollback(null, { because: 'the bound was broken twice', numbers: { error: 0.5 } });
    expect(states()).toEqual({ '1.0.0': 'active', '1.1.0': 'draining' });
    expect(loaded().reader(digestOf('1.1.0'))!.version).toBe('1.1.0');
    const readers = new PackReaders(dir);
    const release = [1, 2].map(() => readers.hold(digestOf('1.1.0')));
    for (const done of release) {
      expect(await keeper.retire()).toEqual([]);
      done();
    }
    // Whoever was killed leaves a folder, with a lock that nobody holds or without one.
    for (const name of ['killed', 'begun']) mkdirSync(join(packsDir(dir), 'readers', digestOf('1.1.0'), name));
    writeFileSync(join(packsDir(dir), 'readers', digestOf('1.1.0'), 'killed', 'writer.lock'), 'torn');
    expect(await keeper.retire()).toMatchObject([{ version: '1.1.0', state: 'retired' }]);
    expect(readdirSync(join(packsDir(dir), 'readers', digestOf('1.1.0')))).toEqual([]);
    expect(await keeper.retire()).toEqual([]);
    expect(loaded().reader(digestOf('1.1.0'))).toBeNull();
    await keeper.activate('example@1.1.0');
    expect(states()).toEqual({ '1.0.0': 'draining', '1.1.0': 'active' });

    const arrows = told();
    for (const { from, event, to } of arrows) expect(nextPackState(from, event)).toBe(to);
    expect(arrows.map(({ version: of, event }) => `${of} ${event}`)).toEqual([
      ...['1.0.0 verify', '1.0.0 instrument', '1.0.0 test', '1.0.0 tryOut', '1.0.0 activate'],
      ...['1.1.0 verify', '1.1.0 instrument', '1.1.0 test', '1.0.0 replace', '1.1.0 tryOut', '1.1.0 activate'],
      ...['1.1.0 replace', '1.0.0 restore', '1.1.0 drain', '1.0.0 replace', '1.1.0 restore'],
    ]);
    expect(arrows.find(({ because }) => because !== '')).toMatchObject({
      ...{ because: 'the bound was broken twice', numbers: { error: 0.5 }, trustVersion: 1, keyIds: [PACKERS[0].id] },
    });
    expect(verifyLog(join(dir, 'log')).ok).toBe(true);
  });

  it('that broke its contract in a session makes way for the version before it, and for no other name', async () => {
    const versions = { from: '1.0.0', below: '2.0.0' };
    const allow = ['example', 'other'].map((name) => ({ name, versions }));
    await keeper.installTrust(signTrust(trustWith({ allow })), 'trust');
    for (const one of [version('1.0.0'), version('1.1.0'), version('1.2.0', 'other')]) {
      await keeper.install(one, trial);
      await keeper.activate(digestOfPack(one));
    }
    expect((await keeper.withdraw(digestOf('1.1.0'), 'rows are no numbers')).state).toBe('draining');
    expect(states()).toEqual({ '1.0.0': 'active', '1.1.0': 'draining', '1.2.0': 'active' });
    const { generation } = keeper.generation!;
    await keeper.withdraw(digestOf('1.1.0'), 'again');
    expect(keeper.generation!.generation).toBe(generation);
    // Nothing is left to go back to.
    await keeper.withdraw(digestOf('1.0.0'), 'a trap');
    expect(states()['1.0.0']).toBe('draining');
    expect(loaded().active('example')).toBeNull();
    expect(
      told()
        .slice(-3)
        .map(({ version: of, event, because }) => [of, event, because]),
    ).toEqual([
      ['1.1.0', 'replace', 'rows are no numbers'],
      ['1.0.0', 'restore', 'rows are no numbers'],
      ['1.0.0', 'replace', 'a trap'],
    ]);
  });

  it('is found by its name, version and digest, and by nothing else', async () => {
    await trust();
    await keeper.install(version('1.0.0'), trial);
    await keeper.install(version('1.2.0'), trial);
    expect(keeper.find('example').version).toBe('1.2.0');
    expect(keeper.find('example@1.0.0').version).toBe('1.0.0');
    expect(keeper.find(digestOf('1.0.0').slice(0, 9)).version).toBe('1.0.0');
    for (const typed of ['other', 'example@9.0.0', digestOf('1.0.0').slice(0, 7), '../example', ''])
      expect(refusal(() => keeper.find(typed)).code).toBe('not-found');
  });

  it('that breaks its contract is refused, and its version may be followed', async () => {
    await trust();
    const error = await refused(keeper.install(version('1.6.6'), trial));
    expect(error).toMatchObject({ code: 'bad-pack', values: { fault: 'error' } });
    expect(told()).toMatchObject([{ from: 'instrumented', to: 'rejected', version: '1.6.6', generation: null }]);
    expect(keeper.generation!.packs).toEqual([]);
    await keeper.install(version('1.0.0'), trial);
  });

  it('below the floor is refused, and the log remembers what the store forgot', async () => {
    await trust();
    await keeper.install(version('1.5.0'), trial);
    expect((await refused(keeper.install(version('1.4.9'), trial))).message).toContain('older than 1.5.0');
    const [other] = [packOf({ manifest: manifestWith({ version: '1.4.9' }), signers: [PACKERS[1]] })];
    await keeper.install(other!, trial);
    const twin = packOf({ manifest: manifestWith({ version: '1.5.0' }), module: moduleOf('another') });
    expect((await refused(keeper.install(twin, trial))).message).toContain('with another module');

    await end();
    rmSync(packsDir(dir), { recursive: true });
    log = await openWitnessLog({ dir: join(dir, 'log'), clock: () => nowMs });
    const error = await refused(PackKeeper.open({ stateDir: dir, log, clock: () => nowMs }));
    expect(error).toMatchObject({ code: 'bad-signature', values: { name: 'example', witnessed: '1.5.0' } });
    await log.close();
    rmSync(join(dir, 'log'), { recursive: true });
    rmSync(packsDir(dir), { recursive: true });
    await begin();
  });

  it('that a newer one supersedes makes way, also under another name', async () => {
    await keeper.installTrust(
      signTrust(
        trustWith({
          allow: [{ digest: digestOf('1.0.0') }, { name: 'better', versions: { from: '1.0.0', below: '2.0.0' } }],
        }),
      ),
      'trust',
    );
    await keeper.install(version('1.0.0'), trial);
    await keeper.activate('example');
    await keeper.install(
      packOf({ manifest: manifestWith({ name: 'better', version: '1.0.0', supersedes: [digestOf('1.0.0')] }) }),
      trial,
    );
    await keeper.activate('better', true);
    expect(loaded().active('example')).not.toBeNull();
    await keeper.activate('better');
    expect(loaded()).toMatchObject({ names: ['better'] });
  });

  it('cannot go where no arrow leads', async () => {
    await trust();
    expect((await refused(keeper.rollback())).code).toBe('not-found');
    await keeper.install(version('1.0.0'), trial);
    expect(await keeper.retire()).toEqual([]);
    await keeper.activate('example');
    for (const isCanary of [true, false])
      expect((await refused(keeper.activate('example', isCanary))).code).toBe('bad-argument');
    await keeper.rollback();
    expect(states()).toEqual({ '1.0.0': 'draining' });
    await keeper.distrust(digestOf('1.0.0'), 'it trapped');
    expect(loaded().reader(digestOf('1.0.0'))).toBeNull();
    expect((await refused(keeper.activate('example@1.0.0'))).code).toBe('bad-signature');
    expect((await refused(keeper.install(version('1.0.0'), trial))).message).toContain('distrusted here');
  });

  it('is done something to by one process at a time', async () => {
    const error = await refused(PackKeeper.open({ stateDir: dir, log }));
    expect(error.code).toBe('locked');
  });
});

describe('a new trust file', () => {
  const next = (change: Parameters<typeof trustWith>[0], signers = ROOTS.slice(0, 2)) =>
    keeper.installTrust(signTrust(trustWith({ version: 2, ...change }), signers), 'trust');

  beforeEach(async () => {
    await trust();
    await keeper.install(version('1.0.0'), trial);
    await keeper.activate('example');
    await keeper.install(version('1.1.0'), trial);
    await keeper.activate('example');
  });

  it('quarantines what it revokes, so that not even its pages are read, and nothing brings it back', async () => {
    await next({ revoked: [REVOKED.id, digestOf('1.0.0')] });
    expect(states()).toEqual({ '1.0.0': 'quarantined', '1.1.0': 'active' });
    expect(loaded().reader(digestOf('1.0.0'))).toBeNull();
    expect((await refused(keeper.rollback())).code).toBe('bad-signature');
    expect(states()).toEqual({ '1.0.0': 'quarantined', '1.1.0': 'active' });
    expect(told().at(-1)).toMatchObject({ event: 'distrust', because: 'trust version 2: revoked', generation: 6 });
  });

  it('that revokes a key quarantines what only that key had signed', async () => {
    const both = packOf({ manifest: manifestWith({ version: '1.2.0' }), signers: PACKERS });
    await keeper.install(both, trial);
    await next({ revoked: [PACKERS[0].id] });
    expect(states()).toEqual({ '1.0.0': 'quarantined', '1.1.0': 'quarantined', '1.2.0': 'tested' });
    await keeper.activate('example');
    expect(loaded().active('example')!.version).toBe('1.2.0');
  });

  it.each([
    ['a minimum', { minimum: { example: '1.2.0' } }],
    ['another list of what is allowed', { allow: [] }],
    [
      'a role without its key',
      { roles: { root: trustWith().roles.root, packs: { keys: [PACKERS[1].id], threshold: 1 } } },
    ],
  ])('with %s leaves packs that only read', async (_, change) => {
    await next(change);
    expect(states()).toEqual({ '1.0.0': 'draining', '1.1.0': 'draining' });
    expect(loaded().reader(digestOf('1.1.0'))!.version).toBe('1.1.0');
    expect((await refused(keeper.activate('example'))).code).toBe('bad-signature');
  });

  it('may come with another key that signs the same packs anew', async () => {
    await next({ roles: { root: trustWith().roles.root, packs: { keys: [PACKERS[1].id], threshold: 1 } } });
    const anew = packOf({ manifest: manifestWith({ version: '1.1.0' }), signers: [PACKERS[1]] });
    expect((await keeper.install(anew, trial)).record).toMatchObject({ state: 'draining', keyIds: [PACKERS[1].id] });
    await keeper.activate('example@1.1.0');
    expect(loaded().active('example')!.version).toBe('1.1.0');
  });

  it('is signed by the keys of the one before and by its own', async () => {
    const fresh = ['new root 1', 'new root 2'].map(signerOf);
    const keys = [...trustWith().keys, ...fresh.map(({ id, publicKey }) => ({ id, publicKey, expires: later(365) }))];
    const roles = { ...trustWith().roles, root: { keys: fresh.map(({ id }) => id), threshold: 2 } };
    for (const signers of [ROOTS.slice(0, 2), fresh, [ROOTS[0], ...fresh], [ROOTS[0], ROOTS[1], fresh[0]!]])
      expect((await refused(next({ keys, roles }, signers))).code).toBe('bad-signature');
    expect((await next({ keys, roles }, [ROOTS[0], ROOTS[2], ...fresh])).version).toBe(2);
    expect((await refused(next({ version: 3 }))).code).toBe('bad-signature');
    expect((await refused(next({ version: 4, keys, roles }, fresh))).message).toContain('3 is next');
    expect((await next({ version: 3, keys, roles }, fresh)).version).toBe(3);
    expect((await refused(next({ version: 3, keys, roles }, fresh))).code).toBe('bad-signature');
  });

  it('is needed when the one before has expired, but packs stay', async () => {
    nowMs = Date.parse(later(91));
    expect((await refused(keeper.install(version('1.2.0'), trial))).message).toContain('expired');
    expect(loaded().active('example')!.version).toBe('1.1.0');
    await next({ expires: later(200) });
    await keeper.install(version('1.2.0'), trial);
  });

  it('says nothing where the clock is behind the log', async () => {
    await again();
    nowMs = NOW_MS - 61_000;
    expect((await refused(keeper.install(version('1.2.0'), trial))).message).toContain('the clock is behind');
    nowMs = NOW_MS - 59_000;
    await keeper.install(version('1.2.0'), trial);
  });
});

describe('a store', () => {
  it('that was changed is refused, whatever was changed', async () => {
    await trust();
    await keeper.install(version('1.0.0'), trial);
    await keeper.activate('example');
    const root = packsDir(dir);
    const files = readdirSync(root, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());
    const current = `${keeper.generation!.generation}.json`;
    const used = [current, 'current', version('1.0.0').module, version('1.0.0').envelope, signTrust(trustWith())].map(
      (one) => (typeof one === 'string' ? one : sha(one)),
    );
    let changed = 0;
    for (const { name, parentPath } of files) {
      if (!used.includes(name)) continue;
      const path = join(parentPath, name);
      const bytes = readFileSync(path);
      for (const damaged of [bytes.subarray(0, -3), Buffer.alloc(bytes.length), Buffer.alloc(0)]) {
        writeFileSync(path, damaged);
        expect(['bad-file', 'checksum-mismatch'], name).toContain(refusal(() => loaded().active('example')).code);
        changed++;
      }
      rmSync(path);
      if (name !== 'current') expect(refusal(() => loaded().active('example')).code).toBe('not-found');
      writeFileSync(path, bytes);
    }
    expect(changed).toBe(15);
    expect(loaded().active('example')!.version).toBe('1.0.0');
  });
});

it('keys that expired or were revoked do not count', async () => {
  await trust();
  for (const signer of [EXPIRED, REVOKED]) {
    const error = await refused(keeper.install(packOf({ signers: [signer] }), trial));
    expect(error).toMatchObject({ code: 'bad-signature', values: { signatures: 0, threshold: 1 } });
    expect(error.message).toContain(signer === EXPIRED ? 'has expired' : 'is revoked');
  }
});
