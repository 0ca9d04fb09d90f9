/**
 * The model of benches that need a real vocabulary and real answers: SmolLM2 where it has been fetched, otherwise the
 * reference model.
 */
import { existsSync } from 'node:fs';
import { defaultCacheDir } from '../../engine/transformer/cache-dir.ts';
import { fetchedPath } from '../../engine/transformer/fetch.ts';

export function smallModel(say: (line: string) => void): { readonly model: string; readonly cacheDir: string } {
  const cacheDir = defaultCacheDir();
  if (existsSync(fetchedPath('smollm2-135m', cacheDir))) return { model: 'smollm2-135m', cacheDir };
  say('smollm2-135m is not here; npm run fetch:model fetches it');
  return { model: 'reference', cacheDir };
}
