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
  mergeThresholdFiles,
  parseThresholdFile,
  readThresholdFile,
  saveThresholdFile,
  type ThresholdFile,
  toThresholdFile,
  toThresholdSet,
  writeThresholdFile,
} from '../../../memory/index.ts';
import { FORMAT_NAMES, KvError } from '../../../native/index.ts';
import { checkThresholds } from '../../../policy/index.ts';
import { seeded } from '../../random.ts';
import { activations, backwards, course, estimate, example, from } from './threshold-data.ts';

const dir = mkdtempSync(join(tmpdir(), 'palimpsest-thresholds-'));
afterAll(() => rmSync(dir, { recursive: true, force: true }));

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
    const log = { id: 'abc', acknowledgedSeq: 17, hashAt: (seq: number) => (seq === 17 ? 'a'.repeat(64) : null) };
    const known = { sessions: 3, tokens: 12_000 };
    expect(formatThresholdFile(toThresholdFile(toThresholdSet(parsed), target, log, known))).toBe(text);

    const path = join(dir, 'a.json');
    writeThresholdFile(path, example);
    const set = await loadThresholdFile(path, target);
    expect(set.thresholds['price.start']).toMatchObject({
      id: 'price.start',
      value: 1.25e-9,
      origin: 'file',
      evidence: [4, 9, 17],
    });
    expect(set.thresholds['trial.age']).toMatchObject({ value: 128, origin: 'default' });
    expect(set.law).toEqual(example.law);
    expect(set.ranges).toEqual([{ logId: 'abc', from: 0, to: 17 }]);
    await saveThresholdFile(join(dir, 'b.json'), set, { ...target, log });
    const uncounted = { ...example, evidence: { ...example.evidence, sessions: null, tokens: null } };
    expect(readFileSync(join(dir, 'b.json'), 'utf8')).toBe(formatThresholdFile(uncounted));
    expect(readdirSync(dir).sort()).toEqual(['a.json', 'b.json']);
  });

  test('any valid content survives, and order and spacing of the source do not matter', () => {
    const id = fc.stringMatching(/^[a-z][A-Za-z0-9.-]{0,20}$/).filter((s) => s !== 'constructor' && s !== 'prototype');
    const words = fc.stringMatching(/^[ -~äß€😀]{0,40}$/u);
    const sd = fc.double({ min: 0, max: 50, noNaN: true });
    const samples = fc.nat(1e9);
    const number = fc.record({ value: fc.double({ min: 1e-12, max: 1e12, noNaN: true }), sd, samples });
    const numbers = fc.array(number, { minLength: 2, maxLength: 2 });
    const table = fc.constantFrom('rot4', 'rot2', 'q8').chain((format) => number.map((one) => ({ [format]: one })));
    const tables = fc.oneof(fc.constant([]), fc.array(table, { minLength: 2, maxLength: 2 }));
    const gains = fc.array(fc.double({ min: 1e-3, max: 1e3, noNaN: true }), { minLength: 2, maxLength: 2 });
    const learned = fc.record({
      createdBy: words,
      evidence: fc.record({
        sessions: fc.option(fc.maxSafeNat()),
        tokens: fc.option(fc.maxSafeNat()),
        logs: fc.uniqueArray(
          fc.record({
            logId: fc.stringMatching(/^[a-z]{1,3}$/),
            from: fc.nat(99),
            to: fc.integer({ min: 99, max: 2 ** 32 - 1 }),
            headHash: fc.constantFrom(null, 'ab'.repeat(32)),
          }),
          { maxLength: 4, selector: ({ logId }) => logId },
        ),
      }),
      thresholds: fc.dictionary(
        id,
        fc.record({
          value: fc.double({ min: 1e-300, max: 1e12, noNaN: true }),
          unit: fc.constantFrom('KLD/byte', 'ms', '%', 'µs'),
          sd: fc.option(sd),
          samples,
          source: words,
          evidence: fc.array(fc.maxSafeNat(), { maxLength: 5 }),
        }),
        { maxKeys: 6 },
      ),
      gains: fc.record({ k: gains, v: gains }),
      c: fc.double({ min: 1e-3, max: 1e3, noNaN: true }),
      law: fc.option(
        fc.record({
          coefficient: fc.record({ k: numbers, v: numbers }),
          text: number,
          offset: number,
          fade: number,
          epsilon: fc.record({ k: tables, v: tables }),
        }),
      ),
    });
    const parts = fc.oneof(fc.constant([]), fc.array(learned, { minLength: 2, maxLength: 3 }));
    fc.assert(
      fc.property(learned, parts, (own, others) => {
        const once = formatThresholdFile({ ...example, ...own, parts: others });
        const shuffled = JSON.stringify(backwards(JSON.parse(once)));
        expect(formatThresholdFile(parseThresholdFile(bytesOf(once)))).toBe(once);
        expect(formatThresholdFile(parseThresholdFile(bytesOf(shuffled)))).toBe(once);
      }),
      { seed: 4242, numRuns: 200 },
    );
  });
});

