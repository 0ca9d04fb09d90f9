/** What a calibration of a model found of activations in 8 bits: of the state folder, or else of the package. */
import { importedThresholds } from '../../memory/index.ts';
import type { ActivationCosts } from '../../policy/index.ts';
import { memoryDir } from './folder.ts';
import { shippedFile } from './shipped-laws.ts';

/** null: nobody has measured it. Throws 'bad-thresholds' where somebody damaged a file. */
export function activationCosts(modelDigest: string, stateDir: string | null): ActivationCosts | null {
  const imported = stateDir === null ? null : importedThresholds(memoryDir(stateDir), modelDigest);
  return imported?.activations ?? shippedFile(modelDigest)?.activations ?? null;
}
