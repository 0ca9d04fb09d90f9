/**
 * What an import of thresholds promises: sizes and models are checked, values are told apart from defaults, and errors
 * say what to do.
 */
import { generateKeyPairSync } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import {
  checkThresholdTarget,
  checkTrust,
  evidenceRanges,
  formatThresholdFile,
  loadThresholdFile,
  modelDifference,
  parseThresholdFile,
  readThresholdFile,
  saveThresholdFile,
  signThresholdFile,
  spellLearned,
  THRESHOLD_FILE_BYTES_MAX,
  toThresholdFile,
  toThresholdSet,
} from '../../../memory/threshold-file.ts';
import { defaultThresholds } from '../../../policy/index.ts';
import { example, from, learned } from './threshold-data.ts';

const text = (): string => formatThresholdFile(example);
const bytesOf = (value: unknown): Uint8Array => Buffer.from(typeof value === 'string' ? value : JSON.stringify(value));
// biome-ignore lint/suspicious/noExplicitAny: these tests break the type on purpose
const wire = (): Record<string, any> => JSON.parse(text());
const refused = (message: string, values: object, hint = 'palimpsest thresholds export FILE') =>
  expect.objectContaining({
    code: 'bad-thresholds',
    message: expect.stringContaining(message),
    values: expect.objectContaining(values),
    hint: expect.stringContaining(hint),
  });
const target = { modelDigest: example.model.digest, shape: example.model.shape };

describe('a refusal', () => {
  test('names the file, the place in it, and what to do', () => {
    expect(() => parseThresholdFile(bytesOf({ ...wire(), c: 1 }), 'x.json')).toThrow(
      refused('x.json: c:', { name: 'x.json', path: 'c' }),
    );
    expect(() => parseThresholdFile(bytesOf({ ...wire(), extra: 1 }))).toThrow(
      refused('threshold file: top level:', { name: 'threshold file', path: 'top level' }),
    );
    expect(() => parseThresholdFile(bytesOf({ ...wire(), schemaVersion: 6 }), 'x.json')).toThrow(
      refused('x.json: schemaVersion: 6 is of a later palimpsest than this', { path: 'schemaVersion' }),
    );
    for (const other of [0, 1.5, -1, '3', null])
      expect(() => parseThresholdFile(bytesOf({ ...wire(), schemaVersion: other }), 'x.json')).toThrow(
        refused('x.json: schemaVersion: not a threshold file', { path: 'schemaVersion' }),
      );
    expect(() => parseThresholdFile(bytesOf('{'), 'x.json')).toThrow(refused('x.json', {}));
    expect(() => parseThresholdFile(bytesOf('null'), 'x.json')).toThrow(refused('not a threshold file', {}));
    expect(() => readThresholdFile(import.meta.dirname)).toThrow(expect.objectContaining({ code: 'bad-thresholds' }));
    const deep = { ...wire(), law: { ...wire()['law'], text: 1 } };
    expect(() => parseThresholdFile(bytesOf(deep), 'x.json')).toThrow(refused('law.text:', { path: 'law.text' }));
  });

  test('names the threshold that no session would start with, also in a part', () => {
    const bad = wire();
    bad['thresholds']['price.slack'] = { ...bad['thresholds']['pressure.enter'], value: 0 };
    expect(() => parseThresholdFile(bytesOf(bad), 'x.json')).toThrow(
      refused('x.json: price.slack is 0', { path: 'price.slack' }),
    );
    const { kind: _, schemaVersion: __, model: ___, parts: ____, ...part } = wire();
    const parts = [part, { ...part, thresholds: bad['thresholds'] }];
    expect(() => parseThresholdFile(bytesOf({ ...wire(), parts }), 'x.json')).toThrow(
      refused('x.json: parts.1: price.slack is 0', { path: 'price.slack' }),
    );
    const gains = { ...wire(), gains: { unit: '1', k: [1], v: [1, 1] } };
    expect(() => parseThresholdFile(bytesOf(gains), 'x.json')).toThrow(
      refused('x.json: 1 gain for 2 layers', { path: 'thresholds' }),
    );
  });

  test('meets more thresholds than there can be, and bytes beyond the limit, at the first one too many', () => {
    const many = (count: number) => ({
      ...example,
      thresholds: Object.fromEntries(
        Array.from({ length: count }, (_, n) => [`own.t${n}`, example.thresholds['pressure.enter']!]),
      ),
    });
    expect(Object.keys(parseThresholdFile(bytesOf(formatThresholdFile(many(256)))).thresholds).length).toBe(256);
    expect(() => formatThresholdFile(many(257))).toThrow(
      refused('thresholds to write: thresholds: more than 256', { path: 'thresholds' }),
    );
    expect(() => formatThresholdFile({ ...example, parts: [learned, { ...many(257), createdBy: 'z' }] })).toThrow(
      refused('thresholds to write: parts.1: thresholds: more than 256', { path: 'thresholds' }),
    );
    const spaces = Buffer.alloc(THRESHOLD_FILE_BYTES_MAX - bytesOf(text()).length, ' ');
    const padded = Buffer.concat([bytesOf(text()), spaces]);
    expect(formatThresholdFile(parseThresholdFile(padded))).toBe(text());
    const beyond = expect.objectContaining({
      code: 'bad-thresholds',
      message: expect.stringContaining(`x.json: ${padded.length + 1} bytes, at most ${padded.length} are read`),
      values: { name: 'x.json', bytes: padded.length + 1, bytesMax: 8 * 1024 * 1024 },
    });
    expect(() => parseThresholdFile(Buffer.concat([padded, Buffer.of(32)]), 'x.json')).toThrow(beyond);
  });
});

