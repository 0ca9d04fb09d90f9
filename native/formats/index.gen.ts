// Written by scripts/generate-layout.ts. Add a file to this folder, not a line to this one.
import * as f16 from './f16.ts';
import * as kivi from './kivi.ts';
import * as q8 from './q8.ts';
import * as rot from './rot.ts';

/** A format of one side of a page, best first: how its keys or values are stored. */
export type FormatName = 'f16' | 'q8' | 'kivi8' | 'rot4' | 'kivi4' | 'rot3' | 'rot2' | 'kivi2' | 'rot1';
/** A format that a page may be sealed in, while it is in the window of the newest tokens. */
export type WindowName = 'f16' | 'q8';

export const FAMILIES = { f16, kivi, q8, rot } as const;
export const BUILT_IN_CODECS = { ...f16.codecs, ...kivi.codecs, ...q8.codecs, ...rot.codecs } as const;
