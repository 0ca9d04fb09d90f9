/** What the names of `--caches` mean: caches of sessions, or methods and formats that other packages bring. */
import { policies } from '../../policy/index.ts';
import type { SessionOptions } from '../options/types.ts';
import { type CacheSpec, type EvaluateCache, parseCache } from './evaluate.ts';
import { askForLab, findMethod, findYardstick, registerLab, serveNamed } from './methods.ts';

const WINDOWS: readonly string[] = ['f16', 'q8'];

/**
 * The caches of these names. A name that is unknown here is looked up in palimpsest-lab. Throws 'bad-argument', and
 * 'missing-dependency' where only the lab knows it.
 */
export async function findCaches(names: readonly string[]): Promise<EvaluateCache[]> {
  await serveNamed(names);
  const found: EvaluateCache[] = [];
  for (const name of names) found.push(await findCache(name));
  return found;
}

async function findCache(name: string): Promise<EvaluateCache> {
  const parsed = parsedOr(name);
  const own = findMethod(name);
  if (own !== null) return { name, method: own };
  if (!(parsed instanceof Error) && isOfSessions(parsed)) return parsed;
  if (await registerLab()) {
    const method = findMethod(name);
    if (method !== null) return { name, method };
  } else askForLab(name);
  if (parsed instanceof Error) throw parsed;
  // Opening a session says what is wrong with it.
  return parsed;
}

/** The caches of these names for a simulation, which runs policies and yardsticks. Throws as findCaches() does. */
export async function findSimulated(names: readonly string[]): Promise<CacheSpec[]> {
  await serveNamed(names);
  const specs = names.map(parseCache);
  for (const { name, options } of specs) {
    if (hasPolicy(options) || findYardstick(options.policy as string) !== null) continue;
    if (!(await registerLab())) askForLab(name);
  }
  return specs;
}

/** The policy of a cache that was parsed from a name has a name, if it has one. */
const hasPolicy = ({ policy }: SessionOptions): boolean =>
  typeof policy !== 'string' || Object.hasOwn(policies, policy);

function parsedOr(name: string): CacheSpec | Error {
  try {
    return parseCache(name);
  } catch (error) {
    return error as Error;
  }
}

/** True if the policy and the window of a cache are known. */
const isOfSessions = ({ options }: CacheSpec): boolean =>
  hasPolicy(options) && (options.openFormat === undefined || WINDOWS.includes(options.openFormat));
