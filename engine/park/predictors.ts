/** Where predictors of parked pages lie: in the state folder if `calibrate` fitted one there, else with the package. */
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot, readRegular } from '../../native/index.ts';
import { Predictor, parsePredictor } from './predictor.ts';

const ENDING = '.predictor';
/** A model of 126 layers whose keys are 1,024 wide takes 0.9 GB. */
const BYTES_MAX = 2 ** 30;

/** Where `calibrate` puts the one of a model. */
export const predictorPath = (stateDir: string, modelDigest: string): string =>
  join(stateDir, 'predictors', `${modelDigest.slice(0, 32)}${ENDING}`);

const shippedDir = (): string => join(packageRoot(), 'models', 'predictors');

/** The predictor of a model, or null. Throws 'bad-file', 'checksum-mismatch', 'io'. Its owner closes it. */
export function findPredictor(modelDigest: string, stateDir: string | null): Predictor | null {
  const own = stateDir === null ? null : predictorPath(stateDir, modelDigest);
  const shipped = readdirSync(shippedDir()).filter((name) => name.endsWith(ENDING));
  for (const path of [
    ...(own !== null && existsSync(own) ? [own] : []),
    ...shipped.map((name) => join(shippedDir(), name)),
  ]) {
    const data = parsePredictor(readRegular(path, { bytesMax: BYTES_MAX }), path);
    if (data.modelDigest === modelDigest) return new Predictor(data);
  }
  return null;
}
