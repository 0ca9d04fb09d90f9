// Published page codes on the bench: RotateKV, NSNQuant, elements kept apart and product quantization (T19). Transforms
// are orthonormal, codebooks as good as they are said to be, claims about the order of steps hold on keys of the
// reference model, and sequences hold the bytes that the formulas say.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { everyCache, kindOf } from '../../lab/evaluate/every-cache.ts';
import { CHRONICLE, passagesOf } from '../../lab/evaluate/passages.ts';
import { hadamard } from '../../lab/methods/hadamard.ts';
import { pageMethodOf } from '../../lab/methods/methods.ts';
import { codeNsn, normalWords, nsnHeadBytes } from '../../lab/methods/nsn.ts';
import { ownRows } from '../../lab/methods/own-rows.ts';
import { f16Bytes, type KeptRows, readPaged } from '../../lab/methods/paged.ts';
import { codebookBytes, codebooksOf, codeProduct, productHeadBytes } from '../../lab/methods/product.ts';
import { codeRot } from '../../lab/methods/rot-head.ts';
import { codedRows, massiveRows, orderOf, reordered, restored, rotateKvOf } from '../../lab/methods/rotatekv.ts';
import { fitWords, gaussians, quantizeWords } from '../../lab/methods/words.ts';
import { quantizeUniform, uniformBytes } from '../../lab/methods/xquant.ts';
import { KvError, PAGE_TOKENS, SINK_TOKENS, type Side } from '../../native/index.ts';
import { MODEL } from '../unit/engine/on-reference.ts';

const D = 64;
const energy = (x: Float32Array): number => x.reduce((sum, one) => sum + one * one, 0);
const between = (x: Float32Array, y: Float32Array): Float32Array => x.map((one, i) => one - y[i]!);
const errorOf = (coded: Float32Array, rows: Float32Array): number => energy(between(coded, rows)) / energy(rows);

let runtime: Runtime;
let layers: readonly KeptRows[];
beforeAll(async () => {
  runtime = await Runtime.open({ model: MODEL, dense: 'exact', threads: 1 });
  layers = await ownRows(runtime, 1024);
});
afterAll(() => runtime.close());

describe('Hadamard matrices', () => {
  it.each([64, 96, 128, 160, 192, 320])(
    'of %i rows keep lengths, spread one channel over all, and undo themselves',
    (width) => {
      const rows = gaussians(4 * width, width);
      const turned = rows.slice();
      hadamard(turned, width);
      expect(energy(turned) / energy(rows)).toBeCloseTo(1, 5);
      expect(errorOf(turned, rows)).toBeGreaterThan(0.5);
      hadamard(turned, width);
      expect(errorOf(turned, rows)).toBeLessThan(1e-10);
      const one = new Float32Array(width);
      one[width - 3] = 1;
      hadamard(one, width);
      for (const channel of one) expect(Math.abs(channel)).toBeCloseTo(1 / Math.sqrt(width), 6);
    },
  );

  it('of other sizes are refused', () => {
    expect(() => hadamard(new Float32Array(56), 56)).toThrow(KvError);
  });
});

describe('RotateKV', () => {
  it('orders channels by their sums and finds them again', () => {
    const rows = Float32Array.from({ length: 3 * D }, (_, i) => ((i % D) * 37) % D);
    const order = orderOf(rows, D);
    const sorted = reordered(rows, order);
    expect([...sorted.subarray(0, D)]).toEqual(Array.from({ length: D }, (_, i) => i));
    expect(restored(sorted, order)).toEqual(rows);
  });

  it('protects tokens with a massive channel alone', () => {
    const x = gaussians(PAGE_TOKENS * 96, 9);
    expect(massiveRows(x, PAGE_TOKENS)).toEqual([]);
    x[7 * 96 + 5] = 300;
    expect(massiveRows(x, PAGE_TOKENS)).toEqual([7]);
  });

  it('loses less of keys when channels are ordered behind the rotation, and not when before it, which is worse than no order', () => {
    const { kvHeads, headDim } = runtime.model.config;
    const width = kvHeads * headDim;
    const same = Uint16Array.from({ length: width }, (_, channel) => channel);
    let [plain, behind, before] = [0, 0, 0];
    for (const { k } of layers) {
      const [fitted, asked] = [k.slice(0, k.length / 2), k.slice(k.length / 2)];
      const turned = fitted.slice();
      hadamard(turned, width);
      const order = orderOf(turned, width);
      plain += errorOf(codedRows(asked, 2, same, 0), asked);
      behind += errorOf(codedRows(asked, 2, order, 0), asked);
      const plainOrder = orderOf(fitted, width);
      before += errorOf(restored(codedRows(reordered(asked, plainOrder), 2, same, 0), plainOrder), asked);
    }
    expect(behind / plain).toBeLessThan(0.9);
    expect(before / behind).toBeGreaterThan(1.1);
  });
});

