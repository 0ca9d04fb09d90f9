// Packs on the command line, from two keys to a rollback, with a codec of ours: what one command wrote is what the next
// one finds.
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { answered, dir, expectRefused, lastLine, root } from './command.ts';

interface Key {
  readonly id: string;
  readonly publicKey: string;
}

const keys: Record<string, Key> = {};
const state = ['--state', join(dir, 'state')];
const module = join(root, 'packs/block6/block6.wasm');
const manifest = join(root, 'packs/block6/manifest.json');

async function ran<T>(...args: string[]): Promise<T> {
  const { code, out, err } = await answered(['packs', ...args, '--json']);
  expect(code, err).toBe(0);
  return lastLine(out) as unknown as T;
}

function writeTrust(name: string, change: Readonly<Record<string, unknown>> = {}): string {
  const expires = '2099-01-01T00:00:00.000Z';
  const role = ({ id }: Key) => ({ keys: [id], threshold: 1 });
  const trust = {
    ...{ kind: 'palimpsest-trust', schemaVersion: 1, version: 1, expires, revoked: [], minimum: {} },
    keys: Object.values(keys).map(({ id, publicKey }) => ({ id, publicKey, expires })),
    roles: { root: role(keys['root']!), packs: role(keys['packs']!) },
    allow: [{ name: 'block6', versions: { from: '1.0.0', below: '2.0.0' } }],
    ...change,
  };
  const path = join(dir, name);
  writeFileSync(path, JSON.stringify(trust));
  return path;
}

beforeAll(async () => {
  for (const name of ['root', 'packs']) keys[name] = await ran<Key>('keygen', join(dir, `${name}.key`));
});
afterAll(() => rmSync(dir, { recursive: true, force: true }));

it('goes from keys to an active pack, and back', async () => {
  const signed = join(dir, 'trust.signed.json');
  const pack = join(dir, 'pack');
  const signing = ['--key', join(dir, 'packs.key'), '-o', pack];
  await ran('sign', manifest, module, ...signing);
  expectRefused(await answered(['packs', 'install', pack, ...state]), 'not-found', 'trust file');
  expect((await answered(['packs', 'list', ...state])).out).toContain('No trust file');

  await ran('sign', writeTrust('trust.json'), '--key', join(dir, 'root.key'), '-o', signed);
  await ran('install', signed, ...state);
  expect(await ran('verify', pack, ...state)).toMatchObject({
    name: 'block6',
    keyIds: [keys['packs']!.id],
    verified: true,
  });
  expect(await ran('install', pack, ...state)).toMatchObject({ state: 'tested', isKnown: false });
  expect(await ran('activate', 'block6', '--canary', ...state)).toMatchObject({ state: 'canary' });
  expect(await ran('activate', 'block6', ...state)).toMatchObject({ state: 'active', trustVersion: 1 });
  expect(await ran('verify', ...state)).toMatchObject({ packs: [{ name: 'block6', state: 'active' }], verified: true });
  await exchangesWhatSessionsWithThePackLearned();
  expect(await ran('rollback', ...state)).toMatchObject({ active: [] });
  const [listed] = await ran<{ state: string; digest: string }[]>('list', ...state);
  // No session has a page of it.
  expect(listed).toMatchObject({ state: 'retired' });

  // The next trust file revokes it; an envelope that somebody else signed once more is still one of ours.
  const next = writeTrust('next.json', { version: 2, revoked: [listed!.digest] });
  await ran('sign', next, '--key', join(dir, 'packs.key'));
  expectRefused(await answered(['packs', 'install', next, ...state]), 'bad-signature');
  await ran('sign', next, '--key', join(dir, 'root.key'));
  await ran('install', next, ...state);
  expectRefused(await answered(['packs', 'activate', 'block6@1.0.0', ...state]), 'bad-signature');
  expectRefused(await answered(['packs', 'rollback', 'x', ...state]), 'bad-argument');

  const told = await answered(['audit', 'packs', ...state]);
  expect(told.out).toContain('retired→quarantined');
  const listedArrows = await answered(['audit', 'packs', '--limit', '50', '--json', ...state]);
  const arrows = JSON.parse(listedArrows.out) as { seq: number; event: string }[];
  expect(arrows.map(({ event }) => event)).toEqual(
    ['verify', 'instrument', 'test', 'tryOut', 'activate', 'replace', 'drain', 'distrust'].reverse(),
  );
  expect((await answered(['audit', 'show', String(arrows[0]!.seq), ...state])).out).toContain('quarantined');
  expect((await answered(['audit', 'verify', ...state])).code).toBe(0);
});

/** What is learned beside pages in the pack goes to sessions with exactly that pack. */
async function exchangesWhatSessionsWithThePackLearned(): Promise<void> {
  const prompt = join(dir, 'prompt.txt');
  writeFileSync(prompt, 'The scribe scraped the page and wrote on it again. '.repeat(60));
  const run = ['run', '-m', 'reference', '-p', prompt, '-n', '8', '--kv-budget', '25%', '--json'];
  const { code, err } = await answered([...run, '--pack', 'block6', ...state]);
  expect(code, err).toBe(0);
  const learned = join(dir, 'learned.json');
  const exported = ['thresholds', 'export', learned, '-m', 'reference'];
  expect((await answered([...exported, '--pack', 'block6', ...state])).code).toBe(0);
  const file = JSON.parse(readFileSync(learned, 'utf8')) as { model: { pack: string }; evidence: { sessions: number } };
  expect(file).toMatchObject({
    schemaVersion: 5,
    model: { pack: expect.stringMatching(/^pack:block6@[0-9a-f]{12}$/) },
  });
  expect(file.evidence.sessions).toBe(1);
  const { pack } = file.model;
  expect((await answered(['thresholds', 'show', learned])).out).toContain(pack);
  // As the log names the version, it need not be active any more.
  const again = await answered(['thresholds', 'show', '-m', 'reference', '--pack', pack, '--json', ...state]);
  expect(JSON.parse(again.out)).toEqual(file);
  expectRefused(await answered([...exported, '--pack', 'block7', ...state]), 'not-found', 'block7');
  expectRefused(
    await answered([...run, '--thresholds', learned, '--state', join(dir, 'plain')]),
    'model-mismatch',
    pack,
  );
  expect((await answered([...run, '--thresholds', learned, '--pack', 'block6', ...state])).code).toBe(0);
  const imported = await answered(['thresholds', 'import', learned, '-m', 'reference', '--state', join(dir, 'pupil')]);
  expect(imported.out).toContain(`in sessions with ${pack}`);
}

it('takes no pack that promises what it does not keep', async () => {
  const boasting = join(dir, 'boasting.json');
  const promised = JSON.parse(readFileSync(manifest, 'utf8')) as {
    formats: Record<string, unknown>[];
    version: string;
  };
  promised.version = '1.0.1';
  promised.formats[0] = { ...promised.formats[0], errorMost: 1e-6 };
  writeFileSync(boasting, JSON.stringify(promised));
  const pack = join(dir, 'boasting');
  const other = ['--state', join(dir, 'other')];
  await ran('sign', boasting, module, '--key', join(dir, 'packs.key'), '-o', pack);
  await ran('sign', writeTrust('own.json'), '--key', join(dir, 'root.key'));
  await ran('install', join(dir, 'own.json'), ...other);
  expectRefused(await answered(['packs', 'install', pack, ...other]), 'bad-pack', 'breaks its contract');
  expect(await ran<unknown[]>('list', ...other)).toEqual([]);
  expect((await answered(['audit', 'packs', ...other])).out).toContain('instrumented→rejected');
});
