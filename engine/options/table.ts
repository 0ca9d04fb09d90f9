/**
 * The table of options: each one's rule, default, help and flag, once. There is a list for each interface of options,
 * complete by its type: an option that is added to its interface must be added here, and the other way round. Names
 * (checkKeys), checks (checkOptions), settings of the command line (engine/cli/option-settings.ts) and docs/options.md
 * come from these lists.
 */
import { z } from 'zod';
import {
  ATTENTION_OPTIONS,
  above,
  anyText,
  FORMAT_NAMES,
  type FormatName,
  type FormatPair,
  ISA_NAMES,
  LATENT_NAMES,
  oneName,
  oneNumber,
  type Rows,
  real,
  SHAPE_OPTIONS,
  seenLater,
  suchThat,
  truth,
  WINDOW_FORMAT,
  WINDOW_TOKENS,
  whole,
} from '../../native/index.ts';
import { type Policy, policies, type TiersOptions } from '../../policy/index.ts';
import type { FailureMode, LogRule } from '../../witness/index.ts';
import { isLogger, type Logger } from '../events/logger.ts';
import type { GrammarOption } from '../transformer/grammar/options.ts';
import { DENSE_THREADS } from '../transformer/limits.ts';
import { SAMPLING_OPTIONS } from '../transformer/sampling/options.ts';
import type { OpenCacheOptions } from './cache-options.ts';
import { isPolicy, isPolicyModule, type PolicyModule } from './policy-module.ts';
import type {
  CacheTypes,
  ContinuationOptions,
  EmbedOptions,
  EngineOptions,
  GenerateOptions,
  GoverningOptions,
  KvBudget,
  KvBytes,
  KvGroup,
  ParkOptions,
  ProposedFor,
  ResumeOptions,
  SendOptions,
  SessionAdapter,
  SessionOptions,
  StateOptions,
  ToolChoice,
} from './types.ts';

/** How a long call tells how far it is, and is ended. */
export const COMPARE_OPTIONS = {
  onProgress: {
    rule: seenLater<NonNullable<ResumeOptions['onProgress']>>('a function'),
    help: 'told how far the reading is',
  },
  signal: { rule: seenLater<AbortSignal>('a signal'), help: 'aborts it' },
} as const satisfies Rows<Pick<ResumeOptions, 'onProgress' | 'signal'>>;

/** A model, and a folder or none. */
const ENGINE_NEEDS = {
  refusal: 'an engine needs the name of a model, and a folder or null for its state',
  hint: "createEngine({ model: 'reference' })",
} as const;

const ADAPTER_PATHS = z.record(z.string().min(1).max(256), z.string().min(1));
const isPaths = (given: unknown): boolean => ADAPTER_PATHS.safeParse(given).success;

