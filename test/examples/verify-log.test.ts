// The verifier in another language, examples/verify_log.py, finds in logs what verifyLog finds: entries, their last
// hashes, signatures and proofs, and every change. It knows nothing but docs/log-format.md. Needs python3.
import { spawnSync } from 'node:child_process';
import { generateKeyPairSync } from 'node:crypto';
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import {
  type InclusionProof,
  makeCheckpointKeys,
  openWitnessLog,
  parseCheckpoint,
  proveEntry,
  signLog,
  verifierText,
  verifyLog,
} from '../../witness/index.ts';
import { seeded } from '../random.ts';

const program = join(import.meta.dirname, '..', '..', 'examples', 'verify_log.py');
const golden = join(import.meta.dirname, '..', 'golden');
const root = mkdtempSync(join(tmpdir(), 'palimpsest-verify-'));
afterAll(() => rmSync(root, { recursive: true, force: true }));
let folders = 0;
const fresh = (): string => join(root, String(folders++));

function python(...args: string[]): { code: number | null; out: string; err: string } {
  const { status, stdout, stderr } = spawnSync('python3', [program, ...args], { encoding: 'utf8' });
  return { code: status, out: stdout, err: stderr };
}
const sound = (...args: string[]): Record<string, unknown> => {
  const { code, out, err } = python(...args);
  expect({ code, err }).toEqual({ code: 0, err: '' });
  return JSON.parse(out) as Record<string, unknown>;
};

/** What languages print differently. */
const HARD: readonly unknown[] = [
  ...[
    -0,
    0,
    5e-324,
    1e21,
    1e20,
    123456789012345680000,
    2 ** 53 + 1,
    2 ** 53,
    -1.5,
    0.1,
    1e-6,
    1e-7,
    1.7976931348623157e308,
  ],
  ...['\u2028\u2029', '\ud800', 'a\udfffb', '\ud83d\ude00', '"\\/\u0000\u0007\b\t\n\v\f\r\u001f\u007f', 'ü', ''],
  ...[{ '\ud83d\ude00': 1, '\uffff': 2, b: 3, a: { '10': 1, '9': 2 } }, [[], {}, null, true]],
];

async function makeLog(dir: string, count = 40, segmentBytesMax = 1500): Promise<void> {
  const log = await openWitnessLog({ dir, segmentBytesMax });
  for (let n = 0; n < count; n++) log.append('session \ud800 "x"', 'note', { n, hard: HARD[n % HARD.length] });
  await log.flush();
  await log.close();
}

