// Packed bodies: what was packed comes back, in one form only, and bytes that are no packed body are refused without a
// fault. Every body of the golden logs is packed, then thousands of made-up ones, cut and changed ones.
import { createHash } from 'node:crypto';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { openWitnessLog, readLog, verifyLog } from '../../../witness/index.ts';
import { packBody, unpackBody } from '../../../witness/pack.ts';
import { PACKED_SHAPES, PACKED_TEXTS } from '../../../witness/pack-lists.ts';
import { mulberry32 } from '../../random.ts';
import { scratchFolders } from './folder.ts';

const folder = scratchFolders();

const packed = (value: unknown): Buffer => Buffer.from(packBody(value)!);
const golden = join(import.meta.dirname, '..', '..', 'golden');

it.each(readdirSync(golden).filter((name) => name.startsWith('log-')))('every body of %s comes back', (name) => {
  let [bytes, chars] = [0, 0];
  for (const { body } of readLog(join(golden, name))) {
    const one = packed(body);
    expect(unpackBody(one)).toEqual(body);
    bytes += one.length;
    chars += JSON.stringify(body).length;
  }
  expect(bytes).toBeLessThan(chars / 2);
});

const VALUES: readonly unknown[] = [
  ...[0, 63, 64, -1, -64, 2 ** 31, 2 ** 53 - 1, 1 - 2 ** 53, 2 ** 53 + 2, 1e21, 5e-324, 0.1, 0.5, -0.25, 1e-7],
  ...[null, true, false, '', 'page', 'a text', '\u2028', 'é', '😀', 'x'.repeat(300), '"\\\n'],
  ...[[], {}, [[]], { a: {} }, { '': 1 }, { page: 'page', 'no page': 'no page' }],
];

/** Made-up data. */
function made(random: () => number, depth: number): unknown {
  const n = Math.floor(random() * 4);
  if (depth === 0 || random() < 0.4) return VALUES[Math.floor(random() * 26)];
  if (random() < 0.4) return Array.from({ length: n }, () => made(random, depth - 1));
  const keys = ['page', 'layer', 'z', 'a', 'Ä', 'epsilon'].filter(() => random() < 0.5);
  return Object.fromEntries(keys.map((key) => [key, made(random, depth - 1)]));
}

it('every value comes back, and what it repeats takes less', () => {
  for (const value of VALUES) expect(unpackBody(packed({ value }))).toEqual({ value });
  const random = mulberry32(7);
  for (let n = 0; n < 2000; n++) {
    const value = { of: made(random, 4) };
    expect(unpackBody(packed(value))).toEqual(value);
  }
  const [once, twice] = [packed([{ new: 0.1 }]).length, packed([{ new: 0.1 }, { new: 0.1 }]).length];
  expect(twice - once).toBe(3);
});

it('long bodies, many texts, many shapes and many fields come back', () => {
  const long = { text: 'x'.repeat(70_000), list: Array.from({ length: 70_000 }, (_, n) => n / 7) };
  expect(unpackBody(packed(long))).toEqual(long);
  const texts = Array.from({ length: 300 }, (_, n) => `text ${n % 200}`);
  expect(unpackBody(packed(texts))).toEqual(texts);
  const shapes = Array.from({ length: 80 }, (_, n) => ({ [`key ${n % 40}`]: n, page: n }));
  expect(unpackBody(packed(shapes))).toEqual(shapes);
  // A hundred keys, and the same number of keys with other names.
  const wide = ['a', 'b'].map((name) => Object.fromEntries(Array.from({ length: 100 }, (_, n) => [`${name}${n}`, n])));
  expect(unpackBody(packed(wide))).toEqual(wide);
});

it('a log whose sessions say what has no packed form reads as it was written', async () => {
  const dir = folder();
  const log = await openWitnessLog({ dir, encrypt: true });
  const bodies = [{ n: 0.5 }, { half: '\ud800' }, { again: { 'a\0b': 1 } }];
  for (const body of bodies) log.append('s', 'note', body);
  await log.close();
  expect([...readLog(dir)].map(({ body }) => body)).toEqual(bodies);
  expect(verifyLog(dir)).toMatchObject({ ok: true, entries: 3 });
});

it('a fault of whoever made the data is no body without a packed form', () => {
  const fault = new Error('a fault');
  const data = {
    get page(): number {
      throw fault;
    },
  };
  expect(() => packBody(data)).toThrow(fault);
});

