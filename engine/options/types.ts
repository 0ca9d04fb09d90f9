/** Options of engines, sessions and answers: public types. Units are last in every name. */
import type { QdrantOptions } from '../../memory/index.ts';
import type { BindingName, FormatPair, Isa, LatentName, WindowName } from '../../native/index.ts';
import type { Priority, ThresholdSet, TiersOptions } from '../../policy/index.ts';
import type { AnchorOptions, FailureMode, LogRule } from '../../witness/index.ts';
import type { Logger } from '../events/logger.ts';
import type { GrammarOption } from '../transformer/grammar/options.ts';
import type { SamplingOptions } from '../transformer/sampling/options.ts';
import type { ChatMessage, LoadProgress } from '../transformer/types.ts';
import type { PolicyModule } from './policy-module.ts';

/** '64MiB', '1.5GB', '25%' (of the f16 bytes of prompt + max tokens), or a number of bytes. */
export type KvBudget = string | number;

/** The same without shares: '64MiB', '1.5GB', or a number. */
export type KvBytes = string | number;

/** Formats of keys and values: a pair, as { k, v } or as 'rot4:rot2' or 'rot4', or one pair for every layer. */
export type CacheTypes = FormatPair | string | readonly (FormatPair | string)[];

/** How long and how much of a log is kept. At least one of the two. */
export interface LogRetention {
  /** Sessions that ended longer ago go: '90d', '12h', or a date such as '2026-01-31'. Default: any age is kept. */
  readonly olderThan?: string;
  /**
   * While the log takes more, what is oldest goes: '1GB', '500MiB', or a number of bytes. Default: any size is kept.
   */
  readonly maxSize?: string | number;
}

/** Options of what is written to a state folder, whoever owns the runtime. */
export interface StateOptions {
  /** What to do when the log cannot be written. Default 'block'. */
  readonly onLogFailure?: FailureMode;
  /**
   * What must not be written to the log. An entry to which a rule cannot be applied is left out and counted. Default:
   * nothing is left out.
   */
  readonly logRules?: readonly LogRule[];
  /**
   * Where signed checkpoints of the log go while it is written, so that a change or a cut shows later. Default:
   * nowhere.
   */
  readonly anchor?: AnchorOptions;
  /**
   * A Qdrant server where sessions are shared with other machines; what runs in an engine is found again by its model,
   * a cache of one's own by its `modelDigest`. Needs a state folder. Default: none, so a session learns from those of
   * its state folder.
   */
  readonly qdrant?: QdrantOptions;
}

/** An adapter of a session. */
export interface SessionAdapter {
  /** The name that it was added to the engine under. */
  readonly name: string;
  /** Factor on what it adds, from -100 to 100; 0: it adds nothing. Default 1. */
  readonly scale?: number;
}

/** In place of adapters: those that are proposed for a text. */
export interface ProposedFor {
  /** What will be read first. */
  readonly proposedFor: Prompt;
}

