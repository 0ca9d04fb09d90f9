// Signed notes, in memory: which bytes are one, whose signatures count, and which texts name a key. The form is that of
// C2SP signed-note; what is signed here is put together by this file alone, so that the two can disagree.
import { createHash, generateKeyPairSync, type KeyObject, sign } from 'node:crypto';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { headerKeyId, makeCheckpointKeys, readVerifier, verifierOf, verifierText } from '../../../witness/index.ts';
import { parseNote, signerOfNote, signNote } from '../../../witness/note.ts';

const dir = mkdtempSync(join(tmpdir(), 'palimpsest-note-'));
afterAll(() => rmSync(dir, { recursive: true, force: true }));
const { privateKey } = generateKeyPairSync('ed25519');
const other = generateKeyPairSync('ed25519').privateKey;
const TEXT = 'first line\n\nthird line\n';
const refused = (part: string) =>
  expect.objectContaining({
    code: 'bad-signature',
    message: expect.stringContaining(part),
    hint: expect.stringContaining('audit keygen'),
    values: { key: expect.stringContaining('+') },
  });

const rawOf = (key: KeyObject): Buffer => Buffer.from(key.export({ format: 'jwk' }).x as string, 'base64url');
const idOf = (name: string, raw: Buffer): Buffer =>
  createHash('sha256').update(`${name}\n\x01`).update(raw).digest().subarray(0, 4);
/** A signature line as the specification describes it, of this text under this name. */
const lineOf = (text: string, key: KeyObject, name = 'palimpsest', more = Buffer.alloc(0)): string =>
  `— ${name} ${Buffer.concat([idOf(name, rawOf(key)), sign(null, Buffer.from(text), key), more]).toString('base64')}\n`;

describe('a note', () => {
  it('is the text, an empty line and the signature that the specification describes', () => {
    expect(signNote(TEXT, privateKey)).toBe(`${TEXT}\n${lineOf(TEXT, privateKey)}`);
    const note = parseNote(signNote(TEXT, privateKey))!;
    expect(note.text).toBe(TEXT);
    expect(note.signatures.map(({ name, bytes }) => [name, bytes.length])).toEqual([['palimpsest', 68]]);
    expect(signerOfNote(note, [verifierOf(privateKey)])).toEqual(verifierOf(privateKey));
  });

  it('may have a text of one empty line, and none of nothing', () => {
    const line = lineOf('\n', privateKey);
    expect(parseNote(`\n\n${line}`)?.text).toBe('\n');
    expect(parseNote(`\n${line}`)).toBeNull();
    expect(parseNote(line)).toBeNull();
    expect(parseNote(`x${line}`)).toBeNull();
  });

  const line = '— name AAAAAAA=';
  it.each<[string, string]>([
    ['nothing at all', ''],
    ['text alone', 'text\n'],
    ['an end without a signature', 'text\n\n'],
    ['a last line without its end', `text\n\n${line}`],
    ['one byte too many at the end', `text\n\n${line}\nx`],
    ['another byte in place of the last line end', `text\n\n${line}x`],
    ['another dash', `text\n\n- name AAAAAAA=\n`],
    ['a line that says more', `text\n\n${line} more\n`],
    ['a line that says less', 'text\n\n— name\n'],
    ['a dash alone', 'text\n\n—\n'],
    ['no name', 'text\n\n—  AAAAAAA=\n'],
    ['a name with a plus', 'text\n\n— na+me AAAAAAA=\n'],
    ['a name with a tab', 'text\n\n— na\tme AAAAAAA=\n'],
    ['a name of 256 characters', `text\n\n— ${'n'.repeat(256)} AAAAAAA=\n`],
    ['base64 without its end', 'text\n\n— name AAAAAAA\n'],
    ['base64 with bits that mean nothing', 'text\n\n— name AAAAAAB=\n'],
    ['a key hash without a signature', 'text\n\n— name AAAAAA==\n'],
    ['a good line and a bad one', `text\n\n${line}\n— name\n`],
    ['a bad line and a good one', `text\n\n— name\n${line}\n`],
  ])('is none with %s', (_what, bytes) => {
    expect(parseNote(`text\n\n${line}\n`)?.signatures).toEqual([{ name: 'name', bytes: Buffer.alloc(5) }]);
    expect(parseNote(bytes)).toBeNull();
  });

  it('may be signed by many, known and unknown, under names of up to 255 characters', () => {
    const bytes = `${TEXT}\n${lineOf(TEXT, other, 'n'.repeat(255))}${lineOf(TEXT, privateKey)}`;
    const note = parseNote(bytes)!;
    expect(note.signatures.length).toBe(2);
    expect(signerOfNote(note, [verifierOf(privateKey)])).toEqual(verifierOf(privateKey));
    const long = { ...verifierOf(other), name: 'n'.repeat(255) };
    // The first line that a trusted key wrote tells who signed.
    expect(signerOfNote(note, [verifierOf(privateKey), long])).toEqual(long);
    expect(signerOfNote(note, [])).toBeNull();
  });
});

