/**
 * `palimpsest fetch NAME` brings a model to this machine and checks its digest: one of ours into the cache folder, one
 * of the Hub into that of the Hub.
 */
import { KvError } from '../../native/index.ts';
import { fetchModel, isFetchable } from '../transformer/fetch.ts';
import { isRemoteName, NAME_FORMS } from '../transformer/hub/name.ts';
import { fetchFromHub } from '../transformer/hub/obtain.ts';
import { isOffline } from '../transformer/hub/settings.ts';
import { interruptible } from './interrupt.ts';
import { loading } from './loading.ts';
import { cacheDirOf, flag, type Settings } from './options.ts';

export async function fetchCommand(name: string, settings: Settings): Promise<void> {
  // Only a path has these; a name that is misspelt is told which names there are.
  if (!isRemoteName(name) && !isFetchable(name) && /[/\\]/.test(name))
    throw new KvError('bad-argument', `${name} is not a name that can be fetched`, {
      values: { name },
      hint: `on the Hugging Face Hub it is hf:${name}; names are written ${NAME_FORMS}`,
    });
  await interruptible(async (signal) => {
    const path = isRemoteName(name)
      ? await loading(settings, signal, (how) => fetchFromHub(name, how))
      : await fetchModel(name, {
          cacheDir: cacheDirOf(settings),
          offline: isOffline(),
          onProgress: (line: string) => process.stderr.write(`${line}\n`),
          signal,
        });
    process.stdout.write(`${flag(settings, 'json') ? JSON.stringify({ name, path }) : path}\n`);
  });
}