describe('NSNQuant', () => {
  it('has words that leave a tenth of other normals, as fitted ones of four channels do', () => {
    const asked = gaussians(20_000 * 4, 77);
    const coded = asked.slice();
    quantizeWords(coded, normalWords());
    expect(errorOf(coded, asked)).toBeGreaterThan(0.095);
    expect(errorOf(coded, asked)).toBeLessThan(0.105);
  });

  it('keeps the rows of a page with a direction in common that grows with the row better than a mean alone does', () => {
    const direction = gaussians(D, 5);
    const noise = gaussians(PAGE_TOKENS * D, 6);
    const rows = noise.map((one, i) => (1 + (Math.floor(i / D) % 8)) * (3 * direction[i % D]! + one));
    const [nsn, rot] = [rows.slice(), rows.slice()];
    codeNsn(nsn, 0);
    codeRot(rot, 2, 0);
    expect(errorOf(nsn, rows) / errorOf(rot, rows)).toBeLessThan(0.5);
    // With rows of one length there is nothing to gain but a vector code for a scalar one.
    const even = noise.slice();
    codeNsn(even, 0);
    const plain = noise.slice();
    codeRot(plain, 2, 0);
    expect(errorOf(even, noise) / errorOf(plain, noise)).toBeGreaterThan(0.7);
    const zeros = new Float32Array(PAGE_TOKENS * D);
    codeNsn(zeros, SINK_TOKENS);
    expect(energy(zeros)).toBe(0);
    expect((8 * nsnHeadBytes(D)) / (PAGE_TOKENS * D)).toBe(2 + 32 / D + 16 / PAGE_TOKENS);
  });
});

describe('words', () => {
  it('are found as by looking at every one of them (T19)', () => {
    const words = gaussians(32 * 4, 61);
    const x = gaussians(200 * 4, 62);
    const coded = x.slice();
    quantizeWords(coded, words);
    for (let at = 0; at < x.length; at += 4) {
      const distances = Array.from({ length: 32 }, (_, word) =>
        energy(between(x.subarray(at, at + 4), words.subarray(4 * word, 4 * word + 4))),
      );
      const nearest = distances.indexOf(Math.min(...distances));
      expect([...coded.subarray(at, at + 4)]).toEqual([...words.subarray(4 * nearest, 4 * nearest + 4)]);
    }
  });

  it('err less with every round and with more of them, and not at all where there are as many as vectors', () => {
    const x = gaussians(600 * 4, 3);
    const error = (count: number, rounds: number): number =>
      quantizeWords(x.slice(), fitWords(x, { count, rounds, seed: 1 }));
    expect(error(32, 10)).toBeLessThan(error(32, 2));
    expect(error(32, 2)).toBeLessThan(error(32, 0));
    expect(error(64, 10)).toBeLessThan(error(32, 10));
    expect(error(600, 4)).toBeLessThan(1e-9);
    const constant = new Float32Array(400).fill(0.5);
    expect(quantizeWords(constant.slice(), fitWords(constant, { count: 8, rounds: 3, seed: 1 }))).toBe(0);
  });
});

describe('product quantization', () => {
  it('errs less on rows as they are than on rotated ones, and less with words of the text itself than with those of others', () => {
    const { headDim, kvHeads } = runtime.model.config;
    const first = 768 * headDim;
    for (const { k } of layers.slice(1, 3)) {
      const rows = Float32Array.from(
        { length: 1024 * headDim },
        (_, i) => k[Math.floor(i / headDim) * kvHeads * headDim + (i % headDim)]!,
      );
      const error = (of: Float32Array): readonly [own: number, later: number] => {
        const books = codebooksOf(of.subarray(0, first), headDim);
        const [own, later] = [of.slice(0, first), of.slice(first)];
        codeProduct(own, headDim, books);
        codeProduct(later, headDim, books);
        return [errorOf(own, of.slice(0, first)), errorOf(later, of.slice(first))];
      };
      const turned = rows.slice();
      hadamard(turned, headDim);
      const [plain, rotated] = [error(rows), error(turned)];
      expect(plain[1]).toBeLessThan(rotated[1]);
      expect(plain[0]).toBeLessThan(plain[1]);
    }
  });
});

