/** Threshold files: one spelling, every rule of the schema enforced, strangers' bytes refused by name. */
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, describe, expect, test } from 'vitest';
import {
  checkThresholdTarget,
  diffThresholdFiles,
  formatThresholdFile,
  loadThresholdFile,
  parseThresholdFile,
  readThresholdFile,
  saveThresholdFile,
  type ThresholdFile,
  toThresholdFile,
  toThresholdSet,
  writeThresholdFile,
} from '../../../memory/index.ts';
import { KvError } from '../../../native/index.ts';
import { checkThresholds } from '../../../policy/index.ts';
import { random } from '../../suite/index-data.ts';

const dir = mkdtempSync(join(tmpdir(), 'palimpsest-thresholds-'));
afterAll(() => rmSync(dir, { recursive: true, force: true }));

const example: ThresholdFile = {
  kind: 'palimpsest-thresholds',
  schemaVersion: 1,
  model: { digest: 'sha256:00ff', shape: { layers: 2, queryHeads: 4, kvHeads: 2, headDim: 64 } },
  thresholds: {
    'price.start': {
      value: 1.25e-9,
      unit: 'KLD/byte',
      source: 'final thresholds of 3 sessions',
      samples: 3,
      evidence: [4, 9, 17],
    },
    'pressure.enter': { value: 0.95, unit: 'share', source: 'chosen, not measured', samples: 0, evidence: [] },
  },
  gains: { k: [1, 1.5], v: [0.75, 1] },
  c: 3.7,
  origin: { logId: 'abc', seq: 17, headHash: 'a'.repeat(64) },
};
const text = formatThresholdFile(example);
const bytesOf = (value: string): Uint8Array => Buffer.from(value);

function refused(bytes: Uint8Array, part: string): KvError {
  try {
    parseThresholdFile(bytes, 'x.json');
  } catch (error) {
    expect(error).toBeInstanceOf(KvError);
    expect((error as KvError).code).toBe('bad-thresholds');
    expect((error as KvError).message).toContain(part);
    return error as KvError;
  }
  throw new Error(`not refused: ${part}`);
}

describe('one spelling', () => {
  test('export, import, export: the same bytes, through text, through sets and through disk', async () => {
    const parsed = parseThresholdFile(bytesOf(text));
    expect(formatThresholdFile(parsed)).toBe(text);
    const target = { modelDigest: example.model.digest, shape: example.model.shape };
    const log = { id: 'abc', acknowledgedSeq: 17, headHash: 'a'.repeat(64) };
    expect(formatThresholdFile(toThresholdFile(toThresholdSet(parsed), target, log))).toBe(text);

    const path = join(dir, 'a.json');
    writeThresholdFile(path, example);
    const set = await loadThresholdFile(path, target);
    expect(set.thresholds['price.start']).toMatchObject({
      id: 'price.start',
      value: 1.25e-9,
      origin: 'file',
      evidence: [4, 9, 17],
    });
    await saveThresholdFile(join(dir, 'b.json'), set, { ...target, log });
    expect(readFileSync(join(dir, 'b.json'), 'utf8')).toBe(text);
    expect(readdirSync(dir).sort()).toEqual(['a.json', 'b.json']);
  });

  test('any valid content survives, and order and spacing of the source do not matter', () => {
    const id = fc.stringMatching(/^[a-z][A-Za-z0-9.-]{0,20}$/).filter((s) => s !== 'constructor' && s !== 'prototype');
    const threshold = fc.record({
      value: fc.double({ min: 0, max: 1e12, noNaN: true }),
      unit: fc.constantFrom('KLD/byte', 'ms', '%', 'µs'),
      source: fc.stringMatching(/^[ -~äß€😀]{0,40}$/u),
      samples: fc.nat(1e9),
      evidence: fc.array(fc.maxSafeNat(), { maxLength: 5 }),
    });
    const gains = fc.array(fc.double({ min: 1e-3, max: 1e3, noNaN: true }), { minLength: 3, maxLength: 3 });
    const file = fc.record({
      thresholds: fc.dictionary(id, threshold, { maxKeys: 6 }),
      k: gains,
      v: gains,
      c: fc.double({ min: 1e-3, max: 1e3, noNaN: true }),
    });
    fc.assert(
      fc.property(file, ({ thresholds, k, v, c }) => {
        const value: ThresholdFile = {
          ...example,
          model: { ...example.model, shape: { ...example.model.shape, layers: 3 } },
          thresholds,
          gains: { k, v },
          c,
        };
        const once = formatThresholdFile(value);
        const shuffled = JSON.stringify(Object.fromEntries(Object.entries(JSON.parse(once)).reverse()));
        expect(formatThresholdFile(parseThresholdFile(bytesOf(once)))).toBe(once);
        expect(formatThresholdFile(parseThresholdFile(bytesOf(shuffled)))).toBe(once);
      }),
      { seed: 4242, numRuns: 200 },
    );
  });
});