it('one fact has one form: order of keys, fields that are undefined and the sign of zero make no other', () => {
  const one = packed({ a: 1, b: { c: 0, d: 2 } });
  expect(packed({ b: { d: 2, c: -0 }, a: 1, e: undefined })).toEqual(one);
  // The same value in a longer form is none: 1 as a whole number of its own, and a listed text spelled out.
  expect(unpackBody(Buffer.of(1, 0x4a, 1, 0x01))).toEqual([1]);
  expect(unpackBody(Buffer.of(1, 0x4a, 1, 0x43, 0x01))).toBe(undefined);
  expect(unpackBody(Buffer.of(1, 0x4a, 1, 0x80))).toEqual(['q8']);
  expect(unpackBody(Buffer.of(1, 0x4a, 1, 0x48, 2, 0x71, 0x38))).toBe(undefined);
});

it('what no log holds has no packed form, and what only text can say is left to it', () => {
  const deep = (depth: number): unknown => (depth === 0 ? 1 : [deep(depth - 1)]);
  expect(unpackBody(packed(deep(32)))).toEqual(deep(32));
  const none = [deep(33), Number.NaN, 1 / 0, [undefined], new Array(2), new Date(0), () => 1, 1n];
  expect(packBody(undefined)).toBe(null);
  for (const value of none) expect(packBody({ value })).toBe(null);
  for (const value of ['\ud800', { '\udc00': 1 }, { 'a\0b': 1 }, JSON.parse('{"__proto__":1}')])
    expect(packBody({ value })).toBe(null);
});

it('what would be endless when it is printed is neither packed nor unpacked', () => {
  const long = 'x'.repeat(2 ** 20);
  const repeated = (count: number): unknown[] => new Array(count).fill(long);
  expect(unpackBody(packed(repeated(16)))).toEqual(repeated(16));
  expect(packBody(repeated(17))).toBe(null);
  expect(packBody(new Array(17).fill({ [long]: 1 }))).toBe(null);
  // Two bytes a time name a text, or an object with a long key, that stood there before.
  const text = [...Buffer.from([0x48, 0x80, 0x80, 0x40]), ...Buffer.from(long)];
  const place = [0x80 + (PACKED_TEXTS.length % 0x80), Math.floor(PACKED_TEXTS.length / 0x80)];
  const texts = [1, 0x4a, 100, ...text, ...new Array(99).fill([0x49, ...place]).flat()];
  const objects = [1, 0x4a, 100, 0x4b, 1, ...text, 1, ...new Array(99).fill([0x4c, PACKED_SHAPES.length, 1]).flat()];
  for (const bytes of [texts, objects]) expect(unpackBody(Buffer.from(bytes))).toBe(undefined);
});

it('changed and cut bytes are what some value packs to, or refused', () => {
  const random = mulberry32(11);
  const whole = [...readLog(join(golden, 'log-v2'))].slice(0, 40).map(({ body }) => packed(body));
  expect(whole.length).toBeGreaterThan(10);
  for (let n = 0; n < 4000; n++) {
    const bytes = Buffer.from(whole[n % whole.length]!.subarray(0, 300));
    const cut = bytes.subarray(0, Math.floor(random() * (bytes.length + 1)));
    if (n % 2 === 0 && cut.length > 1) cut[1 + Math.floor(random() * (cut.length - 1))] = Math.floor(random() * 256);
    const value = unpackBody(cut);
    if (value !== undefined) expect(packed(value)).toEqual(cut);
  }
  // Text that is no UTF-8, a list too deep, a shape and a text that nobody wrote, and a key that sets a prototype.
  const deep = [...new Array(33).fill([0x4a, 1]).flat(), 1];
  const proto = [0x4b, 1, 0x48, 9, ...Buffer.from('__proto__'), 1];
  for (const bad of [
    [0x48, 1, 0xff],
    deep,
    [0x7f],
    [0x4c, 0x7f],
    [0x49, 0xff, 0x7f],
    [0x4b, 1, 1, 1],
    proto,
    [0x4d],
    [1, 1],
  ])
    expect(unpackBody(Buffer.of(1, ...bad))).toBe(undefined);
  expect(unpackBody(Buffer.from('{}'))).toBe(undefined);
  // Counts that nothing follows, and counts that never end.
  for (const tag of [0x43, 0x47, 0x48, 0x49, 0x4a, 0x4b, 0x4c])
    for (const rest of [[], [0xff], new Array(12).fill(0xff), [0xff, 0xff, 0xff, 0xff, 0x7f, 0x80]])
      expect(unpackBody(Buffer.of(1, tag, ...rest))).toBe(undefined);
});

it('the lists are those that logs were written with', () => {
  expect(new Set(PACKED_TEXTS).size).toBe(PACKED_TEXTS.length);
  for (const keys of PACKED_SHAPES) expect([...keys].sort()).toEqual(keys);
  // Format 3. A list may get longer with another version of the format, and nothing in it may change.
  const digest = createHash('sha256')
    .update(JSON.stringify([PACKED_TEXTS, PACKED_SHAPES]))
    .digest('hex');
  expect(digest).toBe('a3387f6604a82df221ad0f90fe10ff7d8d1f0fcc1506a4a24f04de1bc09c7c88');
});