describe('a signature', () => {
  it('counts only for the text that it was made for', () => {
    const note = parseNote(signNote(TEXT, privateKey))!;
    expect(signerOfNote({ ...note, text: `${TEXT}more\n` }, [verifierOf(privateKey)])).toBeNull();
  });

  it('counts only under the name that its key has', () => {
    const note = parseNote(signNote(TEXT, privateKey).replace('— palimpsest', '— somebody'))!;
    expect(signerOfNote(note, [verifierOf(privateKey)])).toBeNull();
    expect(signerOfNote(parseNote(signNote(TEXT, privateKey))!, [{ ...verifierOf(privateKey), name: 'x' }])).toBeNull();
  });

  it('that names a trusted key and is not its own makes the note worthless, whatever stands beside it', () => {
    const good = lineOf(TEXT, privateKey);
    const keys = [verifierOf(privateKey)];
    for (const bad of [
      lineOf('other text\n', privateKey),
      lineOf(TEXT, privateKey, 'palimpsest', Buffer.of(0)),
      `— palimpsest ${Buffer.concat([idOf('palimpsest', rawOf(privateKey)), Buffer.alloc(63)]).toString('base64')}\n`,
    ])
      for (const lines of [good + bad, bad + good])
        expect(signerOfNote(parseNote(`${TEXT}\n${lines}`)!, keys)).toBeNull();
    expect(signerOfNote(parseNote(`${TEXT}\n${good}${good}`)!, keys)).toEqual(keys[0]);
  });
});

describe('a verifier key', () => {
  it('is passed on as name, hash and key, and may have spaces around it', () => {
    const text = verifierText(verifierOf(privateKey));
    const raw = rawOf(privateKey);
    expect(text).toBe(
      `palimpsest+${idOf('palimpsest', raw).toString('hex')}+${Buffer.concat([Buffer.of(1), raw]).toString('base64')}`,
    );
    expect(readVerifier(`  ${text}\n`)).toEqual({ name: 'palimpsest', publicKey: raw.toString('hex') });
  });

  it('is refused when it is of another algorithm, too short, too long or changed', () => {
    const raw = rawOf(privateKey);
    const typed = (bytes: Buffer, hashed = raw): string =>
      `palimpsest+${idOf('palimpsest', hashed).toString('hex')}+${bytes.toString('base64')}`;
    const good = Buffer.concat([Buffer.of(1), raw]);
    expect(readVerifier(typed(good))).toEqual(verifierOf(privateKey));
    const short = raw.subarray(0, 31);
    const long = Buffer.concat([raw, Buffer.of(0)]);
    for (const wrong of [
      typed(Buffer.concat([Buffer.of(2), raw])),
      typed(Buffer.concat([Buffer.of(1), short]), short),
      typed(Buffer.concat([Buffer.of(1), long]), long),
      typed(Buffer.concat([Buffer.of(1), rawOf(other)])),
    ])
      expect(() => readVerifier(wrong)).toThrowError(refused('is no verifier key of Ed25519'));
  });

  it('may also be a PEM file, whatever its name looks like', () => {
    const made = makeCheckpointKeys(join(dir, 'audit.key'));
    expect(made).toEqual({ name: 'palimpsest', publicKey: expect.stringMatching(/^[0-9a-f]{64}$/) });
    expect(readVerifier(join(dir, 'audit.key.pub'))).toEqual(made);
    expect(headerKeyId(made)).toBe(
      createHash('sha256').update(Buffer.from(made.publicKey, 'hex')).digest('hex').slice(0, 16),
    );
    const text = verifierText(made);
    for (const path of [`in front ${text}`, `${text}.pub`, `${text} behind`])
      expect(() => readVerifier(path)).toThrowError(expect.objectContaining({ code: 'not-found' }));
    writeFileSync(join(dir, 'none.pub'), 'hello');
    expect(() => readVerifier(join(dir, 'none.pub'))).toThrowError(expect.objectContaining({ code: 'bad-signature' }));
  });
});
