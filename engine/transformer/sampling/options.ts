/** The options of sampling: what they mean, their defaults, and the checks. */
import { given, KvError, show } from '../../../native/index.ts';

/**
 * How the next token is chosen from the logits of the model. The order is that of llama.cpp: `logitBias`; repetition, frequency and presence
 * penalties; DRY; `topK`, `typicalP`, `topP`, `minP`; `temperature`; and then one of the tokens that are left is drawn. Each narrows what the one before it left.
 */
export interface SamplingOptions {
  /** Logits are divided by it before one is drawn. 0 (default): greedy, the most likely token. */
  readonly temperature?: number;
  /** So many of the most likely tokens may be drawn; 0: all. Default 40. */
  readonly topK?: number;
  /** Locally typical sampling: the tokens whose surprise is nearest to the expected one, as few as have this probability. Default 1, all. */
  readonly typicalP?: number;
  /** Nucleus: the most likely tokens, as few as have this probability. Default 0.95; 1: all. */
  readonly topP?: number;
  /** Tokens below this share of the probability of the most likely one are not drawn. Default 0.05; 0: all. */
  readonly minP?: number;
  /** Logits of tokens in the window are divided by it where positive, else multiplied. Default 1, none. */
  readonly repeatPenalty?: number;
  /** Taken from the logit of a token for each time that it is in the window. Default 0. */
  readonly frequencyPenalty?: number;
  /** Taken from the logit of a token that is in the window. Default 0. */
  readonly presencePenalty?: number;
  /** The window of these three: so many of the last tokens, those of the prompt included; −1: all. Default 64. */
  readonly repeatLastN?: number;
  /** DRY: multiplier · base^(length − allowed length) is taken from the logit of a token that would go on repeating `length` tokens. Default 0, off. */
  readonly dryMultiplier?: number;
  /** Default 1.75. */
  readonly dryBase?: number;
  /** Repetitions of fewer tokens are free. Default 2. */
  readonly dryAllowedLength?: number;
  /** So many of the last tokens are searched for repetitions; −1: all. Default 64. */
  readonly dryPenaltyLastN?: number;
  /** Texts over which no repetition reaches. Default: line break, colon, double quote, asterisk. */
  readonly drySequenceBreakers?: readonly string[];
  /** Added to the logits of tokens, by id: { 15043: 1.5 }; −Infinity: never. Default: none. */
  readonly logitBias?: Readonly<Record<number, number>>;
  /** 0 … 2^53 − 1. What is drawn for the token at a position follows from the seed and the position alone. Default 0. */
  readonly seed?: number;
}

/** The defaults that llama.cpp has (`common_params_sampling`), but for the temperature, 0.8 there, and the seed, which is random there. */
export const SAMPLING_DEFAULTS: Required<SamplingOptions> = {
  temperature: 0,
  topK: 40,
  typicalP: 1,
  topP: 0.95,
  minP: 0.05,
  repeatPenalty: 1,
  frequencyPenalty: 0,
  presencePenalty: 0,
  repeatLastN: 64,
  dryMultiplier: 0,
  dryBase: 1.75,
  dryAllowedLength: 2,
  dryPenaltyLastN: 64,
  drySequenceBreakers: ['\n', ':', '"', '*'],
  logitBias: {},
  seed: 0,
};

/** Largest penalty, bias or base: far beyond any use, and no sum of them overflows. */
const LARGEST = 1000;

interface Range {
  readonly says: string;
  readonly holds: (value: number) => boolean;
}

const within = (least: number, most: number, says = `from ${least} to ${most}`): Range => ({
  says: `a number ${says}`,
  holds: (value) => value >= least && value <= most,
});
const whole = (least: number, says: string): Range => ({
  says: `a whole number, ${says}`,
  holds: (value) => Number.isSafeInteger(value) && value >= least,
});
const share = (says: string): Range => ({
  says: `above 0 and at most 1 (${says})`,
  holds: (value) => value > 0 && value <= 1,
});
const lastTokens = whole(-1, '0 for none or −1 for all tokens');

const RANGES: Readonly<Record<Exclude<keyof SamplingOptions, 'drySequenceBreakers' | 'logitBias'>, Range>> = {
  temperature: { says: 'a number of 0 (greedy) or more', holds: (value) => value >= 0 && value < Infinity },
  topK: whole(0, '0 for all tokens'),
  typicalP: share('1 keeps all tokens'),
  topP: share('1 keeps all tokens'),
  minP: within(0, 1),
  repeatPenalty: within(1 / LARGEST, LARGEST, `from ${1 / LARGEST} to ${LARGEST} (1 does nothing)`),
  frequencyPenalty: within(-LARGEST, LARGEST),
  presencePenalty: within(-LARGEST, LARGEST),
  repeatLastN: lastTokens,
  dryMultiplier: within(0, LARGEST),
  dryBase: within(1, LARGEST),
  dryAllowedLength: whole(0, '0 or more'),
  dryPenaltyLastN: lastTokens,
  seed: whole(0, '0 to 2^53 − 1'),
};

/** Options with their defaults. Throws 'bad-argument'. */
export function checkSampling(options: SamplingOptions, vocabSize: number): Required<SamplingOptions> {
  const all: Required<SamplingOptions> = { ...SAMPLING_DEFAULTS, ...given(options) };
  for (const [name, { says, holds }] of Object.entries(RANGES)) {
    const value: unknown = all[name as keyof typeof RANGES];
    if (typeof value !== 'number' || !holds(value))
      throw new KvError('bad-argument', `${name} must be ${says}`, {
        values: { [name]: typeof value === 'number' ? value : show(value) },
        hint: `leave it out for ${SAMPLING_DEFAULTS[name as keyof typeof RANGES]}`,
      });
  }
  checkBreakers(all.drySequenceBreakers);
  checkBias(all.logitBias, vocabSize);
  return all;
}

function checkBreakers(breakers: unknown): void {
  if (!Array.isArray(breakers) || !breakers.every((text) => typeof text === 'string' && text !== ''))
    throw new KvError('bad-argument', 'drySequenceBreakers must be an array of texts, none of them empty', {
      values: { drySequenceBreakers: JSON.stringify(breakers) },
      hint: 'an empty array lets repetitions reach over everything',
    });
}

function checkBias(bias: unknown, vocabSize: number): void {
  const hint = `{ 15043: 1.5 }: token ids below ${vocabSize}, and numbers from −${LARGEST} to ${LARGEST} or −Infinity`;
  if (typeof bias !== 'object' || bias === null || Array.isArray(bias))
    throw new KvError('bad-argument', 'logitBias must be an object of token ids and numbers', {
      values: { logitBias: show(bias) },
      hint,
    });
  for (const [token, value] of Object.entries(bias)) {
    const id = Number(token);
    if (!Number.isInteger(id) || id < 0 || id >= vocabSize || String(id) !== token)
      throw new KvError('bad-argument', `logitBias names '${token}', which is no token id`, {
        values: { token, vocabSize },
        hint,
      });
    if (value !== -Infinity && !(typeof value === 'number' && Math.abs(value) <= LARGEST))
      throw new KvError('bad-argument', `logitBias of token ${token} must be a number`, {
        values: { token, bias: typeof value === 'number' ? value : show(value) },
        hint,
      });
  }
}
