// Threshold files as two people exchange them: each runs something in a state folder of his own, exports, signs, and
// the other one verifies, compares, merges and imports. The built command in processes of its own, on the reference
// model.
import { appendFileSync, cpSync, existsSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { describe as describeThresholds } from '../../../../engine/cli/thresholds.ts';
import {
  formatThresholdFile,
  keyIdOf,
  readThresholdFile,
  readTrustedKey,
  type ThresholdFile,
  writeThresholdFile,
} from '../../../../memory/index.ts';
import { law } from '../../memory/threshold-data.ts';
import { dir, expectRefused, lastLine, palimpsest, type Result, widest } from './command.ts';

const at = (name: string): string => join(dir, name);
const thresholds = (...args: string[]): Promise<Result> => palimpsest(['thresholds', ...args]);
const [alice, bob] = [at('alice.json'), at('bob.json')];
const [aliceKey, bobKey] = [at('alice.key'), at('bob.key')];

beforeAll(async () => {
  const sentence =
    'It was a bright cold day, and the old man went down to the river to see what the night had left there. ';
  writeFileSync(at('prompt.txt'), sentence.repeat(50));
  for (const [name, budget] of [
    ['alice', '40%'],
    ['bob', '45%'],
  ]) {
    const run = ['run', '-m', 'reference', '-p', at('prompt.txt'), '-n', '4', '--kv-budget', budget!, '--compare'];
    expect(await palimpsest([...run, '--state', at(name!)])).toMatchObject({ code: 0 });
    expect(await thresholds('export', at(`${name}.json`), '--state', at(name!))).toMatchObject({ code: 0, err: '' });
    expect(await thresholds('keygen', at(`${name}.key`))).toMatchObject({ code: 0, err: '' });
  }
});

afterAll(() => rmSync(dir, { recursive: true, force: true }));

describe('thresholds', () => {
  it('go out, in and out again byte for byte, at home and on another machine', async () => {
    for (const [state, again] of [
      [at('alice'), at('a2.json')],
      [at('empty'), at('a3.json')],
    ] as const) {
      expect((await thresholds('import', alice, '--state', state)).code).toBe(0);
      expect((await thresholds('export', again, '--state', state)).code).toBe(0);
      expect(readFileSync(again, 'utf8')).toBe(readFileSync(alice, 'utf8'));
    }
    expect((await thresholds('diff', alice, at('a2.json'))).out).toBe('no difference\n');
    expectRefused(await thresholds('export', at('none/x.json'), '--state', at('alice')), 'io', /ENOENT/);
  });

  it('are shown to a person within 80 columns, and as the file to a program', async () => {
    const shown = await thresholds('show', alice);
    expect(shown.out).toBe(`${describeThresholds(readThresholdFile(alice))}\n`);
    expect(shown.out).toMatch(/rests on +1 session; [\d,]+ tokens; log [0-9a-f]{8} up to \d+/);
    expect(shown.out).toMatch(/signed by +nobody/);
    expect(lastLine((await thresholds('show', alice, '--json')).out)).toEqual(JSON.parse(readFileSync(alice, 'utf8')));
    const learned: ThresholdFile = { ...readThresholdFile(alice), law: sixLayers() };
    for (const columns of [80, 60]) expect(widest(describeThresholds(learned, columns))).toBeLessThanOrEqual(columns);
    const text = describeThresholds(learned, 200);
    expect(text).toMatch(/Law of errors: text 1 \(0\.254 … 3\.94, seen 3\); offset/);
    expect(text).toMatch(/layer +K nats\/ε² +95% +seen/);
    expect(text).toMatch(/\n +1 +3 +1\.84 … 4\.9 +3 +1 +0\.141 … 7\.1 +0 /);
    writeThresholdFile(at('learned.json'), learned);
    const inspected = await palimpsest(['inspect', at('learned.json')]);
    expect(inspected.out).toBe(`thresholds\n${describeThresholds(learned)}\n`);
    // With the course of the session that it rests on.
    expect(lastLine((await palimpsest(['inspect', at('learned.json'), '--json'])).out)).toMatchObject({
      kind: 'thresholds',
      schemaVersion: 3,
      law: { coefficient: { unit: 'nats/ε²' } },
    });
  });

  it('of another model, and what is no such file, are refused with its name', async () => {
    const foreign = readFileSync(alice, 'utf8').replace(/"digest": "[0-9a-f]{64}"/, `"digest": "${'0'.repeat(64)}"`);
    writeFileSync(at('foreign.json'), foreign);
    expectRefused(await thresholds('import', at('foreign.json'), '--state', at('alice')), 'model-mismatch');
    expectRefused(await thresholds('merge', alice, at('foreign.json'), '-o', at('x.json')), 'model-mismatch');
    cpSync(alice, at('damaged.json'));
    appendFileSync(at('damaged.json'), '{');
    for (const args of [['import'], ['show'], ['verify'], ['sign', '--key', aliceKey], ['diff', alice]])
      expectRefused(await thresholds(...args, at('damaged.json')), 'bad-thresholds', /damaged\.json/);
    expectRefused(await thresholds('merge', alice, bob), 'bad-argument', /--output FILE is missing/);
    expect(existsSync(at('x.json'))).toBe(false);
  });

  it('are merged: each log counts once, whoever sends it', async () => {
    const merge = (output: string, ...files: string[]) => thresholds('merge', ...files, '-o', at(output), '--json');
    expect(lastLine((await merge('both.json', alice, bob)).out)).toEqual({ path: at('both.json'), files: 2, parts: 2 });
    await merge('again.json', bob, at('both.json'), alice);
    expect(readFileSync(at('again.json'), 'utf8')).toBe(readFileSync(at('both.json'), 'utf8'));
    const { evidence, thresholds: joined, c } = readThresholdFile(at('both.json'));
    const checkpoint = { headHash: expect.stringMatching(/^[0-9a-f]{64}$/) };
    expect(evidence).toMatchObject({ sessions: 2, logs: [checkpoint, checkpoint] });
    const [a, b] = [readThresholdFile(alice), readThresholdFile(bob)];
    expect(joined['law.c']!.samples).toBe(a.thresholds['law.c']!.samples + b.thresholds['law.c']!.samples);
    expect(c).toBeGreaterThanOrEqual(Math.min(a.c, b.c));
    expect(c).toBeLessThanOrEqual(Math.max(a.c, b.c));
    // Bob imports what Alice and he know together. What he then exports is that again, since no session came in
    // between.
    expect((await thresholds('import', at('both.json'), '--state', at('bob'))).code).toBe(0);
    expect((await thresholds('export', at('bob2.json'), '--state', at('bob'))).code).toBe(0);
    expect(readFileSync(at('bob2.json'), 'utf8')).toBe(readFileSync(at('both.json'), 'utf8'));
  });

  it('are compared in units, most important first', async () => {
    const before = { ...readThresholdFile(alice), law: sixLayers() };
    const coefficient = {
      ...before.law.coefficient,
      k: before.law.coefficient.k.map((one, layer) => ({ ...one, value: one.value * (layer + 1.5) })),
    };
    writeThresholdFile(at('before.json'), before);
    writeThresholdFile(at('after.json'), { ...before, c: 2 * before.c, law: { ...before.law, coefficient } });
    const { out } = await thresholds('diff', at('before.json'), at('after.json'), '--limit', '4');
    const lines = out.split('\n');
    expect(lines[2]).toMatch(
      /^coefficient K, layer 5 +3 \(1\.84 … 4\.9\) +19\.5 \(1[12][.\d]* … 31\.8\) +× 6\.5 +nats\/ε² +yes +3 → 3$/,
    );
    expect(out).toMatch(/… and 3 more; --limit 7 shows them/);
    expect(out).toMatch(/clear: whether the change is larger than what both 95% intervals explain/);
    const rows = JSON.parse((await thresholds('diff', at('before.json'), at('after.json'), '--json')).out);
    expect(rows).toHaveLength(7);
    expect(rows.at(-1)).toMatchObject({ what: 'coefficient K, layer 0', factor: 1.5, isClear: false });
  });

  it('are opened in the spelling of version 1 and written in that of version 2', async () => {
    const old = join(import.meta.dirname, '../../../fixtures/thresholds-v1.json');
    expect((await palimpsest(['inspect', old])).out).toMatch(/created by +palimpsest 0\.1\n/);
    expect((await thresholds('import', old, '--state', at('old'))).code).toBe(0);
    expect((await thresholds('export', at('old.json'), '--state', at('old'))).code).toBe(0);
    expect(readFileSync(at('old.json'), 'utf8')).toBe(formatThresholdFile(readThresholdFile(old)));
    expect((await thresholds('diff', old, at('old.json'))).out).toBe('no difference\n');
  });
});

describe('signatures', () => {
  it('say who vouches for a file, which then cannot be changed', async () => {
    expect(statSync(aliceKey).mode & 0o777).toBe(0o600);
    const signed = at('signed.json');
    const keyId = keyIdOf(readTrustedKey(`${aliceKey}.pub`).publicKey);
    const done = await thresholds('sign', alice, '--key', aliceKey, '-o', signed);
    expect(done.out).toBe(`${signed} is signed by key ${keyId}\n`);
    expect(
      lastLine((await thresholds('verify', signed, '--trusted-key', `${bobKey}.pub`, `${aliceKey}.pub`, '--json')).out),
    ).toEqual({
      path: signed,
      keyId,
      trusted: `${aliceKey}.pub`,
      checkpoints: 0,
    });
    expect((await thresholds('verify', signed)).out).toMatch(/and --trusted-key was not given to say whose that is/);
    expect((await thresholds('show', signed)).out).toMatch(new RegExp(`signed by +key ${keyId}`));
    expect((await thresholds('diff', alice, signed)).out).toMatch(new RegExp(`signed by +nobody +key ${keyId}`));
    // Imported where her key is asked for, and exported again with her signature.
    const state = ['--state', at('trusting')];
    expect((await thresholds('import', signed, '--trusted-key', `${aliceKey}.pub`, ...state)).code).toBe(0);
    expect((await thresholds('export', at('out.json'), ...state)).code).toBe(0);
    expect(readFileSync(at('out.json'), 'utf8')).toBe(readFileSync(signed, 'utf8'));

    writeFileSync(at('tampered.json'), readFileSync(signed, 'utf8').replace(/"sessions": 1/, '"sessions": 100'));
    for (const args of [['verify'], ['import', ...state], ['show'], ['diff', alice]])
      expectRefused(await thresholds(...args, at('tampered.json')), 'bad-signature', /tampered\.json.*not what key/s);
  });

  it('are asked for where a trusted key is named, and only there', async () => {
    const asked = ['--trusted-key', `${bobKey}.pub`];
    const signed = at('signed.json');
    const state = ['--state', at('asking')];
    expectRefused(await thresholds('import', alice, ...asked, ...state), 'bad-signature', /is not signed/);
    expectRefused(await thresholds('import', signed, ...asked, ...state), 'bad-signature', /which is not trusted/);
    expectRefused(await thresholds('merge', bob, signed, ...asked, '-o', at('y.json')), 'bad-signature');
    expectRefused(await thresholds('verify', signed, ...asked), 'bad-signature', /which is not trusted/);
    expectRefused(await thresholds('verify', alice), 'bad-signature', /is not signed/);
    const env = { PALIMPSEST_TRUSTED_KEY: `${bobKey}.pub` };
    expectRefused(await palimpsest(['thresholds', 'import', alice, ...state], { env }), 'bad-signature');
    const run = ['run', '-m', 'reference', '-p', at('prompt.txt'), '-n', '1', '--kv-budget', '60%', ...state];
    expectRefused(
      await palimpsest([...run, '--thresholds', signed, ...asked]),
      'bad-signature',
      /which is not trusted/,
    );
    expectRefused(await palimpsest([...run, '--thresholds', alice, ...asked]), 'bad-signature', /is not signed/);
    expectRefused(await palimpsest([...run, ...asked]), 'bad-argument', /no file is named/);
    expect(existsSync(at('asking'))).toBe(false);
    const trusted = ['--thresholds', signed, '--trusted-key', `${aliceKey}.pub`];
    expect((await palimpsest([...run, ...trusted])).code).toBe(0);
    expect((await thresholds('import', alice, ...state)).code).toBe(0);
  });

  it('come from keys that are kept: never overwritten, never readable by others, never taken for public ones', async () => {
    expectRefused(await thresholds('keygen', aliceKey), 'bad-argument', /never overwritten/);
    expectRefused(await thresholds('sign', alice, '--key', `${aliceKey}.pub`), 'bad-signature');
    expectRefused(
      await thresholds('verify', at('signed.json'), '--trusted-key', aliceKey),
      'bad-signature',
      /stays with its owner/,
    );
    expectRefused(await thresholds('sign', alice), 'bad-argument', /--key FILE is missing/);
    expectRefused(await thresholds('sign', alice, '--key', at('no.key')), 'not-found', /no\.key/);
  });

  it('and checkpoints: verify notices a log that is not the one the file tells of', async () => {
    const signed = at('signed.json');
    const here = (state: string) => thresholds('verify', signed, '--state', at(state));
    expect((await here('alice')).out).toMatch(/The log here has the hash that it names/);
    expect((await here('bob')).out).not.toMatch(/The log here/);
    // A copy of her log that was cut before the session ended.
    cpSync(at('alice'), at('cut'), { recursive: true });
    const segment = at('cut/log/00000000.wal');
    writeFileSync(segment, readFileSync(segment).subarray(0, -400));
    expectRefused(await here('cut'), 'bad-log', /has no entry \d+/);
  });
});

/** The law of the tests for the six layers of the reference model. */
function sixLayers() {
  const { coefficient, epsilon, ...factors } = law();
  const six = <T>([first, second]: readonly T[]): T[] => [first!, second!, second!, second!, second!, second!];
  return {
    ...factors,
    coefficient: { k: six(coefficient.k), v: six(coefficient.v) },
    epsilon: { k: six(epsilon.k), v: six(epsilon.v) },
  };
}
