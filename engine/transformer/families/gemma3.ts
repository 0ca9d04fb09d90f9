/**
 * Gemma 3, its text (of a model that reads images, the part that reads text): norms before and after each half whose
 * gains are stored less one, GELU, scaled embeddings, a scale of queries of its own, and five of six layers that look
 * back over a window and have a rotary embedding of their own.
 */
import { z } from 'zod';
import { f32, text, windowKeys } from '../gguf-entries.ts';
import { type HfConfig, parseKeys, perLayer, ropeSchema, unsupportedKey, windowsByType } from '../hf-keys.ts';
import type { ModelConfig } from '../types.ts';
import type { Family } from './family.ts';
import { GEMMA_NORMS } from './gemma2.ts';

/** Every so many layers, one sees all. */
const EVERY = 6;
const LOCAL_THETA = 10000;
/** What files that Ollama has converted leave out, as it is in the config.json of all sizes. */
const THETA = 1e6;
const NORM_EPSILON = 1e-6;
/** Sizes with this context have stretched their rotary embedding by this factor, the others not at all. */
const STRETCHED_CONTEXT = 131072;
const STRETCH = 8;
const QUERY_SCALAR = 256;
const WINDOW = 4096;
/** The only size whose queries are scaled by the width of the model; GGUF files do not say it otherwise. */
const LAYERS_27B = 62;

const ASSUMED = {
  num_attention_heads: 8,
  num_key_value_heads: 4,
  vocab_size: 262208,
  max_position_embeddings: 131072,
};

const schema = z.looseObject({
  query_pre_attn_scalar: z.number().positive().nullish(),
  sliding_window_pattern: z.int().positive().nullish(),
  rope_local_base_freq: z.number().nullish(),
  attn_logit_softcapping: z.unknown().optional(),
  final_logit_softcapping: z.unknown().optional(),
  use_bidirectional_attention: z.boolean().nullish(),
  rope_parameters: z
    .looseObject({ full_attention: ropeSchema.nullish(), sliding_attention: ropeSchema.nullish() })
    .nullish(),
});

/** What a window is given to. */
function layersOf(windows: readonly (number | null)[]): Pick<ModelConfig, 'slidingWindow' | 'layerRope'> {
  return { slidingWindow: windows, layerRope: windows.map((window) => (window === null ? 'main' : 'local')) };
}

const common = ({ hiddenSize }: ModelConfig) =>
  ({ postNorms: true, qkNorm: 'head', embeddingScale: Math.sqrt(hiddenSize) }) as const;

export const gemma3: Family = {
  name: 'gemma3',
  title: 'Gemma 3 (text)',
  modelTypes: ['gemma3_text', 'gemma3'],
  architectures: ['gemma3'],
  defaults: { ropeTheta: 1e6, tiedEmbeddings: true, headDim: 256, activation: 'gelu_pytorch_tanh' },
  ggufActivation: 'gelu-tanh',
  ggufNormEpsilon: NORM_EPSILON,
  ggufReads: ['attention.sliding_window_pattern'],
  ...GEMMA_NORMS,
  hfPrefix: /^(model\.language_model|language_model\.model|language_model|model)\./,
  hfIgnored: /^(model\.)?(vision_tower|multi_modal_projector)\./,
  hfText(given) {
    if (given['model_type'] === 'gemma3_text') return given;
    const { text_config: text } = parseKeys(z.looseObject({ text_config: z.looseObject({}) }), given);
    // Files of these models leave out what the class assumes. Ends of text are beside the two halves.
    const { bos_token_id, eos_token_id, quantization_config } = given;
    const beside = { bos_token_id, eos_token_id, quantization_config };
    return { ...ASSUMED, ...beside, ...text, model_type: 'gemma3_text' };
  },
  hfRope: (given) => parseKeys(schema, given).rope_parameters?.full_attention ?? null,
  hf(given: HfConfig, base) {
    const keys = parseKeys(schema, given);
    for (const key of ['attn_logit_softcapping', 'final_logit_softcapping'] as const)
      if (keys[key] != null) throw unsupportedKey(key, keys[key]);
    if (keys.use_bidirectional_attention === true) throw unsupportedKey('use_bidirectional_attention', true);
    const local = keys.rope_parameters?.sliding_attention;
    const kind = local?.rope_type ?? 'default';
    if (kind !== 'default') throw unsupportedKey('rope_parameters.sliding_attention.rope_type', kind);
    const every = keys.sliding_window_pattern ?? EVERY;
    const size = given.sliding_window ?? WINDOW;
    const windows =
      windowsByType({ ...given, sliding_window: size }) ??
      perLayer(given.num_hidden_layers, (layer) => ((layer + 1) % every === 0 ? null : size));
    const isBiased = given.attention_bias === true;
    return {
      ...common(base),
      ...layersOf(windows),
      qkvBias: isBiased,
      outputBias: isBiased,
      localRopeTheta: local?.rope_theta ?? keys.rope_local_base_freq ?? LOCAL_THETA,
      queryScale: Math.sqrt(base.headDim / (keys.query_pre_attn_scalar ?? QUERY_SCALAR)),
    };
  },
  gguf(keys, base) {
    const { layers, hiddenSize, queryHeads, headDim, slidingWindow, contextLength } = base;
    const isStretched = contextLength >= STRETCHED_CONTEXT && keys.text('rope.scaling.type') === null;
    const isWindowed = keys.pattern('attention.sliding_window_pattern', layers, EVERY);
    return {
      ...common(base),
      ...layersOf(slidingWindow.map((size, layer) => (isWindowed(layer) ? size : null))),
      ropeTheta: keys.optional('rope.freq_base') ?? keys.optional('rope.global.freq_base') ?? THETA,
      localRopeTheta: keys.optional('rope.freq_base_swa') ?? keys.optional('rope.local.freq_base') ?? LOCAL_THETA,
      ...(isStretched && { ropeScaling: { kind: 'linear', factor: STRETCH } as const }),
      queryScale: layers === LAYERS_27B ? Math.sqrt((headDim * queryHeads) / hiddenSize) : 1,
    };
  },
  ggufKeys: ({ slidingWindow, localRopeTheta, ropeScaling }) => ({
    ...windowKeys(slidingWindow, EVERY),
    ...(localRopeTheta !== LOCAL_THETA && { 'rope.freq_base_swa': f32(localRopeTheta ?? LOCAL_THETA) }),
    // A file that does not say it is taken for a stretched one if its context is long.
    ...(ropeScaling.kind === 'none' && { 'rope.scaling.type': text('none') }),
  }),
};
