/**
 * Checks the names that a caller writes. An unknown one is refused and the nearest known one suggested, so that a
 * misspelt option is never ignored.
 */
import { show } from './arguments.ts';
import { KvError, type KvErrorCode } from './error.ts';

/**
 * The known name that is nearest, or null if more than a third of the letters differ. Case, dashes and underscores do
 * not count.
 */
export function nearestName(given: string, known: Iterable<string>): string | null {
  const plain = (name: string): string => name.toLowerCase().replaceAll(/[-_]/g, '');
  const word = plain(given);
  let best: string | null = null;
  let least = Math.floor(word.length / 3) + 1;
  for (const name of known) {
    // The distance of two words is at least the difference of their lengths, so these words need not be compared.
    if (Math.abs(plain(name).length - word.length) >= least) continue;
    const distance = editDistance(word, plain(name));
    if (distance < least) [best, least] = [name, distance];
  }
  return best;
}

/** How many letters must be inserted, removed, replaced or swapped with their neighbour (optimal string alignment). */
function editDistance(a: string, b: string): number {
  let before: number[] = [];
  let last = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const change = a[i - 1] === b[j - 1] ? 0 : 1;
      let cost = Math.min(last[j]! + 1, row[j - 1]! + 1, last[j - 1]! + change);
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) cost = Math.min(cost, before[j - 2]! + 1);
      row.push(cost);
    }
    [before, last] = [last, row];
  }
  return last[b.length]!;
}

/** The error for an unknown name. `what` begins its message, as in "openSession has no option 'kvBugdt'". */
export function unknownName(code: KvErrorCode, what: string, given: string, known: readonly string[]): KvError {
  const meant = nearestName(given, known);
  return new KvError(code, `${what} '${given}'`, {
    values: { given },
    hint: meant === null ? `the known names are ${known.join(', ')}` : `did you mean ${meant}?`,
  });
}

/** Options without those that are undefined, which count as not given. */
export function given<T extends object>(fields: { readonly [K in keyof T]: T[K] | undefined }): T {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as T;
}

/**
 * Throws KvError 'bad-argument' if the options are not an object or have a key that is not in `known`, which lists the
 * keys of T.
 */
export function checkKeys<T extends object>(
  options: T,
  known: Readonly<Record<keyof T, unknown>>,
  what: string,
): asserts options is T {
  if (typeof options !== 'object' || options === null || Array.isArray(options)) {
    throw new KvError('bad-argument', `${what} takes its options as an object`, { values: { given: show(options) } });
  }
  for (const key of Object.keys(options))
    if (!Object.hasOwn(known, key)) throw unknownName('bad-argument', `${what} has no option`, key, Object.keys(known));
}
