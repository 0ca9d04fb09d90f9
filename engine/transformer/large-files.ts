/**
 * What is too large to come with every installation, and so is a package of its own (palimpsest-models, an optional
 * peer): the reference model, and what parked pages of models are predicted by. In a checkout it is in models/.
 */
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { packageRoot } from '../../native/index.ts';

/** The folder of the reference model or of predictors. Null where their package is not installed. */
export function largeFiles(what: 'reference' | 'predictors'): string | null {
  const beside = join(packageRoot(), 'models', what);
  if (existsSync(beside)) return beside;
  try {
    const { resolve } = createRequire(join(packageRoot(), 'package.json'));
    return join(dirname(resolve('palimpsest-models/package.json')), what);
  } catch {
    return null;
  }
}