/** What loads a model. */
export const LOADING_OPTIONS = {
  model: {
    ...ENGINE_NEEDS,
    rule: anyText(),
    help: "model folder, .gguf file, 'reference', 'smollm2-135m', hf:ORG/REPO[:FILE] or ollama:NAME[:TAG]",
    flag: '-m, --model <path|name>',
  },
  threads: { rule: DENSE_THREADS, help: 'threads (default: all cores it may use)', flag: '-t, --threads <n>' },
  isa: {
    rule: seenLater('the name of an instruction set'),
    help: 'force an instruction set of the kernels',
    flag: '--isa <name>',
    choices: ISA_NAMES,
  },
  binding: {
    rule: seenLater('where kernels come from'),
    help: 'force where the kernels come from (default: the first of these that is there)',
    flag: '--binding <name>',
    choices: ['built', 'prebuilt', 'wasm'],
  },
  dense: {
    rule: seenLater("'auto' or 'exact'"),
    help: 'weights: auto (quantized ones as in the file, others in 8 bits; default) or exact (f32; default of evaluate)',
    flag: '--dense <precision>',
    choices: ['auto', 'exact'],
  },
  cacheDir: {
    rule: anyText('a folder'),
    help: 'folder of fetched models (default: PALIMPSEST_CACHE, or else palimpsest in the caches of the user)',
    flag: '--cache <dir>',
    setting: 'cache',
  },
  offline: {
    rule: truth,
    refusal: 'offline is true or false',
    help: 'ask nothing of the network for a model (as HF_HUB_OFFLINE=1)',
    flag: '--offline',
  },
  onProgress: {
    rule: suchThat((value) => typeof value === 'function', 'a function'),
    refusal: 'onProgress is a function',
    help: 'told how far download and loading are',
  },
  adapters: {
    rule: suchThat<Readonly<Record<string, string>>>(isPaths, 'paths by names'),
    help: 'adapters for sessions, by name: PEFT folders or GGUF files',
  },
  logger: {
    rule: suchThat<Logger>(isLogger, 'an object with debug, info, warn and error'),
    refusal: 'logger is an object with the functions debug, info, warn and error',
    hint: 'console, or a logger of pino',
    help: 'told of events, by level',
  },
  signal: { rule: seenLater('a signal'), help: 'aborts download and loading' },
} as const satisfies Rows<
  Omit<
    EngineOptions,
    | keyof StateOptions
    | 'stateDir'
    | 'activations'
    | 'logRetention'
    | 'kvBudget'
    | 'idleSessions'
    | 'maxConcurrent'
    | 'prefixCaching'
    | 'interTokenTargetMs'
    | 'onPressure'
    | 'helpers'
    | 'embedder'
  >
>;

/** What calls do where memory is short. */
const ON_PRESSURE = {
  rule: oneName('refuse', 'queue', 'degrade'),
  refusal: "where room is short calls are refused ('refuse'), wait ('queue'), or have pages go lower ('degrade')",
} as const;

/** What is written to a state folder. */
export const STATE_OPTIONS = {
  onLogFailure: {
    rule: seenLater<FailureMode>("'block', 'halt' or 'drop'"),
    default: 'block',
    help: 'when the log cannot be written',
    flag: '--on-log-failure <mode>',
    choices: ['block', 'halt', 'drop'],
  },
  anchor: {
    rule: seenLater('{ key, to }'),
    help: 'where signed checkpoints of the log go while it is written',
    flags: {
      anchor: {
        flag: '--anchor <where...>',
        help: 'where signed checkpoints of the log go: a file outside of the state folder, stdout, a URL of http, https or postgres',
      },
      anchorKey: { flag: '--anchor-key <file>', help: 'private key that signs them' },
    },
  },
  logRules: {
    rule: seenLater('a list of rules'),
    help: 'what must not be written to the log',
    flags: {
      logRules: {
        flag: '--log-rules <file>',
        help: 'JSON list of what must not be written to the log: [{"action": "mask", "path": "model.name"}]',
      },
    },
  },
  qdrant: {
    rule: seenLater('{ url }'),
    help: 'Qdrant server where sessions are shared with other machines',
    flags: {
      qdrantUrl: {
        flag: '--qdrant-url <url>',
        help: 'Qdrant server where sessions are shared with other machines (default: none)',
      },
      qdrantApiKey: { flag: '--qdrant-api-key <key>', help: 'its key; better given in the environment or a file' },
      qdrantCollection: {
        flag: '--qdrant-collection <name>',
        help: 'what the names of its collections begin with (default: palimpsest)',
      },
      qdrantPrefixKey: {
        flag: '--qdrant-prefix-key <secret>',
        help: 'the same on machines that learn from each other what is asked of texts that begin alike; better given in the environment or a file',
      },
    },
  },
} as const satisfies Rows<StateOptions>;

