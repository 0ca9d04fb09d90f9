/**
 * One cache, step by step: what append keeps, what seals, what transcode and decode give back, against the reference
 * codecs.
 */
import { describe, expect, it } from 'vitest';
import {
  type FormatName,
  fromHalf,
  openKvCache,
  openPool,
  reference,
  rope,
  SERVED_FORMATS,
  toHalf,
} from '../../../native/index.ts';
import { formatOf, normals, sameBits, uniform } from '../../native/dense.ts';
import { isDemotion, storedFields, headOf as storedHead } from '../../native/sides.ts';
import { codeOf } from '../../refusal.ts';

const shape = { layers: 2, queryHeads: 4, kvHeads: 2, headDim: 64 };
const ROW = 2 * 64;
const open = (windowFormat: 'q8' | 'f16' = 'q8') => openKvCache({ shape, pool: openPool(64_000_000), windowFormat });

/** Equal bit by bit. */
function same(a: Uint8Array | Float32Array, b: Uint8Array | Float32Array): boolean {
  const bytes = (x: Uint8Array | Float32Array) => Buffer.from(x.buffer, x.byteOffset, x.byteLength);
  return bytes(a).equals(bytes(b));
}

/** One head of rows [tokens, n, d] as [tokens, d]. */
function headOf(rows: Float32Array, head: number, tokens = 128): Float32Array {
  const out = new Float32Array(tokens * 64);
  for (let t = 0; t < tokens; t++) out.set(rows.subarray(t * ROW + head * 64, t * ROW + head * 64 + 64), t * 64);
  return out;
}

describe('append', () => {
  it('keeps rows as f16 in the open page and counts layers apart', () => {
    const cache = open();
    const random = uniform(1);
    const k = normals(random, 5 * ROW);
    const v = normals(random, 5 * ROW);
    cache.append(1, k, v);
    expect([cache.length(), cache.length(0), cache.length(1)]).toEqual([0, 0, 5]);
    expect(cache.decode(1, 0, 'k')).toEqual(fromHalf(toHalf(k)));
    expect(cache.decode(1, 0, 'v')).toEqual(fromHalf(toHalf(v)));
    expect(cache.decode(0, 0, 'v')).toEqual(new Float32Array(0));
  });

  it('seals a full open page only when more rows come', () => {
    const cache = open();
    const rows = normals(uniform(2), 128 * ROW);
    cache.append(0, rows, rows);
    expect(cache.table(0).pages).toBe(0);
    expect(cache.decode(0, 0, 'k').length).toBe(128 * ROW);
    cache.append(0, rows.subarray(0, ROW), rows.subarray(0, ROW));
    expect(cache.table(0)).toMatchObject({ pages: 1, kFormat: Uint8Array.of(1), vFormat: Uint8Array.of(1) });
    expect(cache.decode(0, 1, 'k')).toEqual(fromHalf(toHalf(rows.subarray(0, ROW))));
  });

  it('decodes into an array that it is given, of the right length and type', () => {
    const cache = open();
    const rows = normals(uniform(3), 130 * ROW);
    cache.append(0, rows, rows);
    for (const [page, tokens] of [
      [0, 128],
      [1, 2],
    ] as const) {
      const out = new Float32Array(tokens * ROW).fill(7);
      expect(cache.decode(0, page, 'v', out)).toBe(out);
      expect(out).toEqual(cache.decode(0, page, 'v'));
      for (const wrong of [new Float32Array(tokens * ROW - 1), new Float32Array(tokens * ROW + 1)])
        expect(() => cache.decode(0, page, 'v', wrong)).toThrow(/out must be \[tokens, n, d\]/);
      expect(() => cache.decode(0, page, 'v', new Float64Array(tokens * ROW) as never)).toThrow(/Float32Array/);
    }
  });

  it('takes values up to 65504 and refuses what f16 does not hold, saying where, with nothing appended (T2)', () => {
    const cache = open();
    const good = new Float32Array(3 * ROW).fill(65504);
    cache.append(0, good, good);
    expect(cache.decode(0, 0, 'k')).toEqual(good);
    for (const bad of [Number.NaN, Number.POSITIVE_INFINITY, -Number.POSITIVE_INFINITY, 65505, -1e30]) {
      for (const at of [0, ROW + 3, 3 * ROW - 1]) {
        const rows = new Float32Array(3 * ROW);
        rows[at] = bad;
        const fine = new Float32Array(3 * ROW);
        expect(codeOf(() => cache.append(0, rows, fine))).toBe('bad-value');
        expect(codeOf(() => cache.append(0, fine, rows))).toBe('bad-value');
      }
    }
    expect(cache.length()).toBe(3);
    const rows = new Float32Array(2 * ROW);
    rows[ROW + 7] = Number.NaN;
    expect(() => cache.append(0, rows, rows)).toThrow(/k holds NaN at row 1, column 7/);
  });

  // The scale of a row in 8 bits is rounded: 127 times the nearest half to 65504 / 127 are 65532.
  it.each(['f16', 'q8'] as const)(
    'takes back rows of the largest size that it gives, with the same codes (open page in %s)',
    (openFormat) => {
      const opened = () => openKvCache({ shape, pool: openPool(64_000_000), openFormat });
      const random = uniform(20261126);
      const rows = normals(random, 300 * ROW, 30_000).map((x) => Math.max(-65504, Math.min(65504, x)));
      const cache = opened();
      cache.append(0, rows, rows);
      const again = opened();
      for (const page of [0, 1, 2]) {
        const [k, v] = [cache.decode(0, page, 'k'), cache.decode(0, page, 'v')];
        expect([k, v].map((side) => side.reduce((most, x) => Math.max(most, Math.abs(x)), 0))).toEqual([65504, 65504]);
        again.append(0, k, v);
      }
      for (const page of [0, 1]) expect(same(again.exportPage(0, page), cache.exportPage(0, page))).toBe(true);
      for (const side of ['k', 'v'] as const) expect(again.decode(0, 2, side)).toEqual(cache.decode(0, 2, side));
    },
  );
});

