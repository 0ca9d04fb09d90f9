/**
 * Formats beyond those of this folder. Each family is a folder with a TypeScript file and a C++ file of its name. They
 * must be registered before anything else of the package is imported, because the list of formats is fixed from then
 * on, and they need a binary that was built with them (`node scripts/build-native.mjs --formats FOLDER…`;
 * CONTRIBUTING.md, "Add a codec"). Such formats are for experiments: only a build that includes them can read what they
 * write.
 */
import { KvError } from '../error.ts';
import type { Family } from './descriptor.ts';

const registered: { readonly module: string; readonly name: string; readonly family: Family }[] = [];
let isRead = false;
let hasYardsticks = false;

/**
 * Says that the binary of this process computes the yardsticks as well (native/yardsticks/register.ts). One with
 * formats of one's own does so anyway. Throws 'unsupported' once the list of formats has been read without them.
 */
export function serveYardsticks(): void {
  if (isRead && !hasYardsticks) {
    throw new KvError('unsupported', 'yardsticks come too late: they are registered before the package is imported');
  }
  hasYardsticks = true;
}

/** True if the binary of this process computes the yardsticks. */
export function servesYardsticks(): boolean {
  isRead = true;
  return hasYardsticks;
}

/** The folder in native/build/ where a release lies that has these formats. */
export const releaseFolder = (): 'Release' | 'Yardsticks' | 'Formats' =>
  registered.length > 0 ? 'Formats' : hasYardsticks ? 'Yardsticks' : 'Release';

/** `module`: URL of the TypeScript file. Throws 'unsupported' once the list of formats has been read. */
export async function registerFormats(module: string): Promise<void> {
  const family = (await import(/* @vite-ignore */ module)) as Family;
  const name = module.slice(module.lastIndexOf('/') + 1).replace(/\.[jt]s$/, '');
  if (isRead) {
    throw new KvError('unsupported', `${name} comes too late: formats are registered before the package is imported`);
  }
  registered.push({ module, name, family });
  hasYardsticks = true;
}

/** Each family with the name of its files, sorted by name so that the order of registration does not matter. */
export function registeredFamilies(): readonly (readonly [name: string, family: Family])[] {
  isRead = true;
  return registered.map(({ name, family }) => [name, family] as const).sort(([a], [b]) => (a < b ? -1 : 1));
}

/** The modules that every other thread of this process has to register too. */
export const registeredModules = (): readonly string[] => registered.map(({ module }) => module);
