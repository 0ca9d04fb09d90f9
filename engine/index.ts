/** palimpsest: what the package exports. Importing it has no effects; models, databases and threads start when asked for. */
export {
  BINDING_NAMES,
  type BindingName,
  type CacheMemory,
  type CacheShape,
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
  type RotaryTable,
  type Side,
  type WindowName,
} from '../native/index.ts';
export type {
  Because,
  Decision,
  FormChange,
  Outcome,
  Policy,
  PolicyContext,
  PolicySession,
  PolicySummary,
  Priority,
  Situation,
  Threshold,
  ThresholdOrigin,
  ThresholdSet,
  TrialReport,
  Verdict,
} from '../policy/index.ts';
export {
  type AuditIndex,
  type AuditIndexOptions,
  type DecisionFilter,
  type DecisionQuery,
  type DecisionRow,
  type FailureMode,
  type IndexReport,
  openAuditIndex,
  openLogQuery,
  type SessionFilter,
  type SessionRow,
  type SqlAnswer,
} from '../witness/index.ts';
export type { Forecast } from './budget.ts';
export { type OpenCacheOptions, openCache, PolicyCache, type QualityMetrics } from './cache.ts';
export { createEngine, Engine, EngineSession, Generation } from './engine.ts';
export type { MemoryUsage, QualityFeedback } from './governed.ts';
export type { LoadedInfo } from './host.ts';
export type { LatentOptions, LatentProjection } from './latents.ts';
export type { ChatMessage, ModelConfig, RopeScaling } from './model/types.ts';
export type {
  CacheTypes,
  Divergence,
  EngineOptions,
  Generated,
  GenerateOptions,
  KvBudget,
  LayerReport,
  Progress,
  Prompt,
  SessionOptions,
  SessionReport,
} from './types.ts';
