export * from './exact-index.ts';
export * from './fingerprint.ts';
export * from './hnsw-index.ts';
export * from './strict-json.ts';
export * from './types.ts';
