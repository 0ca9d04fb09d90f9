// KVarN on the bench: balanced scales make tokens and channels deviate alike and help there, and sequences hold the
// bytes that the formulas say.
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { everyCache, kindOf } from '../../lab/evaluate/every-cache.ts';
import { CHRONICLE, passagesOf } from '../../lab/evaluate/passages.ts';
import { balanced, codeKvarn, imbalance, kvarnCaches, kvarnHeadBytes } from '../../lab/methods/kvarn.ts';
import { pageMethodOf } from '../../lab/methods/methods.ts';
import { f16Bytes, readPaged } from '../../lab/methods/paged.ts';
import { gaussians } from '../../lab/methods/words.ts';
import { PAGE_TOKENS, SINK_TOKENS } from '../../native/index.ts';
import { MODEL } from '../unit/engine/on-reference.ts';

const D = 64;
const energy = (x: Float32Array): number => x.reduce((sum, one) => sum + one * one, 0);
const errorOf = (coded: Float32Array, rows: Float32Array): number =>
  energy(coded.map((one, i) => one - rows[i]!)) / energy(rows);
const coded = (rows: Float32Array, code: (rows: Float32Array) => void): Float32Array => {
  const own = rows.slice();
  code(own);
  return own;
};

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
      'kvarn4:kvarn2': kvarnHeadBytes(headDim, 4, 'k') + kvarnHeadBytes(headDim, 2, 'v'),
    };
    for (const [cache, bytes] of Object.entries(expected)) {
      const { bytesAtRest } = await readPaged(runtime, pageMethodOf(cache)!, { ids: passage!.ids, scored: 64 });
      expect(bytesAtRest, cache).toBe(rest + layers * kvHeads * bytes);
    }
  });
});

it('names are those of methods, and no others', () => {
  for (const cache of kvarnCaches()) {
    expect(pageMethodOf(cache), cache).not.toBeNull();
    expect(everyCache()).toContain(cache);
  }
  expect(kindOf('kvarn4:kvarn2')).toBe('kvarn');
  for (const other of ['kvarn', 'kvarn8', 'kvarn4:rot2']) expect(pageMethodOf(other), other).toBeNull();
});
