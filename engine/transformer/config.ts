/**
 * The ranges that every model configuration must keep to, whatever its source, and the shapes its tensors must have.
 */
import { z } from 'zod';
import { EXPERTS_ALL_MAX, EXPERTS_MAX, EXPERTS_USED_MAX, KvError, show } from '../../native/index.ts';
import { VOCABULARY_MAX } from './limits.ts';
import type { ModelConfig } from './types.ts';

const count = (max: number) => z.int().min(1).max(max);
/** A scale of positions or frequencies. */
const factor = z.number().min(1).max(65536);
const context = count(2 ** 27);
const pairFactors = z.array(z.number().positive().max(65536)).max(512);
/** A factor on whole activations. */
const multiplier = z.number().positive().max(1e6);
/** What a hyperbolic tangent keeps scores or logits below. */
const cap = z.number().min(1e-3).max(1e6).nullable();

const ropeScaling = z.discriminatedUnion('kind', [
  z.strictObject({ kind: z.literal('none') }),
  z.strictObject({ kind: z.literal('linear'), factor }),
  z.strictObject({ kind: z.literal('ntk'), factor, originalContext: context }),
  z.strictObject({
    kind: z.literal('llama3'),
    factor,
    lowFreqFactor: z.number().positive().max(1024),
    highFreqFactor: z.number().positive().max(1024),
    originalContext: context,
  }),
  z.strictObject({
    kind: z.literal('yarn'),
    factor,
    originalContext: context,
    betaFast: z.number().positive().max(4096),
    betaSlow: z.number().positive().max(4096),
    attentionFactor: z.number().positive().max(64).nullable(),
  }),
  z.strictObject({
    kind: z.literal('longrope'),
    shortFactors: pairFactors,
    longFactors: pairFactors,
    originalContext: context,
    attentionFactor: z.number().positive().max(64),
  }),
]);

/**
 * The bounds are generous multiples of the largest published models. They keep products exact and rule out nonsense.
 */
const schema = z.strictObject({
  architecture: z.string().min(1).max(32),
  layers: count(1024),
  hiddenSize: count(2 ** 17),
  intermediateSize: count(2 ** 20),
  queryHeads: count(1024),
  kvHeads: count(1024),
  headDim: count(1024),
  vocabSize: count(VOCABULARY_MAX),
  contextLength: context,
  normEpsilon: z.number().positive().max(0.1),
  preNorms: z.boolean(),
  postNorms: z.boolean(),
  layerNorms: z.boolean(),
  normBias: z.boolean(),
  parallel: z.boolean(),
  oneNorm: z.boolean(),
  gated: z.boolean(),
  activation: z.enum(['silu', 'gelu-tanh', 'gelu']),
  experts: z
    .strictObject({ count: count(EXPERTS_MAX), used: count(EXPERTS_USED_MAX), shareAmongChosen: z.boolean() })
    .nullable(),
  ropeTheta: z.number().min(1).max(1e12),
  ropeScaling,
  rotaryDim: count(1024),
  ropeInterleaved: z.boolean(),
  layerRope: z.array(z.enum(['main', 'local', 'none'])),
  localRopeTheta: z.number().min(1).max(1e12).nullable(),
  slidingWindow: z.array(context.nullable()),
  qkvBias: z.boolean(),
  outputBias: z.boolean(),
  mlpBias: z.boolean(),
  qkNorm: z.enum(['none', 'head', 'width']),
  queryScale: multiplier,
  embeddingScale: multiplier,
  logitScale: multiplier,
  alibiMax: z.number().positive().max(64).nullable(),
  scoreCap: cap,
  logitCap: cap,
  tiedEmbeddings: z.boolean(),
  bosId: z.int().min(0).nullable(),
  eosIds: z.array(z.int().min(0)).max(64),
});

/**
 * Returns the configuration, frozen. Throws KvError 'bad-model' naming every field out of range. `source` is used in
 * messages.
 */
