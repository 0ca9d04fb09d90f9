/** The names of all options, for checkKeys. Each list is complete by type: an option that is added to its interface must be added here. */
import type {
  ContinuationOptions,
  EngineOptions,
  GenerateOptions,
  ParkOptions,
  ResumeOptions,
  SendOptions,
  SessionOptions,
} from './types.ts';

/** Every key of an interface of options. */
export type Names<Options> = Readonly<Record<keyof Options, true>>;

export const ENGINE_OPTIONS: Names<EngineOptions> = {
  model: true,
  dense: true,
  threads: true,
  isa: true,
  binding: true,
  cacheDir: true,
  offline: true,
  onProgress: true,
  signal: true,
  stateDir: true,
  onLogFailure: true,
  logRules: true,
  logRetention: true,
  anchor: true,
  kvBudget: true,
  idleSessions: true,
  qdrant: true,
};

export const SESSION_OPTIONS: Names<SessionOptions> = {
  kvBudget: true,
  kldBudget: true,
  priority: true,
  policy: true,
  cacheTypes: true,
  skipLayers: true,
  tokensExpected: true,
  stepLatencyBudgetMs: true,
  openFormat: true,
  windowTokens: true,
  exact: true,
  witness: true,
  latents: true,
  thresholds: true,
  thresholdsPath: true,
  compareTokens: true,
};

export const RESUME_OPTIONS: Names<ResumeOptions> = { ...SESSION_OPTIONS, onProgress: true, signal: true };

export const PARK_OPTIONS: Names<ParkOptions> = { predict: true };

export const GENERATE_OPTIONS: Names<GenerateOptions> = {
  temperature: true,
  topK: true,
  typicalP: true,
  topP: true,
  minP: true,
  repeatPenalty: true,
  frequencyPenalty: true,
  presencePenalty: true,
  repeatLastN: true,
  dryMultiplier: true,
  dryBase: true,
  dryAllowedLength: true,
  dryPenaltyLastN: true,
  drySequenceBreakers: true,
  logitBias: true,
  seed: true,
  maxTokens: true,
  stop: true,
  grammar: true,
  promptLookupTokens: true,
  logprobs: true,
  signal: true,
  onProgress: true,
};

export const SEND_OPTIONS: Names<SendOptions> = { ...GENERATE_OPTIONS, toolChoice: true };

export const CONTINUATION_OPTIONS: Names<ContinuationOptions> = { ...GENERATE_OPTIONS, n: true };

export const COMPARE_OPTIONS = { onProgress: true, signal: true } as const;
