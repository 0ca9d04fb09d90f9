/** The package's public types: what a caller gives and gets. Units are last in every name. */
import type { QdrantOptions, SharedStatus } from '../../memory/index.ts';
import type { BindingName, CacheMemory, FormatPair, Isa, LatentName, Part, WindowName } from '../../native/index.ts';
import type { PageForm, PolicySummary, Priority, ThresholdSet } from '../../policy/index.ts';
import type { AnchorOptions, FailureMode, LogRule } from '../../witness/index.ts';
import type { GrammarOption } from '../transformer/grammar/options.ts';
import type { GeneratedToken } from '../transformer/sampling/logprobs.ts';
import type { SamplingOptions } from '../transformer/sampling/options.ts';
import type { ChatMessage, LoadProgress } from '../transformer/types.ts';

/** '64MiB', '1.5GB', '25%' (of the f16 bytes of prompt + max tokens), or a number of bytes. */
export type KvBudget = string | number;

/** Formats of keys and values: a pair, as { k, v } or as 'rot4:rot2' or 'rot4', or one pair for every layer. */
export type CacheTypes = FormatPair | string | readonly (FormatPair | string)[];

/** How long and how much of a log is kept. At least one of the two. */
export interface LogRetention {
  /** Sessions that ended longer ago go: '90d', '12h', or a date such as '2026-01-31'. Default: any age is kept. */
  readonly olderThan?: string;
  /** While the log takes more, what is oldest goes: '1GB', '500MiB', or a number of bytes. Default: any size is kept. */
  readonly maxSize?: string | number;
}

/** Options of createEngine. Only the model is needed. */
export interface EngineOptions {
  /**
   * Folder, .gguf file, or a name: 'reference', 'smollm2-135m', 'hf:ORG/REPO[@REVISION][:FILE]' on the Hugging Face Hub, which is downloaded where it is not in
   * its cache folder, 'ollama:NAME[:TAG]' that Ollama has pulled.
   */
  readonly model: string;
  /** 'auto': quantized weights as they are in the file, others in 8 bits (ONNX Runtime: all in 8 bits); 'exact': float32. Default 'auto'. */
  readonly dense?: 'auto' | 'exact';
  /** Threads for attention and the dense half, default: all cores that the process may use. */
  readonly threads?: number;
  /** Forces an instruction set of the attention kernels. */
  readonly isa?: Isa;
  /** Forces where those kernels come from; default: built in this checkout, else prebuilt, else WebAssembly. */
  readonly binding?: BindingName;
  /** Where fetched models live; those of the Hub live where HF_HUB_CACHE and HF_HOME say. */
  readonly cacheDir?: string;
  /** Nothing is asked of the network: a model that is not here is refused. HF_HUB_OFFLINE=1 does the same. Default false. */
  readonly offline?: boolean;
  /** Called while the model is downloaded, verified and made ready. */
  readonly onProgress?: (progress: LoadProgress) => void;
  /** Aborts the download and the loading; what was downloaded is kept, and the next one goes on from there. */
  readonly signal?: AbortSignal;
  /** Witness log, indexes and learned thresholds; null: nothing is written. Default './.palimpsest'. */
  readonly stateDir?: string | null;
  /** What to do when the log cannot be written. Default 'block'. */
  readonly onLogFailure?: FailureMode;
  /** What must not be written to the log. An entry to which a rule cannot be applied is left out and counted. Default: nothing is left out. */
  readonly logRules?: readonly LogRule[];
  /** How long and how much of the log is kept; applied when the engine opens, which reads the whole log. Default: all of it, for ever. */
  readonly logRetention?: LogRetention;
  /** Where signed checkpoints of the log go while it is written, so that a change or a cut shows later. Default: nowhere. */
  readonly anchor?: AnchorOptions;
  /**
   * Most bytes that the caches of all sessions may take together: '64MiB', '1.5GB', or a number. Sessions that have a kvBudget of their own make room
   * within it when it is short; others are refused with 'budget-exceeded' before anything is lost. Default: the memory of the machine, or what its container allows.
   */
  readonly kvBudget?: KvBudget;
  /**
   * What becomes of sessions that wait, the longest first, when the others need their memory, or one was told setLowMemory. 'keep': nothing. 'memory':
   * they are parked in memory, pages predicted, which loses a little; it needs what ParkOptions.predict needs. 'disk': they are parked in files of the
   * state folder, bit for bit; the files hold what users said. A parked session comes back by itself when it is used. Default 'keep'.
   */
  readonly idleSessions?: 'keep' | 'memory' | 'disk';
  /** A Qdrant server where sessions are shared with other machines. Default: none, so a session learns from those of its state folder. */
  readonly qdrant?: QdrantOptions;
}