export const ENGINE_OPTIONS = {
  ...LOADING_OPTIONS,
  stateDir: {
    ...ENGINE_NEEDS,
    rule: suchThat<string | null>(
      (dir) => dir === null || (typeof dir === 'string' && dir !== ''),
      'a folder, or null for none',
    ),
    default: '.palimpsest',
    help: 'folder of log, indexes and learned thresholds',
    flag: '--state <dir>',
    setting: 'state',
  },
  ...STATE_OPTIONS,
  logRetention: { rule: seenLater('{ olderThan, maxSize }'), help: 'how long and how much of the log is kept' },
  activations: {
    rule: suchThat<16 | 'auto'>((bits) => bits === 16 || bits === 'auto', "16 or 'auto'"),
    default: 16,
    refusal: "activations have 16 bits, or are chosen by what was calibrated ('auto')",
    help: 'bits of activations: 16, or auto (8 in matrices where a calibration says that it costs little)',
    flag: '--activations <bits>',
  },
  kvBudget: { rule: seenLater('bytes'), help: 'most bytes of the caches of all sessions together' },
  idleSessions: {
    rule: oneName('reread', 'keep', 'memory', 'disk'),
    default: 'reread',
    refusal: "sessions that wait are read again ('reread'), kept ('keep'), or parked in 'memory' or on 'disk'",
    help: 'what becomes of sessions that wait when memory is short',
    flag: '--idle-sessions <how>',
  },
  onPressure: {
    ...ON_PRESSURE,
    default: 'degrade',
    help: 'what a call does when there is no room to its end: pages go lower, it waits for others, or it is refused',
  },
  maxConcurrent: {
    rule: whole(1, undefined, 'a positive whole number'),
    help: 'most calls at work at once (default: as many as there is room for)',
  },
  prefixCaching: {
    rule: truth,
    default: true,
    help: 'whether sessions begin with pages that others have read already',
  },
  interTokenTargetMs: {
    rule: above(0, Number.MAX_VALUE, 'a number of milliseconds above 0'),
    // Chosen: ten tokens in a second are faster than anybody reads.
    default: 100,
    help: 'how long a pass over the weights may take that has a piece of a prompt beside answers',
  },
  helpers: {
    rule: truth,
    default: false,
    help: 'let helpers in processes of their own say what kind of text is read',
    flag: '--helpers',
  },
  embedder: {
    rule: anyText('a file', 1),
    help: 'let this ONNX sentence model say where texts lie, in place of the one that comes with the package',
    flag: '--embedder <file>',
  },
} as const satisfies Rows<EngineOptions>;

const isFormat = (name: unknown): name is FormatName => (FORMAT_NAMES as readonly unknown[]).includes(name);
const isPair = (one: unknown): boolean =>
  typeof one === 'string' || (isFormat((one as FormatPair | null)?.k) && isFormat((one as FormatPair).v));

