/** The settings of sampling, with the names and defaults that llama.cpp has, and the options of the library that they make. */
import { given, KvError } from '../../native/index.ts';
import { LOGPROBS_MAX } from '../transformer/sampling/logprobs.ts';
import { SAMPLING_DEFAULTS, type SamplingOptions } from '../transformer/sampling/options.ts';
import { real, type Setting, whole } from './setting.ts';

const D = SAMPLING_DEFAULTS;
const WINDOW_MAX = 10_000_000;
const penalty = real(-1000, 1000);

export const SAMPLING_SETTINGS = {
  seed: {
    flags: '--seed <n>',
    help: 'seed of sampling and of generated documents',
    default: D.seed,
    parse: whole(0, 2 ** 31),
  },
  temperature: {
    flags: '--temp, --temperature <t>',
    help: '0 = greedy; above it a token is drawn',
    default: D.temperature,
    parse: real(0, 10),
  },
  topK: {
    flags: '--top-k <n>',
    help: 'draw from so many of the most likely tokens; 0: all',
    default: D.topK,
    parse: whole(0, WINDOW_MAX),
  },
  typicalP: {
    flags: '--typical, --typical-p <p>',
    help: 'locally typical sampling; 1: all',
    default: D.typicalP,
    parse: real(0, 1),
  },
  topP: {
    flags: '--top-p <p>',
    help: 'nucleus: as few tokens as have this probability; 1: all',
    default: D.topP,
    parse: real(0, 1),
  },
  minP: {
    flags: '--min-p <p>',
    help: 'least share of the probability of the most likely token; 0: all',
    default: D.minP,
    parse: real(0, 1),
  },
  repeatPenalty: {
    flags: '--repeat-penalty <x>',
    help: 'divides the logits of tokens that were there; 1: none',
    default: D.repeatPenalty,
    parse: real(0.001, 1000),
  },
  frequencyPenalty: {
    flags: '--frequency-penalty <x>',
    help: 'taken from their logits for each time; 0: none',
    default: D.frequencyPenalty,
    parse: penalty,
  },
  presencePenalty: {
    flags: '--presence-penalty <x>',
    help: 'taken from their logits once; 0: none',
    default: D.presencePenalty,
    parse: penalty,
  },
  repeatLastN: {
    flags: '--repeat-last-n <n>',
    help: 'tokens that these three look back; -1: all',
    default: D.repeatLastN,
    parse: whole(-1, WINDOW_MAX),
  },
  dryMultiplier: {
    flags: '--dry-multiplier <x>',
    help: 'DRY, against repeated sequences: multiplier * base ^ (length - allowed length); 0: off',
    default: D.dryMultiplier,
    parse: real(0, 1000),
  },
  dryBase: { flags: '--dry-base <x>', help: 'its base', default: D.dryBase, parse: real(1, 1000) },
  dryAllowedLength: {
    flags: '--dry-allowed-length <n>',
    help: 'shorter repetitions are free',
    default: D.dryAllowedLength,
    parse: whole(0, WINDOW_MAX),
  },
  dryPenaltyLastN: {
    flags: '--dry-penalty-last-n <n>',
    help: 'tokens that it looks back; -1: all',
    default: D.dryPenaltyLastN,
    parse: whole(-1, WINDOW_MAX),
  },
  drySequenceBreaker: {
    flags: '--dry-sequence-breaker <text...>',
    help: 'texts over which no repetition reaches, or none (default: line break : " *)',
  },
  logitBias: {
    flags: '--logit-bias <id+bias...>',
    help: 'added to the logit of a token: 15043+1, 15043-1.5, 2-inf (never)',
  },
  jsonSchema: {
    flags: '-j, --json-schema <file|text>',
    help: 'the answer is JSON that fulfils this schema (needs @mlc-ai/web-xgrammar)',
  },
  grammar: {
    flags: '--grammar <file|text>',
    help: 'the answer follows this grammar in GBNF, from its rule root (likewise)',
  },
  promptLookupTokens: {
    flags: '--prompt-lookup-tokens <n>',
    help: 'propose so many tokens from earlier text at once, where it pays; 0: none',
    parse: whole(0, 64),
  },
  logprobs: {
    flags: '--logprobs <n>',
    help: 'also tell how likely each generated token was, and so many of the most likely ones',
    parse: whole(0, LOGPROBS_MAX),
  },
} as const satisfies Record<string, Setting>;

type Settings = Partial<Record<string, unknown>>;

/** Throws 'bad-argument' for a bias that cannot be read. */
export function samplingOptions(settings: Settings): SamplingOptions {
  const { seed, temperature, topK, typicalP, topP, minP, repeatPenalty, frequencyPenalty } = settings;
  const { presencePenalty, repeatLastN, dryMultiplier, dryBase, dryAllowedLength, dryPenaltyLastN } = settings;
  return given<SamplingOptions>({
    ...{ seed, temperature, topK, typicalP, topP, minP, repeatPenalty, frequencyPenalty },
    ...{ presencePenalty, repeatLastN, dryMultiplier, dryBase, dryAllowedLength, dryPenaltyLastN },
    drySequenceBreakers: breakers(settings['drySequenceBreaker'] as string[] | undefined),
    logitBias: biases(settings['logitBias'] as string[] | undefined),
  } as SamplingOptions);
}

const breakers = (texts: readonly string[] | undefined): readonly string[] | undefined =>
  texts?.length === 1 && texts[0] === 'none' ? [] : texts;

function biases(texts: readonly string[] | undefined): Readonly<Record<number, number>> | undefined {
  if (texts === undefined) return undefined;
  return Object.fromEntries(
    texts.map((text) => {
      const [, id, bias] = /^(\d{1,9})([+-]\d+(?:\.\d+)?|-inf)$/.exec(text) ?? [];
      if (id === undefined)
        throw new KvError('bad-argument', `--logit-bias ${text}: this is no token id and bias`, {
          values: { given: text },
          hint: '15043+1, 15043-1.5, or 2-inf for never; palimpsest inspect MODEL says how many tokens there are',
        });
      return [Number(id), bias === '-inf' ? -Infinity : Number(bias)];
    }),
  );
}