export function checkConfig(config: ModelConfig, source: string): ModelConfig {
  const checked = schema.safeParse(config);
  if (!checked.success) throw badConfig(source, issues(checked.error));
  const { queryHeads, kvHeads, headDim, rotaryDim, layers, slidingWindow, ropeScaling: scaling, vocabSize } = config;
  const { layerRope, localRopeTheta, experts, mlpBias } = config;
  const wrong: string[] = [];
  if (queryHeads % kvHeads !== 0) wrong.push(`${queryHeads} query heads cannot share ${kvHeads} key heads`);
  if (rotaryDim % 2 !== 0 || rotaryDim > headDim) wrong.push(`${rotaryDim} rotated channels of a head of ${headDim}`);
  if (slidingWindow.length !== layers) wrong.push(`${slidingWindow.length} sliding windows for ${layers} layers`);
  if (layerRope.length !== layers) wrong.push(`${layerRope.length} rotary embeddings for ${layers} layers`);
  if (experts !== null) {
    if (experts.used > experts.count) wrong.push(`${experts.used} of ${experts.count} experts`);
    if (layers * experts.count > EXPERTS_ALL_MAX) wrong.push(`${experts.count} experts in each of ${layers} layers`);
    if (mlpBias) wrong.push('experts with biases');
    if (config.layerNorms || config.parallel || !config.gated || config.activation === 'gelu')
      wrong.push('experts in layers that also differ otherwise');
  }
  if (config.layerNorms && (!config.preNorms || config.postNorms)) wrong.push('layer norms elsewhere than before');
  if (config.normBias && !config.layerNorms) wrong.push('biases of norms that leave the mean in');
  if (config.oneNorm && !config.parallel) wrong.push('one norm for two halves that follow one another');
  if (layerRope.includes('local') && localRopeTheta === null) wrong.push('rope: local layers without a base');
  if (scaling.kind === 'longrope') {
    for (const { length } of [scaling.shortFactors, scaling.longFactors]) {
      if (length !== rotaryDim / 2) wrong.push(`rope: ${length} factors for ${rotaryDim / 2} pairs`);
    }
  }
  if (scaling.kind === 'llama3' && scaling.highFreqFactor <= scaling.lowFreqFactor) {
    wrong.push(
      `rope: high_freq_factor ${scaling.highFreqFactor} is not above low_freq_factor ${scaling.lowFreqFactor}`,
    );
  }
  if (scaling.kind === 'ntk' && rotaryDim <= 2) wrong.push('rope: ntk needs more than two channels');
  for (const id of [config.bosId ?? 0, ...config.eosIds]) {
    if (id >= vocabSize) wrong.push(`token ${id} of a vocabulary of ${vocabSize}`);
  }
  if (wrong.length > 0) throw badConfig(source, wrong);
  return Object.freeze(config);
}

/** One line per problem, saying where and what it is. */
export function issues(error: z.ZodError): string[] {
  return error.issues
    .slice(0, 8)
    .map((issue) => `${issue.path.map(String).join('.').slice(0, 80)}: ${issue.message.slice(0, 200)}`);
}

export function badConfig(source: string, problems: readonly string[]): KvError {
  return new KvError('bad-model', `${source}: ${problems.join('; ')}`, { values: { file: source, problems } });
}

export function unsupportedConfig(source: string, what: string, value: unknown): KvError {
  const shown = (JSON.stringify(value) ?? show(value)).slice(0, 120);
  return new KvError('unsupported', `${source}: ${what} ${shown} is not served`, {
    values: { file: source, [what]: value },
  });
}