/** What governs one conversation's cache, of an engine or of one's own. */
export const GOVERNING_OPTIONS = {
  kvBudget: {
    rule: seenLater<KvBudget>('bytes, or a share of the f16 cache'),
    help: 'KV bytes (64MiB) or share of the f16 cache of prompt + max tokens (25%)',
    flag: '--kv-budget <bytes|%>',
  },
  kldBudget: {
    rule: real(0, undefined, 'a number of nats ≥ 0'),
    help: 'mean divergence that may be spent instead of bytes',
    flag: '--kld-budget <nats>',
  },
  priority: {
    rule: oneName('bytes', 'kld'),
    default: 'bytes',
    help: 'which budget is kept where both are given and cannot be',
    flag: '--priority <budget>',
  },
  cacheTypes: {
    rule: suchThat<CacheTypes>(
      (types) => (Array.isArray(types) ? types.every(isPair) : isPair(types)),
      'formats for keys and values',
    ),
    refusal: `cacheTypes must name one of ${FORMAT_NAMES.join(', ')} for k and for v`,
    help: 'formats of keys and values: fixed without a budget, the lowest allowed with one',
    flags: {
      cacheTypeK: {
        flag: '--cache-type-k <type>',
        help: `fixed format of keys (${FORMAT_NAMES.join(' ')}), or a K:V pair`,
      },
      cacheTypeV: {
        flag: '--cache-type-v <type>',
        help: 'fixed format of values; of two, the one left out is f16',
      },
    },
  },
  tiers: {
    rule: seenLater<TiersOptions>('{ hot, warm, cold, importance, decay, anchors, group }'),
    help: 'sizes and formats of the tiers of policy tiers',
    flags: {
      tierHot: {
        flag: '--tier-hot <size,K:V>',
        help: "policy tiers: the hot tier's most tokens, pages or share of the budget, and its formats (default: 512,q8)",
      },
      tierWarm: {
        flag: '--tier-warm <size,K:V>',
        help: 'the same of the warm one (default: 4096,trellis4); each of the two may be left out',
      },
      tierCold: {
        flag: '--tier-cold <K:V>',
        help: 'formats of the cold one, which has all other pages (default: trellis3:trellis1)',
      },
      tierImportance: {
        flag: '--tier-importance <share>',
        help: "share of a tier's places for pages with most attention; newer pages have the others (default: 0.5)",
      },
      tierDecay: {
        flag: '--tier-decay <factor>',
        help: 'what attention counts a page of tokens later (default: 0.5)',
      },
      tierAnchors: {
        flag: '--tier-anchors <list>',
        help: 'pages that stay hot before all others, e.g. 0,4-5 (default: none)',
      },
      tierGroup: {
        flag: '--tier-group <n>',
        help: 'numbers that are to share a scale; refused where the formats have another group (default: theirs)',
      },
    },
  },
  skipLayers: {
    rule: seenLater<readonly number[]>('a list of layers'),
    help: 'layers that stay in the window format, e.g. 0,28-29',
    flag: '--kv-cache-dtype-skip-layers <list>',
  },
  tokensExpected: {
    rule: whole(1, undefined, 'a positive whole number'),
    help: 'tokens planned for: prompt + answer; a budget in percent needs it',
  },
  openFormat: {
    rule: oneName('f16', WINDOW_FORMAT),
    help: 'format of the page that tokens are appended to: q8 or f16 (default: q8 under a budget of bytes, else f16)',
    flag: '--open-format <type>',
  },
  windowTokens: {
    rule: oneNumber(WINDOW_TOKENS),
    help: `newer tokens that keep a sealed page in the window: ${WINDOW_TOKENS.join(' or ')} (default: 128, or 64 under a small budget)`,
    flag: '--window-tokens <n>',
  },
  stepLatencyBudgetMs: {
    rule: above(0, Number.MAX_VALUE, 'a number of milliseconds above 0'),
    help: 'p95 of decode steps above which pages move only when they must',
    flag: '--step-latency-budget <ms>',
    setting: 'stepLatencyBudget',
  },
  thresholds: {
    rule: seenLater('a set of thresholds'),
    help: 'thresholds and gains to start from',
    parked: false,
  },
  thresholdsPath: {
    rule: anyText('a path', 1),
    help: 'start from this threshold file instead of what was learned here',
    flag: '--thresholds <file>',
    setting: 'thresholds',
    parked: false,
  },
  thresholdValues: {
    rule: suchThat<Readonly<Record<string, number>>>(isNumbers, 'numbers by the ids of thresholds'),
    help: 'values in place of those of single thresholds, whatever was learned',
  },
  policyFile: {
    rule: anyText('a path', 1),
    help: 'TOML or JSON of policy, formats, window, tiers, budgets and thresholds; flags go before what it says',
    flag: '--policy-file <file>',
    parked: false,
  },
} as const satisfies Rows<GoverningOptions>;

/** True of an object that holds numbers alone; which ids and ranges there are is seen later. */
function isNumbers(given: unknown): boolean {
  if (typeof given !== 'object' || given === null || Array.isArray(given)) return false;
  return Object.values(given).every((value) => typeof value === 'number');
}

