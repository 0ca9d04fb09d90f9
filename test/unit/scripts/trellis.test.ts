// Trellis codes and balanced scales on the bench: a ring decodes anywhere by itself, errs as little as its kind can, and with the mean and the scale of rot is
// better than rot at the same bytes; KVarN's scales make tokens and channels deviate alike; sequences hold the bytes that the formulas say.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Runtime } from '../../../engine/runtime.ts';
import { PAGE_TOKENS, SINK_TOKENS } from '../../../native/index.ts';
import { balanced, codeKvarn, imbalance, kvarnCaches, kvarnHeadBytes } from '../../../scripts/evaluate/kvarn.ts';
import { everyCache, methodOf, pageMethodOf } from '../../../scripts/evaluate/methods.ts';
import { f16Bytes, readPaged } from '../../../scripts/evaluate/paged.ts';
import { CHRONICLE, passagesOf } from '../../../scripts/evaluate/passages.ts';
import { codeRot, rotHeadBytes } from '../../../scripts/evaluate/rot-head.ts';
import {
  codeTrellis,
  ringOf,
  Trellis,
  trellisCaches,
  trellisLevels,
  windowsOf,
} from '../../../scripts/evaluate/trellis.ts';
import { gaussians } from '../../../scripts/evaluate/words.ts';
import { MODEL } from '../engine/on-reference.ts';

const D = 64;
const energy = (x: Float32Array): number => x.reduce((sum, one) => sum + one * one, 0);
const errorOf = (coded: Float32Array, rows: Float32Array): number =>
  energy(coded.map((one, i) => one - rows[i]!)) / energy(rows);
const coded = (rows: Float32Array, code: (rows: Float32Array) => void): Float32Array => {
  const own = rows.slice();
  code(own);
  return own;
};

describe('a trellis', () => {
  const two = { bits: 2, window: 8 } as const;
  const three = { bits: 3, window: 8 } as const;

  it('errs between the rate-distortion bound and seven tenths of what the best code of single channels errs', () => {
    // Lloyd-Max levels err 0.1175 and 0.03454 of a normal, and no code of 2 and 3 bits less than 1/16 and 1/64.
    for (const [shape, least, scalar] of [
      [two, 1 / 16, 0.1175],
      [three, 1 / 64, 0.03454],
    ] as const) {
      const trellis = new Trellis(shape, trellisLevels(shape), D);
      const rows = Float64Array.from(gaussians(150 * D, 77));
      let sum = 0;
      for (let at = 0; at < rows.length; at += D) sum += trellis.code(rows.subarray(at, at + D));
      expect(sum / rows.length).toBeGreaterThan(least);
      expect(sum / rows.length).toBeLessThan(0.71 * scalar);
    }
  });

  it('has rings whose windows a decoder finds anywhere from the bits around it, and which err what the encoder says', () => {
    for (const shape of [two, three]) {
      const trellis = new Trellis(shape, trellisLevels(shape), D);
      const rows = Float64Array.from(gaussians(20 * D, 5));
      for (let at = 0; at < rows.length; at += D) {
        const row = rows.subarray(at, at + D);
        const error = trellis.code(row);
        const ring = ringOf(trellis.windows, shape);
        expect(Math.max(...ring)).toBeLessThan(2 ** shape.bits);
        expect(windowsOf(ring, shape)).toEqual(trellis.windows);
        const found = row.reduce((sum, one, c) => sum + (one - trellis.levels[trellis.windows[c]!]!) ** 2, 0);
        expect(found).toBeCloseTo(error, 9);
      }
    }
  });

  it('finds the best of all rings where there are few enough to try', () => {
    const levels = Float64Array.of(-1.6, -0.3, 0.9, 0.2, -0.9, 0.4, 1.7, -0.1);
    const shape = { bits: 1, window: 3 } as const;
    const trellis = new Trellis(shape, levels, 8);
    let close = 0;
    for (let seed = 0; seed < 40; seed++) {
      const row = Float64Array.from(gaussians(8, 200 + seed));
      let least = Number.POSITIVE_INFINITY;
      for (let bits = 0; bits < 256; bits++) {
        const ring = Uint8Array.from({ length: 8 }, (_, c) => (bits >> c) & 1);
        const windows = windowsOf(ring, shape);
        least = Math.min(
          least,
          row.reduce((sum, one, c) => sum + (one - levels[windows[c]!]!) ** 2, 0),
        );
      }
      const error = trellis.code(row);
      expect(error).toBeGreaterThan(least - 1e-9);
      if (error < least + 1e-9) close++;
    }
    // The first pass guesses the bits at the end; all else is searched.
    expect(close).toBeGreaterThan(25);
  });

  it('has levels that are whole numbers of a byte over 32, and the same whenever they are made', () => {
    const levels = trellisLevels(two);
    expect(levels.length).toBe(256);
    for (const level of levels) {
      expect(level * 32).toBe(Math.round(level * 32));
      expect(Math.abs(level * 32)).toBeLessThan(128);
    }
  });

  it('is better than rot at the same bytes on rows with a mean and rows near zero, and keeps zeros and sinks', () => {
    const mean = gaussians(D, 1).map((one) => 2 * one);
    const rows = gaussians(PAGE_TOKENS * D, 2).map((one, i) => (i % (9 * D) < D ? 0.1 * one : one + mean[i % D]!));
    for (const shape of [two, three]) {
      const ours = coded(rows, (own) => codeTrellis(own, shape, SINK_TOKENS));
      const rot = coded(rows, (own) => codeRot(own, shape.bits, SINK_TOKENS));
      expect(ours.subarray(0, SINK_TOKENS * D)).toEqual(rows.subarray(0, SINK_TOKENS * D));
      const behind = (x: Float32Array): Float32Array => x.subarray(SINK_TOKENS * D);
      expect(errorOf(behind(ours), behind(rows)) / errorOf(behind(rot), behind(rows))).toBeLessThan(0.75);
    }
    expect(energy(coded(new Float32Array(PAGE_TOKENS * D), (own) => codeTrellis(own, two, 0)))).toBe(0);
  });
});