/**
 * How long latents stay beside their pages. `move`: until a page moves; it then either becomes its latent, which takes the place of keys and
 * values, or goes to lower formats and gives the latent up, as the policy decides. `always`: throughout, for callers of restore().
 */
export type LatentKeep = 'move' | 'always';

/** Options of openSession. Without any, sealed pages are 8-bit and nothing moves further: a budget is what makes the cache small. */
export interface SessionOptions {
  /** Most bytes of the cache, or a share of the f16 cache of tokensExpected. Default: no budget, so sealed pages are 8-bit and nothing moves further. */
  readonly kvBudget?: KvBudget;
  /** Mean KLD against the exact cache that may be spent instead of a byte budget. */
  readonly kldBudget?: number;
  /** Which budget is kept where a session has both and cannot keep both; the report and the log say when the other gave way. Default 'bytes'. */
  readonly priority?: Priority;
  /** 'price' (default with a budget), 'uniform', 'age', 'table', 'fixed', 'none'. */
  readonly policy?: string;
  /** Formats of keys and values. One pair is fixed without a budget, and with one the lowest that a policy may go to; one for every layer is policy 'table'. */
  readonly cacheTypes?: CacheTypes;
  /** Layers kept in the window format. */
  readonly skipLayers?: readonly number[];
  /** Tokens the session is planned for: prompt + answer. Percent budgets and forecasts need it. */
  readonly tokensExpected?: number;
  /** p95 of the decode steps that is wished for: above it pages move only when they must. Default: none. */
  readonly stepLatencyBudgetMs?: number;
  /** Format of the page that tokens are appended to: 'q8', in which rows are coded as they come, or 'f16'. Default q8 under a budget of bytes, else f16. */
  readonly openFormat?: WindowName;
  /** Newer tokens that keep a sealed page in the window, where it may not move: 128 or 64. Default 128, or 64 where such a page takes more than a twelfth of the budget. */
  readonly windowTokens?: number;
  /** f16 throughout, nothing is ever moved. Default false. */
  readonly exact?: boolean;
  /** Write decisions to the log, default true when the engine has a state folder. */
  readonly witness?: boolean;
  /** Thresholds and gains to start from, for example those that adaptThresholds returned, instead of what the state folder remembers. */
  readonly thresholds?: ThresholdSet;
  /** Likewise a file of them, that saveThresholds wrote. */
  readonly thresholdsPath?: string;
  /**
   * Keeps the inputs of every layer, coded, beside each sealed page: 'xq8', 'xq4' or 'xq3'. A page that moves either becomes its latent, from which keys
   * and values are computed at every step, or goes to lower formats and gives it up, as the policy decides. It pays where keys and values are as
   * wide together as two layer inputs. With keep 'always' latents stay, so that restore() makes keys and values again. They count against the budget. Default: none.
   */
  readonly latents?: LatentName | { readonly format: LatentName; readonly keep?: LatentKeep };
  /** Keep the final residual rows of so many last tokens (4·hidden bytes each), so that compare() can be asked. Default 0. */
  readonly compareTokens?: number;
}

/** Options of park. */
export interface ParkOptions {
  /**
   * Writes pages as what is left when each layer is predicted from the one below: far fewer bytes, and a small error. Needs what `palimpsest calibrate
   * --predictor` fits; that of the model 'reference' comes with the package. Default false: pages as they are, bit for bit.
   */
  readonly predict?: boolean;
}

/** Options of resume: those that are given replace what the parked session was opened with. */
export interface ResumeOptions extends SessionOptions {
  /** Called while tokens are read again because the parked pages cannot be used. */
  readonly onProgress?: (progress: Progress) => void;
  /** Aborts that reading. */
  readonly signal?: AbortSignal;
}

