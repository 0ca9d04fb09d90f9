/** palimpsest: what the package exports. Importing it has no effects; models, databases and threads start when asked for. */
export { KV_ERROR_CODES, KvError, type KvErrorCode } from '../native/index.ts';
export { type OpenCacheOptions, openCache, PolicyCache, type QualityFeedback, type QualityMetrics } from './cache.ts';
export { createEngine, Engine, EngineSession, Generation } from './engine.ts';
export type { LatentOptions, LatentProjection } from './latents.ts';
export type { ChatMessage } from './model/types.ts';
export type {
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
