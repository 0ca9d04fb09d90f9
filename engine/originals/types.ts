/** Originals as they are asked for, and in numbers. Units are last in every name. */

import type fs from 'node:fs';
import type { SessionOptions } from '../options/types.ts';

/** The functions of node:fs by which originals are written and read. Tests replace them to simulate a failing disk. */
export type OriginalFiles = Pick<
  typeof fs,
  'openSync' | 'closeSync' | 'unlinkSync' | 'readdirSync' | 'write' | 'writeSync' | 'readSync' | 'fsyncSync'
>;

export interface OriginalsTerms {
  readonly place: 'disk' | 'memory';
  /** A folder; null: that of temporary files. */
  readonly dir: string | null;
  readonly bytesMax: number;
  readonly format: NonNullable<SessionOptions['originalsFormat']>;
  /** Pages of each layer that come back for an answer. */
  readonly promote: number;
  /** Left out: those of node:fs. */
  readonly files?: OriginalFiles;
}

/** Originals in numbers, as a session reports them. */
export interface OriginalsReport {
  /** Where they are; none: they are not kept, or not any more. */
  readonly place: 'none' | 'disk' | 'memory';
  /** Page sides that have one. */
  readonly sides: number;
  /** What they take there. */
  readonly bytes: number;
  /** The most that they may take. */
  readonly bytesMax: number;
  /** Page sides that moved without one, because there was no room. */
  readonly sidesLeftOut: number;
  /** Page sides that came back for answers so far. */
  readonly sidesPromoted: number;
  /** Why there are none any more: the code of an error; null where nothing failed. */
  readonly lost: string | null;
}