/** A name, or the module of a policy of one's own: what can be sent to the thread of an engine. */
const NAMED_POLICY = suchThat<string | PolicyModule>(
  (given) => typeof given === 'string' || isPolicyModule(given),
  'a name, or { module, export, options } of a policy of your own',
);
/** The same, or the policy itself. */
const POLICY = suchThat<string | Policy | PolicyModule>(
  (given) => typeof given === 'string' || isPolicyModule(given) || isPolicy(given),
  'a name, an object { id, version, needsTrials, open }, or { module, export, options }',
);
/** All but `table`, because no flag can hold its formats for each layer. */
const POLICY_NAMES = Object.keys(policies).filter((id) => id !== 'table');

/** Most adapters of a session. */
export const ADAPTERS_MAX = 4;
const SESSION_ADAPTERS = z
  .array(z.strictObject({ name: z.string().min(1).max(256), scale: z.number().min(-100).max(100).optional() }))
  .max(ADAPTERS_MAX);

/** True of what asks for adapters that are proposed; which prompts there are is seen later. */
export const isProposedFor = (given: SessionOptions['adapters']): given is ProposedFor =>
  given !== undefined && 'proposedFor' in given;

/** Asks for those of a text that is not known yet, which `proposedOf` puts there. */
export const PROPOSED: ProposedFor = { proposedFor: [] };

/** The same options, with the tokens that will be read first where adapters are to be proposed. */
export const proposedOf = <Options extends Pick<SessionOptions, 'adapters'>>(
  options: Options,
  ids: readonly number[],
): Options => (isProposedFor(options.adapters) ? { ...options, adapters: { proposedFor: ids } } : options);

const PROPOSED_FOR = z.strictObject({ proposedFor: z.union([z.string(), z.array(z.unknown())]) });

function isAdapters(given: unknown): boolean {
  if (PROPOSED_FOR.safeParse(given).success) return true;
  const checked = SESSION_ADAPTERS.safeParse(given);
  return checked.success && new Set(checked.data.map(({ name }) => name)).size === checked.data.length;
}

