/** `palimpsest fetch NAME` downloads a model into the cache folder and checks its digest. */
import { fetchModel } from '../model/fetch.ts';
import { flag, type Settings, text } from './options.ts';

export async function fetchCommand(name: string, settings: Settings): Promise<void> {
  const path = await fetchModel(name, {
    cacheDir: text(settings, 'cache') ?? '.cache',
    onProgress: (line: string) => process.stderr.write(`${line}\n`),
  });
  process.stdout.write(`${flag(settings, 'json') ? JSON.stringify({ name, path }) : path}\n`);
}