describe('files of version 1', () => {
  const old = join(import.meta.dirname, '../../fixtures/thresholds-v1.json');

  test('open with their numbers, and are written as version 2', () => {
    const file = readThresholdFile(old);
    expect(file).toMatchObject({
      createdBy: 'palimpsest 0.1',
      c: 1.0759511711705678,
      law: null,
      evidence: { logs: [{ logId: '1b907386b217aa04a38cc13aa50e5496', from: 0, to: 264, headHash: null }] },
    });
    // Of its 21 thresholds two were learned; the others were the defaults, which every version knows by itself.
    expect(Object.keys(file.thresholds).sort()).toEqual(['law.c', 'price.start']);
    const again = formatThresholdFile(file);
    expect(JSON.parse(again)).toMatchObject({ schemaVersion: 2 });
    expect(formatThresholdFile(parseThresholdFile(bytesOf(again)))).toBe(again);
    const { layers } = file.model.shape;
    checkThresholds(toThresholdSet(file), layers);
  });

  test('mean the same start as they did', () => {
    const before = JSON.parse(readFileSync(old, 'utf8')) as { thresholds: Record<string, { value: number }> };
    const { thresholds } = toThresholdSet(readThresholdFile(old));
    for (const [id, { value }] of Object.entries(before.thresholds)) expect(thresholds[id]?.value, id).toBe(value);
  });

  test('are refused with what version 2 brought', () => {
    const file = JSON.parse(readFileSync(old, 'utf8')) as Record<string, unknown>;
    refused(bytesOf(JSON.stringify({ ...file, law: null })), 'law');
    refused(bytesOf(JSON.stringify({ ...file, signature: {} })), 'signature');
    refused(bytesOf(JSON.stringify({ ...file, schemaVersion: 6 })), 'schemaVersion: 6 is of a later palimpsest');
  });
});