describe('the spelling', () => {
  test('breaks what does not fit a line of 120 columns, and nothing else', () => {
    const lines = text().split('\n');
    expect(lines.at(-1)).toBe('');
    const long = lines.filter((line) => line.length > 121);
    expect(long).toEqual([]);
    expect(text()).toContain('"shape": { "layers": 2, "queryHeads": 4, "kvHeads": 2, "headDim": 64 }');
    expect(text()).toContain('\n  "parts": []');
    const none = formatThresholdFile({ ...example, thresholds: {}, law: null });
    expect(none).toContain('\n  "thresholds": {}');
    expect(none).toContain('\n  "law": null');
    // A list of numbers stays on its line however long it is; a list of objects does not.
    const ones = Array.from({ length: 100 }, (_, n) => n);
    const wide = formatThresholdFile({
      ...example,
      thresholds: { 'own.long': { ...example.thresholds['pressure.enter']!, evidence: ones } },
    });
    expect(wide).toContain(`"evidence": [${ones.join(', ')}]`);
    expect(wide).toMatch(/"k": \[\n {8}\{ "value": 0\.5,/);
    expect(JSON.parse(wide).thresholds['own.long'].evidence).toEqual(ones);
  });

  test('has its parts in one order, whatever order they came in', () => {
    const [a, b, c] = ['a', 'b', 'c'].map((createdBy) => ({ ...learned, createdBy }));
    const once = formatThresholdFile({ ...example, parts: [a!, b!, c!] });
    for (const parts of [
      [c!, b!, a!],
      [b!, a!, c!],
      [c!, a!, b!],
    ])
      expect(formatThresholdFile({ ...example, parts })).toBe(once);
  });
});

describe('files of version 1', () => {
  const old = (origin: unknown) => ({
    ...{ kind: 'palimpsest-thresholds', schemaVersion: 1, model: example.model, c: 1, gains: { k: [1, 1], v: [1, 1] } },
    thresholds: {},
    origin,
  });
  test('without a log, or with one that had no entry, rest on none', () => {
    for (const origin of [null, { logId: '', seq: 5, headHash: null }, { logId: 'abc', seq: -1, headHash: null }])
      expect(parseThresholdFile(bytesOf(old(origin))).evidence.logs).toEqual([]);
    const headHash = 'a'.repeat(64);
    expect(parseThresholdFile(bytesOf(old({ logId: 'abc', seq: 0, headHash }))).evidence.logs).toEqual([
      { logId: 'abc', from: 0, to: 0, headHash },
    ]);
  });
});

describe('what is exported', () => {
  const learnedSet = (): ReturnType<typeof toThresholdSet> => toThresholdSet(example);
  const logsOf = (...args: Parameters<typeof toThresholdFile>) => toThresholdFile(...args).evidence.logs;

  test('rests on the log as far as it was acknowledged, and on no log where there is none', () => {
    const set = learnedSet();
    const { ranges: _, ...bare } = set;
    expect(logsOf(bare, target, null)).toEqual([]);
    expect(logsOf(bare, target, { id: 'xyz' })).toEqual([]);
    expect(logsOf(bare, target, { id: 'xyz', acknowledgedSeq: -1 })).toEqual([]);
    expect(logsOf(bare, target, { id: 'xyz', acknowledgedSeq: 0 })).toEqual([
      { logId: 'xyz', from: 0, to: 0, headHash: null },
    ]);
    const hashAt = (seq: number) => (seq === 7 ? 'b'.repeat(64) : null);
    expect(logsOf(set, target, { id: 'xyz', acknowledgedSeq: 7, hashAt })).toEqual([
      { logId: 'abc', from: 0, to: 17, headHash: null },
      { logId: 'xyz', from: 0, to: 7, headHash: 'b'.repeat(64) },
    ]);
    expect(toThresholdFile(set, target, null).evidence).toMatchObject({ sessions: null, tokens: null });
    expect(toThresholdFile(set, target, null, { sessions: 2 }).evidence).toMatchObject({ sessions: 2, tokens: null });
  });

  test('has no law where none was learned, no defaults, and the latest 1,024 entries of a threshold', () => {
    const set = learnedSet();
    const { law: _, ...lawless } = set;
    expect(toThresholdFile(lawless, target, null).law).toBeNull();
    expect(toThresholdFile({ ...set, ...defaultThresholds(2) }, target, null).thresholds).toEqual({});
    const evidence = Array.from({ length: 1030 }, (_, n) => n);
    const long = {
      ...set,
      thresholds: { ...set.thresholds, 'price.start': { ...set.thresholds['price.start']!, evidence } },
    };
    expect(toThresholdFile(long, target, null).thresholds['price.start']!.evidence).toEqual(evidence.slice(6));
    expect(toThresholdFile(set, target, null).createdBy).toMatch(/^palimpsest \d+\.\d+\.\d+/);
    const bad = { ...set, c: Number.NaN };
    expect(() => toThresholdFile(bad, target, null)).toThrow(refused('thresholds to export: c', {}));
  });
});

test('a file that is saved without a log names none, and loads as the same set', async () => {
  const dir = mkdtempSync(join(tmpdir(), 'palimpsest-rules-'));
  try {
    const path = join(dir, 'saved.json');
    // What it is called, and what is known of its log, is another.
    const { ranges: _, sources: __, ...set } = toThresholdSet(example);
    await saveThresholdFile(path, set, target);
    expect(readThresholdFile(path).evidence).toEqual({ sessions: null, tokens: null, logs: [] });
    expect(await loadThresholdFile(path, target)).toMatchObject(set);
    await expect(loadThresholdFile(path, { ...target, modelDigest: 'x' })).rejects.toMatchObject({
      code: 'model-mismatch',
    });
  } finally {
    rmSync(dir, { recursive: true });
  }
});

describe('where evidence stands', () => {
  test('is its logs, or its own content where no log was kept, or nowhere where nothing was learned', () => {
    expect(evidenceRanges(learned)).toEqual([{ logId: 'abc', from: 0, to: 17 }]);
    const bare = { ...learned, evidence: { ...learned.evidence, logs: [] } };
    const [range] = evidenceRanges(bare);
    expect(range).toEqual({ logId: expect.stringMatching(/^content-[0-9a-f]{32}$/), from: 0, to: 0 });
    expect(evidenceRanges({ ...bare, createdBy: 'other' })[0]!.logId).not.toBe(range!.logId);
    const lawless = { ...bare, law: null };
    expect(evidenceRanges(lawless).length).toBe(1);
    const unmeasured = { ...lawless, thresholds: { 'pressure.enter': learned.thresholds['pressure.enter']! } };
    expect(evidenceRanges(unmeasured)).toEqual([]);
    expect(evidenceRanges({ ...unmeasured, law: learned.law }).length).toBe(1);
    expect(spellLearned(bare)).toContain('"createdBy": "palimpsest 0.1.0"');
    expect(toThresholdSet({ ...example, ...unmeasured })).not.toHaveProperty('ranges');
    expect(toThresholdSet(example).ranges).toEqual([{ logId: 'abc', from: 0, to: 17 }]);
  });

  test('a threshold of a file takes the place of the default, and the others stay as they are', () => {
    const set = toThresholdSet(example);
    expect(set.thresholds['pressure.enter']).toEqual({
      ...{ id: 'pressure.enter', origin: 'file', value: 0.97, unit: 'share', samples: 0 },
      ...{ source: 'chosen by hand', evidence: [] },
    });
    expect(set.thresholds['price.start']).toMatchObject({ sd: 0.2, origin: 'file' });
    expect(set).toMatchObject({ version: 1, c: 3.7, gains: { k: [1, 1.5], v: [0.75, 1] } });
    expect(toThresholdSet({ ...example, law: null })).not.toHaveProperty('law');
    const others = Object.keys(set.thresholds).filter((id) => !(id in example.thresholds));
    for (const id of others) expect(set.thresholds[id]).toEqual(defaultThresholds(2).thresholds[id]);
  });
});

describe('a file for another model', () => {
  const model = example.model;
  const other = (shape: object, digest = model.digest) => ({ digest, shape: { ...model.shape, ...shape } });

  test('is refused with every number that differs, or else with both digests', () => {
    expect(modelDifference(model, other({}))).toBeNull();
    expect(modelDifference(model, other({ layers: 3, headDim: 128 }))).toBe('layers 2, here 3; headDim 64, here 128');
    expect(modelDifference(model, other({ queryHeads: 8, kvHeads: 1 }))).toBe(
      'queryHeads 4, here 8; kvHeads 2, here 1',
    );
    expect(modelDifference(model, other({}, 'sha256:ff'))).toBe('model digest sha256:00ff, here sha256:ff');
    expect(modelDifference(model, other({}, ''))).toBe('model digest sha256:00ff, here (none)');
    expect(modelDifference(other({}, ''), model)).toBe('model digest (none), here sha256:00ff');
    expect(checkThresholdTarget(example, target)).toBeUndefined();
    expect(() => checkThresholdTarget(example, { ...target, modelDigest: '' })).toThrow(
      expect.objectContaining({
        code: 'model-mismatch',
        message: 'the threshold file belongs to another model: model digest sha256:00ff, here (none)',
        hint: expect.stringContaining('exported for this one'),
        values: { file: model, here: { digest: '', shape: model.shape } },
      }),
    );
  });
});

describe('trust', () => {
  const { privateKey } = generateKeyPairSync('ed25519');
  test('is told with the keys that are trusted, and what to do', () => {
    const signed = signThresholdFile(example, privateKey);
    const keys = ['aa', 'bb'].map((byte) => ({ publicKey: byte.repeat(32), path: `${byte}.pub` }));
    const untrusted = (message: RegExp, hint: string) =>
      expect.objectContaining({
        code: 'bad-signature',
        message: expect.stringMatching(message),
        hint: expect.stringContaining(hint),
        values: expect.objectContaining({
          name: 'x.json',
          trusted: expect.stringMatching(/^[0-9a-f]{16} \(aa\.pub\), [0-9a-f]{16} \(bb\.pub\)$/),
        }),
      });
    expect(() => checkTrust(signed, keys, 'x.json')).toThrow(
      untrusted(/is signed by key [0-9a-f]{16}/, '--trusted-key'),
    );
    expect(() => checkTrust(example, keys, 'x.json')).toThrow(untrusted(/is not signed$/, 'ask its author to sign'));
    const changed = { ...JSON.parse(formatThresholdFile(signed)), createdBy: 'somebody else' };
    expect(() => parseThresholdFile(bytesOf(changed), 'x.json')).toThrow(
      expect.objectContaining({
        code: 'bad-signature',
        message: expect.stringMatching(/x\.json: the content is not what key [0-9a-f]{16} signed/),
        hint: expect.stringContaining('get it again'),
        values: { name: 'x.json', keyId: expect.stringMatching(/^[0-9a-f]{16}$/) },
      }),
    );
    expect(
      checkTrust(signed, [...keys, { publicKey: signed.signature!.publicKey, path: 'own.pub' }], 'x.json'),
    ).toEqual({
      publicKey: signed.signature!.publicKey,
      path: 'own.pub',
    });
    // A new signature takes the place of the old one: it is of the content alone.
    expect(formatThresholdFile(signThresholdFile(signed, privateKey))).toBe(formatThresholdFile(signed));
    expect(from('other', 3).signature).toBeNull();
  });
});

test('what would be too large to be read back is refused before it is written', () => {
  const evidence = Array.from({ length: 1024 }, (_, n) => 9e15 + n);
  const thresholds = Object.fromEntries(
    Array.from({ length: 250 }, (_, n) => [`own.t${n}`, { ...example.thresholds['pressure.enter']!, evidence }]),
  );
  const parts = [
    { ...learned, thresholds },
    { ...learned, thresholds, createdBy: 'another' },
  ];
  expect(() => formatThresholdFile({ ...example, parts })).toThrow(
    expect.objectContaining({
      code: 'bad-thresholds',
      message: expect.stringMatching(/^thresholds to write: \d+ bytes, at most 8388608/),
    }),
  );
});
