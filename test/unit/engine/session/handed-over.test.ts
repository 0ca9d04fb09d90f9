// A parked file that somebody hands over has right checksums whatever it says. Its options are a closed list: none is a
// path, none switches off what this engine was told, and whatever they hold, the log stays open to everybody.
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import type { Engine } from '../../../../engine/index.ts';
import { GOVERNING_OPTIONS, SESSION_OPTIONS } from '../../../../engine/options/table.ts';
import { formParked, type Parked, parseParked } from '../../../../engine/session/park/parked-file.ts';
import { PARKED_OPTIONS } from '../../../../engine/session/park/parked-head.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { verifyLog } from '../../../../witness/index.ts';
import { refused } from '../../../refusal.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { entriesOf, ids, withEngine } from '../on-reference.ts';

const folder = scratchFolders();
let engine: Engine;
let state: string;
withEngine(folder, (opened, dir) => {
  engine = opened;
  state = dir;
});

/** What an honest session parks. */
let honest: Parked | null = null;
async function parkedOnce(): Promise<Parked> {
  if (honest !== null) return honest;
  const session = await engine.openSession({ witness: false });
  await session.read(ids(150));
  const { path } = await session.park(join(folder(), 'honest.parked'));
  honest = parseParked(readFileSync(path), path);
  return honest;
}

/** The same with another head, and the checksums of that. */
async function handedOver(change: (head: Parked['head']) => object): Promise<string> {
  const parked = await parkedOnce();
  const path = join(folder(), 'one.parked');
  writeFileSync(path, formParked({ ...parked, head: { ...parked.head, ...change(parked.head) } as Parked['head'] }));
  return path;
}
const withOptions = (options: object): Promise<string> =>
  handedOver((head) => ({ options: { ...head.options, ...options } }));

it('a parked file holds plain options, and none that names a file or tells the engine to be silent', () => {
  expect(Object.keys(PARKED_OPTIONS)).toEqual(expect.arrayContaining(['kvBudget', 'policy', 'exact', 'windowTokens']));
  for (const name of ['thresholdsPath', 'thresholds', 'witness', 'latents'])
    expect(PARKED_OPTIONS).not.toHaveProperty(name);
  // Whoever adds an option that takes a path decides here, in one line of the table.
  for (const [name, row] of Object.entries({ ...GOVERNING_OPTIONS, ...SESSION_OPTIONS }))
    if (/path|dir|file/i.test(`${name} ${row.rule.says}`)) expect(PARKED_OPTIONS).not.toHaveProperty(name);
});

it('names no file of this machine: not one byte of it stands in the refusal', async () => {
  const secret = join(folder(), 'secret');
  writeFileSync(secret, 'a1b2c3-the-secret');
  const error = await refused(engine.resume(await withOptions({ thresholdsPath: secret })), 'a path');
  expect(error.code).toBe('bad-file');
  expect(error.message).toContain('thresholdsPath');
  expect(JSON.stringify([error.message, error.values, error.hint, String(error.cause)])).not.toContain('a1b2c3');
});

it('does not switch off the log of the engine that resumes it; the caller may', async () => {
  const path = await withOptions({ witness: false });
  const logged = await engine.resume(path);
  await logged.close();
  expect(entriesOf(state, logged.id, 'open')).toHaveLength(1);
  const silent = await engine.resume(path, { witness: false });
  await silent.close();
  expect(entriesOf(state, silent.id, 'open')).toHaveLength(0);
});

const LONG = 'x'.repeat(5000);
const samples = { version: 1, thresholds: { 'pressure.enter': { samples: -1 } } };
it.each<[string, (head: Parked['head']) => object, RegExp]>([
  ['thresholds with -1 samples', ({ options }) => ({ options: { ...options, thresholds: samples } }), /thresholds/],
  ['latents', ({ options }) => ({ options: { ...options, latents: 'xq8' } }), /latents/],
  ['an option of nobody', ({ options }) => ({ options: { ...options, constructor: 1 } }), /constructor/],
  ['a policy that is an object', ({ options }) => ({ options: { ...options, policy: { id: 'x' } } }), /policy/],
  ['half a token', ({ options }) => ({ options: { ...options, tokensExpected: 0.5 } }), /tokensExpected/],
  ['a model of 5,000 letters', ({ model }) => ({ model: { ...model, name: LONG } }), /head/],
  ['a digest of 5,000 letters', ({ model }) => ({ model: { ...model, digest: LONG } }), /head/],
  ['a policy id of 5,000 letters', ({ policy }) => ({ policy: { ...policy, id: LONG } }), /head/],
  ['an id of 5,000 letters', () => ({ session: LONG }), /head/],
])('%s is refused, and it is the file that is named', async (_, change, says) => {
  const path = await handedOver(change);
  const error = await refused(engine.resume(path), path);
  expect(error).toMatchObject({ code: 'bad-file', message: expect.stringMatching(says) });
  expect(error.message).toContain(path);
});

it.each<[string, object]>([
  ['a layer 5,000 times', { skipLayers: new Array(5000).fill(1) }],
  ['5,000 layers', { skipLayers: Array.from({ length: 5000 }, (_, layer) => layer) }],
  ['a policy of 5,000 letters', { policy: LONG }],
  ['a budget of 5,000 letters', { kvBudget: LONG }],
  ['a budget of 2^1000', { kvBudget: 2 ** 1000 }],
  ['100,000 pairs', { policy: 'table', cacheTypes: new Array(100_000).fill('rot4:rot2') }],
  ['rows of 2^50 tokens to compare', { compareTokens: 2 ** 50 }],
  ['2^52 tokens expected', { tokensExpected: 2 ** 52, kvBudget: '25%' }],
])('%s in its options locks nobody out of the log', async (_, options) => {
  const path = await withOptions(options);
  await engine.resume(path).then(
    (session) => session.close(),
    (error: unknown) => expect(error).toMatchObject({ name: 'KvError' }),
  );
  const next = await engine.openSession();
  await next.read(ids(150));
  await next.close();
  expect(verifyLog(logDir(state))).toMatchObject({ ok: true });
  expect(entriesOf(state, next.id, 'close')).toHaveLength(1);
});