/** Options of createEngine. Only the model is needed. */
export interface EngineOptions extends StateOptions {
  /**
   * Folder, .gguf file, or a name: 'reference', 'smollm2-135m', 'hf:ORG/REPO[@REVISION][:FILE]' on the Hugging Face
   * Hub, which is downloaded where it is not in its cache folder, 'ollama:NAME[:TAG]' that Ollama has pulled.
   */
  readonly model: string;
  /**
   * 'auto': quantized weights as they are in the file, others in 8 bits (ONNX Runtime: all in 8 bits); 'exact':
   * float32. Default 'auto'.
   */
  readonly dense?: 'auto' | 'exact';
  /**
   * Bits of what the matrices of our own dense half are multiplied with. 16: of all; 'auto': 8 of those matrices where
   * a calibration of this model (`palimpsest calibrate`, or what comes with the package) expects a divergence of 2e-4
   * nats at most of all of them together, and 16 of the others. Default 16.
   */
  readonly activations?: 16 | 'auto';
  /**
   * Adapters for sessions, by name: PEFT folders or GGUF files; {}: none yet. Where it is given, the dense half is one
   * that has a place for them, which ONNX Runtime is not. `engine.adapters` adds others later. Default: none.
   */
  readonly adapters?: Readonly<Record<string, string>>;
  /** Threads for attention and the dense half, default: all cores that the process may use. */
  readonly threads?: number;
  /** Forces an instruction set of the attention kernels. */
  readonly isa?: Isa;
  /** Forces where those kernels come from; default: built in this checkout, else prebuilt, else WebAssembly. */
  readonly binding?: BindingName;
  /**
   * Where fetched models live, default: PALIMPSEST_CACHE, or else palimpsest in the caches of the user
   * (~/.cache/palimpsest on Linux). Those of the Hub live where HF_HUB_CACHE and HF_HOME say.
   */
  readonly cacheDir?: string;
  /**
   * Nothing is asked of the network: a model that is not here is refused. HF_HUB_OFFLINE=1 does the same. Default
   * false.
   */
  readonly offline?: boolean;
  /** Called while the model is downloaded, verified and made ready. */
  readonly onProgress?: (progress: LoadProgress) => void;
  /**
   * Told of what somebody who keeps an engine running has to know, such as a session that was parked or a Qdrant that
   * is away: one call of the function of its level for each event, with the event as an object and as a sentence. pino
   * and console are such objects. It runs in the caller's thread, and the model never waits for it. Default: nobody is
   * told.
   */
  readonly logger?: Logger;
  /** Aborts the download and the loading; what was downloaded is kept, and the next one goes on from there. */
  readonly signal?: AbortSignal;
  /** Witness log, indexes and learned thresholds; null: nothing is written. Default './.palimpsest'. */
  readonly stateDir?: string | null;
  /**
   * How long and how much of the log is kept; applied when the engine opens, which reads the whole log, and whenever a
   * segment of the log is complete. What belongs to a session that goes on stays. Default: all of it, for ever.
   */
  readonly logRetention?: LogRetention;
  /**
   * Most bytes that the caches of all sessions may take together: '64MiB', '1.5GB', or a number. It is the kvBudget of
   * each session that asks for no budget, formats or policy. When it is short, pages go lower, first of those that keep
   * them in most bits, and calls wait until others have ended. Default: the memory of the machine, or what its
   * container allows.
   */
  readonly kvBudget?: KvBudget;
  /**
   * What becomes of sessions that wait, the longest first, when the others need their memory, or one was told
   * setLowMemory. 'reread': where nothing else helps their pages go, and their tokens are read again when they are
   * used. 'keep': nothing but that pages go to lower formats. 'memory': they are parked in memory, pages predicted,
   * which loses a little; it needs what ParkOptions.predict needs. 'disk': they are parked in files of the state
   * folder, bit for bit; the files hold what users said. A parked session comes back by itself when it is used. Default
   * 'reread'.
   */
  readonly idleSessions?: 'reread' | 'keep' | 'memory' | 'disk';
  /**
   * What a call does when there is no room to its end, prompt and maxTokens, as everything is. 'degrade': it begins if
   * there is room once pages are as low as their sessions allow and sessions that wait are parked as idleSessions says,
   * which then happens as far as it is needed; it waits for those at work where even that is too little. 'queue': it
   * waits for those at work before anybody gives up anything; where none is at work it does as with 'degrade'.
   * 'refuse': it is refused with 'budget-exceeded' and the numbers. Default 'degrade'.
   */
  readonly onPressure?: 'refuse' | 'queue' | 'degrade';
  /**
   * Most calls that read or write at once, which share each pass over the weights. Others wait until one of them has
   * ended: by their schedulingPriority, then who came first first. Default: as many as there is room for.
   */
  readonly maxConcurrent?: number;
  /**
   * Whether a session whose text begins as that of another one begins with its pages; with a kvBudget also where that
   * one is closed and nobody needs its memory. They are in the formats that they have come to; a session with a budget
   * of its own begins with pages in which nothing is lost. `cacheSalt` keeps sessions apart. Default true.
   */
  readonly prefixCaching?: boolean;
  /**
   * How long a pass over the weights may take that has a piece of somebody's prompt beside answers: the time from one
   * token to the next that an answer should have while others read. Pieces are cut so that it is kept, as far as
   * answers alone leave room for a piece of 16 tokens. Default 100.
   */
  readonly interTokenTargetMs?: number;
  /**
   * Whether helpers say what kind of text a session reads, so that it learns from earlier ones of that kind: two small
   * models that come with the package, each in a process of its own on onnxruntime-node. What they say is written to
   * the log, never the text; it tells more of it than the rest of the log does (docs/helpers.md). Default false.
   */
  readonly helpers?: boolean;
  /**
   * File of an ONNX sentence model that says where texts lie, in place of the one that comes with the package; helpers
   * are then asked. It takes the bytes of a text, or token ids by the tokenizer.json beside it, and answers with a
   * vector (docs/helpers.md). Sessions of which different models said that are told apart by kind alone. Default: none.
   */
  readonly embedder?: string;
}

