// 400 packs and trust files that somebody made to be taken and that must not be, from a seed: each is refused with the
// code of its kind, before its module is looked at; nothing of it is in the store, and the log says that it was
// refused.
import { createHash } from 'node:crypto';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { readPackFolder } from '../../../../engine/packs/folder.ts';
import { PackKeeper, type PackTrial } from '../../../../engine/packs/lifecycle.ts';
import { packsDir } from '../../../../engine/packs/store.ts';
import { openWitnessLog, type PackBody, readLog, type WitnessLog } from '../../../../witness/index.ts';
import { seeded } from '../../../random.ts';
import { refused } from '../../../refusal.ts';
import { seedFrom } from '../../../tier.ts';
import { PACK_ATTEMPTS, REVOKED_MODULE, TRUST_ATTEMPTS } from './hostile.ts';
import { manifestWith, NOW_MS, packOf, REVOKED, signTrust, trustWith } from './signed.ts';

const ATTEMPTS = 400;
const SEED = seedFrom(1);

let dir: string;
let log: WitnessLog;
let keeper: PackKeeper;
let looked = 0;

const trial: PackTrial = {
  instrument(module) {
    looked++;
    return module;
  },
  test: async () => ({ kept: true, calls: 0, problems: [], fuelPerToken: 0, error: 0 }),
};

beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), 'palimpsest-hostile-'));
  log = await openWitnessLog({ dir: join(dir, 'log'), clock: () => NOW_MS });
  keeper = await PackKeeper.open({ stateDir: dir, log, clock: () => NOW_MS });
  await keeper.installTrust(signTrust(trustWith({ revoked: [REVOKED.id, REVOKED_MODULE] })), 'trust');
  await keeper.install(packOf({ manifest: manifestWith({ version: '1.0.5' }) }), trial);
  await keeper.activate('example');
});
afterAll(async () => {
  keeper.close();
  await log.close();
  rmSync(dir, { recursive: true, force: true });
});

/** A digest of all names and bytes below the folder of packs. */
function tree(): string {
  const root = packsDir(dir);
  const hash = createHash('sha256');
  for (const entry of readdirSync(root, { recursive: true, withFileTypes: true }).sort((a, b) =>
    join(a.parentPath, a.name) < join(b.parentPath, b.name) ? -1 : 1,
  )) {
    const path = join(entry.parentPath, entry.name);
    hash.update(`${path} ${entry.isFile()} `);
    if (entry.isFile()) hash.update(readFileSync(path));
  }
  return hash.digest('hex');
}

const rejected = (): number =>
  [...readLog(log.dir, { kinds: ['pack'] })].filter(({ body }) => (body as PackBody).to === 'rejected').length;

const KINDS = [
  ...Object.entries(PACK_ATTEMPTS).map(([name, make]) => ({ name, make, isPack: true })),
  ...Object.entries(TRUST_ATTEMPTS).map(([name, make]) => ({ name, make, isPack: false })),
];

test(`none of ${ATTEMPTS} attempts is taken (seed ${SEED})`, async () => {
  const random = seeded(SEED);
  const before = tree();
  expect(looked).toBe(1);
  let toldLeast = 0;
  for (let i = 0; i < ATTEMPTS; i++) {
    const { name, make, isPack } = KINDS[i % KINDS.length]!;
    const { write, codes } = make(random);
    const path = write(join(dir, `attempt-${i}`));
    const error = await refused(
      (async () => {
        if (!isPack) await keeper.installTrust(readFileSync(path), path);
        else {
          const files = readPackFolder(path);
          toldLeast++;
          await keeper.install(files, trial);
        }
      })(),
      name,
    );
    expect(codes, `${name} (${i}): ${error.message}`).toContain(error.code);
    expect(error.message.length, name).toBeLessThan(1000);
  }
  expect(tree()).toBe(before);
  expect(looked).toBe(1);
  expect(rejected()).toBe(toldLeast);
  expect(toldLeast).toBeGreaterThan(ATTEMPTS / 2);
  expect(Object.getPrototypeOf({})).toBe(Object.prototype);
  expect(({} as Record<string, unknown>)['payload']).toBeUndefined();
  // What has nothing wrong is still taken: they were refused for what was wrong with them.
  await keeper.install(packOf({ manifest: manifestWith({ version: '1.9.0' }) }), trial);
  expect(looked).toBe(2);
});
