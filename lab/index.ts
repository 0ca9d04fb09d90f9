/** palimpsest-lab: the methods and formats that `palimpsest evaluate` knows where this package is installed. */
export { formatsModule } from './formats.ts';
export { methodCaches, methodOf, methods } from './methods/methods.ts';
export { decodeRow, encodeGrid, type GridBits, type GridRow } from './token-cache/grid.ts';
export { TokenCache, type TokenCacheOptions, type TokenRule } from './token-cache/token-cache.ts';