/**
 * How long latents stay beside their pages. `move`: until a page moves; it then either becomes its latent, which takes
 * the place of keys and values, or goes to lower formats and gives the latent up, as the policy decides. `always`:
 * throughout, for callers of restore().
 */
export type LatentKeep = 'move' | 'always';

/** The latent that is kept of pages, and how long it stays beside them. */
export type KeptLatents = LatentName | { readonly format: LatentName; readonly keep?: LatentKeep };

/**
 * Options that govern one conversation's cache, whoever owns the runtime: a session of an engine, or a cache of one's
 * own.
 */
export interface GoverningOptions {
  /**
   * Most bytes of the cache, or a share of the f16 cache of tokensExpected. Default: no budget, so sealed pages are
   * 8-bit and nothing moves further.
   */
  readonly kvBudget?: KvBudget;
  /** Mean KLD against the exact cache, in nats, that may be spent instead of a byte budget. Default: none. */
  readonly kldBudget?: number;
  /**
   * Which budget is kept where both are given and cannot be; the report and the log say when the other gave way.
   * Default 'bytes'.
   */
  readonly priority?: Priority;
  /**
   * Formats of keys and values. Without a budget one pair is what every page gets; with a budget it is the lowest that
   * a policy may use. One pair for every layer means policy 'table'.
   */
  readonly cacheTypes?: CacheTypes;
  /**
   * Sizes and formats of the three tiers of policy 'tiers', and what keeps a page in them; given alone, they are that
   * policy. Default: those of TiersOptions.
   */
  readonly tiers?: TiersOptions;
  /** Layers that stay in the window format. Default: none. */
  readonly skipLayers?: readonly number[];
  /** Tokens planned for: prompt + answer. Budgets in percent need it. */
  readonly tokensExpected?: number;
  /**
   * Wanted 95th percentile of the time of a step that writes one token. Above it, pages move only when they must.
   * Default: none.
   */
  readonly stepLatencyBudgetMs?: number;
  /**
   * Format of the page that tokens are appended to: 'q8', in which rows are coded as they come, or 'f16'. Default q8
   * under a budget of bytes, else f16.
   */
  readonly openFormat?: WindowName;
  /**
   * Newer tokens that keep a sealed page in the window, where it may not move: 128 or 64. Default 128, or 64 where such
   * a page takes more than a twelfth of the budget.
   */
  readonly windowTokens?: number;
  /**
   * Thresholds and gains to start from, for example those that adaptThresholds returned. Default: what was learned in
   * the state folder, else the built-in ones.
   */
  readonly thresholds?: ThresholdSet;
  /** A file of such thresholds, that saveThresholds wrote. */
  readonly thresholdsPath?: string;
  /** Values that take the place of those of single thresholds, by their ids, whatever was learned. Default: none. */
  readonly thresholdValues?: Readonly<Record<string, number>>;
  /**
   * A policy file in TOML or JSON, which says how the cache is governed where these options do not. Default: none.
   */
  readonly policyFile?: string;
}

/**
 * Options of openSession. Without any, sealed pages are 8-bit and nothing moves further: a budget is what makes the
 * cache small.
 */
