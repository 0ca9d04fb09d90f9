/**
 * Formats beyond those of this folder: each a TypeScript file and a C++ file of the same name beside it. They are registered before anything else of
 * the package is imported, since the list of formats is fixed from then on, and they need a binary that was built with them
 * (`node scripts/build-native.mjs --formats MODULE…`; CONTRIBUTING.md, "Add a codec"). Formats of a build of one's own are for trying: what they
 * write is read by that build alone.
 */
import { KvError } from '../error.ts';
import type { Family } from './descriptor.ts';

const registered: { readonly module: string; readonly name: string; readonly family: Family }[] = [];
let isRead = false;

/** `module`: URL of the TypeScript file. Throws 'unsupported' once the formats have been read. */
export async function registerFormats(module: string): Promise<void> {
  const family = (await import(/* @vite-ignore */ module)) as Family;
  const name = module.slice(module.lastIndexOf('/') + 1).replace(/\.[jt]s$/, '');
  if (isRead) {
    throw new KvError('unsupported', `${name} comes too late: formats are registered before the package is imported`);
  }
  registered.push({ module, name, family });
}

/** Name of the C++ file, and what is defined there; in an order that does not depend on who came first. */
export function registeredFamilies(): readonly (readonly [name: string, family: Family])[] {
  isRead = true;
  return registered.map(({ name, family }) => [name, family] as const).sort(([a], [b]) => (a < b ? -1 : 1));
}

/** What a thread of this process has to register as well. */
export const registeredModules = (): readonly string[] => registered.map(({ module }) => module);