export const SESSION_OPTIONS = {
  ...GOVERNING_OPTIONS,
  policy: {
    rule: NAMED_POLICY,
    help: 'what moves pages (default: price under a budget), or the module of a policy of your own',
    choices: POLICY_NAMES,
    flags: {
      policy: {
        flag: '--policy <id>',
        help: 'what moves pages (default: price under a budget)',
        choices: POLICY_NAMES,
      },
      policyModule: {
        flag: '--policy-module <file>',
        help: 'a policy of your own: an ES module, or the name of a package',
      },
      policyExport: { flag: '--policy-export <name>', help: 'what that module exports it as (default: default)' },
      policyOptions: { flag: '--policy-options <json>', help: 'what its function is given, an object in JSON' },
    },
  },
  exact: { rule: truth, default: false, help: 'f16 throughout, nothing is ever moved' },
  witness: {
    rule: truth,
    help: 'write decisions to the log (default: where the engine has a state folder)',
    parked: false,
  },
  logRules: {
    rule: seenLater<readonly LogRule[]>('a list of rules'),
    help: 'what must not be written of it to the log, beside what the engine leaves out',
    parked: false,
  },
  latents: {
    rule: seenLater("'auto', 'none', 'xq8', 'xq4' or 'xq3', or { format, keep }"),
    default: 'auto',
    help: 'keep layer inputs, which pages may become: xq8, xq4 or xq3 (pays where every query head has its own KV head), none, or auto: where it is foreseen to pay',
    flag: '--latents <type>',
    choices: ['auto', 'none', ...LATENT_NAMES],
    // A session that has them is not parked.
    parked: false,
  },
  originals: {
    rule: oneName('none', 'disk', 'memory'),
    default: 'none',
    refusal: "originals are kept on 'disk', in 'memory', or not at all ('none')",
    help: 'where originals of pages that move are kept, outside of the budget',
    flag: '--originals <place>',
  },
  originalsDir: {
    rule: anyText('a path', 1),
    help: 'folder of the file of originals (default: the state folder, or else that of temporary files)',
    flag: '--originals-dir <dir>',
    parked: false,
  },
  originalsBytes: {
    rule: seenLater<string | number>('bytes'),
    default: 2 ** 30,
    help: 'most bytes of originals: 64MiB, 1.5GB',
    flag: '--originals-bytes <bytes>',
  },
  originalsFormat: {
    rule: oneName('q8', 'trellis4', 'rot4'),
    default: 'q8',
    help: 'what originals are kept in',
    flag: '--originals-format <type>',
  },
  promote: {
    rule: whole(0, 64),
    default: 0,
    help: 'pages of each layer that come back for an answer, by what its question looks at (needs originals)',
    flag: '--promote <n>',
  },
  adapters: {
    rule: suchThat<readonly SessionAdapter[] | ProposedFor>(
      isAdapters,
      `a list of at most ${ADAPTERS_MAX} of { name, scale }, each name once, with scales from -100 to 100, or { proposedFor: prompt }`,
    ),
    help: 'adapters that add to what the model answers, by their names in the engine',
    flags: {
      lora: {
        flag: '--lora <name=path...>',
        help: 'adapters that add to what the model answers, at most four: a PEFT folder or a GGUF file each, or only a name that is registered, and behind a colon a factor; `proposed` takes those that similar sessions used',
      },
    },
  },
  pack: {
    rule: anyText(),
    help: 'kernel pack in whose codec pages of the archive may be',
    flag: '--pack <name>',
  },
  cacheSalt: {
    rule: anyText(),
    help: 'keeps its pages from sessions with another salt',
  },
  compareTokens: {
    rule: whole(0, undefined, 'a whole number'),
    default: 0,
    help: 'keep what compare() needs of so many last tokens',
  },
  onPressure: { ...ON_PRESSURE, help: 'what its calls do when room is short (default: as the engine says)' },
  schedulingPriority: {
    rule: whole(-1000, 1000),
    default: 0,
    help: 'who is taken first of calls that wait and prompts that are read: a lower number before a higher one',
  },
  schedulingWeight: {
    rule: real(0.01, 100),
    default: 1,
    help: 'how much is read of a prompt beside those of others of the same priority',
  },
  kvFloor: {
    rule: seenLater<KvBytes>('bytes'),
    help: 'bytes that it keeps when others need memory, and while it waits (default: none)',
  },
  kvGroup: {
    rule: seenLater<KvGroup>('{ name, kvBudget }'),
    help: 'sessions of one name hold no more than a budget together (default: none)',
    // Whoever resumes says whose it is.
    parked: false,
  },
  kvWeight: {
    rule: real(0.01, 100),
    default: 1,
    help: 'how many bytes its old pages keep beside those of others',
  },
} as const satisfies Rows<SessionOptions>;

export const CACHE_OPTIONS = {
  ...SHAPE_OPTIONS,
  ...GOVERNING_OPTIONS,
  policy: { rule: POLICY, help: 'what moves pages (default: price under a budget), or a policy of your own' },
  ...ATTENTION_OPTIONS,
  slidingWindow: {
    rule: seenLater('a list of tokens or null'),
    help: 'tokens that a query of each layer may look back; pages that no later query sees are freed',
  },
  alibiSlopes: { rule: seenLater('a Float32Array'), help: 'slopes of ALiBi, one for each query head' },
  pool: { rule: seenLater('a pool'), help: 'a pool whose bytes several caches share' },
  latents: {
    rule: seenLater('{ format, width, layers }'),
    help: 'keep layer inputs, of which pages can be made again',
  },
  outputSketch: { rule: seenLater('a list of Float32Array'), help: 'what prices relative to the residual stream need' },
  stateDir: {
    rule: anyText('a path', 1),
    help: 'folder of the log and of what was learned (default: nothing is written)',
  },
  ...STATE_OPTIONS,
  modelDigest: { rule: seenLater<string>('a text'), help: 'identifies the model in log and threshold files' },
} as const satisfies Rows<OpenCacheOptions>;

