/**
 * Formats beyond those of this folder. Each family is a folder with a TypeScript file and a C++ file of its name. They
 * must be registered before anything else of the package is imported, because the list of formats is fixed from then
 * on, and they need a binary that was built with them (`node scripts/build-native.mjs --formats FOLDER…`;
 * CONTRIBUTING.md, "Add a codec"). Such formats are for experiments: only a build that includes them can read what they
 * write. Yardsticks are in the list anyway, and what computes them is named before a binary is loaded.
 */
import { KvError } from '../error.ts';
import type { Family } from './descriptor.ts';

const registered: { readonly module: string; readonly name: string; readonly family: Family }[] = [];
let isRead = false;
/** What computes the yardsticks: the build of the checkout, or the WebAssembly module of a package; null: nothing. */
let yardsticks: { readonly module: string | null } | null = null;
let isChosen = false;

/**
 * Says that yardsticks are computed in this thread: by `module`, the path of a WebAssembly build of this version that a
 * package brings (palimpsest-lab), or without it by the build of the checkout (native/yardsticks/register.ts). A build
 * with formats of one's own does so anyway. Throws 'unsupported' once a binary without them has been chosen.
 */
export function serveYardsticks(module: string | null = null): void {
  if (isChosen && yardsticks === null) {
    throw new KvError('unsupported', 'yardsticks come too late: this thread has loaded a binary without them', {
      hint: 'register them before a model or a cache is opened, as with node --import',
    });
  }
  yardsticks ??= { module };
}

/** True if the binary of this thread computes the yardsticks. */
export const servesYardsticks = (): boolean => yardsticks !== null;

/** The WebAssembly module that computes them; null: none is needed, or a build of the checkout does. */
export const yardstickModule = (): string | null => yardsticks?.module ?? null;

/** From now on this thread keeps its binary, with what that computes. */
export function keepYardsticks(): void {
  isChosen = true;
}

/** The folder in native/build/ where a release lies that has these formats. */
export const releaseFolder = (): 'Release' | 'Yardsticks' | 'Formats' =>
  registered.length > 0 ? 'Formats' : servesYardsticks() ? 'Yardsticks' : 'Release';

/** `module`: URL of the TypeScript file. Throws 'unsupported' once the list of formats has been read. */
export async function registerFormats(module: string): Promise<void> {
  const family = (await import(/* @vite-ignore */ module)) as Family;
  const name = module.slice(module.lastIndexOf('/') + 1).replace(/\.[jt]s$/, '');
  if (isRead) {
    throw new KvError('unsupported', `${name} comes too late: formats are registered before the package is imported`);
  }
  registered.push({ module, name, family });
  serveYardsticks();
}

/** Each family with the name of its files, sorted by name so that the order of registration does not matter. */
export function registeredFamilies(): readonly (readonly [name: string, family: Family])[] {
  isRead = true;
  return registered.map(({ name, family }) => [name, family] as const).sort(([a], [b]) => (a < b ? -1 : 1));
}

/** The modules that every other thread of this process has to register too. */
export const registeredModules = (): readonly string[] => registered.map(({ module }) => module);