describe('transcode', () => {
  const codecOf = (format: FormatName) =>
    reference.CODECS[format] as unknown as reference.ReferenceCodec<reference.Head>;

  it('gives the codes of the reference codec, sinks left out and exact (page 0 and page 1, every path down)', () => {
    const paths: FormatName[][] = [
      ['q8'],
      ['rot4'],
      ['rot3'],
      ['rot2'],
      ['q8', 'rot4'],
      ['q8', 'rot2'],
      ['rot4', 'rot3', 'rot2'],
      ['rot4', 'rot2'],
      ['rot3', 'rot2'],
      ['rot4', 'trellis2'],
      ['trellis4', 'trellis3', 'trellis2', 'trellis1'],
      ['trellis4', 'trellis2'],
      ['trellis4', 'trellis1'],
      ['trellis3', 'trellis1'],
    ];
    for (const path of paths) {
      const cache = open('f16');
      const random = uniform(3);
      cache.append(0, normals(random, 300 * ROW), normals(random, 300 * ROW));
      for (const page of [0, 1]) {
        for (const side of ['k', 'v'] as const) {
          const exact = cache.decode(0, page, side);
          const firstRow = page === 0 ? 4 : 0;
          const heads = [0, 1].map((head) => {
            let encoded: reference.Head | undefined;
            for (const [i, format] of path.entries()) {
              const from = path[i - 1];
              if (encoded && from && isDemotion(from, format)) {
                encoded = codecOf(from).demote!(encoded, format);
              } else {
                const rows = encoded && from ? codecOf(from).decode(encoded) : headOf(exact, head);
                encoded = codecOf(format).encode(rows, 64, firstRow, side);
              }
            }
            return encoded!;
          });
          for (const format of path) cache.transcode(0, page, side, format);
          expect(formatOf(cache, 0, page, side)).toBe(path.at(-1));
          const native = storedFields(cache, 0, page, side);
          const decoded = cache.decode(0, page, side);
          heads.forEach((encoded, head) => {
            const codec = codecOf(path.at(-1)!);
            const stored = codec.stored(encoded, side);
            for (const [name, field] of Object.entries(stored)) {
              expect([name, sameBits(storedHead(native[name]!, head, 2), field)]).toEqual([name, true]);
            }
            const expected = codec.decode(encoded);
            const actual = headOf(decoded, head);
            expect(same(actual.subarray(firstRow * 64), expected.subarray(firstRow * 64))).toBe(true);
          });
          expect(decoded.subarray(0, firstRow * ROW)).toEqual(exact.subarray(0, firstRow * ROW));
        }
      }
      cache.close();
    }
  });

  it('moves between f16 and q8 in both directions, sinks exact all the way', () => {
    const cache = open('f16');
    const rows = normals(uniform(4), 129 * ROW);
    cache.append(0, rows, rows);
    const exact = cache.decode(0, 0, 'k');
    cache.transcode(0, 0, 'k', 'q8');
    const coarse = cache.decode(0, 0, 'k');
    expect(coarse).not.toEqual(exact);
    cache.transcode(0, 0, 'k', 'f16');
    expect(cache.decode(0, 0, 'k').subarray(0, 4 * ROW)).toEqual(exact.subarray(0, 4 * ROW));
    expect(cache.decode(0, 0, 'k')).toEqual(fromHalf(toHalf(coarse)));
  });

  it('does nothing when the format is the same, and refuses promotions', () => {
    const cache = open();
    const rows = normals(uniform(5), 129 * ROW);
    cache.append(0, rows, rows);
    expect(cache.transcode(0, 0, 'k', 'q8')).toBe(0);
    cache.transcode(0, 0, 'k', 'rot3');
    for (const to of SERVED_FORMATS.slice(0, SERVED_FORMATS.indexOf('rot3'))) {
      expect(codeOf(() => cache.transcode(0, 0, 'k', to))).toBe('unsupported');
      expect(codeOf(() => cache.trial(0, 0, [{ side: 'k', format: to }]))).toBe('unsupported');
    }
  });

  it('is refused for head sizes without codes', () => {
    const odd = { layers: 1, queryHeads: 1, kvHeads: 1, headDim: 16 };
    const pool = openPool(1_000_000);
    expect(codeOf(() => openKvCache({ shape: odd, pool }))).toBe('unsupported');
    const cache = openKvCache({ shape: odd, pool, windowFormat: 'f16' });
    const rows = normals(uniform(6), 129 * 16);
    cache.append(0, rows, rows);
    expect(codeOf(() => cache.transcode(0, 0, 'k', 'q8'))).toBe('unsupported');
  });
});

