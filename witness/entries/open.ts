/** A session began: everything that a replay needs, and what was requested against what is effective. */
import { WINDOW_TOKENS } from '../../native/index.ts';
import type {
  ActivationChoice,
  AdapterProposal,
  Because,
  Foreseen,
  Foresight,
  LatentContext,
  PackContext,
  PolicyContext,
} from '../../policy/index.ts';
import type { BodyOf, Fields } from './field.ts';
import { format, LAYERS_MAX, latent, origin, thresholds, windowFormat } from './parts.ts';
import {
  type Certain,
  count,
  type Flat,
  integer,
  known,
  list,
  noun,
  nullable,
  object,
  one,
  optional,
  plain,
  real,
  record,
  type Same,
  text,
  whole,
} from './type.ts';

const layers = integer(1, LAYERS_MAX);
const scaled = list(object({ digest: text, scale: real }), 0, 64);

/** Why something was decided before the session began. */
const because = noun<Because>()({
  threshold: text,
  measured: real,
  bound: real,
  unit: text,
  origin,
  rule: text,
});

export const OPEN = {
  'model.name': { type: text },
  'model.digest': { type: text },
  'model.architecture': { type: text },
  'shape.layers': { type: layers },
  'shape.queryHeads': { type: count },
  'shape.kvHeads': { type: count },
  'shape.headDim': { type: count },
  /** What computed it: another set or number of threads may give other last bits. */
  machine: {
    type: optional(object({ isa: text, binding: text, build: text, threads: count })),
    since: '0.1.0',
    means: 'Instruction set, binding and build of the kernels, and how many threads attention had.',
  },
  activations: {
    type: optional(
      noun<ActivationChoice>()({ eightBit: list(integer(0, 127), 0, LAYERS_MAX + 1), expectedNats: real, share: real }),
    ),
    since: '0.1.0',
    means:
      'Which matrices took activations of 8 bits: for each layer, and behind the last for the output matrix as q, the bits of q, k, v, o, gate, up and down from the lowest; the divergence expected of that, and its share of the products; absent where all took 16 bits or more.',
  },
  adapters: {
    type: optional(list(object({ digest: text, scale: real }), 1)),
    since: '0.1.0',
    means:
      'What was added to what the weights of the model answered: the digest of each adapter, and the factor on it; absent where nothing was.',
  },
  proposal: {
    type: optional(
      noun<AdapterProposal>()({
        seen: list(
          object({
            session: text,
            seq: whole,
            log: optional(text),
            distance: real,
            reason: text,
            adapters: scaled,
            bits: real,
            formats: nullable(text),
          }),
          0,
          64,
        ),
        adapters: scaled,
        weight: real,
        share: real,
        bits: nullable(real),
        formats: nullable(text),
        because,
      }),
    ),
    since: '0.1.0',
    means:
      'What was proposed of adapters, because somebody asked for that: by which earlier sessions, what these used, and why; absent where nobody asked.',
  },
  'policy.id': { type: text },
  'policy.version': { type: count },
  'policy.options': { type: plain },
  /** Digest of the state machine of its layers. */
  'policy.machine': { type: text },
  /** The file of a policy of the caller's own, without which its decisions cannot be made again. */
  'policy.module': {
    type: optional(object({ sha256: text, export: text })),
    since: '0.1.0',
    means: 'Of a policy of the caller: SHA-256 of the file of its module, and the name that it is exported by.',
  },
  'context.layers': { type: layers },
  'context.kvHeads': { type: count },
  'context.headDim': { type: count, unit: 'channels' },
  'context.windowFormat': { type: windowFormat },
  'context.openFormat': { type: optional(windowFormat), since: '0.1.0' },
  'context.windowTokens': { type: optional(one(WINDOW_TOKENS)), since: '0.1.0' },
  'context.slidingWindow': { type: optional(list(nullable(count), 0, LAYERS_MAX)), unit: 'tokens', since: '0.1.0' },
  // A build may know formats that this one does not.
  'context.pageBytes': { type: known<PolicyContext['pageBytes']>(record(text, whole)) },
  'context.latents': { type: optional(noun<LatentContext>()({ kept: latent, operations: real })), since: '0.1.0' },
  'context.pack': { type: optional(noun<PackContext>()({ id: text, pageBytes: whole })), since: '0.1.0' },
  'context.fixedBytes': { type: whole },
  'context.thresholds': { type: thresholds },
  'context.skipLayers': { type: list(count, 0, LAYERS_MAX) },
  'context.floor': { type: nullable(object({ k: format, v: format })) },
  'context.comesBackIn': { type: optional(format), since: '0.1.0' },
  'context.outlierKeys': { type: optional(list(format)), since: '0.1.0' },
  'context.priority': { type: optional(one(['bytes', 'kld'])), since: '0.1.0' },
  /** Whether it keeps latents, where that was left to it. */
  foresight: {
    type: optional(
      noun<Foresight>()({
        seen: noun<Foreseen>()({
          tokens: nullable(count),
          sessions: count,
          pages: whole,
          roomBytes: real,
          roomBesideBytes: real,
          format: latent,
          latentBytes: whole,
          codeBytes: whole,
          leastShare: real,
          operations: real,
          pageMs: nullable(real),
          stepLatencyBudgetMs: nullable(real),
        }),
        kept: nullable(latent),
        pages: whole,
        operations: real,
        because,
      }),
    ),
    since: '0.1.0',
    means: 'Whether it keeps latents, decided by what was foreseen when it began; absent where nobody left it to it.',
  },
  requested: { type: plain },
  effective: { type: plain },
} as const satisfies Fields;

export type OpenBody = BodyOf<typeof OPEN>;

/** The context is what policies are told. */
export type OpenAgrees = Certain<Same<OpenBody['context'], Flat<PolicyContext>>>;
