/** palimpsest: what the package exports. Importing it has no effects; models, databases and threads start when asked for. */

export {
  type Condition,
  type Experience,
  type Filter,
  type Fingerprint,
  type FormatShares,
  fingerprint,
  type Measurements,
  type Neighbour,
  type QdrantOptions,
  type SessionRecord,
  type SharedStatus,
  type VectorId,
} from '../memory/index.ts';
export {
  BINDING_NAMES,
  type BindingName,
  type CacheMemory,
  type CacheShape,
  type Experts,
  FORMAT_NAMES,
  type FormatName,
  type FormatPair,
  ISA_NAMES,
  type Isa,
  KV_ERROR_CODES,
  KvError,
  type KvErrorCode,
  type KvErrorDetail,
  LATENT_NAMES,
  type LatentLayerWeights,
  type LatentName,
  openPool,
  type PagePool,
  type Part,
  type RotaryTable,
  SERVED_FORMATS,
  type Side,
  type WindowName,
} from '../native/index.ts';
export type {
  Because,
  CanaryReport,
  Decision,
  Estimate,
  FormatEstimates,
  FormChange,
  LatentContext,
  Law,
  LayerChange,
  LogRange,
  Outcome,
  PageForm,
  Policy,
  PolicyContext,
  PolicySession,
  PolicySummary,
  Priority,
  ProbeReport,
  Situation,
  Threshold,
  ThresholdOrigin,
  ThresholdSet,
  TrialReport,
  Verdict,
} from '../policy/index.ts';
export {
  type AnchorOptions,
  type AnchorReport,
  type AuditIndex,
  type AuditIndexOptions,
  appendCheckpoints,
  type Candidate,
  type Checkpoint,
  type CheckpointBody,
  type CountKey,
  type CountRow,
  type DecisionFilter,
  type DecisionQuery,
  type DecisionRow,
  type Difference,
  ENTRY_KINDS,
  type EntryKind,
  type Explanation,
  explain,
  type FailureMode,
  type ForeignPart,
  type InclusionProof,
  type IndexReport,
  type LikeSession,
  type LogQueryOptions,
  type LogRule,
  makeCheckpointKeys,
  openAuditIndex,
  openLogQuery,
  type PagePlace,
  type PolicyFactory,
  parseCheckpoint,
  proveEntry,
  type Range,
  type ReplayReport,
  type RetainedSeries,
  type RetentionReport,
  type RewrapReport,
  readCheckpoints,
  readVerifier,
  replay,
  type SeriesReport,
  type SessionFilter,
  type SessionRow,
  type SqlAnswer,
  sessionReport,
  signLog,
  type TimelineEvent,
  timeline,
  useMasterKeys,
  type VerifierKey,
  type VerifyReport,
  verifierText,
  verifyAgainst,
  verifyLog,
  type WhyNot,
  type WhyNotReason,
  whyNot,
} from '../witness/index.ts';
export type { Forecast } from './budget.ts';
export { type LoadCacheOptions, loadCache, openCache, PolicyCache, type QualityMetrics } from './cache.ts';
export type { OpenCacheOptions } from './cache-options.ts';
export { Chat, type ChatInput } from './chat/chat.ts';
export type { ChatOptions } from './chat/options.ts';
export type { ChatAnswer, ChatCount, Compressed, ContextEnd, SendOptions, ToolChoice } from './chat/types.ts';
export { createEngine, Engine } from './engine.ts';
export { EngineSession, Generation } from './engine-session.ts';
export { type EraseOptions, type Erasure, eraseSession, type HoldOptions, holdSession, rewrapKeys } from './erase.ts';
export type { GrammarOption, JsonSchema } from './grammar/options.ts';
export type { LoadedInfo, ParkedFile } from './host.ts';
export type { LatentOptions, LatentProjection } from './latents.ts';
export type { ChatMessage, ChatTool, LoadProgress, ModelConfig, RopeScaling, ToolCall } from './model/types.ts';
export { type ParkedSession, parkedSessions } from './park/folder.ts';
export type { Resumed } from './park/resume.ts';
export { type RetainOptions, retainLog } from './retention.ts';
export type { GeneratedToken, TokenLogprob } from './sampling/logprobs.ts';
export { SAMPLING_DEFAULTS, type SamplingOptions } from './sampling/options.ts';
export { type LiveView, type ServeOptions, serve } from './serve/server.ts';
export type { StreamRules } from './serve/stream.ts';
export { openSessionIndex, type SessionIndex, type SessionIndexOptions } from './sessions.ts';
export type {
  CacheTypes,
  ContinuationOptions,
  Divergence,
  EngineOptions,
  Generated,
  GenerateOptions,
  KvBudget,
  LatentKeep,
  LayerReport,
  LogRetention,
  MemoryUsage,
  ParkOptions,
  Progress,
  Prompt,
  QualityFeedback,
  ResumeOptions,
  SessionOptions,
  SessionReport,
} from './types.ts';
