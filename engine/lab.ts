/**
 * palimpsest/lab: what the package exports beside its library, for programs that compare other methods with it on its
 * models, as palimpsest-lab does. These are insides: they change from version to version, so a program that uses them
 * names one version.
 */
export {
  assert,
  type CacheShape,
  decodeLatent,
  encode4,
  encodeLatent,
  encodeMean,
  FORMAT_NAMES,
  FORMATS,
  type FormatName,
  fieldBytes,
  firstToken,
  fromHalf,
  joined,
  KvError,
  type LatentName,
  latentBytes,
  movablePages,
  narrowedScale,
  openKvCache,
  openPool,
  PAGE_TOKENS,
  pageBytes,
  pageOf,
  parsePair,
  ROT_LEVELS,
  reference,
  rope,
  rowsLeft,
  SINK_TOKENS,
  type Side,
  serveYardsticks,
  toHalf,
} from '../native/index.ts';
export { f16CacheBytes } from './cache/budget.ts';
export { normalized } from './cache/latents.ts';
export { type EvaluateCache, type EvaluateRequest, type EvaluateRow, evaluate } from './evaluate/evaluate.ts';
export { findCaches } from './evaluate/find-caches.ts';
export {
  type CacheMethod,
  type CacheMethods,
  type MethodRead,
  type MethodReading,
  registerMethods,
} from './evaluate/methods.ts';
export { ownText } from './evaluate/own-text.ts';
export type { Kept, Observed, Yardstick, YardstickContext, YardstickSession } from './evaluate/yardstick.ts';
export { dot, softmax, turned } from './trace/head.ts';
export { RopeTable, ropeFrequencies } from './transformer/rope.ts';
export { Runtime, type RuntimeOptions } from './transformer/runtime/runtime.ts';
export type { LayerInput, LoadedModel, ModelConfig, WeightSource } from './transformer/types.ts';