export interface SessionOptions extends GoverningOptions {
  /**
   * 'price' (default with a budget), 'uniform', 'age', 'tiers' (default with tiers), 'table', 'fixed', 'none'; those
   * that let whole pages go: 'streaming-pages', 'h2o-pages', 'snapkv-pages', 'pyramidkv-pages', 'scissorhands-pages';
   * or the module of a policy of your own, which the model's thread imports.
   */
  readonly policy?: string | PolicyModule;
  /** f16 throughout, nothing is ever moved. Default false. */
  readonly exact?: boolean;
  /** Write decisions to the log, default true when the engine has a state folder. */
  readonly witness?: boolean;
  /**
   * What must not be written of it to the log, beside what the rules of the engine leave out (logRules of
   * EngineOptions). Default: nothing more.
   */
  readonly logRules?: readonly LogRule[];
  /**
   * Keeps the inputs of every layer, coded, beside each sealed page: 'xq8', 'xq4' or 'xq3'. A page that moves either
   * becomes its latent, from which keys and values are computed at every step, or goes to lower formats and gives it
   * up, as the policy decides. It pays where keys and values are as wide together as two layer inputs. With keep
   * 'always' latents stay, so that restore() makes keys and values again. They count against the budget. 'auto', the
   * default: 'xq4' where it is foreseen that pages do not fit otherwise in codes that err as much, and that computing
   * them again takes little time (at most a quarter of stepLatencyBudgetMs, where that is given); 'none': never.
   */
  readonly latents?: 'auto' | 'none' | KeptLatents;
  /**
   * Where the originals of pages are kept, outside of every budget, when the pages move: in a file that is sealed under
   * a key of this session alone, on 'disk', or in 'memory'. Forks and resumed sessions begin without. Default 'none'.
   */
  readonly originals?: 'none' | 'disk' | 'memory';
  /** The folder of that file. Default: the state folder, or else that of temporary files. */
  readonly originalsDir?: string;
  /** Most bytes of originals: '64MiB', '1.5GB', or a number. Pages that come later have none. Default 1 GiB. */
  readonly originalsBytes?: string | number;
  /**
   * What originals are kept in: 'q8', as they leave the window, or 'trellis4' or 'rot4', which take half of that and
   * time to encode. Default 'q8'.
   */
  readonly originalsFormat?: 'q8' | 'trellis4' | 'rot4';
  /**
   * For as long as an answer is written, so many pages of each layer come back in four bits: those that the last tokens
   * of the prompt look at most. Up to an eighth of the budget stays free for them, so all others are a little lower.
   * Needs `originals`. Default 0, none.
   */
  readonly promote?: number;
  /**
   * Keep the final residual rows of so many last tokens (4·hidden bytes each), so that compare() can be asked. Default
   * 0.
   */
  readonly compareTokens?: number;
  /** What its calls do when room is short: onPressure of EngineOptions. Default: that of the engine. */
  readonly onPressure?: 'refuse' | 'queue' | 'degrade';
  /**
   * Sessions begin with pages of those alone that have the same salt: different ones keep users apart, who could tell
   * by the time of a first token what others have read. Forks keep it, and so do parked sessions, whose files hold it.
   * Default: none, which is one as well.
   */
  readonly cacheSalt?: string;
  /**
   * Adapters that add to what the model answers, at most four, by the names that they have in the engine. Sessions
   * begin with pages of those alone that have the same ones with the same scales. Forks and parked sessions keep them.
   * `{ proposedFor: prompt }`: those that earlier sessions with such a text used, as `engine.adapters.propose` says, or
   * none. Default: none.
   */
  readonly adapters?: readonly SessionAdapter[] | ProposedFor;
  /**
   * The kernel pack, by its name in the state folder (`NAME@canary`: one that is being tried), in whose codec pages may
   * be held that would otherwise go to formats of the archive (`docs/packs.md`). A session keeps the version of it that
   * was active when it was opened. It is not forked or parked, keeps no latents and no originals, and shares no pages.
   * Default: none.
   */
  readonly pack?: string;
  /**
   * Whose calls are taken first among those that wait to begin, and among prompts that are to be read: a lower number
   * before a higher one, as vLLM's `priority`. Nobody waits for ever: whoever was passed eight times by others that
   * came later goes before them. Nothing that is under way is stopped for it. Default 0.
   */
  readonly schedulingPriority?: number;
  /**
   * How much of a prompt is read while others of the same priority are read as well, beside the 1 of others: with 2,
   * twice as many tokens. It decides about answers only where more are written than one pass over the weights has room
   * for. A fork has as much again. Default 1.
   */
  readonly schedulingWeight?: number;
  /**
   * Bytes of its pages that others leave it when they need memory: until it has more, it gives up none for them, and
   * it is not parked while it waits. They are promised when it is opened, and refused with 'budget-exceeded' where the
   * floors of all sessions do not fit into the kvBudget of the engine. It and its forks have one floor together, and
   * hold no pages together with others. Default: none.
   */
  readonly kvFloor?: KvBytes;
  /**
   * Sessions whose group has the same name hold no more than its budget together: bytes, or a share of the kvBudget of
   * the engine (25%). A call that does not fit beside others of its group waits for them, and nobody of another group
   * waits for it; idle ones of the group are parked for it first. What does not fit even then is refused with the
   * numbers. Pages that several of them hold count once; those that are kept of closed ones do not count. The budget is
   * the one that was given last. Default: none.
   */
  readonly kvGroup?: KvGroup;
  /**
   * How many bytes it keeps beside the 1 of others when all give up some: with 2, its old pages have twice the bytes
   * for a token, as far as formats go. Default 1.
   */
  readonly kvWeight?: number;
}