/** Options of generate. */
export interface GenerateOptions extends SamplingOptions {
  /** Tokens to generate at most. Default 128. */
  readonly maxTokens?: number;
  /** Texts that end the answer; they are not part of it. Default: none. */
  readonly stop?: readonly string[];
  /**
   * What the answer follows: `{ jsonSchema }` or `{ gbnf }`, with the package @mlc-ai/web-xgrammar beside this one. Tokens that would leave it are never drawn,
   * and the text ends where it is complete. Default: none.
   */
  readonly grammar?: GrammarOption;
  /**
   * Prompt look-up decoding: where the newest tokens stand earlier in the text, up to so many (1 to 64) of those that followed them there are read at once, and kept as far
   * as they are what would have been written anyway. Default 0, none.
   */
  readonly promptLookupTokens?: number;
  /**
   * Also tells how likely the model found each generated token and so many (0 to 20) of the most likely ones at its place: of its own distribution, before
   * anything of SamplingOptions changes it. Default: none.
   */
  readonly logprobs?: number;
  /** Aborts the generation; while the prompt is read, what was read of it is taken back. */
  readonly signal?: AbortSignal;
  /** Called while the prompt is read. */
  readonly onProgress?: (progress: Progress) => void;
}

/** Options of continuations. */
export interface ContinuationOptions extends GenerateOptions {
  /** How many, 1 to 256. The first has the seed, each further one the next seed. */
  readonly n: number;
}

/** How far the reading of a prompt is. */
export interface Progress {
  /** What is under way. */
  readonly phase: 'load' | 'prefill' | 'decode';
  /** Tokens read so far. */
  readonly tokens: number;
  /** Tokens of the prompt. */
  readonly tokensTotal: number;
  /** Speed so far. */
  readonly tokensPerSecond: number;
  /** Bytes of the cache now. */
  readonly kvBytes: number;
  /** Entries of the log that are on disk: everything up to this seq survives a power cut. */
  readonly acknowledgedSeq: number;
}

/** Text as it is, messages for the chat template, or token ids. */
export type Prompt = string | readonly ChatMessage[] | readonly number[];

/** What goes into one layer of a cache in one step, and what is asked of it. T tokens, H query and n KV heads of d channels, m the residual stream. */
export interface LayerRows {
  readonly layer: number;
  /** Of the first token. */
  readonly position: number;
  readonly tokens: number;
  /** [T, H, d], after RoPE. */
  readonly q: Float32Array;
  /** [T, n, d], after RoPE. */
  readonly k: Float32Array;
  /** [T, n, d] */
  readonly v: Float32Array;
  /** [T, m], what enters the layer. */
  readonly x: Float32Array;
}

/** What a generation made, and how fast. */
export interface Generated {
  /** All text, without the stop string. */
  readonly text: string;
  /** Tokens generated. */
  readonly tokens: number;
  /** Tokens of the prompt as it was read. */
  readonly promptTokens: number;
  /** The end of the text or a stop string, maxTokens, or an abort. */
  readonly finish: 'stop' | 'length' | 'aborted';
  /** Whether the text fulfils its grammar as it stands: false where maxTokens, a stop string or an abort came first; null: none was asked for. */
  readonly grammarComplete: boolean | null;
  /** Tokens that prompt look-up proposed. */
  readonly drafted: number;
  /** Those of them that were written. */
  readonly accepted: number;
  /** One for each generated token, those of a stop string included; null where `logprobs` was not asked for. */
  readonly logprobs: readonly GeneratedToken[] | null;
  /** Speed of reading; 0 without a prompt. */
  readonly prefillTokensPerSecond: number;
  /** Speed of writing; 0 when nothing was written. */
  readonly tokensPerSecond: number;
}

/** One layer of a session in numbers. */
export interface LayerReport {
  /** Its number, from 0. */
  readonly layer: number;
  /** Sealed pages per format, K and V. */
  readonly kPages: Readonly<Record<string, number>>;
  /** Likewise for values. */
  readonly vPages: Readonly<Record<string, number>>;
  /** Bits per number: window, sinks and all metadata included. */
  readonly effectiveBits: number;
  /** Moves planned. */
  readonly movesTried: number;
  /** Moves carried out. */
  readonly movesAccepted: number;
  /** Moves refused after their trial. */
  readonly movesRefused: number;
  /** Worst ε of an accepted move; null without trials. */
  readonly epsilonMax: number | null;
  /** State of the layer in the policy, e.g. 'archive/healthy/elevated/headroom'. */
  readonly state: string;
}

