// What is written of a session is encrypted under a key of its own: nothing of it can be read in any file, the chain is
// checked without keys, and who has the keys reads what was written. Logs are written and read through the room, their
// files looked at as bytes.
import { createSecretKey, randomBytes } from 'node:crypto';
import { mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import { useEntriesBinary } from '../../../native/entries.ts';
import { encryptBytes, openText } from '../../../witness/encryption.ts';
import { nodeFiles } from '../../../witness/files.ts';
import {
  destroySession,
  type Entry,
  explain,
  openWitnessLog,
  readEntry,
  readLog,
  readMasterKey,
  replay,
  unreadable,
  useMasterKeys,
  verifyLog,
  verifyText,
} from '../../../witness/index.ts';
import { filesOf, scratchFolders } from './folder.ts';
import { recordSession, tinyPolicy } from './session.ts';

const folder = scratchFolders();
afterEach(() => useMasterKeys([]));

const SECRET = 'a-word-that-stands-nowhere-else';

async function encryptedLog(): Promise<{ dir: string; seqs: number[] }> {
  const dir = folder();
  const log = await openWitnessLog({ dir, encrypt: true });
  const seqs = recordSession(log, 'first');
  log.append('second', 'note', { word: SECRET });
  log.append('', 'note', { about: 'the log' });
  await log.close();
  return { dir, seqs };
}

const keyFile = (dir: string, session: string): string =>
  filesOf(join(dir, 'keys')).find((path) => readFileSync(path, 'utf8').includes(`"${session}"`))!;

describe('an encrypted log', () => {
  it('says in no file what its sessions said, and reads as it was written', async () => {
    const [{ dir }, plain] = [await encryptedLog(), folder()];
    for (const path of filesOf(dir)) {
      expect(readFileSync(path).includes(SECRET)).toBe(false);
      expect(readFileSync(path).includes('tiny-model')).toBe(false);
    }
    const log = await openWitnessLog({ dir: plain, clock: () => 5 });
    recordSession(log, 'first');
    log.append('second', 'note', { word: SECRET });
    log.append('', 'note', { about: 'the log' });
    await log.close();
    const bare = (dir: string): unknown[] => [...readLog(dir)].map((entry) => ({ ...entry, timeMs: 0 }));
    expect(bare(dir)).toEqual(bare(plain));
    expect(verifyLog(dir)).toMatchObject({ ok: true, unopened: 0, foreign: [] });
    expect(replay(dir, 'first', () => tinyPolicy())).toMatchObject({ equal: true, complete: true, decisions: 20 });
  });

  it('keeps its envelopes readable, and entries about the log', async () => {
    const { dir } = await encryptedLog();
    rmSync(join(dir, 'keys'), { recursive: true });
    const bytes = readFileSync(join(dir, '00000000.wal'));
    expect(bytes.includes('"session":"second","kind":"note","body":{"committed":"')).toBe(true);
    expect(bytes.includes('the log')).toBe(true);
  });

  it('has key files for its owner alone, one for each session', async () => {
    const { dir } = await encryptedLog();
    const names = readdirSync(join(dir, 'keys'));
    expect(names.length).toBe(2);
    for (const name of names) expect(statSync(join(dir, 'keys', name)).mode & 0o777).toBe(0o600);
  });

  it('has the same text under another encrypt each time', async () => {
    const dir = folder();
    const log = await openWitnessLog({ dir, encrypt: true });
    for (let n = 0; n < 3; n++) log.append('s', 'note', { same: true });
    await log.close();
    const sealed = readFileSync(join(dir, '00000000.wal'), 'latin1').match(/"committed":"[^"]+"/g)!;
    expect(new Set(sealed).size).toBe(3);
    expect(new Set(sealed.map((text) => text.slice(13, 29))).size).toBe(3);
  });

  it('goes on under the same key when a writer comes back to a session', async () => {
    const { dir } = await encryptedLog();
    const log = await openWitnessLog({ dir, encrypt: true });
    log.append('second', 'note', { again: true });
    await log.close();
    expect([...readLog(dir, { session: 'second' })].map(({ body }) => body)).toEqual([
      { word: SECRET },
      { again: true },
    ]);
    expect(readdirSync(join(dir, 'keys')).length).toBe(2);
  });
});

describe('without the key of a session', () => {
  it('verify finds the chain sound and counts what it could not open', async () => {
    const { dir } = await encryptedLog();
    rmSync(keyFile(dir, 'first'));
    expect(verifyLog(dir)).toMatchObject({ ok: true, entries: 30, unopened: 28, foreign: [] });
  });

  it('readers pass its entries over and say so, and refuse it by name', async () => {
    const { dir, seqs } = await encryptedLog();
    rmSync(keyFile(dir, 'first'));
    const told: string[] = [];
    const rest = [...readLog(dir, { onUnopened: (session, why) => told.push(`${session} ${why}`) })];
    expect(rest.map(({ session }) => session)).toEqual(['second', '']);
    expect(new Set(told)).toEqual(new Set(['first missing']));
    const sealed = expect.objectContaining({ code: 'sealed', values: { session: 'first' } });
    expect(() => [...readLog(dir, { session: 'first' })]).toThrow(sealed);
    expect(() => readEntry(dir, seqs[0]!)).toThrow(sealed);
    expect(() => explain(dir, seqs[0]!)).toThrow(sealed);
    expect(() => replay(dir, 'fir', () => tinyPolicy())).toThrow(sealed);
  });

  it('a new entry of it is refused where its key is only wrapped by an unknown master key', async () => {
    const dir = folder();
    useMasterKeys([randomBytes(32)]);
    const log = await openWitnessLog({ dir, encrypt: true });
    log.append('s', 'note', {});
    await log.close();
    rmSync(join(dir, 'keys', 'master'));
    useMasterKeys([]);
    const again = await openWitnessLog({ dir, encrypt: true });
    expect(() => again.append('s', 'note', {})).toThrow(expect.objectContaining({ code: 'sealed' }));
    await again.close();
  });
});

describe('an encrypted body', () => {
  const key = createSecretKey(randomBytes(32));
  const place = { seq: 2 ** 32 + 7, session: 's', kind: 'note' as const };
  const body = (text: string): { committed: string } => ({
    committed: encryptBytes({ key, nonceStart: randomBytes(4), place }, Buffer.from(text)),
  });
  const opened = (change: Partial<Entry>): unknown =>
    openText(key, { ...place, timeMs: 0, body: body('{"a":1}'), ...change } as Entry);

  it('opens in its place and in no other', () => {
    expect(opened({})).toEqual({ a: 1 });
    for (const change of [{ seq: 7 }, { session: 't' }, { kind: 'open' as const }])
      expect(() => opened(change)).toThrow(expect.objectContaining({ code: 'bad-log' }));
  });

  it('is refused with any bit of it changed', () => {
    const bytes = Buffer.from(body('{"a":1}').committed, 'base64');
    for (let bit = 0; bit < bytes.length * 8; bit++) {
      const changed = Buffer.from(bytes);
      changed[bit >> 3]! ^= 1 << (bit & 7);
      expect(() => opened({ body: { committed: changed.toString('base64') } as never })).toThrow(
        expect.objectContaining({ code: 'bad-log' }),
      );
    }
  });

  it('is refused when it is no base64, too short, or holds what is no canonical JSON', () => {
    for (const committed of [
      '',
      'AAAA',
      '!!!!',
      `${body('{}').committed} `,
      body('{"b":1,"a":2}').committed,
      body('{').committed,
      body('7').committed,
      body('[]').committed,
      body('[['.repeat(40) + ']]'.repeat(40)).committed,
      body(`{"a":${'['.repeat(40)}${']'.repeat(40)}}`).committed,
    ])
      expect(() => opened({ body: { committed } as never })).toThrow(expect.objectContaining({ code: 'bad-log' }));
  });
});

describe('a master key', () => {
  it('wraps what would lie there open, and opens it again', async () => {
    const master = randomBytes(32);
    useMasterKeys([master]);
    const { dir } = await encryptedLog();
    expect(JSON.parse(readFileSync(keyFile(dir, 'second'), 'utf8'))).not.toHaveProperty('key');
    expect([...readLog(dir, { session: 'second' })].length).toBe(1);
    useMasterKeys([randomBytes(32)]);
    expect(() => [...readLog(dir, { session: 'second' })]).toThrow(expect.objectContaining({ code: 'sealed' }));
    expect(verifyLog(dir)).toMatchObject({ ok: true, unopened: 28 + 1 });
  });

  it('opens no key that is shorter than what it wraps', async () => {
    useMasterKeys([randomBytes(32)]);
    const { dir } = await encryptedLog();
    const { master } = JSON.parse(readFileSync(keyFile(dir, 'second'), 'utf8')) as { master: string };
    for (const wrapped of ['', 'AAAA', 'A'.repeat(24), 'A'.repeat(36)]) {
      const text = JSON.stringify({ version: 1, session: 'second', master, wrapped });
      writeFileSync(keyFile(dir, 'second'), text);
      expect(verifyLog(dir)).toMatchObject({ ok: true, damagedKeys: ['second'] });
      expect(() => [...readLog(dir, { session: 'second' })]).toThrow(expect.objectContaining({ code: 'bad-file' }));
    }
  });

  it('is asked for before more is written, and can be followed by another', async () => {
    const [old, next] = [randomBytes(32), randomBytes(32)];
    useMasterKeys([old]);
    const { dir } = await encryptedLog();
    for (const wrong of [[], [next]]) {
      useMasterKeys(wrong);
      await expect(openWitnessLog({ dir, encrypt: true })).rejects.toMatchObject({ code: 'bad-config' });
    }
    useMasterKeys([next, old]);
    const log = await openWitnessLog({ dir, encrypt: true });
    log.append('third', 'note', { now: true });
    await log.close();
    useMasterKeys([next]);
    expect([...readLog(dir)].map(({ session }) => session)).toEqual(['', 'third']);
    await (await openWitnessLog({ dir, encrypt: true })).close();
  });

  it('is 32 bytes or 64 digits, in a file or as they are', () => {
    const dir = folder();
    const key = randomBytes(32);
    writeFileSync(join(dir, 'raw'), key);
    writeFileSync(join(dir, 'digits'), `${key.toString('hex')}\n`);
    writeFileSync(join(dir, 'short'), key.subarray(1));
    for (const given of [key.toString('hex'), join(dir, 'raw'), join(dir, 'digits')])
      expect(Buffer.from(readMasterKey(given)).equals(key)).toBe(true);
    expect(() => readMasterKey(join(dir, 'short'))).toThrow(expect.objectContaining({ code: 'bad-config' }));
    expect(() => readMasterKey(join(dir, 'none'))).toThrow(expect.objectContaining({ code: 'not-found' }));
    expect(() => useMasterKeys([key.subarray(1)])).toThrow(expect.objectContaining({ code: 'bad-argument' }));
  });
});

it('a stray file among the keys is named', async () => {
  const { dir } = await encryptedLog();
  writeFileSync(join(dir, 'keys', 'notes.txt'), 'x');
  expect(verifyLog(dir).foreign).toMatchObject([{ file: 'keys/notes.txt' }]);
});

describe('a key file that is damaged', () => {
  const texts = (session: string): (string | null)[] => [
    '',
    '{}',
    '{"version":1,"session":"other","key":"AAAA"}',
    `{"version":1,"session":"${session}","key":"AAAA"}`,
    'x'.repeat(5000),
    null,
  ];
  const damage = (path: string, text: string | null): void => {
    rmSync(path, { recursive: true });
    if (text === null) mkdirSync(path);
    else writeFileSync(path, text);
  };

  it.each([true, false])(
    'that the disk does not give says nothing of the log (with the binary: %s)',
    async (binary) => {
      const { dir } = await encryptedLog();
      const files = {
        ...nodeFiles,
        openSync: (path: string, flags: string, mode?: number): number => {
          if (path === keyFile(dir, 'first')) throw Object.assign(new Error('the disk'), { code: 'EIO' });
          return nodeFiles.openSync(path, flags, mode);
        },
      };
      useEntriesBinary(binary);
      try {
        expect(() => verifyLog(dir, files)).toThrow(expect.objectContaining({ code: 'EIO' }));
      } finally {
        useEntriesBinary(true);
      }
    },
  );

  it('closes the entries of its session, by name, and nothing else', async () => {
    const { dir, seqs } = await encryptedLog();
    const path = keyFile(dir, 'first');
    const file = `keys/${basename(path)}`;
    const bad = expect.objectContaining({ code: 'bad-file', values: { session: 'first', file } });
    for (const text of texts('first')) {
      damage(path, text);
      const told = new Set<string>();
      const rest = [...readLog(dir, { onUnopened: (session, why) => told.add(`${session} ${why}`) })];
      expect(rest.map(({ session }) => session)).toEqual(['second', '']);
      expect([...told]).toEqual(['first damaged']);
      expect(verifyLog(dir)).toMatchObject({ ok: true, unopened: 28, damagedKeys: ['first'], foreign: [] });
      expect(verifyText(verifyLog(dir))).toContain('The key file of session first is damaged.');
      for (const read of [
        () => [...readLog(dir, { session: 'first' })],
        () => readEntry(dir, seqs[0]!),
        () => explain(dir, seqs[0]!),
        () => replay(dir, 'first', () => tinyPolicy()),
      ])
        expect(read).toThrow(bad);
      const [damaged] = unreadable(dir).damaged;
      expect(damaged).toBe(text?.includes('"first"') ? 'first' : basename(path));
      const log = await openWitnessLog({ dir, encrypt: true });
      expect(() => log.append('first', 'note', {})).toThrow(bad);
      await log.close();
    }
  });

  it.each(['plain', 'größe'])('is no error of the log, and goes with its session (session %s)', async (session) => {
    const dir = folder();
    const log = await openWitnessLog({ dir, encrypt: true });
    log.append(session, 'note', { word: SECRET });
    await log.close();
    expect(verifyLog(dir)).toMatchObject({ ok: true, unopened: 0 });
    expect(verifyLog(dir).damagedKeys).toBe(undefined);
    const path = keyFile(dir, session);
    damage(path, 'x'.repeat(5000));
    writeFileSync(`${path}.${process.pid}.tmp`, '{');
    expect(verifyLog(dir)).toMatchObject({ ok: true, damagedKeys: [session], foreign: [] });
    destroySession(dir, session);
    expect(readdirSync(join(dir, 'keys')).every((name) => name.endsWith('.erased'))).toBe(true);
    expect(verifyLog(dir)).toMatchObject({ ok: true, unopened: 1 });
    expect(verifyLog(dir).damagedKeys).toBe(undefined);
  });
});

it('two processes that write the key of one session write into two files', async () => {
  const dir = folder();
  const opened: string[] = [];
  const log = await openWitnessLog({
    dir,
    encrypt: true,
    files: {
      ...nodeFiles,
      openSync: (path, flags, mode) => {
        if (path.endsWith('.tmp')) opened.push(path);
        return nodeFiles.openSync(path, flags, mode);
      },
    },
  });
  log.append('s', 'note', {});
  await log.close();
  expect(opened).toEqual([`${keyFile(dir, 's')}.${process.pid}.tmp`]);
});