/** Name → shape of every tensor a model of this configuration has; names as in types.ts. */
export function expectedShapes(config: ModelConfig): Map<string, readonly number[]> {
  const { layers, hiddenSize: m, intermediateSize: f, queryHeads, kvHeads, headDim: d, vocabSize } = config;
  const [queries, keys] = [queryHeads * d, kvHeads * d];
  const shapes = new Map<string, readonly number[]>([
    ['embed', [vocabSize, m]],
    ['norm', [m]],
  ]);
  if (config.normBias) shapes.set('norm.bias', [m]);
  if (!config.tiedEmbeddings) shapes.set('head', [vocabSize, m]);
  for (let layer = 0; layer < layers; layer++) {
    const matrix = (name: string, rows: number, columns: number, bias: boolean): void => {
      shapes.set(`${layer}.${name}`, [rows, columns]);
      if (bias) shapes.set(`${layer}.${name}.bias`, [rows]);
    };
    for (const norm of normsOf(config)) {
      shapes.set(`${layer}.${norm}`, [m]);
      if (config.normBias) shapes.set(`${layer}.${norm}.bias`, [m]);
    }
    if (config.qkNorm !== 'none') {
      const ofHead = config.qkNorm === 'head';
      shapes.set(`${layer}.qNorm`, [ofHead ? d : queries]).set(`${layer}.kNorm`, [ofHead ? d : keys]);
    }
    matrix('q', queries, m, config.qkvBias);
    matrix('k', keys, m, config.qkvBias);
    matrix('v', keys, m, config.qkvBias);
    matrix('o', m, queries, config.outputBias);
    if (config.experts !== null) matrix('router', config.experts.count, m, false);
    for (const name of feedForwardNames(config)) {
      const [rows, columns] = name.startsWith('down') ? [m, f] : [f, m];
      matrix(name, rows, columns, config.mlpBias);
    }
  }
  return shapes;
}

/** The large matrices of a layer's feed-forward half, those of an expert together. */
export function feedForwardNames({ experts, gated }: Pick<ModelConfig, 'experts' | 'gated'>): string[] {
  const names = gated ? ['gate', 'up', 'down'] : ['up', 'down'];
  if (experts === null) return names;
  return Array.from({ length: experts.count }, (_, expert) => names.map((name) => `${name}.${expert}`)).flat();
}

/** True of a norm of the residual stream that takes the mean out first. */
export const takesMeanOut = ({ layerNorms }: Pick<ModelConfig, 'layerNorms'>, name: string): boolean =>
  layerNorms && /(^norm|\.(attn|mlp)Norm)$/.test(name);

/** The norms of the residual stream that every layer has. */
export function normsOf({ preNorms, postNorms, oneNorm }: Pick<ModelConfig, 'preNorms' | 'postNorms' | 'oneNorm'>) {
  return [
    ...(preNorms ? (['attnNorm'] as const) : []),
    ...(preNorms && !oneNorm ? (['mlpNorm'] as const) : []),
    ...(postNorms ? (['attnPost', 'mlpPost'] as const) : []),
  ];
}

type Feature =
  | 'preNorms'
  | 'postNorms'
  | 'layerNorms'
  | 'normBias'
  | 'parallel'
  | 'oneNorm'
  | 'gated'
  | 'activation'
  | 'experts'
  | 'layerRope'
  | 'localRopeTheta'
  | 'slidingWindow'
  | 'qkvBias'
  | 'outputBias'
  | 'mlpBias'
  | 'qkNorm'
  | 'queryScale'
  | 'embeddingScale'
  | 'logitScale'
  | 'alibiMax'
  | 'scoreCap'
  | 'logitCap';

/** A layer as Llama has it, which other families are told from by what differs. */
export function plainFeatures(layers: number): Pick<ModelConfig, Feature> {
  // The number comes from a file and is checked later; nothing is allocated beyond what checkConfig allows.
  const each = <T>(value: T): T[] => new Array<T>(Math.min(Math.max(Math.trunc(layers) || 0, 0), 1024)).fill(value);
  return {
    preNorms: true,
    postNorms: false,
    layerNorms: false,
    normBias: false,
    parallel: false,
    oneNorm: false,
    gated: true,
    activation: 'silu',
    experts: null,
    layerRope: each('main'),
    localRopeTheta: null,
    slidingWindow: each(null),
    qkvBias: false,
    outputBias: false,
    mlpBias: false,
    qkNorm: 'none',
    queryScale: 1,
    embeddingScale: 1,
    logitScale: 1,
    alibiMax: null,
    scoreCap: null,
    logitCap: null,
  };
}