/** A session in numbers. */
export interface SessionReport {
  /** Its name in the log. */
  readonly session: string;
  /** The policy that runs. */
  readonly policy: string;
  /** Tokens in the cache. */
  readonly tokens: number;
  /** Peak of window, sinks, pages and metadata in the pool. */
  readonly kvBytes: number;
  /** The same now; of a session that is parked, what that takes in memory. */
  readonly kvBytesNow: number;
  /** Where it waits parked, in how many bytes, and the bytes that its pages take when they are back; null: they are there. `layers` says of a parked session what comes back. */
  readonly parked: {
    readonly place: 'memory' | 'disk';
    readonly bytes: number;
    readonly kvBytes: number;
  } | null;
  /** Memory that the pool holds of the system for kvBytesNow, and for kvBytes at most; pages of forks and of other sessions of the engine included. */
  readonly reservedBytes: number;
  /** The most that it ever was. */
  readonly reservedPeakBytes: number;
  /** Bytes of a plain f16 cache of this length. */
  readonly kvBytesF16: number;
  /** Trial state and thread scratch, not counted in kvBytes. */
  readonly scratchBytes: number;
  /** The budget; null: none. */
  readonly budgetBytes: number | null;
  /** The budget that could not be kept beside the other one, which is ranked first; null while both are kept. */
  readonly gaveWay: Priority | null;
  /** 16 · kvBytes / kvBytesF16: window, sinks and all metadata included. */
  readonly effectiveBits: number;
  /** Where the bytes are. */
  readonly memory: CacheMemory;
  /** Pages × KV heads whose values the threshold attention.skip allowed to leave unread, and those that were; 0 while it is 0. */
  readonly valuesMet: number;
  /** Those that were left unread. */
  readonly valuesSkipped: number;
  /** One entry per layer. */
  readonly layers: readonly LayerReport[];
  /** Moves planned, refused ones included. */
  readonly decisions: number;
  /** Moves refused after their trial. */
  readonly refusedTrials: number;
  /** The accepted move with the largest ε: a good first question to `audit explain`. */
  readonly notable: {
    readonly seq: number;
    readonly layer: number;
    readonly page: number;
    readonly side: Part;
    readonly from: PageForm;
    readonly to: PageForm;
  } | null;
  /** What the policy says. */
  readonly summary: PolicySummary;
  /** Time for situations, decisions and verdicts. */
  readonly decideMs: number;
  /** Time for trials, beside the steps or in them. */
  readonly trialMs: number;
  /** Time for moves. */
  readonly transcodeMs: number;
  /** Time for writing the log. */
  readonly witnessMs: number;
  /** The dense half that ran, and why: 'onnxruntime: float32'. */
  readonly dense: string;
  /** Time in everything but attention. */
  readonly denseMs: number;
  /** Time in attention. */
  readonly attentionMs: number;
  /** The server of shared experience as it was when the session asked it for start values; null: it asked none. */
  readonly shared: SharedStatus | null;
  /** Folder of the log; null: nothing is written. */
  readonly logPath: string | null;
  /** Entries of this session that the disk refused and that the log does not hold (mode drop). */
  readonly missingEntries: number;
  /** Entries of the log that are on disk; −1 without a log. */
  readonly acknowledgedSeq: number;
}

/** What a caller measured: the constant of the error law is moved towards it. */
export interface QualityFeedback {
  /** Mean KLD against an exact run over the same tokens, in nats. */
  readonly meanKld: number;
}

/** Where the bytes of a cache are, and what bounds them. */
export interface MemoryUsage extends CacheMemory {
  /** Those of pageBytes that are latents. */
  readonly latentBytes: number;
  /** Bytes of what stands for its pages while it waits parked in memory; they are not part of totalBytes, and count against the kvBudget of the engine. */
  readonly parkedBytes: number;
  /** The budget; null: none. */
  readonly budgetBytes: number | null;
  /** Most bytes that it ever had. */
  readonly peakBytes: number;
  /** Memory that the pool holds of the system now, for this cache and its forks. */
  readonly reservedBytes: number;
  /** Bytes of a plain f16 cache of this length. */
  readonly f16Bytes: number;
}

/** How far a session is from the exact cache on the same tokens. */
export interface Divergence {
  /** Tokens compared. */
  readonly tokens: number;
  /** Mean KL divergence from the exact cache, in nats. */
  readonly meanKld: number;
  /** Its 99th percentile. */
  readonly kld99: number;
  /** Share of tokens whose most likely successor is the same. */
  readonly sameTop: number;
  /** Perplexity with this cache. */
  readonly perplexity: number;
  /** Perplexity with the exact one. */
  readonly perplexityExact: number;
}
