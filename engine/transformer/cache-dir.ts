/** Where fetched models are kept: one folder for a user, whichever folder a program runs in. */
import { homedir } from 'node:os';
import { join, resolve } from 'node:path';

type Environment = Readonly<Record<string, string | undefined>>;

/** Returns the folder that PALIMPSEST_CACHE names, or else one in the folder where the system has a user's caches. */
export function defaultCacheDir(environment: Environment = process.env, platform = process.platform): string {
  const value = (name: string): string | undefined => environment[name] || undefined;
  const named = value('PALIMPSEST_CACHE');
  if (named !== undefined) return resolve(named);
  const home = value('HOME') ?? homedir();
  if (platform === 'win32') return join(value('LOCALAPPDATA') ?? join(home, 'AppData', 'Local'), 'palimpsest', 'Cache');
  if (platform === 'darwin') return join(home, 'Library', 'Caches', 'palimpsest');
  return join(resolve(value('XDG_CACHE_HOME') ?? join(home, '.cache')), 'palimpsest');
}
