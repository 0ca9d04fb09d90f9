/**
 * The model of benches that need a real vocabulary and real answers: SmolLM2 where it has been fetched, otherwise the
 * reference model.
 */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { fetchedPath } from '../../engine/transformer/fetch.ts';

export function smallModel(
  root: string,
  say: (line: string) => void,
): { readonly model: string; readonly cacheDir: string } {
  const cacheDir = join(root, '.cache');
  if (existsSync(fetchedPath('smollm2-135m', cacheDir))) return { model: 'smollm2-135m', cacheDir };
  say('smollm2-135m is not here; npm run fetch:model fetches it');
  return { model: 'reference', cacheDir };
}
