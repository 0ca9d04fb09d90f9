export * from './error.ts';
export * from './format.ts';
export * from './types.ts';
