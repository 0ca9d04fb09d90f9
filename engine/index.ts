/**
 * palimpsest: what the package exports. Importing it has no effects; models, databases and threads start when asked
 * for.
 */

export {
  type Condition,
  type Experience,
  type Filter,
  type Fingerprint,
  type FormatShares,
  fingerprint,
  type Measurements,
  type Neighbour,
  type Prefix,
  type QdrantOptions,
  type SessionRecord,
  type SharedStatus,
  type TextHint,
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
  ActivationChoice,
  AdapterProposal,
  Because,
  CanaryReport,
  Course,
  DamagedSide,
  Decision,
  Estimate,
  Foreseen,
  Foresight,
  FormatEstimates,
  FormChange,
  Growth,
  LatentContext,
  LaterForm,
  LaterReport,
  Law,
  LayerChange,
  LayerCost,
  LogRange,
  MassReport,
  MeasuredKld,
  Noise,
  Outcome,
  PackContext,
  PageForm,
  PagePart,
  PageSide,
  Policy,
  PolicyContext,
  PolicySession,
  PolicySummary,
  Precedent,
  Priority,
  ProbeReport,
  RereadReport,
  ScaledDigest,
  SharedPages,
  Situation,
  Threshold,
  ThresholdOrigin,
  ThresholdSet,
  ThresholdSource,
  TierOptions,
  TierSize,
  TiersOptions,
  TrialReport,
  Verdict,
  WantedSide,
} from '../policy/index.ts';
export {
  type AnchorOptions,
  type AnchorReport,
  type AskedFor,
  type AuditIndex,
  type AuditIndexOptions,
  appendCheckpoints,
  type Candidate,
  type Checkpoint,
  type CheckpointBody,
  type CountKey,
  type CountRow,
  checkProof,
  type DecisionFilter,
  type DecisionQuery,
  type DecisionRow,
  type DecisionWithout,
  type Difference,
  type Disclosure,
  decideWithout,
  ENTRY_KINDS,
  type EntryKind,
  type EntryPlace,
  type ExplainOptions,
  type Explanation,
  explain,
  type FailureMode,
  type ForeignPart,
  type InclusionProof,
  type IndexReport,
  type KnownBefore,
  type LikeSession,
  type LogQueryOptions,
  type LogRule,
  type MendedSide,
  makeCheckpointKeys,
  type OtherMove,
  type Otherwise,
  openAuditIndex,
  openLogQuery,
  type PagePlace,
  type PolicyFactory,
  type PromotedSide,
  type ProveOptions,
  parseCheckpoint,
  proveEntry,
  type Range,
  type Receipt,
  type ReceiptClaims,
  type ReceiptProof,
  type ReceiptRequest,
  type ReplayReport,
  type RetainedSeries,
  type RetentionReport,
  type RewrapReport,
  readCheckpoints,
  readVerifier,
  replay,
  type SenselessEntry,
  type SeriesReport,
  type SessionFilter,
  type SessionRow,
  type SqlAnswer,
  sessionReport,
  signLog,
  type TimelineEvent,
  timeline,
  type Unopened,
  useMasterKeys,
  type VerifierKey,
  type VerifyReceiptOptions,
  type VerifyReport,
  verifierText,
  verifyAgainst,
  verifyLog,
  verifyReceipt,
  type WhyNot,
  type WhyNotReason,
  type Without,
  type WithoutReport,
  whyNot,
} from '../witness/index.ts';
export type { NamedAdapter } from './adapters/adapters.ts';
export type { PlacedAdapter, Placement, ProposedAdapters } from './adapters/proposal.ts';
export type { AdapterInfo } from './adapters/types.ts';
export {
  type AsModelJson,
  type LanguageModel,
  languageModel,
  type ModelContent,
  type ModelFinish,
  type ModelJson,
  type ModelMetadata,
  type ModelResult,
  type ModelStreamPart,
  type ModelUsage,
} from './ai-sdk/language-model.ts';
export type { ModelCall, ModelMessage, ModelPart, ModelTool, ModelWarning } from './ai-sdk/prompt.ts';
export type { Forecast } from './cache/budget.ts';
export type { TierRow, TierSummary } from './cache/tier-summary.ts';
export type {
  DamageReport,
  LayerReport,
  MemoryUsage,
  PressureReport,
  QualityFeedback,
  SessionReport,
  Stake,
  StatedReport,
} from './cache/types.ts';
export type { EngineEvent, EventFields } from './events/event.ts';
export type { EventField } from './events/field.ts';
export type { Logger, LogLine } from './events/logger.ts';
export { EVENTS, type EventName } from './events/table.ts';
export type { LanguageModelOptions, ModelCacheReport } from './openai/local-model.ts';
export type { AnswersOptions } from './openai/options.ts';
export type { OpenCacheOptions } from './options/cache-options.ts';
export type { LatentOptions, LatentProjection } from './options/latent-options.ts';
export type { PolicyModule } from './options/policy-module.ts';
export type {
  CacheTypes,
  ContinuationOptions,
  EmbedOptions,
  EngineOptions,
  GenerateOptions,
  GoverningOptions,
  KeptLatents,
  KvBudget,
  KvBytes,
  KvGroup,
  LatentKeep,
  LogRetention,
  ParkOptions,
  Progress,
  Prompt,
  ProposedFor,
  ResumeOptions,
  SendOptions,
  SessionAdapter,
  SessionOptions,
  StateOptions,
  ToolChoice,
} from './options/types.ts';
export type { OriginalsReport } from './originals/types.ts';
export type { ApiKey } from './serve/keys.ts';
export type { ServeOptions } from './serve/options.ts';
export { type LiveView, serve } from './serve/server.ts';
export type { StreamRules } from './serve/stream.ts';
export type { AnsweredAgain } from './session/answer-again.ts';
export type { ChatAnswer, ChatCount, Compressed, ContextEnd } from './session/chat/types.ts';
export type { Embeddings } from './session/embedding.ts';
export { type ParkedSession, parkedSessions } from './session/park/folder.ts';
export type { Resumed } from './session/park/resume.ts';
export {
  type LoadCacheOptions,
  loadCache,
  openCache,
  PolicyCache,
  type QualityMetrics,
} from './session/policy-cache.ts';
export type { AnswerReceipt, Divergence, Generated, StreamedText } from './session/types.ts';
export {
  type EraseOptions,
  type Erasure,
  eraseSession,
  type HoldOptions,
  holdSession,
  rewrapKeys,
} from './state/erase.ts';
export { type RetainOptions, retainLog } from './state/retention.ts';
export { openSessionIndex, type SessionIndex, type SessionIndexOptions } from './state/sessions.ts';
export type { ProvedAnswer, ReceiptOptions } from './thread/calls/engine.ts';
export type { ParkedFile } from './thread/calls/parking.ts';
export { Chat, type ChatInput } from './thread/chat.ts';
export type { ChatOptions } from './thread/chat-options.ts';
export { createEngine, Engine } from './thread/engine.ts';
export type { EngineAdapters } from './thread/engine-adapters.ts';
export { EngineSession, Generation } from './thread/engine-session.ts';
export type { LoadedInfo } from './thread/loaded.ts';
export { createRuntime, EngineRuntime, type RuntimeModelOptions, type RuntimeOptions } from './thread/runtime.ts';
export type { GrammarOption, JsonSchema } from './transformer/grammar/options.ts';
export type { GeneratedToken, TokenLogprob } from './transformer/sampling/logprobs.ts';
export { SAMPLING_DEFAULTS, type SamplingOptions } from './transformer/sampling/options.ts';
export type {
  ChatMessage,
  ChatTool,
  LoadProgress,
  ModelConfig,
  RenderOptions,
  RopeScaling,
  ToolCall,
} from './transformer/types.ts';