describe.skipIf(spawnSync('python3', ['--version']).status !== 0)('in Python (needs python3)', () => {
  test('numbers, texts and keys that languages print differently are spelled alike', async () => {
    const dir = fresh();
    await makeLog(dir);
    const next = seeded(11);
    const log = await openWitnessLog({ dir });
    const words = new Uint32Array(2);
    const doubles = Array.from({ length: 3000 }, () => {
      words.set([next() * 2 ** 32, next() * 2 ** 32]);
      return new Float64Array(words.buffer)[0]!;
    }).filter(Number.isFinite);
    log.append('s', 'note', {
      doubles,
      short: doubles.map((x) => Number(x.toPrecision(3))),
      whole: doubles.map(Math.round),
    });
    await log.close();
    expect(sound('log', dir)).toMatchObject({ entries: 41, unfinished: 0 });
    expect(verifyLog(dir)).toMatchObject({ ok: true, entries: 41 });
  });

  test('encrypted sessions, several writers and the log of an earlier version are read', async () => {
    const dir = fresh();
    const logs = [await openWitnessLog({ dir, encrypt: true }), await openWitnessLog({ dir, encrypt: true })];
    for (let n = 0; n < 20; n++) for (const log of logs) log.append('s', 'note', { n });
    for (const log of logs) await log.close();
    expect(sound('log', dir)).toMatchObject({ entries: 40 });
    for (const version of ['log-v2', 'log-v3']) {
      const { entries } = verifyLog(join(golden, version));
      expect(sound('log', join(golden, version))).toMatchObject({ entries });
    }
    expect(python('log', join(golden, 'log-v1')).err).toContain('it is of format 1');
  });

  test('checkpoints and proofs hold, and no others do', async () => {
    const dir = fresh();
    await makeLog(dir);
    const keyPath = `${dir}.key`;
    const verifier = makeCheckpointKeys(keyPath);
    const notes = signLog(dir, keyPath);
    const trusted = verifierText(verifier);
    writeFileSync(`${dir}.anchor`, notes.join(''));
    expect(sound('log', dir, `${dir}.anchor`, trusted)).toMatchObject({ entries: 40, checkpoints: 1 });
    const checkpoints = notes.map((note) => parseCheckpoint(note, [verifier], 'here'));
    for (const seq of [0, 1, 17, 31, 32, 39]) {
      writeFileSync(`${dir}.proof`, JSON.stringify(proveEntry(dir, seq, checkpoints)));
      expect(sound('proof', `${dir}.proof`, trusted)).toEqual({ seq, kind: 'note' });
    }
    const proof = proveEntry(dir, 17, checkpoints);
    const others = [
      { ...proof, leafIndex: 16 },
      { ...proof, entry: proof.entry.replace('"n":17', '"n":18') },
      { ...proof, path: proof.path.slice(1) },
      { ...proof, checkpoint: proof.checkpoint.replace('\n40\n', '\n41\n') },
    ];
    for (const other of others) {
      writeFileSync(`${dir}.proof`, JSON.stringify(other));
      expect(python('proof', `${dir}.proof`, trusted)).toMatchObject({
        code: 1,
        err: expect.stringContaining('damaged'),
      });
    }
    const stranger = verifierText({ name: 'palimpsest', publicKey: rawPublicKey() });
    expect(python('log', dir, `${dir}.anchor`, stranger).err).toContain('not signed with this key');
    // A log whose end was taken away is sound in itself, and not what was signed.
    const last = readdirSync(dir)
      .filter((name) => name.endsWith('.wal'))
      .sort()
      .at(-1)!;
    rmSync(join(dir, last));
    expect(python('log', dir).code).toBe(0);
    expect(python('log', dir, `${dir}.anchor`, trusted).err).toContain('the end of series 0 is missing');
  });

  test('a body that is disclosed is the one to which the encrypted entry is committed', async () => {
    const dir = fresh();
    const log = await openWitnessLog({ dir, encrypt: true });
    for (let n = 0; n < HARD.length; n++) log.append('s', 'note', { n, hard: HARD[n] });
    log.append('', 'note', { about: 'the log' });
    await log.close();
    const keyPath = `${dir}.key`;
    const verifier = makeCheckpointKeys(keyPath);
    const trusted = verifierText(verifier);
    const checkpoints = signLog(dir, keyPath).map((note) => parseCheckpoint(note, [verifier], 'here'));
    const disclosed = (seq: number): InclusionProof => proveEntry(dir, seq, checkpoints, { disclose: true });
    const said = (proof: unknown): ReturnType<typeof python> => {
      writeFileSync(`${dir}.proof`, JSON.stringify(proof));
      return python('proof', `${dir}.proof`, trusted);
    };
    for (const seq of [3, 6, HARD.length - 2, HARD.length - 1]) {
      const { code, out, err } = said(disclosed(seq));
      expect([code, err]).toEqual([0, '']);
      expect(JSON.parse(out)).toEqual({
        seq,
        kind: 'note',
        body: JSON.parse(JSON.stringify({ n: seq, hard: HARD[seq] })),
      });
    }
    expect(JSON.parse(said(proveEntry(dir, 3, checkpoints)).out)).toEqual({ seq: 3, kind: 'note' });
    expect(JSON.parse(said(disclosed(HARD.length)).out)).toEqual({ seq: HARD.length, kind: 'note' });
    const [proof, other] = [disclosed(3), disclosed(4)];
    const { salt, body } = proof.disclosed!;
    for (const wrong of [
      { salt, body: `${body.slice(0, 8)}${body[8] === 'A' ? 'B' : 'A'}${body.slice(9)}` },
      { salt: Buffer.alloc(32).toString('base64'), body },
      { salt: other.disclosed!.salt, body },
      other.disclosed,
      { salt: '', body },
    ])
      expect(said({ ...proof, disclosed: wrong }).err).toContain('the entry is not committed to this body');
    const plain = proveEntry(dir, HARD.length, checkpoints);
    expect(said({ ...plain, disclosed: proof.disclosed }).err).toContain('the entry is not committed to this body');
  });

  test('a changed byte, a segment that is missing and two that were renamed are damage', async () => {
    const dir = fresh();
    await makeLog(dir, 30, 1200);
    const segments = readdirSync(dir)
      .filter((name) => name.endsWith('.wal'))
      .sort();
    expect(segments.length).toBeGreaterThan(4);
    const damaged = (change: (copy: string) => void): ReturnType<typeof python> => {
      const copy = fresh();
      cpSync(dir, copy, { recursive: true });
      change(copy);
      return python('log', copy);
    };
    const next = seeded(5);
    for (let n = 0; n < 12; n++) {
      const result = damaged((copy) => {
        const path = join(copy, segments[Math.floor(next() * (segments.length - 1))]!);
        const bytes = readFileSync(path);
        bytes[Math.floor(next() * bytes.length)]! ^= 1 << Math.floor(next() * 8);
        writeFileSync(path, bytes);
      });
      expect(result).toMatchObject({ code: 1, err: expect.stringContaining('damaged: ') });
    }
    expect(damaged((copy) => rmSync(join(copy, segments[2]!))).err).toContain('the segment before it is missing');
    const swapped = damaged((copy) => {
      cpSync(join(dir, segments[1]!), join(copy, segments[2]!));
      cpSync(join(dir, segments[2]!), join(copy, segments[1]!));
    });
    expect(swapped.err).toContain('it has the number 2');
    // What a crash leaves is no damage.
    const cut = damaged((copy) =>
      truncateSync(join(copy, segments.at(-1)!), statSync(join(dir, segments.at(-1)!)).size - 5),
    );
    expect(cut.code).toBe(0);
    expect((JSON.parse(cut.out) as { unfinished: number }).unfinished).toBeGreaterThan(0);
  });
});

const rawPublicKey = (): string =>
  Buffer.from(generateKeyPairSync('ed25519').publicKey.export({ format: 'jwk' }).x!, 'base64url').toString('hex');
