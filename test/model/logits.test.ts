// Tries the whole path from token ids to logits on four real models: dense half in float32, RoPE, the native cache in
// f16. The expected logits come from scripts/golden-logits.py, which computed them in float64 without any of this code.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createOrtBackend } from '../../engine/transformer/dense-ort.ts';
import { loadModel } from '../../engine/transformer/load.ts';
import { Rotary } from '../../engine/transformer/rotary.ts';
import type { DenseBackend, LoadedModel } from '../../engine/transformer/types.ts';
import { type Attention, logitsAt, nativeAttention, plainAttention } from './forward.ts';
import { expectGolden, type Golden } from './golden.ts';
import { GOLDEN_MODELS } from './golden-models.ts';

interface LogitsGolden extends Golden {
  readonly version: 1;
  readonly ids: readonly number[];
}

const readGolden = (name: string): LogitsGolden =>
  JSON.parse(readFileSync(join(import.meta.dirname, '..', 'golden', `logits-${name}.json`), 'utf8'));

/**
 * Float32 alone: a layer is six sums of up to K ≤ 1536 products one after the other, each off by about √K/2·2^-24 of
 * its size, in L layers whose errors add up like independent ones: √(6L)·20·2^-24, 7e-6 for six layers.
 */
const float32Tolerance = (layers: number): number => Math.sqrt(6 * layers) * 20 * 2 ** -24;

/**
 * f16 rounds every cached element by at most 2^-11 of itself. A value's rounding enters the attention output as it is;
 * a key's enters the scores, in which it is averaged over the head. So each layer adds at most two independent relative
 * errors of 2^-11, and L layers √(2L) of them. (Measured 0.03 to 0.45 of this.)
 */
const f16Tolerance = (layers: number): number => Math.sqrt(2 * layers) * 2 ** -11;

describe.each(Object.keys(GOLDEN_MODELS))(
  '%s',
  (name) => {
    const path = GOLDEN_MODELS[name] ?? null;
    const here = path !== null;
    const golden = readGolden(name);
    const positions = golden.rows.map((row) => row.position);
    const ids = golden.ids.slice(0, 501);
    let model: LoadedModel;
    let dense: DenseBackend;
    let rotary: Rotary;

    beforeAll(async () => {
      if (path === null) return;
      model = await loadModel(path);
      dense = await createOrtBackend(model, { precision: 'exact', threads: 1 });
      rotary = new Rotary(model.config);
    });

    afterAll(async () => {
      await dense?.close();
      model?.weights.close();
    });

    async function run(
      attention: Attention,
      chunkTokens: number,
      tokens = ids,
      at = positions,
    ): Promise<Float32Array[]> {
      try {
        return await logitsAt(dense, model.config, rotary, attention, tokens, chunkTokens, at);
      } finally {
        attention.close();
      }
    }

    test.skipIf(!here)('native f16 cache, chunks of 128, positions 0 and 500 (needs the weights)', async () => {
      const found = await run(nativeAttention(model.config), 128);
      expectGolden(found, golden, f16Tolerance(model.config.layers));
    });

    // The plain attention is slow, so the large model has only its first 64 tokens' worth of it: position 0.
    test.skipIf(!here)(
      'float64 attention over unrounded rows, so that the dense half stands alone (needs the weights)',
      async () => {
        const large = model.config.layers > 10;
        const checked = large ? { ...golden, rows: golden.rows.slice(0, 1) } : golden;
        const found = await run(plainAttention(model.config), 128, large ? ids.slice(0, 64) : ids);
        expectGolden(found, checked, float32Tolerance(model.config.layers));
      },
    );

    // Sums are split differently (one token is a GEMV), so rows differ by float32 rounding before f16 rounds them: a
    // few elements fall to the other neighbour, which is far less than all of them being rounded.
    test.skipIf(!here)('token by token and in chunks of 128 or 37 the logits agree (needs the weights)', async () => {
      const tokens = ids.slice(0, name === 'smollm2' ? 140 : 300);
      const last = [tokens.length - 1];
      const [whole] = await run(nativeAttention(model.config), 128, tokens, last);
      for (const chunk of [1, 37]) {
        const [split] = await run(nativeAttention(model.config), chunk, tokens, last);
        const mean = whole!.reduce((a, b) => a + b, 0) / whole!.length;
        const spread = Math.sqrt(whole!.reduce((sum, logit) => sum + (logit - mean) ** 2, 0) / whole!.length);
        const square = whole!.reduce((sum, logit, i) => sum + (logit - split![i]!) ** 2, 0) / whole!.length;
        expect(Math.sqrt(square) / spread).toBeLessThan(f16Tolerance(model.config.layers) / 10);
      }
    });
  },
  120_000,
);
