// What does an encrypted entry say, shown to somebody who has no key? Real logs are encrypted, proved, disclosed and
// checked with nothing but the proof and the verifier key; then everything is tried that would show another body, open
// another entry, or tell something of a session that was erased. The last tests hold the key, and lie.
import { createPrivateKey, createSecretKey, generateKeyPairSync, hkdfSync, randomBytes } from 'node:crypto';
import { cpSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { useEntriesBinary } from '../../../native/entries.ts';
import { type Checkpoint, parseCheckpoint, signCheckpoint } from '../../../witness/checkpoint.ts';
import { commitmentOf, saltKeyOf, saltOf } from '../../../witness/commitment.ts';
import { encryptBytes } from '../../../witness/encryption.ts';
import {
  checkProof,
  destroySession,
  type InclusionProof,
  openWitnessLog,
  proveEntry,
  readLog,
  rewrapLogKeys,
  signLog,
  useMasterKeys,
  verifierOf,
  verifyLog,
} from '../../../witness/index.ts';
import { leafHash } from '../../../witness/tree.ts';
import { filesOf, scratchFolders } from './folder.ts';
import { forgeLog } from './forged.ts';
import { recordSession } from './session.ts';

const folder = scratchFolders();
afterEach(() => useMasterKeys([]));

const pair = generateKeyPairSync('ed25519').privateKey.export({ type: 'pkcs8', format: 'pem' });
const signer = createPrivateKey(pair);
const trusted = [verifierOf(signer)];
const turbo = join(import.meta.dirname, '../../golden/log-turbo');

function signed(dir: string): Checkpoint[] {
  const path = join(folder(), 'audit.key');
  writeFileSync(path, pair, { mode: 0o600 });
  return signLog(dir, path).map((note) => parseCheckpoint(note, trusted, 'here'));
}

/** Two sessions, the same body twice, a body with every odd character, and an entry that is not encrypted. */
async function encryptedLog(): Promise<string> {
  const dir = folder();
  const log = await openWitnessLog({ dir, encrypt: true });
  recordSession(log, 'first');
  for (const session of ['second', 'second', 'größe "x"']) log.append(session, 'note', { word: 'the-same-body' });
  log.append('second', 'note', { odd: '"\\\u0000\u2028\ud800 \ud83d\ude00', numbers: [-0, 5e-324, 1e21], none: {} });
  log.append('', 'note', { about: 'the log' });
  await log.close();
  return dir;
}

const disclosed = (dir: string, seq: number, checkpoints: readonly Checkpoint[]): InclusionProof =>
  proveEntry(dir, seq, checkpoints, { disclose: true });
const refused = (what: RegExp | string): unknown =>
  expect.objectContaining({ code: 'bad-signature', message: expect.stringMatching(what) });

/** A log of one entry that whoever has the key to sign with made up, and its proof. */
function madeUp(entry: string, more: object = {}): unknown {
  const root = Buffer.from(leafHash(Buffer.from(entry))).toString('hex');
  const body = { logId: 'f'.repeat(32), series: 0, size: 1, rootHash: root, headHash: root, timeMs: 0 };
  return { entry, leafIndex: 0, treeSize: 1, path: [], checkpoint: signCheckpoint(body, signer), ...more };
}

describe('a proof that discloses', () => {
  it.each([true, false])(
    'shows the body of every encrypted entry as it was written, by the binary: %s',
    async (isUsed) => {
      try {
        useEntriesBinary(isUsed);
        const dir = await encryptedLog();
        const checkpoints = signed(dir);
        const salts = new Set<string>();
        for (const entry of readLog(dir)) {
          const proof = disclosed(dir, entry.seq, checkpoints);
          expect(checkProof(JSON.parse(JSON.stringify(proof)), trusted)).toEqual(entry);
          if (entry.session !== '') salts.add(proof.disclosed!.salt);
          else expect(proof).not.toHaveProperty('disclosed');
          const closed = proveEntry(dir, entry.seq, checkpoints);
          expect(closed).not.toHaveProperty('disclosed');
          expect(checkProof(closed, trusted)).toMatchObject({ seq: entry.seq, kind: entry.kind });
          if (entry.session !== '')
            expect(checkProof(closed, trusted)['body']).toEqual({ committed: expect.any(String) });
        }
        expect(salts.size).toBe(32);
      } finally {
        useEntriesBinary(true);
      }
    },
  );

  it('is not fooled by another body or salt, nor by those of another entry, nor of an entry that is not encrypted', async () => {
    const dir = await encryptedLog();
    const checkpoints = signed(dir);
    const seqs = [...readLog(dir, { session: 'second' })].map(({ seq }) => seq);
    const [one, same] = [disclosed(dir, seqs[0]!, checkpoints), disclosed(dir, seqs[1]!, checkpoints)];
    const { salt, body } = one.disclosed!;
    // The same body has another salt and another commitment, so not even that can be seen of two closed entries.
    expect(same.disclosed!.body).toBe(body);
    expect(JSON.parse(same.entry).body.committed.slice(16, 58)).not.toBe(
      JSON.parse(one.entry).body.committed.slice(16, 58),
    );
    const changed = (text: string, at: number): string => {
      const bytes = Buffer.from(text, 'base64');
      bytes[at]! ^= 1;
      return bytes.toString('base64');
    };
    for (const wrong of [
      { salt, body: changed(body, 5) },
      { salt, body: `${body}AAAA` },
      { salt: changed(salt, 31), body },
      { salt: same.disclosed!.salt, body },
      same.disclosed,
      disclosed(dir, seqs[2]!, checkpoints).disclosed,
    ])
      expect(() => checkProof({ ...one, disclosed: wrong }, trusted)).toThrow(refused('is not committed to the body'));
    const last = [...readLog(dir)].find(({ session }) => session === '')!;
    const plain = proveEntry(dir, last.seq, checkpoints);
    const about = { salt, body: Buffer.from('{"about":"another log"}').toString('base64') };
    expect(() => checkProof({ ...plain, disclosed: about }, trusted)).toThrow(refused('not encrypted'));
  });

  it('with lengths that nothing has is refused before any of it is decoded', async () => {
    const dir = await encryptedLog();
    const proof = disclosed(dir, 28, signed(dir));
    const { salt, body } = proof.disclosed!;
    const long = 'A'.repeat(64 << 20);
    const hash = proof.path[0]!;
    const wrong: readonly unknown[] = [
      { ...proof, entry: long },
      { ...proof, checkpoint: long },
      { ...proof, path: Array(65).fill(hash) },
      { ...proof, path: Array(1 << 20).fill(hash) },
      { ...proof, path: [long] },
      { ...proof, path: [hash.slice(4)] },
      { ...proof, path: [`${hash} `] },
      { ...proof, path: [7] },
      ...[null, [], 'x', {}, { salt }, { body }, { salt: 1, body }, { salt, body: {} }, { salt: long, body }].map(
        (other) => ({ ...proof, disclosed: other }),
      ),
      ...[
        { salt, body: long },
        { salt: salt.slice(4), body },
        { salt: `${salt}\n`, body },
      ].map((other) => ({
        ...proof,
        disclosed: other,
      })),
    ];
    const decoded = vi.spyOn(Buffer, 'from');
    try {
      for (const [index, one] of wrong.entries())
        expect(() => checkProof(one, trusted), String(index)).toThrow(refused('^this proves nothing'));
      for (const [value] of decoded.mock.calls as unknown as [{ length: number }][])
        expect(value.length).toBeLessThanOrEqual(1 << 20);
    } finally {
      decoded.mockRestore();
    }
  });

  it('shows the largest body that a log takes, and one that is larger is not written', async () => {
    const dir = folder();
    const log = await openWitnessLog({ dir, encrypt: true });
    const text = 'x'.repeat(786_100);
    expect(() => log.append('s', 'note', { text: `${text}${'x'.repeat(300)}` })).toThrow(
      expect.objectContaining({ code: 'bad-argument' }),
    );
    log.append('s', 'note', { text });
    await log.close();
    expect(checkProof(disclosed(dir, 0, signed(dir)), trusted)['body']).toEqual({ text });
  });

  it('needs the key of its session, which may be wrapped, and gives the same when it is wrapped anew', async () => {
    const [old, next] = [randomBytes(32), randomBytes(32)];
    useMasterKeys([old]);
    const dir = await encryptedLog();
    const checkpoints = signed(dir);
    const before = disclosed(dir, 3, checkpoints);
    useMasterKeys([]);
    expect(() => disclosed(dir, 3, checkpoints)).toThrow(expect.objectContaining({ code: 'sealed' }));
    useMasterKeys([next, old]);
    rewrapLogKeys(dir);
    useMasterKeys([next]);
    expect(disclosed(dir, 3, checkpoints)).toEqual(before);
  });
});

describe('after a session was erased', () => {
  it('nothing of it is disclosed, what was given away before still holds, and no file has what opens a commitment', async () => {
    const dir = await encryptedLog();
    const checkpoints = signed(dir);
    const { seq, body } = [...readLog(dir, { session: 'second' })][0]!;
    const key = filesOf(join(dir, 'keys')).find((path) => readFileSync(path, 'utf8').includes('"second"'))!;
    const secret = Buffer.from(JSON.parse(readFileSync(key, 'utf8')).key, 'base64');
    const before = disclosed(dir, seq, checkpoints);
    destroySession(dir, 'second');
    expect(() => disclosed(dir, seq, checkpoints)).toThrow(
      expect.objectContaining({ code: 'sealed', message: 'session second was erased' }),
    );
    expect(checkProof(before, trusted)['body']).toEqual(body);
    expect(checkProof(proveEntry(dir, seq, checkpoints), trusted)['body']).toEqual({ committed: expect.any(String) });
    // Whoever guesses the body needs the salt, and it follows from the key alone.
    const salt = Buffer.from(before.disclosed!.salt, 'base64');
    for (const path of filesOf(dir)) {
      const bytes = readFileSync(path);
      for (const gone of [secret, saltKeyOf(secret), salt])
        for (const form of [gone, gone.toString('base64'), gone.toString('hex')])
          expect(bytes.includes(form)).toBe(false);
    }
  });
});

describe('an entry that was encrypted before format 3', () => {
  it('is read, proved and erased as before, and cannot be disclosed', () => {
    const dir = folder();
    cpSync(turbo, dir, { recursive: true });
    const checkpoints = signed(dir);
    const { seq, session } = [...readLog(dir)].find((entry) => entry.session !== '')!;
    expect(() => disclosed(dir, seq, checkpoints)).toThrow(
      expect.objectContaining({ code: 'unsupported', message: expect.stringContaining('before 3 commit to no body') }),
    );
    const proof = proveEntry(dir, seq, checkpoints);
    expect(checkProof(proof, trusted)['body']).toEqual({ sealed: expect.any(String) });
    const claimed = { salt: randomBytes(32).toString('base64'), body: Buffer.from('{}').toString('base64') };
    expect(() => checkProof({ ...proof, disclosed: claimed }, trusted)).toThrow(refused('is not committed'));
    useMasterKeys([randomBytes(32)]);
    expect(rewrapLogKeys(dir)).toMatchObject({ rewrapped: 2 });
    expect([...readLog(dir, { session })].length).toBeGreaterThan(3);
    destroySession(dir, session);
    expect(() => [...readLog(dir, { session })]).toThrow(expect.objectContaining({ code: 'sealed' }));
    expect(verifyLog(dir)).toMatchObject({ ok: true });
  });
});

describe('whoever holds the key of a session', () => {
  const secret = Buffer.alloc(32, 7);
  const place = { seq: 0, session: 's', kind: 'note' as const };
  const committed = (text: string | Buffer): Buffer =>
    Buffer.from(
      encryptBytes({ key: createSecretKey(secret), nonceStart: Buffer.alloc(4), place }, Buffer.from(text)),
      'base64',
    );

  /** A log of this entry, its key beside it. */
  function forged(bytes: Buffer): string {
    const dir = folder();
    forgeLog(dir, [{ seq: 0, timeMs: 0, session: 's', kind: 'note', body: { committed: bytes.toString('base64') } }]);
    mkdirSync(join(dir, 'keys'));
    const name = '043a718774c572bd8a25adbeb1bfcd5c.key';
    writeFileSync(join(dir, 'keys', name), `{"version":1,"session":"s","key":"${secret.toString('base64')}"}\n`);
    return dir;
  }

  it.each([true, false])('cannot write one body and commit to another, by the binary: %s', (isUsed) => {
    const [yes, no] = [committed('{"said":"yes"}'), committed('{"said":"no!"}')];
    try {
      useEntriesBinary(isUsed);
      expect(verifyLog(forged(yes))).toMatchObject({ ok: true, unopened: 0 });
      const mixed = Buffer.from(yes);
      no.copy(mixed, 12, 12, 44);
      const dir = forged(mixed);
      const what = expect.stringContaining('says another body than it committed to');
      expect(verifyLog(dir)).toMatchObject({ ok: false, problem: { what } });
      expect(() => [...readLog(dir)]).toThrow(expect.objectContaining({ code: 'bad-log', message: what }));
      expect(() => disclosed(dir, 0, signed(dir))).toThrow(expect.objectContaining({ code: 'bad-log' }));
    } finally {
      useEntriesBinary(true);
    }
  });

  it('cannot commit to bytes that two programs read as two bodies', () => {
    for (const text of [
      '{"a":1,"a":2}',
      '{"a":1.0}',
      ' {"a":1}',
      '[]',
      '7',
      Buffer.from('7b2261223a22ff227d', 'hex'),
      // Packed: a list, a number with more bytes than it needs, and a text that is cut off.
      Buffer.of(1, 0x4a, 1, 7),
      Buffer.of(1, 0x60, 1, 2, 3, 4, 0x43, 5),
      Buffer.of(1, 0x48, 9),
    ]) {
      const bytes = committed(text);
      const dir = forged(bytes);
      expect(verifyLog(dir).ok).toBe(false);
      expect(() => disclosed(dir, 0, signed(dir))).toThrow(expect.objectContaining({ code: 'bad-log' }));
      const salt = saltOf(saltKeyOf(secret), bytes.subarray(0, 12));
      expect(commitmentOf(salt, Buffer.from(text)).equals(bytes.subarray(12, 44))).toBe(true);
      const entry = `{"seq":0,"timeMs":0,"session":"s","kind":"note","body":{"committed":"${bytes.toString('base64')}"}}`;
      const told = { salt: salt.toString('base64'), body: Buffer.from(text).toString('base64') };
      expect(() => checkProof(madeUp(entry, { disclosed: told }), trusted)).toThrow(
        refused('not (in the one form|committed)'),
      );
    }
  });

  it('cannot disclose what is no encrypted text', () => {
    for (const bytes of [Buffer.alloc(3), Buffer.alloc(12 + 32 + 1 + 16)]) {
      const dir = forged(bytes);
      expect(() => disclosed(dir, 0, signed(dir))).toThrow(
        expect.objectContaining({ code: 'bad-log', message: 'the note entry has no encrypted body' }),
      );
    }
  });

  it('and signs, cannot prove an entry that reads as two, is none, or names the place of another', () => {
    const good = '{"seq":0,"timeMs":0,"session":"s","kind":"note","body":{"a":1}}';
    expect(checkProof(madeUp(good), trusted)).toMatchObject({ seq: 0, body: { a: 1 } });
    const two = good.replace('"body":{"a":1}', '"body":{"a":1},"body":{"a":2}');
    expect(() => checkProof(madeUp(two), trusted)).toThrow(refused('not in the one spelling'));
    expect(() => checkProof(madeUp(good.replace('"seq":0', '"seq":1')), trusted)).toThrow(refused('another place'));
    for (const none of ['', 'x', '[]', '{"seq":0}'])
      expect(() => checkProof(madeUp(none), trusted)).toThrow(refused('an entry (is not|lacks)'));
    const short = good.replace('{"a":1}', '{"committed":"AAAA"}');
    const claimed = { disclosed: { salt: Buffer.alloc(32).toString('base64'), body: 'e30=' } };
    expect(() => checkProof(madeUp(short, claimed), trusted)).toThrow(refused('is not committed'));
  });

  it('finds the salt as HKDF of RFC 5869 gives it', () => {
    const nonce = randomBytes(12);
    const info = Buffer.concat([Buffer.from('palimpsest salt'), nonce]);
    expect(saltOf(saltKeyOf(secret), nonce).equals(Buffer.from(hkdfSync('sha256', secret, '', info, 32)))).toBe(true);
  });
});
