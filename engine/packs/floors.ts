/**
 * The highest version that was installed of each name by each key. It only rises, so that an old pack with a known
 * fault cannot come in again under its old signature; and it is kept for each key, so that a stolen one cannot raise it
 * for others. Floors stand in the store, and in the log: who takes them out of the store is seen.
 */
import { KvError } from '../../native/index.ts';
import type { PackBody } from '../../witness/index.ts';
import { compareVersions } from './manifest.ts';

/** By name and id of a key, 'name id'. */
export type Floors = Readonly<Record<string, string>>;

export const floorKey = (name: string, keyId: string): string => `${name} ${keyId}`;

/** The floor that a version of a name has to reach under a key; null: any version will do. */
export const floorOf = (floors: Floors, name: string, keyId: string): string | null => {
  const key = floorKey(name, keyId);
  return Object.hasOwn(floors, key) ? floors[key]! : null;
};

/** Floors after a pack was installed that these keys had signed. */
export function raiseFloors(floors: Floors, name: string, version: string, keyIds: readonly string[]): Floors {
  const higher = keyIds.filter((id) => compareVersions(version, floorOf(floors, name, id) ?? '0.0.0') >= 0);
  return { ...floors, ...Object.fromEntries(higher.map((id) => [floorKey(name, id), version])) };
}

/** Throws 'bad-signature' for a version below that which one of its keys signed before. */
export function checkFloor(floors: Floors, pack: Pick<PackBody, 'name' | 'version' | 'keyIds'>, what: string): void {
  const { name, version, keyIds } = pack;
  for (const keyId of keyIds) {
    const floor = floorOf(floors, name, keyId);
    if (floor === null || compareVersions(version, floor) >= 0) continue;
    throw new KvError(
      'bad-signature',
      `${what}: ${name} ${version} is older than ${floor}, which ${keyId} signed before`,
      {
        values: { what, name, version, floor, keyId },
        hint: 'an older generation comes back by: palimpsest packs rollback',
      },
    );
  }
}

/** The floors that a log knows of: what was tested had been installed. */
export function floorsIn(entries: Iterable<PackBody>): Floors {
  let floors: Floors = {};
  for (const { to, name, version, keyIds } of entries)
    if (to === 'tested') floors = raiseFloors(floors, name, version, keyIds);
  return floors;
}

/** Throws 'bad-signature' where the store has lost a floor that the log has. */
export function checkFloorsKept(kept: Floors, witnessed: Floors): void {
  for (const [key, version] of Object.entries(witnessed)) {
    const [name = '', keyId = ''] = key.split(' ');
    const floor = floorOf(kept, name, keyId);
    if (floor !== null && compareVersions(floor, version) >= 0) continue;
    throw new KvError(
      'bad-signature',
      `the log has ${name} ${version} installed, and the store of packs does not know`,
      {
        values: { name, keyId, floor, witnessed: version },
        hint: 'put the folder packs/ of the state folder back as it was, or begin with another state folder',
      },
    );
  }
}
