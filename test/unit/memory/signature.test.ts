/** Signatures of threshold files: they fit what was signed and nothing else, and keys are kept as keys must be. */
import { createPublicKey, generateKeyPairSync, verify } from 'node:crypto';
import { existsSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import {
  checkTrust,
  formatThresholdFile,
  parseThresholdFile,
  readPrivateKey,
  readTrustedKey,
  signThresholdFile,
  type ThresholdFile,
  writeKeyPair,
} from '../../../memory/index.ts';
import { KvError } from '../../../native/index.ts';
import { backwards, example } from './threshold-data.ts';

const bytesOf = (value: string): Uint8Array => Buffer.from(value);

describe('signatures', () => {
  const keys = mkdtempSync(join(tmpdir(), 'palimpsest-keys-'));
  afterAll(() => rmSync(keys, { recursive: true, force: true }));
  const alice = join(keys, 'alice.key');
  const mallory = join(keys, 'mallory.key');
  const trustAlice = writeKeyPair(alice);
  const trustMallory = writeKeyPair(mallory);
  const signed = signThresholdFile(example, readPrivateKey(alice));
  const signedText = formatThresholdFile(signed);

  test('fit what was signed, in any spelling, and stay through import and export', () => {
    const parsed = parseThresholdFile(bytesOf(signedText));
    expect(formatThresholdFile(parsed)).toBe(signedText);
    expect(checkTrust(parsed, [trustMallory, trustAlice], 'x.json')).toBe(trustAlice);
    const shuffled = JSON.stringify(backwards(JSON.parse(signedText)));
    expect(formatThresholdFile(parseThresholdFile(bytesOf(shuffled)))).toBe(signedText);
    // Ed25519 is deterministic: the same key and content give the same bytes.
    expect(formatThresholdFile(signThresholdFile(parsed, readPrivateKey(alice)))).toBe(signedText);
  });

  test('are what any other program verifies over the same bytes', () => {
    const { algorithm, publicKey, value } = signed.signature!;
    expect(algorithm).toBe('ed25519');
    const unsigned = formatThresholdFile(example);
    const raw = Buffer.from(publicKey, 'hex').toString('base64url');
    const key = createPublicKey({ key: { kty: 'OKP', crv: 'Ed25519', x: raw }, format: 'jwk' });
    expect(verify(null, Buffer.from(unsigned), key, Buffer.from(value, 'hex'))).toBe(true);
    expect(signedText.startsWith(unsigned.slice(0, -3))).toBe(true);
  });

  test('do not fit when any value of the content is another one', () => {
    let tampered = 0;
    const numbers = [...signedText.matchAll(/: (\d[\d.e-]*)/g)];
    expect(numbers.length).toBeGreaterThan(30);
    for (const { index, 1: digits } of numbers) {
      const at = index + 2;
      const bad = `${signedText.slice(0, at)}${Number(digits) + 1}${signedText.slice(at + digits!.length)}`;
      expect(() => parseThresholdFile(bytesOf(bad)), bad.slice(at - 20, at + 20)).toThrow(KvError);
      try {
        parseThresholdFile(bytesOf(bad));
      } catch (error) {
        if ((error as KvError).code === 'bad-signature') tampered += 1;
      }
    }
    // The others break a range or an interval, which is checked before.
    expect(tampered).toBeGreaterThan(10);
  });

  test.each<[string, (signature: Record<string, string>) => void]>([
    ['of another key', (s) => (s['publicKey'] = trustMallory.publicKey)],
    ['with another value', (s) => (s['value'] = 'ab'.repeat(64))],
    ['with a key that is no point', (s) => (s['publicKey'] = 'ff'.repeat(32))],
  ])('%s are refused', (_name, change) => {
    const file = JSON.parse(signedText) as { signature: Record<string, string> };
    change(file.signature);
    expect(() => parseThresholdFile(bytesOf(JSON.stringify(file)), 'x.json')).toThrow(
      expect.objectContaining({ code: 'bad-signature', message: expect.stringContaining('x.json') }),
    );
  });

  test('that nobody trusts, and files without one, are refused where a signature is asked for', () => {
    const untrusted = (file: ThresholdFile, words: RegExp): void =>
      expect(() => checkTrust(file, [trustAlice], 'x.json')).toThrow(
        expect.objectContaining({ code: 'bad-signature', message: expect.stringMatching(words) }),
      );
    untrusted(
      signThresholdFile(example, readPrivateKey(mallory)),
      /x\.json is signed by key [0-9a-f]{16}, which is not/,
    );
    untrusted(example, /x\.json is not signed/);
  });

  test('come from keys that only their owner may read, and that are never overwritten', () => {
    expect(statSync(alice).mode & 0o777).toBe(0o600);
    const before = readFileSync(alice, 'utf8');
    expect(() => writeKeyPair(alice)).toThrow(expect.objectContaining({ code: 'bad-argument' }));
    expect(readFileSync(alice, 'utf8')).toBe(before);
    const half = join(keys, 'half.key');
    writeFileSync(`${half}.pub`, 'something');
    expect(() => writeKeyPair(half)).toThrow(expect.objectContaining({ code: 'bad-argument' }));
    expect(existsSync(half)).toBe(false);
    expect(() => writeKeyPair(join(keys, 'no', 'key'))).toThrow(expect.objectContaining({ code: 'io' }));
    expect(readTrustedKey(`${alice}.pub`).publicKey).toBe(trustAlice.publicKey);
  });

  test('are not made or trusted with keys that are none', () => {
    const rsa = generateKeyPairSync('rsa', { modulusLength: 2048 });
    const put = (name: string, content: string | Buffer, mode = 0o600): string => {
      writeFileSync(join(keys, name), content, { mode });
      return join(keys, name);
    };
    const rsaPrivate = put('rsa.key', rsa.privateKey.export({ type: 'pkcs8', format: 'pem' }));
    const rsaPublic = put('rsa.pub', rsa.publicKey.export({ type: 'spki', format: 'pem' }));
    const bad = (read: () => unknown, words: RegExp): void =>
      expect(read).toThrow(expect.objectContaining({ code: 'bad-signature', message: expect.stringMatching(words) }));
    bad(() => readPrivateKey(rsaPrivate), /is a key for rsa/);
    bad(() => readTrustedKey(rsaPublic), /is a key for rsa/);
    bad(() => readPrivateKey(`${alice}.pub`), /can be read|no private key/);
    bad(() => readTrustedKey(alice), /is a private key, which stays with its owner/);
    bad(() => readTrustedKey(put('none.pub', 'hello')), /is no public key/);
    bad(() => readPrivateKey(put('none.key', '')), /is no private key/);
    bad(
      () => readPrivateKey(put('open.key', readFileSync(alice), 0o644)),
      /can be read or written by others \(mode 644\)/,
    );
    bad(() => readTrustedKey(put('large.pub', 'x'.repeat(20_000))), /at most/);
    expect(() => readTrustedKey(join(keys, 'nobody.pub'))).toThrow(expect.objectContaining({ code: 'not-found' }));
  });
});
