/**
 * Formats beyond those of this folder, as scripts/generate-layout.ts writes headers for them; no binary with such formats is built yet. They must be registered before anything else of the package is imported, since the list is fixed
 * from then on, and they need a binary that was built with their C++ file (CONTRIBUTING.md, "Add a codec").
 */
import { KvError } from '../error.ts';
import type { Family } from './descriptor.ts';

const registered: [name: string, family: Family][] = [];
let isRead = false;

/** `name`: of the C++ file. Throws 'unsupported' once the formats have been read. */
export function registerFormats(name: string, family: Family): void {
  if (isRead) {
    throw new KvError('unsupported', `${name} comes too late: formats are registered before the package is imported`);
  }
  registered.push([name, family]);
}

export function registeredFamilies(): readonly (readonly [name: string, family: Family])[] {
  isRead = true;
  return registered;
}
