// Written by scripts/generate-layout.ts. Add a folder to this one, not a line to this file.
import * as band from './band/band.ts';
import * as f16 from './f16/f16.ts';
import * as fp8 from '../yardsticks/fp8/fp8.ts';
import * as higgs from '../yardsticks/higgs/higgs.ts';
import * as int3 from '../yardsticks/int3/int3.ts';
import * as kivi from './kivi/kivi.ts';
import * as nuq from '../yardsticks/nuq/nuq.ts';
import * as prod from '../yardsticks/prod/prod.ts';
import * as q8 from './q8/q8.ts';
import * as rot from './rot/rot.ts';
import * as rotq from '../yardsticks/rotq/rotq.ts';
import * as squat from '../yardsticks/squat/squat.ts';
import * as trellis from './trellis/trellis.ts';
import * as turbo from '../yardsticks/turbo/turbo.ts';

/** A format of one side of a page, best first: how its keys or values are stored. */
export type FormatName = 'f16' | 'q8' | 'kivi8' | 'fp8' | 'trellis4' | 'kivi4' | 'rotq4' | 'rot4' | 'squat4' | 'higgs4' | 'turbo4' | 'trellis3' | 'nuq4' | 'band3' | 'turbo4-prod' | 'rotq3' | 'rot3' | 'trellis2' | 'int3' | 'higgs3' | 'turbo3' | 'band2' | 'nuq3' | 'kivi2' | 'turbo3-prod' | 'rotq2' | 'rot2' | 'squat2' | 'higgs2' | 'turbo2' | 'nuq2' | 'turbo2-prod' | 'trellis1' | 'rot1';
/** A format that a page may be sealed in, while it is in the window of the newest tokens. */
export type WindowName = 'f16' | 'q8';

export const FAMILIES = { band, f16, fp8, higgs, int3, kivi, nuq, prod, q8, rot, rotq, squat, trellis, turbo } as const;
export const BUILT_IN_CODECS = { ...band.codecs, ...f16.codecs, ...fp8.codecs, ...higgs.codecs, ...int3.codecs, ...kivi.codecs, ...nuq.codecs, ...prod.codecs, ...q8.codecs, ...rot.codecs, ...rotq.codecs, ...squat.codecs, ...trellis.codecs, ...turbo.codecs } as const;
