/**
 * Granite: Llama with multipliers of embeddings, attention, branches and logits. What each half of a layer answers is
 * multiplied by the same r before it is added to the stream x. As norms do not see the scale of what they read, the
 * stream x/r gives the same model without r: its embeddings are divided by r, and the epsilon of its norms by r².
 */
import { z } from 'zod';
import { badConfig } from '../config.ts';
import { f32 } from '../gguf-entries.ts';
import { GGUF_SOURCE } from '../gguf-keys.ts';
import { biases, HF_SOURCE, parseKeys, refuseWindow } from '../hf-keys.ts';
import type { ModelConfig } from '../types.ts';
import type { Family } from './family.ts';

const multiplier = z.number().nullish();
const schema = z.looseObject({
  embedding_multiplier: multiplier,
  attention_multiplier: multiplier,
  residual_multiplier: multiplier,
  logits_scaling: multiplier,
});

interface Multipliers {
  readonly embedding: number;
  /** The factor of scores, in place of 1/√headDim. */
  readonly attention: number;
  readonly residual: number;
  /** By what logits are divided. */
  readonly logits: number;
}

function scaled(source: string, given: Multipliers, { headDim, normEpsilon }: ModelConfig): Partial<ModelConfig> {
  for (const [name, value] of Object.entries(given)) {
    if (!(value > 0 && Number.isFinite(value))) throw badConfig(source, [`the multiplier of ${name} is ${value}`]);
  }
  return {
    embeddingScale: given.embedding / given.residual,
    normEpsilon: normEpsilon / given.residual ** 2,
    queryScale: given.attention * Math.sqrt(headDim),
    logitScale: 1 / given.logits,
  };
}

export const granite: Family = {
  name: 'granite',
  title: 'Granite 3',
  modelTypes: ['granite'],
  architectures: ['granite'],
  ggufInterleaved: true,
  ggufReads: ['embedding_scale', 'attention.scale', 'residual_scale', 'logit_scale'],
  hf(given, base) {
    refuseWindow(given);
    const keys = parseKeys(schema, given);
    const multipliers = {
      embedding: keys.embedding_multiplier ?? 1,
      attention: keys.attention_multiplier ?? 1,
      residual: keys.residual_multiplier ?? 1,
      logits: keys.logits_scaling ?? 1,
    };
    return { ...biases(given), ...scaled(HF_SOURCE, multipliers, base) };
  },
  gguf(keys, base) {
    // Here 0 stands for a multiplier that is not there.
    const multipliers = {
      embedding: keys.optional('embedding_scale') || 1,
      attention: keys.optional('attention.scale') || 1 / Math.sqrt(base.headDim),
      residual: keys.optional('residual_scale') || 1,
      logits: keys.optional('logit_scale') || 1,
    };
    return scaled(GGUF_SOURCE, multipliers, base);
  },
  // The multiplier of the two halves was divided away, and that of logits is in the gains of the final norm.
  ggufKeys: ({ embeddingScale, queryScale, headDim }) => ({
    embedding_scale: f32(embeddingScale),
    'attention.scale': f32(queryScale / Math.sqrt(headDim)),
    residual_scale: f32(1),
    logit_scale: f32(1),
  }),
};
