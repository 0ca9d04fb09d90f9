/** HOW fast? Numbers: pages, formats, attention. The room's only entry. */
export { fromHalf, openKvCache, openPool, rope, toHalf } from './cache.ts';
export * from './error.ts';
export * from './format.ts';
export { nativeInfo, setIsa } from './load.ts';
export * as reference from './reference/index.ts';
export * from './types.ts';