describe('KVarN', () => {
  it('makes tokens and channels deviate alike where both have scales of their own, and helps there', () => {
    const [tokens, channels] = [gaussians(PAGE_TOKENS, 1), gaussians(D, 2)];
    const rows = gaussians(PAGE_TOKENS * D, 3).map(
      (one, i) => one * Math.exp(2 + tokens[Math.floor(i / D)]! / 2 + channels[i % D]! / 2),
    );
    const one = { tokens: new Float64Array(PAGE_TOKENS).fill(1), channels: new Float64Array(D).fill(1) };
    // Not alike altogether, because scales are held at e^−0.3 or more.
    for (const first of ['token', 'channel'] as const)
      expect(imbalance(rows, D, balanced(rows, D, first)) / imbalance(rows, D, one)).toBeLessThan(0.3);
    for (const side of ['k', 'v'] as const) {
      const error = (bits: 2 | 3 | 4): number =>
        errorOf(
          coded(rows, (own) => codeKvarn(own, bits, side, 0)),
          rows,
        );
      expect(error(3)).toBeLessThan(error(2));
      expect(error(4)).toBeLessThan(error(3));
    }
  });

  it('takes the bits that it is said to take', () => {
    const bits = (side: 'k' | 'v'): number => (8 * kvarnHeadBytes(D, 2, side)) / (PAGE_TOKENS * D);
    expect(bits('k')).toBe(2 + 32 / 128 + 16 / D);
    expect(bits('v')).toBe(2 + 32 / D + 16 / 128);
  });
});

describe('sequences', () => {
  let runtime: Runtime;
  beforeAll(async () => {
    runtime = await Runtime.open({ model: MODEL, dense: 'exact', threads: 1 });
  });
  afterAll(() => runtime.close());

  it('hold what the formulas say', async () => {
    const { config } = runtime.model;
    const { layers, kvHeads, headDim } = config;
    const [passage] = passagesOf(runtime.model.tokenizer, CHRONICLE, 1, 256);
    const rest = f16Bytes(config, SINK_TOKENS + PAGE_TOKENS);
    const expected: Record<string, number> = {
      'trellis3:trellis2': rotHeadBytes(3, headDim) + rotHeadBytes(2, headDim),
      'kvarn4:kvarn2': kvarnHeadBytes(headDim, 4, 'k') + kvarnHeadBytes(headDim, 2, 'v'),
    };
    for (const [cache, bytes] of Object.entries(expected)) {
      const { bytesAtRest } = await readPaged(runtime, passage!.ids, pageMethodOf(cache)!, 64);
      expect(bytesAtRest, cache).toBe(rest + layers * kvHeads * bytes);
    }
  });
});

it('names are those of methods, and no others', () => {
  for (const cache of [...trellisCaches(), ...kvarnCaches()]) {
    expect(pageMethodOf(cache), cache).not.toBeNull();
    expect(everyCache()).toContain(cache);
  }
  expect(methodOf('trellis2-10')).toBe('trellis');
  expect(methodOf('kvarn4:kvarn2')).toBe('kvarn');
  for (const other of ['trellis5', 'trellis', 'trellis1', 'trellis2-12', 'kvarn8', 'kvarn4:rot2'])
    expect(pageMethodOf(other), other).toBeNull();
});
