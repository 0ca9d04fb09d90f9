/** The package's public types: what a caller gives and gets. Units are last in every name. */
import type { BindingName, CacheMemory, FormatName, FormatPair, Isa, Side } from '../native/index.ts';
import type { PolicySummary } from '../policy/index.ts';
import type { FailureMode } from '../witness/index.ts';
import type { ChatMessage } from './model/types.ts';

/** '64MiB', '1.5GB', '25%' (of the f16 bytes of prompt + max tokens), or a number of bytes. */
export type KvBudget = string | number;

export interface EngineOptions {
  /** Folder, .gguf file, or a name: 'reference', 'smollm2-135m'. */
  readonly model: string;
  /** 'auto': weights of 4 bits as they are, others in 8 bits; 'exact': float32. Default 'auto'. */
  readonly dense?: 'auto' | 'exact';
  /** Threads for attention and the dense half, default: all cores that the process may use. */
  readonly threads?: number;
  /** Forces an instruction set of the attention kernels. */
  readonly isa?: Isa;
  /** Forces where those kernels come from; default: built in this checkout, else prebuilt, else WebAssembly. */
  readonly binding?: BindingName;
  /** Where fetched models live. */
  readonly cacheDir?: string;
  /** Witness log, indexes and learned thresholds; null: nothing is written. Default './.palimpsest'. */
  readonly stateDir?: string | null;
  /** What to do when the log cannot be written. Default 'block'. */
  readonly onLogFailure?: FailureMode;
}

export interface SessionOptions {
  readonly kvBudget?: KvBudget;
  /** Mean KLD against the exact cache that may be spent instead of a byte budget. */
  readonly kldBudget?: number;
  /** 'price' (default with a budget), 'uniform', 'age', 'table', 'fixed', 'none'. */
  readonly policy?: string;
  /** Formats for `fixed`; limits for the others. */
  readonly cacheTypes?: FormatPair;
  /** Layers kept in the window format. */
  readonly skipLayers?: readonly number[];
  /** Tokens the session is planned for: prompt + answer. Percent budgets and forecasts need it. */
  readonly tokensExpected?: number;
  /** p95 of the decode steps that is wished for: above it pages move only when they must. Default: none. */
  readonly stepLatencyBudgetMs?: number;
  /** f16 throughout, nothing is ever moved. Default false. */
  readonly exact?: boolean;
  /** Write decisions to the log, default true when the engine has a state folder. */
  readonly witness?: boolean;
  /** A threshold file instead of what the book remembers. */
  readonly thresholdsPath?: string;
  /** Keep the final residual rows of so many last tokens (4·hidden bytes each), so that compare() can be asked. Default 0. */
  readonly compareTokens?: number;
}

export interface GenerateOptions {
  readonly maxTokens?: number;
  /** 0 = greedy (default). */
  readonly temperature?: number;
  readonly topP?: number;
  readonly seed?: number;
  readonly stop?: readonly string[];
  readonly signal?: AbortSignal;
  /** Called while the prompt is read. */
  readonly onProgress?: (progress: Progress) => void;
}

export interface Progress {
  readonly phase: 'load' | 'prefill' | 'decode';
  readonly tokens: number;
  readonly tokensTotal: number;
  readonly tokensPerSecond: number;
  readonly kvBytes: number;
  /** Entries of the log that are on disk: everything up to this seq survives a power cut. */
  readonly acknowledgedSeq: number;
}

export type Prompt = string | readonly ChatMessage[] | readonly number[];

export interface Generated {
  readonly text: string;
  readonly tokens: number;
  readonly promptTokens: number;
  readonly finish: 'stop' | 'length' | 'aborted';
  readonly prefillTokensPerSecond: number;
  readonly tokensPerSecond: number;
}

export interface LayerReport {
  readonly layer: number;
  /** Sealed pages per format, K and V. */
  readonly kPages: Readonly<Record<string, number>>;
  readonly vPages: Readonly<Record<string, number>>;
  readonly effectiveBits: number;
  readonly movesTried: number;
  readonly movesAccepted: number;
  readonly movesRefused: number;
  /** Worst ε of an accepted move; null without trials. */
  readonly epsilonMax: number | null;
  readonly state: string;
}

export interface SessionReport {
  readonly session: string;
  readonly policy: string;
  readonly tokens: number;
  /** Peak of window, sinks, pages and metadata in the pool. */
  readonly kvBytes: number;
  readonly kvBytesNow: number;
  readonly kvBytesF16: number;
  readonly scratchBytes: number;
  readonly budgetBytes: number | null;
  /** 16 · kvBytes / kvBytesF16: window, sinks and all metadata included. */
  readonly effectiveBits: number;
  readonly memory: CacheMemory;
  /** Pages × KV heads whose values the threshold attention.skip allowed to leave unread, and those that were; 0 while it is 0. */
  readonly valuesMet: number;
  readonly valuesSkipped: number;
  readonly layers: readonly LayerReport[];
  readonly decisions: number;
  readonly refusedTrials: number;
  /** The accepted move with the largest ε: a good first question to `audit explain`. */
  readonly notable: {
    readonly seq: number;
    readonly layer: number;
    readonly page: number;
    readonly side: Side;
    readonly from: FormatName;
    readonly to: FormatName;
  } | null;
  readonly summary: PolicySummary;
  readonly schedulerMs: number;
  readonly trialMs: number;
  readonly transcodeMs: number;
  readonly witnessMs: number;
  /** The dense half that ran, and why: 'onnxruntime: float32'. */
  readonly dense: string;
  readonly denseMs: number;
  readonly attentionMs: number;
  readonly logPath: string | null;
  readonly acknowledgedSeq: number;
}

export interface Divergence {
  readonly tokens: number;
  readonly meanKld: number;
  readonly kld99: number;
  /** Share of tokens whose most likely successor is the same. */
  readonly sameTop: number;
  readonly perplexity: number;
  readonly perplexityExact: number;
}