describe('elements that are kept apart (KVQuant)', () => {
  /**
   * Squared error of a grid of three bits, over the square of the rows, when about one element in a hundred is kept
   * apart: none, the largest of a page, the most deviating of each vector.
   */
  const errors = (side: Side): Readonly<Record<'none' | 'ofPage' | 'ofVector', number>> => {
    const { kvHeads, headDim } = runtime.model.config;
    const width = kvHeads * headDim;
    const [vectors, along] = side === 'k' ? [width, 'channel' as const] : [PAGE_TOKENS, 'token' as const];
    const apart = Math.round((PAGE_TOKENS * width) / vectors / 100);
    const sums = { none: 0, ofPage: 0, ofVector: 0 };
    let square = 0;
    for (const rows of layers)
      for (let page = 1; page < 4; page++) {
        const x = rows[side].subarray(page * PAGE_TOKENS * width, (page + 1) * PAGE_TOKENS * width);
        const vectorOf = (i: number): number => (side === 'k' ? i % width : Math.floor(i / width));
        const means = new Float64Array(vectors);
        for (const [i, one] of x.entries()) means[vectorOf(i)]! += (one * vectors) / x.length;
        const most = (places: readonly number[], count: number, of: (i: number) => number): number[] =>
          places.toSorted((one, other) => of(other) - of(one)).slice(0, count);
        const places = [...x.keys()];
        const groups = Array.from({ length: vectors }, (): number[] => []);
        for (const i of places) groups[vectorOf(i)]!.push(i);
        const kept = {
          none: [],
          ofPage: most(places, apart * vectors, (i) => Math.abs(x[i]!)),
          ofVector: groups.flatMap((own, v) => most(own, apart, (i) => Math.abs(x[i]! - means[v]!))),
        };
        for (const [name, chosen] of Object.entries(kept) as [keyof typeof sums, number[]][]) {
          // What is kept apart is no part of the range.
          const coded = x.slice();
          for (const i of chosen) coded[i] = means[vectorOf(i)]!;
          quantizeUniform(coded, width, 3, along, 0, width);
          for (const i of chosen) coded[i] = x[i]!;
          sums[name] += energy(between(coded, x));
        }
        square += energy(x);
      }
    return { none: sums.none / square, ofPage: sums.ofPage / square, ofVector: sums.ofVector / square };
  };

  it('help keys more when each channel has its own than when the page has, as published; for values both help alike', () => {
    const keys = errors('k');
    expect(keys.ofPage).toBeLessThan(0.97 * keys.none);
    expect(keys.ofVector).toBeLessThan(0.97 * keys.ofPage);
    const values = errors('v');
    expect(values.ofVector).toBeLessThan(0.85 * values.none);
    expect(Math.abs(values.ofVector / values.ofPage - 1)).toBeLessThan(0.1);
  });
});

describe('sequences', () => {
  const CONTEXT = 512;
  it('hold what the formulas say', async () => {
    const { config } = runtime.model;
    const { kvHeads, headDim } = config;
    const [passage] = passagesOf(runtime.model.tokenizer, CHRONICLE, 1, CONTEXT);
    const pages = CONTEXT / PAGE_TOKENS - 1;
    const rest = f16Bytes(config, SINK_TOKENS + PAGE_TOKENS);
    const page = (side: number): number => config.layers * pages * 2 * side;
    const expected: Record<string, number> = {
      nsn2: rest + page(kvHeads * nsnHeadBytes(headDim)),
      rotatekv3: rest + page(uniformBytes(kvHeads * headDim, 3, 'token', 64)),
      'pq2-text': rest + page(kvHeads * productHeadBytes(headDim)),
      // Shorter than what words are fitted to: all of it is exact.
      pq2: rest + f16Bytes(config, pages * PAGE_TOKENS),
    };
    for (const [cache, bytes] of Object.entries(expected)) {
      const { bytesAtRest } = await readPaged(runtime, pageMethodOf(cache)!, { ids: passage!.ids, scored: 64 });
      // Massive tokens come on top.
      expect(bytesAtRest - bytes, cache).toBeLessThan(cache === 'rotatekv3' ? 20 * config.layers * 600 : 1);
      expect(bytesAtRest, cache).toBeGreaterThanOrEqual(bytes);
    }
    expect(codebookBytes(64)).toBe(32 * 1024);
  });

  it('pay for their own words as soon as these are fitted', async () => {
    const { config } = runtime.model;
    const { kvHeads, headDim } = config;
    const [passage] = passagesOf(runtime.model.tokenizer, CHRONICLE, 1, 9 * PAGE_TOKENS);
    const { bytesAtRest } = await readPaged(runtime, pageMethodOf('pq2')!, { ids: passage!.ids, scored: 64 });
    const heads = config.layers * 2 * kvHeads;
    expect(bytesAtRest).toBe(
      f16Bytes(config, SINK_TOKENS + PAGE_TOKENS) + heads * (8 * productHeadBytes(headDim) + codebookBytes(headDim)),
    );
  });
});

it('groups of a grid may be narrower, at the price of their ends', () => {
  const rows = gaussians(PAGE_TOKENS * 192, 15);
  const error = (group: number): number => {
    const coded = rows.slice();
    quantizeUniform(coded, 192, 2, 'token', 0, group);
    return errorOf(coded, rows);
  };
  expect(error(64)).toBeLessThan(error(192));
  expect(8 * uniformBytes(192, 2, 'token', 64)).toBe(PAGE_TOKENS * 192 * 2.5);
});

it('names are those of methods, and no others', () => {
  for (const cache of ['rotatekv2', 'rotatekv3', 'rotatekv4', 'nsn2', 'pq2', 'pq2-text']) {
    expect(pageMethodOf(cache), cache).not.toBeNull();
    expect(everyCache()).toContain(cache);
  }
  expect(kindOf('rotatekv3')).toBe('rotatekv');
  for (const other of ['rotatekv8', 'rotatekv', 'nsn3', 'pq4', 'toString'])
    expect(pageMethodOf(other), other).toBeNull();
  expect(rotateKvOf('rotatekv2')).toBe(2);
});
