/**
 * What was calibrated for models that many use, and comes with the package: a threshold file per model, known by the
 * digest of its weights.
 */
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { readThresholdFile, type ThresholdFile, toThresholdSet } from '../../memory/index.ts';
import { packageRoot } from '../../native/index.ts';
import type { ThresholdSet } from '../../policy/index.ts';

/** The folder of these files. */
export const lawsDir = (): string => join(packageRoot(), 'models', 'laws');

const known = new Map<string, ThresholdFile>();
let isRead = false;

/** The file that comes with the package for this model, or null. Throws 'bad-thresholds' where somebody damaged it. */
export function shippedFile(modelDigest: string): ThresholdFile | null {
  if (!isRead) {
    for (const name of readdirSync(lawsDir()).filter((name) => name.endsWith('.json'))) {
      const file = readThresholdFile(join(lawsDir(), name));
      known.set(file.model.digest, file);
    }
    isRead = true;
  }
  return known.get(modelDigest) ?? null;
}

// The same object each time: spelling a file for its digest takes longer than anything else that opens a session.
const sets = new Map<ThresholdFile, ThresholdSet>();

/** What a session of this model starts with where nothing was learned, or null. */
export function shippedThresholds(modelDigest: string): ThresholdSet | null {
  const file = shippedFile(modelDigest);
  if (file === null) return null;
  const set = sets.get(file) ?? toThresholdSet(file, 'the file of the package');
  sets.set(file, set);
  return set;
}