describe('refusals', () => {
  // biome-ignore lint/suspicious/noExplicitAny: these tests break the type on purpose
  type Loose = Record<string, any>;
  const changed = (change: (file: Loose) => void): Uint8Array => {
    const file = structuredClone(example) as Loose;
    change(file);
    return bytesOf(JSON.stringify(file));
  };

  // One rule at a time: the message names the path that breaks it.
  test.each<[string, Uint8Array]>([
    ['schemaVersion', changed((f) => (f.schemaVersion = 2))],
    ['kind', changed((f) => (f.kind = 'something else'))],
    ['signature', changed((f) => (f.signature = 'x'))],
    ['3 gains for 2 layers', changed((f) => f.gains.k.push(1))],
    ['gain of layer 0 v is 0', changed((f) => (f.gains.v[0] = 0))],
    ['gain of layer 0 v is 1000000000', changed((f) => (f.gains.v[0] = 1e9))],
    ['c', changed((f) => (f.c = -1))],
    ['c', changed((f) => (f.c = null))],
    ['model.shape.layers', changed((f) => (f.model.shape.layers = 2.5))],
    ['model.shape.layers', changed((f) => (f.model.shape.layers = 1e9))],
    ['price.start is -1', changed((f) => (f.thresholds['price.start'].value = -1))],
    ['thresholds.price.start.value', changed((f) => (f.thresholds['price.start'].value = 1e300))],
    ['thresholds.price.start.samples', changed((f) => (f.thresholds['price.start'].samples = -1))],
    ['thresholds.price.start.evidence.0', changed((f) => (f.thresholds['price.start'].evidence = [2 ** 60]))],
    ['thresholds.price.start.source', changed((f) => (f.thresholds['price.start'].source = '\u001b[2J'))],
    ['thresholds.Bad id', changed((f) => (f.thresholds['Bad id'] = f.thresholds['price.start']))],
    ['origin.headHash', changed((f) => (f.origin.headHash = 'zz'))],
    ['model.digest', changed((f) => delete f.model.digest)],
    ["'c' twice", bytesOf(text.replace('"c": 3.7', '"c": 3.7, "c": 3.8'))],
    ['__proto__', bytesOf(text.replace('"c": 3.7', '"c": 3.7, "__proto__": {"polluted": 1}'))],
    ['constructor', bytesOf(text.replace('"price.start"', '"constructor"'))],
    ['x.json: c', bytesOf(text.replace('3.7', '1e999'))],
    ['not JSON', bytesOf(text.replace('3.7', 'NaN'))],
    ['not JSON', bytesOf(text.replace('3.7', 'Infinity'))],
    ['not JSON', bytesOf('')],
    ['not JSON', bytesOf(`${text}{}`)],
    ['not JSON', bytesOf(`\ufeff${text}`)],
    ['UTF-8', Buffer.concat([bytesOf(text), Buffer.from([0xff])])],
    ['nests', bytesOf('['.repeat(100_000))],
    ['at most', bytesOf(' '.repeat(1024 * 1024 + 1))],
  ])('%s', (part, bytes) => {
    refused(bytes, part);
    expect(({} as { polluted?: number }).polluted).toBeUndefined();
  });

  // Values that the schema of the file allows and a session refuses: what is imported must be what a run can start with.
  test.each<[id: string, value: number]>([
    ['price.slack', 0],
    ['pressure.enter', 2],
    ['pressure.leave', 0.99],
    ['dwell.tokens', -5],
    ['quality.epsilon', 0],
    ['attention.skip', 1.5],
  ])('%s of %d, which every run would refuse', (id, value) => {
    const threshold = { ...example.thresholds['price.start']!, value };
    const file = { ...example, thresholds: { ...example.thresholds, [id]: threshold } };
    const error = refused(bytesOf(JSON.stringify(file)), id);
    expect(() => checkThresholds(toThresholdSet(file), 2)).toThrow(KvError);
    expect(error.message).toContain('x.json');
  });

  // A hundred seeded mutations of the bytes: a KvError or content that is finite and writes itself again.
  test('100 mutations end in a KvError or a finite load', () => {
    const seed = 99;
    const next = random(seed);
    const good = Buffer.from(text);
    let refusals = 0;
    for (let i = 0; i < 100; i++) {
      let bad = Buffer.from(good);
      for (let n = 0; n <= i % 3; n++) {
        const at = Math.floor(next() * bad.length);
        const kind = Math.floor(next() * 4);
        if (kind === 0) bad[at] = Math.floor(next() * 256);
        else if (kind === 1) bad = bad.subarray(0, at);
        else if (kind === 2) bad = Buffer.concat([bad.subarray(0, at), Buffer.from('9999999999'), bad.subarray(at)]);
        else bad = Buffer.concat([bad.subarray(0, at), bad.subarray(Math.min(bad.length, at + 20))]);
      }
      try {
        const file = parseThresholdFile(bad, `mutation ${i} of seed ${seed}`);
        for (const g of [...file.gains.k, ...file.gains.v, file.c]) expect(Number.isFinite(g)).toBe(true);
        const again = formatThresholdFile(file);
        expect(formatThresholdFile(parseThresholdFile(bytesOf(again)))).toBe(again);
      } catch (error) {
        expect(error, `mutation ${i} of seed ${seed}: ${String(error)}`).toBeInstanceOf(KvError);
        refusals += 1;
      }
    }
    expect(refusals).toBeGreaterThan(30);
  });

  test('files that are none: missing, a folder, a pipe, too large', () => {
    expect(() => readThresholdFile(join(dir, 'missing.json'))).toThrow(expect.objectContaining({ code: 'not-found' }));
    expect(() => readThresholdFile(dir)).toThrow(expect.objectContaining({ code: 'bad-thresholds' }));
    const pipe = join(dir, 'pipe');
    execFileSync('mkfifo', [pipe]);
    expect(() => readThresholdFile(pipe)).toThrow(expect.objectContaining({ code: 'bad-thresholds' }));
    const large = join(dir, 'large.json');
    writeFileSync(large, '');
    truncateSync(large, 2 ** 40);
    expect(() => readThresholdFile(large)).toThrow(expect.objectContaining({ code: 'bad-thresholds' }));
    expect(() => writeThresholdFile(join(dir, 'no', 'such', 'folder.json'), example)).toThrow(
      expect.objectContaining({ code: 'io' }),
    );
  });

  test('thresholds that could not be read back are not written', () => {
    expect(() => formatThresholdFile({ ...example, c: Number.NaN })).toThrow(
      expect.objectContaining({ code: 'bad-thresholds' }),
    );
    expect(() => formatThresholdFile({ ...example, gains: { k: [1], v: [1] } })).toThrow(KvError);
  });
});

