// Sizes of caches that do not fit here: published methods come to the bytes that their papers give, ours to those of
// the pages that are made, and quoted figures to what the formula gives.
import { expect, it } from 'vitest';
import {
  bitsOf,
  MODEL_SHAPES,
  modelShape,
  pairBytes,
  quotedFigures,
  SCHEMES,
  schemeBytes,
  sizeTables,
} from '../../lab/evaluate/sizes.ts';
import { openKvCache, openPool, PAGE_TOKENS, pageBytes, parsePair } from '../../native/index.ts';

const scheme = (name: string) => SCHEMES.find((one) => one.name === name)!;

it('a token of each method takes what its paper says', () => {
  // Bytes a token and layer: the reference model, the small preset, SmolLM2, TinyLlama, Llama 3.2 1B, Llama 3.1 8B.
  const shapes = ['reference', 'small', 'SmolLM2-135M', 'TinyLlama-1.1B', 'Llama-3.2-1B', 'Llama-3.1-8B'].map(
    modelShape,
  );
  const table: Readonly<Record<string, readonly number[]>> = {
    f16: [512, 512, 768, 1024, 2048, 4096],
    'q8_0, groups of 32': [272, 272, 408, 544, 1088, 2176],
    'KIVI-4, groups of 32': [160, 160, 240, 320, 640, 1280],
    'KIVI-2, groups of 64': [80, 80, 120, 160, 320, 640],
    'K4 V2, groups of 32': [128, 128, 192, 256, 512, 1024],
    'KVQuant nuq3, 1%': [118, 118, 171, 224, 437, 862],
    'TurboQuant 2': [72, 72, 108, 144, 288, 544],
    'XQuant 4, inputs, groups of 128': [136, 272, 306, 1088, 1088, 2176],
    'XQuant 4, latents, groups of 128': [136, 136, 204, 272, 544, 1088],
  };
  for (const [name, bytes] of Object.entries(table))
    expect(
      shapes.map((shape) => Math.round(scheme(name).tokenBytes(shape))),
      name,
    ).toEqual(bytes);
  expect(bitsOf(scheme('KIVI-2, groups of 32'), shapes[0]!)).toBe(3);
});

it('windows count: two bits are five at 512 tokens', () => {
  const kivi = scheme('KIVI-2, groups of 32');
  const bits = (tokens: number): number => {
    const shape = modelShape('SmolLM2-135M');
    return (16 * schemeBytes(kivi, shape, tokens)) / schemeBytes(scheme('f16'), shape, tokens);
  };
  expect(bits(512)).toBeCloseTo(5.4, 1);
  expect(bits(4096)).toBeCloseTo(3.3, 1);
  // Fewer tokens than the window are all in f16.
  expect(bits(64)).toBe(16);
});

it('our pairs take what a cache of that shape takes', () => {
  const shape = { ...modelShape('SmolLM2-135M'), layers: 2 };
  const { kvHeads, headDim } = shape;
  const pair = parsePair('rot4:rot2');
  const pool = openPool(2 ** 30);
  const cache = openKvCache({ shape, pool });
  const pages = 6;
  const rows = new Float32Array((pages * PAGE_TOKENS + 1) * kvHeads * headDim).map((_, i) => Math.sin(i));
  for (let layer = 0; layer < shape.layers; layer++) {
    cache.append(layer, rows, rows);
    // All but the page that fewer than a page of newer tokens follow.
    for (let page = 0; page < pages - 1; page++) {
      cache.transcode(layer, page, 'k', pair.k);
      cache.transcode(layer, page, 'v', pair.v);
    }
  }
  const { sinkBytes, pageBytes: inPages } = cache.memory();
  cache.close();
  pool.close();
  const window = shape.layers * 2 * pageBytes('q8', kvHeads, headDim);
  const low = (pages - 1) * shape.layers * (pageBytes(pair.k, kvHeads, headDim) + pageBytes(pair.v, kvHeads, headDim));
  expect(inPages).toBe(low + window);
  const told = pairBytes('rot4:rot2', shape, pages * PAGE_TOKENS + 1)!;
  // What is told is the most up to that length: a full open page and a page that waits, sinks included.
  expect(told).toBeGreaterThanOrEqual(inPages + sinkBytes);
  expect(told).toBeLessThanOrEqual(inPages + sinkBytes + 2 * window);
  expect(pairBytes('rot4:rot2', { ...shape, headDim: 72 }, 4096), 'heads that no format serves').toBeNull();
});

it('quoted figures are put right', () => {
  const text = JSON.stringify(quotedFigures());
  for (const right of ['1.07 GB', '5.37 GB', '671.09 MB', '343.60 GB', '88.25 GB (7.8×)', '131.11 GB (5.2×)', '5.3×'])
    expect(text).toContain(right);
});

it('tables hold every shape and length, and shapes are checked', () => {
  const text = sizeTables([modelShape('Llama-2-70B'), modelShape('2:8/8x128')], [4096], 8);
  expect(text).toContain('### Llama-2-70B, 8 sequences');
  expect(text).not.toMatch(/NaN|undefined/);
  for (const bad of ['70B', '0:8/8x128', '2:8/3x64', ''])
    expect(() => modelShape(bad), bad).toThrow(expect.objectContaining({ code: 'bad-argument' }));
  expect(() => sizeTables(MODEL_SHAPES, [Number.NaN], 1)).toThrow(/tokens/);
});