describe('a course of errors', () => {
  const told = { ...example, course: course() };
  const spelled = formatThresholdFile(told);
  const changed = (change: (file: ReturnType<typeof JSON.parse>) => void, of = spelled): Uint8Array => {
    const file = JSON.parse(of);
    change(file);
    return bytesOf(JSON.stringify(file));
  };

  test('goes out and in again, and makes a file one of version 3, which what has none is not', () => {
    expect(JSON.parse(spelled)).toMatchObject({ schemaVersion: 3, course: { unit: '1', noise: { found: 0.5 } } });
    expect(JSON.parse(text)).toMatchObject({ schemaVersion: 2 });
    const parsed = parseThresholdFile(bytesOf(spelled));
    expect(parsed.course).toEqual(course());
    expect(formatThresholdFile(parsed)).toBe(spelled);
    expect(formatThresholdFile(parseThresholdFile(bytesOf(JSON.stringify(backwards(JSON.parse(spelled))))))).toBe(
      spelled,
    );
    const set = toThresholdSet(parsed, 'theirs.json');
    expect(set.course).toEqual(course());
    expect(set.sources).toMatchObject({
      law: { origin: 'file', samples: 3 },
      course: { origin: 'file', source: 'theirs.json (3 sessions; 12,000 tokens; log abc up to 17)', samples: 3 },
    });
    const log = { id: 'abc', acknowledgedSeq: 17, hashAt: (seq: number) => (seq === 17 ? 'a'.repeat(64) : null) };
    const target = { modelDigest: example.model.digest, shape: example.model.shape };
    expect(formatThresholdFile(toThresholdFile(set, target, log, { sessions: 3, tokens: 12_000 }))).toBe(spelled);
    const part = mergeThresholdFiles([{ ...from('one', 9), course: course(2) }, from('two', 9)]);
    expect(formatThresholdFile(parseThresholdFile(bytesOf(formatThresholdFile(part))))).toBe(formatThresholdFile(part));
    expect(part.parts.filter((one) => one.course === undefined)).toHaveLength(1);
  });

  test('is refused by the name of what is wrong with it', () => {
    refused(
      changed((file) => delete file.course),
      'course: missing, which version 3 is for',
    );
    refused(
      changed((file) => (file.course = JSON.parse(spelled).course), text),
      'Unrecognized key: "course"',
    );
    refused(
      changed((file) => (file.course.unit = 'ε')),
      'course.unit',
    );
    refused(
      changed((file) => file.course.persistence.k.pop()),
      'course.persistence.k.length is 1',
    );
    refused(
      changed((file) => (file.course.persistence.v[0].interval = [1, 2])),
      'contradicts value and sd',
    );
    refused(
      changed((file) => (file.course.left = Array(20).fill(file.course.left[0]))),
      'course.left',
    );
    refused(
      changed((file) => (file.course.noise.found = 1.5)),
      'course.noise.found',
    );
    refused(
      changed((file) => (file.course.prefix = ['x'])),
      'Unrecognized key: "prefix"',
    );
    refused(
      changed((file) => (file.course.persistence.k = Array(2000).fill(file.course.left[0]))),
      'course.persistence',
    );
  });
});

describe('costs of activations', () => {
  const told = { ...example, activations: activations() };
  const spelled = formatThresholdFile(told);
  const changed = (change: (file: ReturnType<typeof JSON.parse>) => void, of = spelled): Uint8Array => {
    const file = JSON.parse(of);
    change(file);
    return bytesOf(JSON.stringify(file));
  };

  test('go out and in again with a course and without, make a file one of version 4, and are in no set', () => {
    expect(JSON.parse(spelled)).toMatchObject({ schemaVersion: 4, activations: { unit: 'nats' } });
    for (const file of [told, { ...told, course: course() }]) {
      const parsed = parseThresholdFile(bytesOf(formatThresholdFile(file)));
      expect(parsed).toEqual(file);
      const turned = bytesOf(JSON.stringify(backwards(JSON.parse(formatThresholdFile(file)))));
      expect(formatThresholdFile(parseThresholdFile(turned))).toBe(formatThresholdFile(file));
      expect(toThresholdSet(parsed)).toEqual(
        toThresholdSet(parseThresholdFile(bytesOf(formatThresholdFile({ ...file, activations: undefined } as never)))),
      );
    }
    // They stand in no set, so whoever exports one names them.
    const target = { modelDigest: told.model.digest, shape: told.model.shape };
    const saved = toThresholdFile(toThresholdSet(told), target, null, { activations: activations() });
    expect(saved.activations).toEqual(activations());
    const part = mergeThresholdFiles([{ ...from('one', 9), activations: activations(2) }, from('two', 9)]);
    expect(part.activations).toEqual(activations(2));
    expect(formatThresholdFile(parseThresholdFile(bytesOf(formatThresholdFile(part))))).toBe(formatThresholdFile(part));
  });

  test('are refused by the name of what is wrong with them', () => {
    refused(
      changed((file) => delete file.activations),
      'activations: missing, which version 4 is for',
    );
    refused(
      changed((file) => (file.activations = JSON.parse(spelled).activations), text),
      'Unrecognized key: "activations"',
    );
    refused(
      changed((file) => (file.activations.unit = '1')),
      'activations.unit',
    );
    refused(
      changed((file) => file.activations.matrices.down.pop()),
      'activations.down has 1 entry for 2 layers',
    );
    refused(
      changed((file) => delete file.activations.matrices.gate),
      'activations.matrices.gate',
    );
    refused(
      changed((file) => (file.activations.output.interval = [1, 2])),
      'contradicts value and sd',
    );
    refused(
      changed((file) => (file.activations.matrices.q[0].value = -1)),
      'activations.matrices.q.0.value',
    );
  });
});

