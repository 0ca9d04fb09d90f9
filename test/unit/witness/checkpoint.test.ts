// Checkpoints, proofs and what verify says against them, checked by code of this file alone: the form of signed notes
// from their specification, inclusion proofs by the algorithm of RFC 9162, section 2.1.3.2. Small logs on the real
// disk.
import { createHash, createPublicKey, generateKeyPairSync, type KeyObject, verify } from 'node:crypto';
import {
  appendFileSync,
  cpSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import type { KvError } from '../../../native/index.ts';
import {
  appendCheckpoints,
  type Checkpoint,
  checkProof,
  type InclusionProof,
  openWitnessLog,
  parseCheckpoint,
  proveEntry,
  readCheckpoints,
  readVerifier,
  signLog,
  type VerifierKey,
  verifierOf,
  verifierText,
  verifyAgainst,
  verifyText,
} from '../../../witness/index.ts';
import { fill, scratchFolders } from './folder.ts';

const folder = scratchFolders();
const golden = join(import.meta.dirname, '../../golden');
const { privateKey } = generateKeyPairSync('ed25519');
const key = verifierOf(privateKey);
const sha256 = (...parts: Uint8Array[]): Buffer => createHash('sha256').update(Buffer.concat(parts)).digest();
const codeOf = (action: () => unknown): string => {
  try {
    action();
  } catch (error) {
    return (error as KvError).code;
  }
  return 'no error';
};

function checkedEntry(proof: InclusionProof, verifier: VerifierKey): unknown {
  const split = proof.checkpoint.indexOf('\n\n');
  const text = proof.checkpoint.slice(0, split + 1);
  const [dash, name, blob] = proof.checkpoint.slice(split + 2, -1).split(' ') as [string, string, string];
  const raw = Buffer.from(verifier.publicKey, 'hex');
  const bytes = Buffer.from(blob, 'base64');
  expect([dash, name]).toEqual(['—', verifier.name]);
  expect(bytes.subarray(0, 4)).toEqual(sha256(Buffer.from(`${name}\n\x01`), raw).subarray(0, 4));
  const x = raw.toString('base64url');
  const publicKey = createPublicKey({ key: { kty: 'OKP', crv: 'Ed25519', x }, format: 'jwk' });
  expect(verify(null, Buffer.from(text), publicKey, bytes.subarray(4))).toBe(true);
  const [, size, root] = text.split('\n');
  let [at, last] = [proof.leafIndex, Number(size) - 1];
  let hash = sha256(Buffer.of(0), Buffer.from(proof.entry));
  for (const base64 of proof.path) {
    expect(last).toBeGreaterThan(0);
    const other = Buffer.from(base64, 'base64');
    if (at % 2 === 1 || at === last) {
      hash = sha256(Buffer.of(1), other, hash);
      for (; at % 2 === 0 && at > 0; at /= 2) last = Math.floor(last / 2);
    } else {
      hash = sha256(Buffer.of(1), hash, other);
    }
    [at, last] = [Math.floor(at / 2), Math.floor(last / 2)];
  }
  expect(last).toBe(0);
  expect(hash.toString('base64')).toBe(root);
  return JSON.parse(proof.entry);
}

/** A log that grew by one entry at a time and was signed after each. */
async function grown(count: number, segmentBytesMax = 700): Promise<{ dir: string; checkpoints: Checkpoint[] }> {
  const dir = folder();
  const checkpoints: Checkpoint[] = [];
  const log = await openWitnessLog({ dir, segmentBytesMax });
  for (let n = 0; n < count; n++) {
    await fill(log, 1);
    const [note] = signLog(dir, privateKey) as [string];
    checkpoints.push(parseCheckpoint(note, [key], `${n + 1}`));
  }
  await log.close();
  return { dir, checkpoints };
}

describe('a checkpoint', () => {
  it('is a signed note that says what the log was', async () => {
    const { dir, checkpoints } = await grown(3);
    const last = checkpoints.at(-1)!;
    expect(last.note.split('\n').slice(0, 2)).toEqual([`palimpsest/${last.logId}/0`, '3']);
    expect(last.note).toMatch(/\nhead [\w+/]{43}=\ntime \d{4}-[\d-]+T[\d:.]+Z\n\n— palimpsest [\w+/]{91}=\n$/);
    const report = verifyAgainst(dir, checkpoints);
    expect(report).toMatchObject({
      ok: true,
      anchor: { checkpoints: 3, removed: 0, unanchoredEntries: 0, latestMs: last.timeMs },
    });
    expect([last.rootHash, last.headHash]).toEqual([report.series[0]!.rootHash, report.headHash]);
    expect(verifyText(report)).toMatch(/has all that 3 checkpoints signed.*They cover every entry/s);
  });

  it('covers what it covers: younger entries are counted, older ones that were removed too', async () => {
    const { dir, checkpoints } = await grown(30);
    const log = await openWitnessLog({ dir, segmentBytesMax: 700 });
    const removed = await log.removeSegments(2);
    await log.close();
    const report = verifyAgainst(dir, checkpoints);
    expect(report).toMatchObject({ ok: true, anchor: { checkpoints: 30, unanchoredEntries: 1 } });
    expect(report.anchor!.removed).toBe(removed!.firstSeq);
    expect(report.series[0]!.removedEntries).toBe(removed!.firstSeq);
    expect(verifyText(report)).toMatch(/1 entry is younger/);
    expect(verifyText(report)).toMatch(new RegExp(`Retention removed ${removed!.firstSeq} entries`));
  });

  it('of one series says nothing about another, and a missing series is missed', async () => {
    const dir = folder();
    const first = await openWitnessLog({ dir });
    const second = await openWitnessLog({ dir });
    await fill(first, 2);
    await fill(second, 3);
    await first.close();
    await second.close();
    const checkpoints = signLog(dir, privateKey).map((note) => parseCheckpoint(note, [key], 'anchor'));
    expect(checkpoints.map(({ series, size }) => [series, size])).toEqual([
      [0, 2],
      [1, 3],
    ]);
    expect(verifyAgainst(dir, checkpoints.slice(0, 1)).anchor).toMatchObject({ unanchoredEntries: 3 });
    rmSync(join(dir, 'writer-0001'), { recursive: true });
    expect(verifyAgainst(dir, checkpoints).problem?.what).toMatch(
      /series 1 is missing, and 3 entries of it were signed/,
    );
  });

  it('of a log of format 1 holds when format 2 goes on', async () => {
    const dir = folder();
    cpSync(join(golden, 'log-v1'), dir, { recursive: true });
    const checkpoints = signLog(dir, privateKey).map((note) => parseCheckpoint(note, [key], 'anchor'));
    const log = await openWitnessLog({ dir });
    await fill(log, 2);
    await log.close();
    expect(verifyAgainst(dir, checkpoints)).toMatchObject({ ok: true, anchor: { unanchoredEntries: 2 } });
    expect(checkedEntry(proveEntry(dir, 13, checkpoints), key)).toMatchObject({ seq: 13, kind: 'note' });
  });

  // A whole entry cut off the end leaves a log that is sound in itself.
  it('misses a cut end', async () => {
    const { dir, checkpoints } = await grown(3, 1 << 20);
    const path = join(dir, '00000000.wal');
    const bytes = readFileSync(path);
    let at = bytes.readUInt32LE(12);
    for (let n = 0; n < 2; n++) at += 40 + bytes.readUInt32LE(at);
    truncateSync(path, at);
    expect(verifyAgainst(dir, checkpoints).problem).toMatchObject({
      segment: '00000000.wal',
      offset: at,
      seq: 2,
      what: expect.stringMatching(/the series has 2 entries, and 3 were signed: its end is missing \(checkpoint 3\)/),
    });
    expect(codeOf(() => proveEntry(dir, 1, checkpoints.slice(2)))).toBe('bad-log');
  });
});

describe('files of checkpoints', () => {
  it('hold any number, and survive a writer that died in the middle of one at any byte', async () => {
    const { checkpoints } = await grown(2);
    const [one, two] = checkpoints.map(({ note }) => note) as [string, string];
    for (let length = 0; length <= Buffer.byteLength(one); length++) {
      const path = join(folder(), 'anchor.txt');
      appendCheckpoints(path, [one, two]);
      appendFileSync(path, Buffer.from(one).subarray(0, length));
      appendCheckpoints(path, [two]);
      const sizes = readCheckpoints(path, [key]).map(({ size, place }) => [size, place.replace(/.*:/, '')]);
      expect(sizes.slice(0, 2), `cut at ${length}`).toEqual([
        [1, '1'],
        [2, '8'],
      ]);
      expect(
        sizes.slice(2).map(([size]) => size),
        `cut at ${length}`,
      ).toEqual(length >= Buffer.byteLength(one) - 1 ? [1, 2] : [2]);
    }
  });

  it('refuse what was signed by nobody who is trusted, changed, or is something else', async () => {
    const { checkpoints } = await grown(1);
    const [{ note }] = checkpoints as [Checkpoint];
    const other = verifierOf(generateKeyPairSync('ed25519').privateKey);
    const file = (text: string): string => {
      const path = join(folder(), 'anchor.txt');
      writeFileSync(path, text);
      return path;
    };
    expect(codeOf(() => readCheckpoints(file(note), [other]))).toBe('bad-signature');
    expect(readCheckpoints(file(note), [other, key]).length).toBe(1);
    expect(codeOf(() => readCheckpoints(file(note.replace('\n1\n', '\n2\n')), [key]))).toBe('bad-signature');
    expect(codeOf(() => readCheckpoints(file('something else\n'), [key]))).toBe('bad-signature');
    expect(codeOf(() => readCheckpoints(file(note.replace('\n1\n', '\n01\n')), [key]))).toBe('bad-signature');
    expect(codeOf(() => readCheckpoints(join(folder(), 'none'), [key]))).toBe('not-found');
    expect(codeOf(() => appendCheckpoints(join(folder(), 'none', 'x'), [note]))).toBe('io');
    expect(readCheckpoints(file(''), [key])).toEqual([]);
  });
});

describe('keys', () => {
  it('have one form in which they are passed on, and it is checked', () => {
    const text = verifierText(key);
    expect(text).toMatch(/^palimpsest\+[0-9a-f]{8}\+[\w+/]{44}$/);
    expect(readVerifier(text)).toEqual(key);
    const named = verifierText({ ...key, name: 'example.org/log' });
    expect(readVerifier(named)).toEqual({ ...key, name: 'example.org/log' });
    const [name, hash, base64] = /^(\w+)\+(\w{8})\+(.*)$/.exec(text)!.slice(1) as [string, string, string];
    for (const wrong of [`other+${hash}+${base64}`, `${name}+00000000+${base64}`, `${name}+${hash}+${base64.slice(4)}`])
      expect(codeOf(() => readVerifier(wrong))).toBe('bad-signature');
    expect(codeOf(() => readVerifier('no-such-file.pub'))).toBe('not-found');
  });

  // While keys are replaced both count; afterwards the old one may be left out, and what it alone signed is refused.
  it('can be replaced: checkpoints of both are taken together', async () => {
    const dir = folder();
    const next = generateKeyPairSync('ed25519').privateKey;
    const path = join(dir, 'anchor.txt');
    const sign = async (by: KeyObject): Promise<void> => {
      const log = await openWitnessLog({ dir: join(dir, 'log') });
      await fill(log, 2);
      await log.close();
      appendCheckpoints(path, signLog(join(dir, 'log'), by));
    };
    await sign(privateKey);
    await sign(next);
    const both = readCheckpoints(path, [key, verifierOf(next)]);
    expect(verifyAgainst(join(dir, 'log'), both)).toMatchObject({ ok: true, anchor: { unanchoredEntries: 0 } });
    expect(codeOf(() => readCheckpoints(path, [verifierOf(next)]))).toBe('bad-signature');
  });
});

describe('a proof', () => {
  it('holds for every entry against every checkpoint that covers it', async () => {
    const { dir, checkpoints } = await grown(21);
    for (const checkpoint of checkpoints) {
      for (let seq = 0; seq < checkpoint.size; seq++) {
        const proof = proveEntry(dir, seq, [checkpoint]);
        expect(proof).toMatchObject({ leafIndex: seq, treeSize: checkpoint.size, checkpoint: checkpoint.note });
        expect(checkedEntry(proof, key)).toMatchObject({ seq, session: 's' });
      }
      expect(codeOf(() => proveEntry(dir, checkpoint.size, [checkpoint]))).toBe('not-found');
    }
    expect(proveEntry(dir, 4, checkpoints).treeSize).toBe(5);
  });

  // Two writers at once: seqs of the second begin at 2^32, and its checkpoints cover no other series.
  it('is of the series of its entry, against the smallest checkpoint that covers it, whatever their order', async () => {
    const dir = folder();
    const logs = [await openWitnessLog({ dir }), await openWitnessLog({ dir })];
    const checkpoints: Checkpoint[] = [];
    const sizes = [
      [9, 2],
      [30, 3],
      [40, 20],
    ];
    for (const [n, counts] of sizes.entries()) {
      for (const [at, log] of logs.entries()) {
        await fill(log, counts[at]! - (sizes[n - 1]?.[at] ?? 0));
        await log.flush();
      }
      checkpoints.push(...signLog(dir, privateKey).map((note) => parseCheckpoint(note, [key], 'anchor')));
    }
    for (const log of logs) await log.close();
    for (const given of [checkpoints, checkpoints.toReversed()]) {
      for (const [series, index, treeSize] of [
        [0, 0, 9],
        [0, 9, 30],
        [0, 35, 40],
        [1, 1, 2],
        [1, 2, 3],
        [1, 19, 20],
      ] as const) {
        const proof = proveEntry(dir, series * 2 ** 32 + index, given);
        expect([proof.leafIndex, proof.treeSize], `${series}:${index}`).toEqual([index, treeSize]);
        expect(checkedEntry(proof, key)).toMatchObject({ seq: series * 2 ** 32 + index });
      }
      let refusal: unknown;
      try {
        proveEntry(dir, 2 ** 32 + 20, given);
      } catch (error) {
        refusal = error;
      }
      expect(refusal).toMatchObject({
        ...{ code: 'not-found', message: 'no checkpoint covers entry 1:20' },
        ...{ values: { seq: 2 ** 32 + 20, checkpoints: 6 }, hint: expect.stringContaining('audit checkpoint') },
      });
    }
  });

  // What retention removed is there as the roots of its subtrees alone: the paths of what is left go over them.
  it('holds also where the oldest entries were removed', async () => {
    const { dir } = await grown(33);
    const segments = readdirSync(dir).filter((name) => name.endsWith('.wal'));
    for (let kept = 1; kept < segments.length; kept++) {
      const copy = folder();
      cpSync(dir, copy, { recursive: true });
      const log = await openWitnessLog({ dir: copy, segmentBytesMax: 1 << 20 });
      const { firstSeq } = (await log.removeSegments(kept))!;
      await log.close();
      const checkpoints = signLog(copy, privateKey).map((note) => parseCheckpoint(note, [key], 'anchor'));
      for (let seq = firstSeq; seq < 33; seq++)
        expect(checkedEntry(proveEntry(copy, seq, checkpoints), key)).toMatchObject({ seq });
      expect(codeOf(() => proveEntry(copy, firstSeq - 1, checkpoints))).toBe('not-found');
    }
  });

  it('of a changed entry cannot be made, and a changed proof does not hold', async () => {
    const { dir, checkpoints } = await grown(9);
    const proof = proveEntry(dir, 4, checkpoints.slice(-1));
    const changed = { ...proof, entry: proof.entry.replace('"n":0', '"n":1') };
    expect(() => checkedEntry(changed, key)).toThrow();
    expect(() => checkedEntry({ ...proof, leafIndex: 5 }, key)).toThrow();
    expect(() => checkedEntry({ ...proof, path: proof.path.slice(1) }, key)).toThrow();
    const path = join(dir, '00000000.wal');
    const bytes = readFileSync(path);
    bytes[statSync(path).size - 60]! ^= 1;
    writeFileSync(path, bytes);
    expect(codeOf(() => proveEntry(dir, 4, checkpoints))).toBe('bad-log');
  });
});

it('a proof is checked with the key alone, and what is none proves nothing', async () => {
  const dir = folder();
  const log = await openWitnessLog({ dir });
  await fill(log, 21);
  await log.close();
  const keyPath = join(folder(), 'key.pem');
  writeFileSync(keyPath, privateKey.export({ type: 'pkcs8', format: 'pem' }), { mode: 0o600 });
  const checkpoints = signLog(dir, keyPath).map((note) => parseCheckpoint(note, [key], 'here'));
  for (let seq = 0; seq < 21; seq++)
    expect(checkProof(proveEntry(dir, seq, checkpoints), [key])).toMatchObject({ seq, kind: 'note', body: { n: seq } });
  const proof = proveEntry(dir, 9, checkpoints);
  const others: unknown[] = [
    null,
    {},
    { ...proof, entry: 1 },
    { ...proof, path: 'x' },
    { ...proof, checkpoint: null },
    { ...proof, leafIndex: 21 },
    { ...proof, leafIndex: -1 },
    { ...proof, leafIndex: 1.5 },
    { ...proof, leafIndex: 8 },
    { ...proof, path: proof.path.slice(1) },
    { ...proof, path: [...proof.path, proof.path[0], proof.path[0]] },
    { ...proof, entry: proof.entry.replace('"n":9', '"n":8') },
  ];
  for (const other of others)
    expect(
      codeOf(() => checkProof(other, [key])),
      JSON.stringify(other),
    ).toBe('bad-signature');
  const stranger = verifierOf(generateKeyPairSync('ed25519').privateKey);
  expect(codeOf(() => checkProof(proof, [stranger]))).toBe('bad-signature');
});
