export * from './book.ts';
export * from './estimate.ts';
export * from './exact-index.ts';
export * from './experience.ts';
export * from './fingerprint.ts';
export * from './hnsw-index.ts';
export * from './threshold-file.ts';
export * from './types.ts';