export const RESUME_OPTIONS = { ...SESSION_OPTIONS, ...COMPARE_OPTIONS } as const satisfies Rows<ResumeOptions>;

export const EMBED_OPTIONS = {
  schedulingPriority: SESSION_OPTIONS.schedulingPriority,
  schedulingWeight: SESSION_OPTIONS.schedulingWeight,
  kvGroup: SESSION_OPTIONS.kvGroup,
  signal: COMPARE_OPTIONS.signal,
} as const satisfies Rows<EmbedOptions>;

export const PARK_OPTIONS = {
  predict: {
    rule: truth,
    default: false,
    help: 'park pages predicted from layer to layer: far fewer bytes, and a small error (needs calibrate --predictor, except for the model reference)',
    flag: '--predict',
  },
} as const satisfies Rows<ParkOptions>;

/** How an answer is written. */
const ANSWER_OPTIONS = {
  maxTokens: {
    rule: whole(1, undefined, 'a positive integer'),
    default: 128,
    help: 'tokens to generate at most',
    flag: '-n, --max-tokens <n>',
  },
  ...SAMPLING_OPTIONS,
  stop: {
    rule: suchThat<readonly string[]>(
      (texts) => Array.isArray(texts) && texts.every((one) => typeof one === 'string'),
      'an array of strings',
    ),
    help: 'end the answer at this text',
    flag: '--stop <text...>',
  },
  grammar: {
    rule: seenLater<GrammarOption>('{ jsonSchema } or { gbnf }'),
    help: 'what the answer follows (needs @mlc-ai/web-xgrammar)',
    flags: {
      jsonSchema: {
        flag: '-j, --json-schema <file|text>',
        help: 'the answer is JSON that fulfils this schema (needs @mlc-ai/web-xgrammar)',
      },
      grammar: {
        flag: '--grammar <file|text>',
        help: 'the answer follows this grammar in GBNF, from its rule root (likewise)',
      },
    },
  },
  promptLookupTokens: {
    rule: whole(0, 64),
    hint: '8, or leave it out for none',
    help: 'propose so many tokens from earlier text at once, where it pays; 0: none',
    flag: '--prompt-lookup-tokens <n>',
  },
  logprobs: {
    // As many as other programs give at most.
    rule: whole(0, 20),
    hint: '0 gives the log probability of each generated token alone; leave it out for none',
    help: 'also tell how likely each generated token was, and so many of the most likely ones',
    flag: '--logprobs <n>',
  },
  receipt: {
    rule: truth,
    default: false,
    help: 'the answer comes with a receipt that the log proves',
  },
} as const;

export const GENERATE_OPTIONS = {
  ...ANSWER_OPTIONS,
  tierSummary: {
    rule: truth,
    default: false,
    help: 'also tell with each token where the bytes of the cache are, by tier and format (on the command line as lines of JSON on stderr)',
    flag: '--tier-summary',
  },
  ...COMPARE_OPTIONS,
} as const satisfies Rows<GenerateOptions>;

export const SEND_OPTIONS = {
  ...GENERATE_OPTIONS,
  toolChoice: {
    rule: seenLater<ToolChoice>("'auto', 'none', 'required' or { name }"),
    help: 'whether the answer calls tools',
  },
  parallelToolCalls: { rule: truth, default: true, help: 'whether an answer with toolChoice may have several calls' },
  continueFinalMessage: { rule: truth, help: 'the answer goes on with the text of the last message' },
} as const satisfies Rows<SendOptions>;

export const CONTINUATION_OPTIONS = {
  ...ANSWER_OPTIONS,
  ...COMPARE_OPTIONS,
  n: {
    // Far beyond any use: each is generated by itself.
    rule: whole(1, 256),
    hint: 'the number of continuations',
    help: 'answers to one prompt, which is read once; each has the next seed (where the flag is left out: 1)',
    flag: '--completions <n>',
    setting: 'completions',
  },
} as const satisfies Rows<ContinuationOptions>;
