// Checkpoints at the command line: keys are made, a log is signed, verified against what was signed, cut, replaced, and
// an entry proved. Every refusal names the first problem and ends with exit code 2.
import { cpSync, mkdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { destroySession, openWitnessLog } from '../../../../witness/index.ts';
import { dir, expectRefused, lastLine, palimpsest, type Result } from './command.ts';

const at = (name: string): string => join(dir, name);
const audit = (...args: string[]): Promise<Result> => palimpsest(['audit', ...args]);
const against = ['--against', 'anchor.txt', '--trusted-key', 'audit.key.pub'];

async function write(state: string, count: number): Promise<void> {
  const log = await openWitnessLog({ dir: join(at(state), 'log') });
  for (let n = 0; n < count; n++) log.append('s', 'note', { n });
  await log.close();
}

beforeAll(async () => {
  await write('state', 5);
  expect(await audit('keygen', 'audit.key')).toMatchObject({ code: 0, err: '' });
});

afterAll(() => rmSync(dir, { recursive: true, force: true }));

it('signs a log, and verifies it against what was signed', async () => {
  expect(statSync(at('audit.key')).mode & 0o777).toBe(0o600);
  expectRefused(await audit('checkpoint', '--state', 'state'), 'bad-argument', /--key FILE is missing/, /audit keygen/);
  const printed = await audit('checkpoint', '--state', 'state', '--key', 'audit.key');
  expect(printed).toMatchObject({ code: 0, err: '' });
  expect(printed.out).toMatch(/^palimpsest\/[0-9a-f]{32}\/0\n5\n.*\n\n— palimpsest \S+\n$/s);
  const more = await audit('checkpoint', '--state', 'state', '--key', 'audit.key', '-o', 'anchor.txt');
  expect(more.out).toBe('anchor.txt: 1 checkpoint added\n');
  await write('state', 3);
  await audit('checkpoint', '--state', 'state', '--key', 'audit.key', '-o', 'anchor.txt');
  await write('state', 2);
  const { code, out } = await audit('verify', '--state', 'state', ...against);
  expect([code, out]).toEqual([0, expect.stringMatching(/all that 2 checkpoints signed.* 2 entries are younger/s)]);
  const json = lastLine((await audit('verify', '--state', 'state', ...against, '--json')).out);
  expect(json['anchor']).toMatchObject({ checkpoints: 2, unanchoredEntries: 2 });
});

it('finds a cut end, another log and a stranger', async () => {
  cpSync(at('state'), at('cut'), { recursive: true });
  const segment = at('cut/log/00000000.wal');
  const bytes = readFileSync(segment);
  let end = bytes.readUInt32LE(12);
  for (let n = 0; n < 7; n++) end += 40 + bytes.readUInt32LE(end);
  writeFileSync(segment, bytes.subarray(0, end));
  expect((await audit('verify', '--state', 'cut')).code).toBe(0);
  const cut = await audit('verify', '--state', 'cut', ...against);
  expect([cut.code, cut.out]).toEqual([
    2,
    expect.stringMatching(/DAMAGED after 7 .*has 7\s+entries, and 8 were signed/s),
  ]);
  await write('other', 20);
  const other = await audit('verify', '--state', 'other', ...against);
  expect([other.code, other.out]).toEqual([2, expect.stringMatching(/was signed\s+\(checkpoint anchor\.txt:1\)/)]);
  await audit('keygen', 'stranger.key');
  const stranger = await audit(
    'verify',
    '--state',
    'state',
    '--against',
    'anchor.txt',
    '--trusted-key',
    'stranger.key.pub',
  );
  expectRefused(stranger, 'bad-signature', /anchor\.txt:1 was signed by none of the trusted keys/);
  expectRefused(await audit('verify', '--state', 'state', '--against', 'anchor.txt'), 'bad-argument', /--trusted-key/);
  writeFileSync(at('empty.txt'), '');
  const empty = ['--against', 'empty.txt', '--trusted-key', 'audit.key.pub'];
  expectRefused(await audit('verify', '--state', 'state', ...empty), 'not-found', /no checkpoint in empty\.txt/);
});

it('proves one entry', async () => {
  const { code, out } = await audit('prove', '3', '--state', 'state', ...against, '-o', 'proof.json');
  expect([code, out]).toEqual([0, 'proof.json: entry 3 is one of the 5 that were signed\n']);
  const proof = JSON.parse(readFileSync(at('proof.json'), 'utf8'));
  expect(proof).toMatchObject({ leafIndex: 3, treeSize: 5, entry: expect.stringMatching(/^\{"seq":3,/) });
  expect(JSON.parse((await audit('prove', '3', '--state', 'state', ...against)).out)).toEqual(proof);
  expectRefused(await audit('prove', '9', '--state', 'state', ...against), 'not-found', /no checkpoint covers entry 9/);
  expectRefused(await audit('prove', '3', '--state', 'state'), 'bad-argument', /--against FILE and --trusted-key KEY/);
});

it('discloses one entry of an encrypted session to somebody who has nothing but the proof and the key', async () => {
  const log = await openWitnessLog({ dir: join(at('encrypted'), 'log'), encrypt: true });
  for (const word of ['one', 'two', 'three']) log.append('s', 'note', { word });
  log.append('', 'note', { word: 'open' });
  await log.close();
  const state = ['--state', 'encrypted', '--against', 'encrypted.txt', '--trusted-key', 'audit.key.pub'];
  await audit('checkpoint', '--state', 'encrypted', '--key', 'audit.key', '-o', 'encrypted.txt');
  const { code, out } = await audit('prove', '1', '--disclose', ...state, '-o', 'shown.json');
  expect([code, out]).toEqual([0, 'shown.json: entry 1 is one of the 4 that were signed, with its plain body\n']);
  expect(statSync(at('shown.json')).mode & 0o777).toBe(0o600);
  const proof = JSON.parse(readFileSync(at('shown.json'), 'utf8'));
  expect(JSON.parse((await audit('prove', '1', '--disclose', ...state)).out)).toEqual(proof);
  const plain = await audit('prove', '3', '--disclose', ...state, '-o', 'open.json');
  expect(plain.out).toBe('open.json: entry 3 is one of the 4 that were signed, and was never encrypted\n');
  await audit('prove', '1', ...state, '-o', 'closed.json');

  destroySession(join(at('encrypted'), 'log'), 's');
  expectRefused(await audit('prove', '1', '--disclose', ...state), 'sealed', /session s was erased/);
  mkdirSync(at('elsewhere'));
  for (const name of ['shown.json', 'closed.json', 'audit.key.pub']) cpSync(at(name), join(at('elsewhere'), name));
  rmSync(at('encrypted'), { recursive: true });
  const check = (name: string, ...more: string[]): Promise<Result> =>
    audit('check', join('elsewhere', name), '--trusted-key', 'elsewhere/audit.key.pub', ...more);
  const shown = await check('shown.json');
  expect(shown.code).toBe(0);
  expect(shown.out).toMatch(
    /^entry 1 \(note\) is one of those that were signed, and this is what it was encrypted from:/,
  );
  expect(shown.out).toContain('"body":{"word":"two"}');
  const entry = expect.objectContaining({ seq: 1, session: 's', kind: 'note', body: { word: 'two' } });
  expect(lastLine((await check('shown.json', '--json')).out)).toEqual({ entry, disclosed: true });
  const closed = lastLine((await check('closed.json', '--json')).out);
  expect(closed).toMatchObject({ disclosed: false, entry: { body: { committed: expect.any(String) } } });
  const other = { ...proof, disclosed: { ...proof.disclosed, body: Buffer.from('{"word":"one"}').toString('base64') } };
  writeFileSync(join(at('elsewhere'), 'other.json'), JSON.stringify(other));
  expectRefused(await check('other.json'), 'bad-signature', /not committed to the body that it discloses/);
});
