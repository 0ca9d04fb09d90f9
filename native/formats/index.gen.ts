// Written by scripts/generate-layout.ts. Add a file to this folder, not a line to this one.
import * as f16 from './f16.ts';
import * as higgs from './higgs.ts';
import * as kivi from './kivi.ts';
import * as prod from './prod.ts';
import * as q8 from './q8.ts';
import * as rot from './rot.ts';
import * as turbo from './turbo.ts';

/** A format of one side of a page, best first: how its keys or values are stored. */
export type FormatName = 'f16' | 'q8' | 'kivi8' | 'rot4' | 'kivi4' | 'higgs4' | 'turbo4' | 'turbo4-prod' | 'rot3' | 'higgs3' | 'turbo3' | 'turbo3-prod' | 'rot2' | 'kivi2' | 'higgs2' | 'turbo2' | 'turbo2-prod' | 'rot1';
/** A format that a page may be sealed in, while it is in the window of the newest tokens. */
export type WindowName = 'f16' | 'q8';

export const FAMILIES = { f16, higgs, kivi, prod, q8, rot, turbo } as const;
export const BUILT_IN_CODECS = { ...f16.codecs, ...higgs.codecs, ...kivi.codecs, ...prod.codecs, ...q8.codecs, ...rot.codecs, ...turbo.codecs } as const;
