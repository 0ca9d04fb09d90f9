export { adaptedDigest } from './adapted.ts';
export * from './book.ts';
export { believed, sessionsBehind } from './courses.ts';
export * from './estimate.ts';
export * from './exact-index.ts';
export * from './experience.ts';
export * from './filter.ts';
export * from './fingerprint.ts';
export * from './forget-shared.ts';
export { hintDistance, type TextHint } from './hint.ts';
export * from './hnsw-index.ts';
export * from './log-ranges.ts';
export { guardThread } from './open-index.ts';
export { type KnownPrefix, laterText, PageChain, PREFIX_PAGES_MAX, type Prefix, pageDigests } from './prefix.ts';
export * from './qdrant-index.ts';
export { checkQdrantOptions, type QdrantOptions, QdrantServer } from './qdrant-server.ts';
export * from './session-record.ts';
export * from './shared-index.ts';
export * from './signature.ts';
export * from './threshold-diff.ts';
export * from './threshold-file.ts';
export * from './threshold-merge.ts';
export {
  type Evidence,
  type FileThreshold,
  intervalOf,
  type Learned,
  type ModelShape,
  type ThresholdFile,
} from './threshold-schema.ts';
export * from './types.ts';
export * from './vector.ts';