describe('attend', () => {
  it('over rot pages of rows of any magnitude gives the bits of ordinary ones, times the magnitude', () => {
    const random = uniform(6);
    // Multiples of 2^-6 stay exact in f16 at every magnitude that is tried.
    const rows = [0, 1].map(() => normals(random, 300 * ROW).map((x) => Math.round(x * 64) / 64));
    const query = normals(random, 4 * 64);
    const attended = (format: FormatName, magnitude: number): Float32Array => {
      const cache = open('f16');
      const [k, v] = rows.map((side) => side.map((x) => x * magnitude));
      cache.append(0, k!, v!);
      for (const page of [0, 1]) cache.transcode(0, page, 'kv', format);
      const out = new Float32Array(4 * 64);
      cache.attend(
        0,
        query.map((x) => x / magnitude),
        out,
      );
      cache.close();
      return out.map((x) => x / magnitude);
    };
    for (const format of ['rot4', 'rot3', 'rot2'] as const) {
      const ordinary = attended(format, 1);
      for (const power of [-10, 9])
        expect([format, power, same(attended(format, 2 ** power), ordinary)]).toEqual([format, power, true]);
    }
  });
});

describe('rope', () => {
  it('turns pairs by their angle in both layouts and leaves the rest alone', () => {
    const [tokens, heads, headDim, rotaryDim] = [2, 3, 8, 4];
    const random = uniform(7);
    const angles = Array.from({ length: (tokens * rotaryDim) / 2 }, () => random() * 6);
    const cos = Float32Array.from(angles, Math.cos);
    const sin = Float32Array.from(angles, Math.sin);
    for (const interleaved of [false, true]) {
      const x = normals(random, tokens * heads * headDim);
      const turned = x.slice();
      rope(turned, tokens, heads, headDim, rotaryDim, cos, sin, interleaved);
      for (let i = 0; i < x.length; i++) {
        const channel = i % headDim;
        const token = Math.floor(i / (heads * headDim));
        if (channel >= rotaryDim) {
          expect(turned[i]).toBe(x[i]);
          continue;
        }
        const half = rotaryDim / 2;
        const pair = interleaved ? channel >> 1 : channel % half;
        const isFirst = interleaved ? channel % 2 === 0 : channel < half;
        const partner = i + (isFirst ? 1 : -1) * (interleaved ? 1 : half);
        const angle = angles[token * half + pair]!;
        const expected = x[i]! * Math.cos(angle) + (isFirst ? -1 : 1) * x[partner]! * Math.sin(angle);
        expect(turned[i]).toBeCloseTo(expected, 5);
      }
    }
  });
});
