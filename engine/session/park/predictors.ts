/**
 * Where predictors of parked pages lie: in the state folder if `calibrate` fitted one there, else in palimpsest-models.
 */
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { KvError, readRegular } from '../../../native/index.ts';
import { largeFiles } from '../../transformer/large-files.ts';
import type { LoadedModel } from '../../transformer/types.ts';
import { Predictor, parsePredictor } from './predictor.ts';

const ENDING = '.predictor';
/** A model of 126 layers whose keys are 1,024 wide takes 0.9 GB. */
const BYTES_MAX = 2 ** 30;

/** Where `calibrate` puts the one of a model. */
export const predictorPath = (stateDir: string, modelDigest: string): string =>
  join(stateDir, 'predictors', `${modelDigest.slice(0, 32)}${ENDING}`);

/** The predictor of a model, or null. Throws 'bad-file', 'checksum-mismatch', 'io'. Its owner closes it. */
export function findPredictor(modelDigest: string, stateDir: string | null): Predictor | null {
  const own = stateDir === null ? null : predictorPath(stateDir, modelDigest);
  const dir = largeFiles('predictors');
  const shipped = dir === null ? [] : readdirSync(dir).filter((name) => name.endsWith(ENDING));
  for (const path of [...(own !== null && existsSync(own) ? [own] : []), ...shipped.map((name) => join(dir!, name))]) {
    const data = parsePredictor(readRegular(path, { bytesMax: BYTES_MAX }), path);
    if (data.modelDigest === modelDigest) return new Predictor(data);
  }
  return null;
}

/** The predictor of one model, which is read when it is first asked for. */
export class ModelPredictor {
  readonly #model: Pick<LoadedModel, 'name' | 'digest'>;
  readonly #stateDir: string | null;
  #found: Predictor | null = null;

  constructor(model: Pick<LoadedModel, 'name' | 'digest'>, stateDir: string | null) {
    this.#model = model;
    this.#stateDir = stateDir;
  }

  /** Throws 'not-found' where nobody fitted one, and what findPredictor throws. */
  findOrRefuse(): Predictor {
    const found = this.#find();
    if (found !== null) return found;
    const { name } = this.#model;
    throw new KvError('not-found', `there is nothing to predict pages of ${name} by`, {
      values: { model: name },
      hint: 'palimpsest calibrate --predictor fits it to texts; or park without it, to a file',
    });
  }

  /** Null where there is none. A damaged one is none: what was predicted by it is read again. */
  findIfSound(): Predictor | null {
    try {
      return this.#find();
    } catch (error) {
      if (!(error instanceof KvError)) throw error;
      return null;
    }
  }

  #find(): Predictor | null {
    this.#found ??= findPredictor(this.#model.digest, this.#stateDir);
    return this.#found;
  }

  close(): void {
    this.#found?.close();
  }
}