describe('another model', () => {
  test('is refused with the numbers that differ', () => {
    const target = { modelDigest: example.model.digest, shape: example.model.shape };
    checkThresholdTarget(example, target);
    const mismatch = (t: typeof target, part: string): void =>
      expect(() => checkThresholdTarget(example, t)).toThrow(
        expect.objectContaining({ code: 'model-mismatch', message: expect.stringContaining(part) }),
      );
    mismatch({ ...target, modelDigest: 'sha256:11' }, 'sha256:11');
    mismatch({ ...target, shape: { ...target.shape, layers: 3 } }, 'layers 2, here 3');
  });
});

test('diff tells what differs, in lines', () => {
  expect(diffThresholdFiles(example, example)).toEqual([]);
  const other = structuredClone(example);
  other.c = 4;
  other.gains.k[1] = 2;
  other.thresholds['price.start']!.value = 2e-9;
  delete other.thresholds['pressure.enter'];
  other.origin = null;
  expect(diffThresholdFiles(example, other)).toEqual([
    'pressure.enter: 0.95 share (default; chosen, not measured) → –',
    'price.start: 1.25e-9 KLD/byte (3 samples; final thresholds of 3 sessions) → 2e-9 KLD/byte (3 samples; final thresholds of 3 sessions)',
    'gain k layer 1: 1.5 → 2',
    'c: 3.7 → 4',
    'origin: log abc up to 17 → (no log)',
  ]);
});