/** Sessions that hold no more than a budget together. */
export interface KvGroup {
  /** Whose sessions they are: those of one name are of one group. */
  readonly name: string;
  /** '64MiB', '1.5GB', '25%' of the kvBudget of the engine, or a number of bytes. */
  readonly kvBudget: KvBudget;
}

/** Options of embed. */
export interface EmbedOptions {
  /** Whose bytes a text counts among while it is read: as `kvGroup` of a session. Default: none. */
  readonly kvGroup?: KvGroup;
  /** Whose texts are read first: as `schedulingPriority` of a session. Default 0. */
  readonly schedulingPriority?: number;
  /** The share of turns: as `schedulingWeight` of a session. Default 1. */
  readonly schedulingWeight?: number;
  /** Aborts it. */
  readonly signal?: AbortSignal | undefined;
}

/** Options of park. */
export interface ParkOptions {
  /**
   * Writes pages as what is left when each layer is predicted from the one below: far fewer bytes, and a small error.
   * Needs what `palimpsest calibrate --predictor` fits; palimpsest-models has those of 'reference' and 'smollm2-135m'.
   * Default false: pages as they are, bit for bit.
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
   * What the answer follows: `{ jsonSchema }` or `{ gbnf }`, with the package @mlc-ai/web-xgrammar beside this one.
   * Tokens that would leave it are never drawn, and the text ends where it is complete. Default: none.
   */
  readonly grammar?: GrammarOption;
  /**
   * Prompt look-up decoding: where the newest tokens stand earlier in the text, up to so many (1 to 64) of those that
   * followed them there are read at once, and kept as far as they are what would have been written anyway. Default 0,
   * none.
   */
  readonly promptLookupTokens?: number;
  /**
   * Also tells how likely the model found each generated token and so many (0 to 20) of the most likely ones at its
   * place: of its own distribution, before anything of SamplingOptions changes it. Default: none.
   */
  readonly logprobs?: number;
  /**
   * True: the answer comes with a receipt (`receipt` of the result), which the log proves; the log then has digests of
   * what was asked and answered. Needs a state folder. Default false.
   */
  readonly receipt?: boolean;
  /**
   * True: `events()` of the generation also says with each text where the bytes of the cache are by then: tiers,
   * formats, pages of keys and values. Default false.
   */
  readonly tierSummary?: boolean;
  /** Aborts the generation; while the prompt is read, what was read of it is taken back. */
  readonly signal?: AbortSignal;
  /** Called while the prompt is read. */
  readonly onProgress?: (progress: Progress) => void;
}

/**
 * Whether an answer calls tools, named as in OpenAI's API. 'auto': as the model likes, and a call that it begins has
 * the syntax of its family and fulfils the schema of its tool. 'none': no call. 'required': a call from the first token
 * on. { name }: one call of that tool.
 */
export type ToolChoice = 'auto' | 'none' | 'required' | { readonly name: string };

/** Options of send and regenerate. */
export interface SendOptions extends GenerateOptions {
  /** Default: that of the chat. */
  readonly toolChoice?: ToolChoice;
  /** False: an answer with `toolChoice` has one call, not several. Default true. */
  readonly parallelToolCalls?: boolean;
  /**
   * The answer goes on with the text of the last message, an assistant's: one that you began, or an answer that was
   * cut. Default: false, a message of its own.
   */
  readonly continueFinalMessage?: boolean;
}

/** Options of continuations. */
export interface ContinuationOptions extends Omit<GenerateOptions, 'tierSummary'> {
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