describe('a pack', () => {
  const id = `pack:block6@${'0f'.repeat(6)}`;
  const withPack: ThresholdFile = { ...example, model: { ...example.model, pack: id } };
  const spelled = formatThresholdFile(withPack);

  test('goes out and in again, makes a file one of version 5, and is the whole difference', () => {
    expect(JSON.parse(spelled)).toMatchObject({ schemaVersion: 5, model: { pack: id } });
    expect(parseThresholdFile(bytesOf(spelled))).toEqual(withPack);
    expect(text).not.toContain('"pack"');
    for (const more of [{ course: course() }, { activations: activations() }]) {
      const one = { ...withPack, ...more };
      expect(parseThresholdFile(bytesOf(formatThresholdFile(one)))).toEqual(one);
    }
    expect(diffThresholdFiles(example, withPack)).toEqual([
      { what: 'pack', before: '(none)', after: id, unit: null, factor: null, isClear: true },
    ]);
    const both = mergeThresholdFiles([withPack, { ...withPack, c: 3, evidence: { ...example.evidence, logs: [] } }]);
    expect(both.model.pack).toBe(id);
    const spelledBoth = formatThresholdFile(both);
    expect(formatThresholdFile(parseThresholdFile(bytesOf(spelledBoth)))).toBe(spelledBoth);
    expect(JSON.parse(spelledBoth)).toMatchObject({ schemaVersion: 5, parts: [{}, {}] });
  });

  test('is told where files are not of one, and used by sessions with exactly that one', () => {
    const { digest: modelDigest, shape } = example.model;
    for (const files of [
      [withPack, example],
      [example, withPack],
    ])
      expect(() => mergeThresholdFiles(files)).toThrow(/rests on sessions with (no pack|pack:block6@)/);
    expect(() => checkThresholdTarget(withPack, { modelDigest, shape })).toThrow(
      `the threshold file rests on sessions with ${id}`,
    );
    expect(() => checkThresholdTarget(withPack, { modelDigest, shape, pack: `${id.slice(0, -1)}0` })).toThrow(KvError);
    checkThresholdTarget(withPack, { modelDigest, shape, pack: id });
    // What rests on no pack holds beside any.
    checkThresholdTarget(example, { modelDigest, shape, pack: id });
  });

  test('is refused where it is none, where the version has no place for it, and where version 5 has none', () => {
    const changed = (change: (file: { schemaVersion: number; model: { pack?: unknown } }) => void): Uint8Array => {
      const file = JSON.parse(spelled);
      change(file);
      return bytesOf(JSON.stringify(file));
    };
    for (const pack of ['block6', 'pack:block6@0f', `pack:Block6@${'0f'.repeat(6)}`, 7, null, `${id}\u0007`])
      refused(
        changed((file) => {
          file.model.pack = pack;
        }),
        'model.pack',
      );
    refused(
      changed((file) => {
        file.schemaVersion = 4;
      }),
      'model',
    );
    refused(
      changed(({ model }) => {
        delete model.pack;
      }),
      'model.pack',
    );
  });
});

