/** How much of a long test is run: on builds on which everything takes minutes (PALIMPSEST_SHORT), a part of what runs on the usual one. */
export const IS_SHORT = process.env['PALIMPSEST_SHORT'] === '1';

/** Rounds of a random test: a quarter where it must be short. */
export const rounds = (full: number): number => (IS_SHORT ? Math.ceil(full / 4) : full);
