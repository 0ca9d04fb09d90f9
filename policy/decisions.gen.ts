// Written by scripts/generate-decisions.ts from scripts/decisions.json; change that file and run npm run generate.
import type { FormatName } from '../native/index.ts';

/** Formats that win for keys with outlier channels, or show them, and are offered for no other keys, best first. */
export const OUTLIER_KEYS: readonly FormatName[] = ['kivi4', 'band3', 'band2', 'kivi2'];
