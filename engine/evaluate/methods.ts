/**
 * Methods that no session has, by which others keep keys and values. Packages bring them, above all palimpsest-lab, and
 * `palimpsest evaluate` compares them with sessions on the same tokens.
 */
import { createRequire } from 'node:module';
import {
  type FormatName,
  isFormatName,
  isServed,
  KvError,
  packageVersion,
  serveYardsticks,
} from '../../native/index.ts';
import type { Runtime } from '../transformer/runtime/runtime.ts';
import type { Yardstick } from './yardstick.ts';

/** What a method reads. */
export interface MethodReading {
  readonly ids: readonly number[];
  /**
   * The number of tokens at the end that are compared. A method that has to know where a prompt ends takes the first of
   * them.
   */
  readonly scored: number;
  readonly signal?: AbortSignal | undefined;
}

/** What a method made of the tokens. */
export interface MethodRead {
  /** The residual stream behind the last layer for the last `scored` tokens, [scored, m]. */
  readonly hidden: Float32Array;
  /** The most that was ever held, with all that belongs to it. */
  readonly bytes: number;
  /** What is held at the end. */
  readonly bytesAtRest: number;
  readonly bytesF16: number;
}

/**
 * Reads tokens as a cache of this method would have them. Throws KvError, 'budget-too-small' or 'unsupported' where it
 * cannot, and 'aborted'.
 */
export type CacheMethod = (runtime: Runtime, reading: MethodReading) => Promise<MethodRead>;

/** The methods that a package brings. */
export interface CacheMethods {
  /** The name of the package. */
  readonly from: string;
  /** The method that a cache of `--caches` names; null: none of these. */
  readonly find: (cache: string) => CacheMethod | null;
  /** Rules that keep or drop single tokens, by their names, for the simulator. Left out: none. */
  readonly yardsticks?: ReadonlyMap<string, Yardstick>;
  /**
   * The path of a WebAssembly build of the cache that computes the formats to compare with as well. It is loaded where
   * a cache names one of them. Left out: none.
   */
  readonly formats?: string;
}

/**
 * The package that has the published methods. It is an optional peer, and the command line registers it when a name is
 * unknown.
 */
export const LAB = 'palimpsest-lab';

/**
 * How the names of its methods begin, so that an error can tell where they are. A test of the lab compares both lists.
 */
const LAB_NAMES =
  /^(kvquant|kvarn|oscar|rotatekv|xquant|nsn|pq|q?pca|ec)[0-9]|^[^@]+\+w0$|^rot[1-4](:rot[1-4])?\+[a-z]{3,}|^(h2o|streaming|snapkv|pyramidkv|scissorhands|age-tiers|anchors|coded-h2o)@/;

const registered = new Map<string, CacheMethods>();

/**
 * Makes methods known to `palimpsest evaluate`, to findCaches() and to the simulator. Methods of the same package take
 * the place of those before.
 */
export function registerMethods(methods: CacheMethods): void {
  registered.set(methods.from, methods);
}

/** The registered method that a cache names; null: none. */
export function findMethod(cache: string): CacheMethod | null {
  for (const { find } of registered.values()) {
    const method = find(cache);
    if (method !== null) return method;
  }
  return null;
}

/** The registered yardstick of this name; null: none. */
export function findYardstick(id: string): Yardstick | null {
  for (const { yardsticks } of registered.values()) {
    const yardstick = yardsticks?.get(id);
    if (yardstick !== undefined) return yardstick;
  }
  return null;
}

/** Registers the lab where it is installed. → whether it is. `name` is that of its package. */
export async function registerLab(name: string = LAB): Promise<boolean> {
  if (registered.has(name)) return true;
  try {
    createRequire(import.meta.url).resolve(`${name}/package.json`);
  } catch {
    return false;
  }
  const { methods } = (await import(name)) as { readonly methods: CacheMethods };
  registerMethods(methods);
  return true;
}

/** True if a cache names a format that is described and not computed here. */
const namesYardstick = (cache: string): boolean =>
  cache
    .toLowerCase()
    .split(/[:@+]/)
    .some((part) => isFormatName(part.trim()) && !isServed(part.trim() as FormatName));

/**
 * Has the lab compute the formats that caches name and the product does not. Throws 'missing-dependency' where it is
 * not installed, 'unsupported' once a binary without them has been loaded.
 */
export async function serveNamed(caches: readonly string[]): Promise<void> {
  const cache = caches.find(namesYardstick);
  if (cache === undefined) return;
  if (!(await registerLab())) askForLab(cache);
  serveYardsticks(registered.get(LAB)?.formats);
}

/** Says how to get the lab, where `cache` is one of its names; else returns. Throws 'missing-dependency'. */
export function askForLab(cache: string): void {
  if (!LAB_NAMES.test(cache) && !namesYardstick(cache)) return;
  throw new KvError('missing-dependency', `'${cache}' is a method of ${LAB}, which is not installed`, {
    values: { given: cache, package: LAB },
    hint: `npm install ${LAB}@${packageVersion()}`,
  });
}
