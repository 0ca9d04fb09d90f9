export * from './files.ts';
export * from './log.ts';
export * from './read.ts';
export * from './types.ts';
export * from './verify.ts';
