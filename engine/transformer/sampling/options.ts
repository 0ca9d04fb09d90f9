/** The options of sampling: what they mean, what they may be, and their defaults. */
import {
  above,
  checkOptions,
  defaultsOf,
  given,
  KvError,
  type Rows,
  real,
  seenLater,
  show,
  suchThat,
  whole,
} from '../../../native/index.ts';

/**
 * How the next token is chosen from the logits of the model. The order is that of llama.cpp: `logitBias`; repetition,
 * frequency and presence penalties; DRY; `topK`, `typicalP`, `topP`, `minP`; `temperature`; and then one of the tokens
 * that are left is drawn. Each narrows what the one before it left.
 */
export interface SamplingOptions {
  /** Logits are divided by it before one is drawn. 0 (default): greedy, the most likely token. */
  readonly temperature?: number;
  /** So many of the most likely tokens may be drawn; 0: all. Default 40. */
  readonly topK?: number;
  /**
   * Locally typical sampling: the tokens whose surprise is nearest to the expected one, as few as have this
   * probability. Default 1, all.
   */
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
  /**
   * DRY: multiplier · base^(length − allowed length) is taken from the logit of a token that would go on repeating
   * `length` tokens. Default 0, off.
   */
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
  /**
   * 0 … 2^53 − 1. What is drawn for the token at a position follows from the seed and the position alone. Default 0.
   */
  readonly seed?: number;
}

/** Largest penalty, bias or base: far beyond any use, and no sum of them overflows. */
const LARGEST = 1000;

const share = above(0, 1, 'above 0 and at most 1 (1 keeps all tokens)');
const penalty = real(-LARGEST, LARGEST);
const lastTokens = whole(-1, undefined, 'a whole number, 0 for none or −1 for all tokens');

/** What each option may be. */
export const SAMPLING_OPTIONS = {
  seed: {
    rule: whole(0, undefined, 'a whole number, 0 to 2^53 − 1'),
    default: 0,
    help: 'seed of sampling and of generated documents',
    flag: '--seed <n>',
  },
  temperature: {
    rule: real(0, undefined, 'a number of 0 (greedy) or more'),
    default: 0,
    help: '0 = greedy; above it a token is drawn',
    flag: '--temp, --temperature <t>',
  },
  topK: {
    rule: whole(0, undefined, 'a whole number, 0 for all tokens'),
    default: 40,
    help: 'draw from so many of the most likely tokens; 0: all',
    flag: '--top-k <n>',
  },
  typicalP: {
    rule: share,
    default: 1,
    help: 'locally typical sampling; 1: all',
    flag: '--typical, --typical-p <p>',
  },
  topP: {
    rule: share,
    default: 0.95,
    help: 'nucleus: as few tokens as have this probability; 1: all',
    flag: '--top-p <p>',
  },
  minP: {
    rule: real(0, 1),
    default: 0.05,
    help: 'least share of the probability of the most likely token; 0: all',
    flag: '--min-p <p>',
  },
  repeatPenalty: {
    rule: real(1 / LARGEST, LARGEST, `a number from ${1 / LARGEST} to ${LARGEST} (1 does nothing)`),
    default: 1,
    help: 'divides the logits of tokens that were there; 1: none',
    flag: '--repeat-penalty <x>',
  },
  frequencyPenalty: {
    rule: penalty,
    default: 0,
    help: 'taken from their logits for each time; 0: none',
    flag: '--frequency-penalty <x>',
  },
  presencePenalty: {
    rule: penalty,
    default: 0,
    help: 'taken from their logits once; 0: none',
    flag: '--presence-penalty <x>',
  },
  repeatLastN: {
    rule: lastTokens,
    default: 64,
    help: 'tokens that these three look back; -1: all',
    flag: '--repeat-last-n <n>',
  },
  dryMultiplier: {
    rule: real(0, LARGEST),
    default: 0,
    help: 'DRY, against repeated sequences: multiplier * base ^ (length - allowed length); 0: off',
    flag: '--dry-multiplier <x>',
  },
  dryBase: { rule: real(1, LARGEST), default: 1.75, help: 'its base', flag: '--dry-base <x>' },
  dryAllowedLength: {
    rule: whole(0, undefined, 'a whole number, 0 or more'),
    default: 2,
    help: 'shorter repetitions are free',
    flag: '--dry-allowed-length <n>',
  },
  dryPenaltyLastN: {
    rule: lastTokens,
    default: 64,
    help: 'tokens that it looks back; -1: all',
    flag: '--dry-penalty-last-n <n>',
  },
  drySequenceBreakers: {
    rule: suchThat<readonly string[]>(
      (breakers) => Array.isArray(breakers) && breakers.every((text) => typeof text === 'string' && text !== ''),
      'an array of texts, none of them empty',
    ),
    default: ['\n', ':', '"', '*'],
    hint: 'an empty array lets repetitions reach over everything',
    help: 'texts over which no repetition reaches',
    flags: {
      drySequenceBreaker: {
        flag: '--dry-sequence-breaker <text...>',
        help: 'texts over which no repetition reaches, or none (default: line break : " *)',
      },
    },
  },
  logitBias: {
    // Which tokens there are is known where there is a vocabulary.
    rule: seenLater<Readonly<Record<number, number>>>('an object of token ids and numbers'),
    default: {},
    help: 'added to the logits of tokens, by id',
    flags: {
      logitBias: {
        flag: '--logit-bias <id+bias...>',
        help: 'added to the logit of a token: 15043+1, 15043-1.5, 2-inf (never)',
      },
    },
  },
} as const satisfies Rows<SamplingOptions>;

/**
 * The defaults that llama.cpp has (`common_params_sampling`), but for the temperature, 0.8 there, and the seed, which
 * is random there.
 */
export const SAMPLING_DEFAULTS: Required<SamplingOptions> = defaultsOf<SamplingOptions>(SAMPLING_OPTIONS);

/** Options with their defaults. Throws 'bad-argument'. */
export function checkSampling(options: SamplingOptions, vocabSize: number): Required<SamplingOptions> {
  const all: Required<SamplingOptions> = { ...SAMPLING_DEFAULTS, ...given(options) };
  checkOptions(all, SAMPLING_OPTIONS);
  checkBias(all.logitBias, vocabSize);
  return all;
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