describe('refusals', () => {
  // biome-ignore lint/suspicious/noExplicitAny: these tests break the type on purpose
  type Loose = Record<string, any>;
  const changed = (change: (file: Loose) => void): Uint8Array => {
    const file = JSON.parse(text) as Loose;
    change(file);
    return bytesOf(JSON.stringify(file));
  };
  const wholePart = (): Loose => {
    const { kind: _, schemaVersion: __, model: ___, parts: ____, ...rest } = JSON.parse(text) as Loose;
    return rest;
  };

  // One rule at a time: the message names the path that breaks it.
  test.each<[string, Uint8Array]>([
    ['schemaVersion', changed((f) => (f.schemaVersion = 6))],
    ['schemaVersion', changed((f) => (f.schemaVersion = '2'))],
    ['schemaVersion', bytesOf('null')],
    ['schemaVersion', bytesOf('[]')],
    ['kind', changed((f) => (f.kind = 'something else'))],
    ['signature', changed((f) => (f.signature = 'x'))],
    ['signature', changed((f) => (f.signature = null))],
    ['Unrecognized key', changed((f) => (f.extra = 1))],
    ['law: Unrecognized key', changed((f) => (f.law.extra = 1))],
    ['law.coefficient.k.0: Unrecognized key', changed((f) => (f.law.coefficient.k[0].extra = 1))],
    ['3 gains for 2 layers', changed((f) => f.gains.k.push(1))],
    ['gain of layer 0 v is 0', changed((f) => (f.gains.v[0] = 0))],
    ['gain of layer 0 v is 1000000000', changed((f) => (f.gains.v[0] = 1e9))],
    ['gains.unit', changed((f) => (f.gains.unit = 'ms'))],
    ['c', changed((f) => (f.c.value = -1))],
    ['c', changed((f) => (f.c.value = null))],
    ['c.unit', changed((f) => (f.c.unit = ''))],
    ['law.coefficient.k has 3 entries', changed((f) => f.law.coefficient.k.push(f.law.coefficient.k[0]))],
    ['law.coefficient.k.0.value', changed((f) => (f.law.coefficient.k[0].value = 0))],
    ['law.coefficient.k.0.value', changed((f) => (f.law.coefficient.k[0].value = 1e13))],
    ['law.coefficient.v.1.sd', changed((f) => (f.law.coefficient.v[1].sd = -0.1))],
    ['law.coefficient.v.1.sd', changed((f) => (f.law.coefficient.v[1].sd = 51))],
    ['law.coefficient.v.1.samples', changed((f) => (f.law.coefficient.v[1].samples = 1e10))],
    ['law.coefficient.k.0.interval', changed((f) => (f.law.coefficient.k[0].interval[1] *= 1.01))],
    ['law.text.interval', changed((f) => (f.law.text.sd *= 2))],
    ['law.text.unit', changed((f) => (f.law.text.unit = 'nats'))],
    ['law.offset', changed((f) => delete f.law.offset)],
    ['law.epsilon.k.0 names rot5', changed((f) => (f.law.epsilon.k[0].rot5 = f.law.epsilon.k[0].rot4))],
    ['law.epsilon.v has 1 entry', changed((f) => f.law.epsilon.v.pop())],
    ['model.shape.layers', changed((f) => (f.model.shape.layers = 2.5))],
    ['model.shape.layers', changed((f) => (f.model.shape.layers = 1e9))],
    [
      'price.start is -1',
      changed((f) => Object.assign(f.thresholds['price.start'], { value: -1, sd: null, interval: null })),
    ],
    ['thresholds.price.start.value', changed((f) => (f.thresholds['price.start'].value = 1e300))],
    ['thresholds.price.start.interval', changed((f) => (f.thresholds['price.start'].value = 2e-9))],
    ['thresholds.price.start.interval', changed((f) => (f.thresholds['price.start'].interval = null))],
    ['thresholds.price.start.samples', changed((f) => (f.thresholds['price.start'].samples = -1))],
    ['thresholds.price.start.evidence.0', changed((f) => (f.thresholds['price.start'].evidence = [2 ** 60]))],
    ['thresholds.price.start.source', changed((f) => (f.thresholds['price.start'].source = '\u001b[2J'))],
    ['thresholds.Bad id', changed((f) => (f.thresholds['Bad id'] = f.thresholds['price.start']))],
    ['createdBy', changed((f) => (f.createdBy = 'x'.repeat(101)))],
    ['evidence.logs.0.headHash', changed((f) => (f.evidence.logs[0].headHash = 'zz'))],
    ['evidence.logs.0.logId', changed((f) => (f.evidence.logs[0].logId = ''))],
    ['evidence.logs.0: not a stretch', changed((f) => (f.evidence.logs[0].from = 18))],
    ['evidence.logs.0: not a stretch', changed((f) => (f.evidence.logs[0].to = 2 ** 40))],
    ['evidence.logs: stretches overlap', changed((f) => f.evidence.logs.push({ ...f.evidence.logs[0], from: 5 }))],
    ['evidence.sessions', changed((f) => (f.evidence.sessions = -1))],
    ['parts: one part', changed((f) => (f.parts = [wholePart()]))],
    ['parts.1.c', changed((f) => (f.parts = [wholePart(), { ...wholePart(), c: 4 }]))],
    [
      'parts.1: gain of layer 0 k',
      changed((f) => (f.parts = [wholePart(), { ...wholePart(), gains: { unit: '1', k: [0, 1], v: [1, 1] } }])),
    ],
    ['parts.0: Unrecognized key', changed((f) => (f.parts = [{ ...wholePart(), parts: [] }, wholePart()]))],
    ['parts', changed((f) => (f.parts = Array.from({ length: 33 }, wholePart)))],
    ['model.digest', changed((f) => delete f.model.digest)],
    ["'value' twice", bytesOf(text.replace('"value": 3.7', '"value": 3.7, "value": 3.8'))],
    ['__proto__', bytesOf(text.replace('"value": 3.7', '"value": 3.7, "__proto__": {"polluted": 1}'))],
    ['constructor', bytesOf(text.replace('"price.start"', '"constructor"'))],
    ['x.json: c', bytesOf(text.replace('3.7', '1e999'))],
    ['not JSON', bytesOf(text.replace('3.7', 'NaN'))],
    ['not JSON', bytesOf(text.replace('3.7', 'Infinity'))],
    ['not JSON', bytesOf('')],
    ['not JSON', bytesOf(`${text}{}`)],
    ['not JSON', bytesOf(`\ufeff${text}`)],
    ['UTF-8', Buffer.concat([bytesOf(text), Buffer.from([0xff])])],
    ['nests', bytesOf('['.repeat(100_000))],
    ['at most', bytesOf(' '.repeat(8 * 1024 * 1024 + 1))],
  ])('%s', (part, bytes) => {
    refused(bytes, part);
    expect(({} as { polluted?: number }).polluted).toBeUndefined();
  });

  // Values that the schema of the file allows and a session refuses: what is imported must be what a run can start
  // with.
  test.each<[id: string, value: number]>([
    ['price.slack', 0],
    ['pressure.enter', 2],
    ['pressure.leave', 0.99],
    ['dwell.tokens', -5],
    ['quality.epsilon', 0],
    ['attention.skip', 1.5],
  ])('%s of %d, which every run would refuse', (id, value) => {
    const threshold = { ...example.thresholds['price.start']!, value, sd: null };
    const file = { ...example, thresholds: { ...example.thresholds, [id]: threshold } };
    const wire = JSON.parse(text) as Loose;
    wire.thresholds[id] = { ...threshold, interval: null };
    const error = refused(bytesOf(JSON.stringify(wire)), id);
    expect(() => checkThresholds(toThresholdSet(file), 2)).toThrow(KvError);
    expect(error.message).toContain('x.json');
  });

  // Seeded mutations of the bytes and of the values: a KvError that names the file, or content that is finite and
  // writes itself again.
  test('1,000 mutations end in a KvError or a finite load', () => {
    const seed = 99;
    const next = seeded(seed);
    const pick = <T>(items: readonly T[]): T => items[Math.floor(next() * items.length)]!;
    const odd: readonly unknown[] = [
      null,
      '',
      'x',
      -1,
      0,
      1e-13,
      1e13,
      2 ** 53,
      0.5,
      true,
      [],
      {},
      [null],
      '\u202e',
      'rot2',
      [[1]],
    ];
    let refusals = 0;
    for (let i = 0; i < 1000; i++) {
      const bad =
        i % 2 === 0
          ? damagedBytes(Buffer.from(text), next)
          : bytesOf(JSON.stringify(damagedValue(JSON.parse(text), next, pick, odd)));
      const name = `mutation ${i} of seed ${seed}`;
      try {
        const file = parseThresholdFile(bad, name);
        const law = file.law === null ? [] : [file.law.text, file.law.offset, ...file.law.coefficient.k];
        for (const g of [...file.gains.k, ...file.gains.v, file.c, ...law.flatMap(({ value, sd }) => [value, sd])])
          expect(Number.isFinite(g)).toBe(true);
        const again = formatThresholdFile(file);
        expect(formatThresholdFile(parseThresholdFile(bytesOf(again)))).toBe(again);
      } catch (error) {
        expect(error, `${name}: ${String(error)}`).toBeInstanceOf(KvError);
        expect((error as KvError).message).toContain(name);
        refusals += 1;
      }
    }
    expect(refusals).toBeGreaterThan(600);
  });

  function damagedBytes(good: Buffer, next: () => number): Buffer {
    let bad = Buffer.from(good);
    for (let n = Math.floor(next() * 3); n >= 0; n--) {
      const at = Math.floor(next() * bad.length);
      const kind = Math.floor(next() * 4);
      if (kind === 0) bad[at] = Math.floor(next() * 256);
      else if (kind === 1) bad = bad.subarray(0, at);
      else if (kind === 2) bad = Buffer.concat([bad.subarray(0, at), Buffer.from('9999999999'), bad.subarray(at)]);
      else bad = Buffer.concat([bad.subarray(0, at), bad.subarray(Math.min(bad.length, at + 20))]);
    }
    return bad;
  }

  /** Goes down a random path and puts an odd value there, takes the field away, or renames it. */
  function damagedValue(
    file: Loose,
    next: () => number,
    pick: <T>(items: readonly T[]) => T,
    odd: readonly unknown[],
  ): Loose {
    let at: Loose = file;
    for (;;) {
      const key = pick(Object.keys(at));
      const inner = at[key];
      if (typeof inner === 'object' && inner !== null && Object.keys(inner).length > 0 && next() < 0.8) at = inner;
      else {
        const kind = Math.floor(next() * 4);
        if (kind === 0) delete at[key];
        else if (kind === 1) at[`${key}x`] = inner;
        else at[key] = pick(odd);
        return file;
      }
    }
  }

  test('what 32 machines learned of 80 layers in eight formats fits in a file', () => {
    const tables = Array.from({ length: 80 }, (_, layer) =>
      Object.fromEntries(
        FORMAT_NAMES.slice(0, 8).map((format, at) => [format, estimate(1 / (layer + 3), 1 / (at + 3))]),
      ),
    );
    const estimates = Array.from({ length: 80 }, (_, layer) => estimate(layer + 1 / 3, 1 / 3));
    const ones = estimates.map(() => 1);
    const part = (machine: number): ThresholdFile => ({
      ...from(`log${machine}`, 99),
      model: { ...example.model, shape: { ...example.model.shape, layers: 80 } },
      gains: { k: ones, v: ones },
      law: { ...example.law!, coefficient: { k: estimates, v: estimates }, epsilon: { k: tables, v: tables } },
    });
    const merged = mergeThresholdFiles(Array.from({ length: 32 }, (_, machine) => part(machine)));
    const written = formatThresholdFile(merged);
    expect(parseThresholdFile(bytesOf(written)).parts).toHaveLength(32);
    expect(() => mergeThresholdFiles([merged, part(32)])).toThrow(
      expect.objectContaining({ code: 'bad-thresholds', message: expect.stringContaining('33 logs or machines') }),
    );
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

test('what names no log is known by its content', () => {
  const lonely = { ...example, evidence: { sessions: null, tokens: null, logs: [] } };
  const { ranges } = toThresholdSet(lonely);
  expect(ranges).toMatchObject([{ logId: expect.stringMatching(/^content-[0-9a-f]{32}$/), from: 0, to: 0 }]);
  expect(toThresholdSet({ ...lonely, c: 4 }).ranges).not.toEqual(ranges);
  const nothing = { ...lonely, law: null, thresholds: {} };
  expect(toThresholdSet(nothing).ranges).toBeUndefined();
  // What a session that started from it saves says so, next to its own log.
  const target = { modelDigest: 'm', shape: example.model.shape };
  const saved = toThresholdFile(toThresholdSet(lonely), target, { id: 'own', acknowledgedSeq: 2 ** 32 + 5 });
  expect(saved.evidence.logs).toEqual([
    { ...ranges![0], headHash: null },
    { logId: 'own', from: 2 ** 32, to: 2 ** 32 + 5, headHash: null },
  ]);
  expect(from('x', 9).law!.coefficient.k[0]).toEqual(estimate(0.5));
});
