/** Names that a caller may write. One that is not among them is refused, with the nearest one that is: a misspelt option must never pass as none. */
import { KvError, type KvErrorCode } from './error.ts';

/** The known name that is meant, or null where none is near: at most a third of the letters may differ. Case, dashes and underscores do not count. */
export function nearestName(given: string, known: Iterable<string>): string | null {
  const plain = (name: string): string => name.toLowerCase().replaceAll(/[-_]/g, '');
  const word = plain(given);
  let best: string | null = null;
  let least = Math.floor(word.length / 3) + 1;
  for (const name of known) {
    // Two words whose lengths differ by more than that cannot be nearer, and need not be compared.
    if (Math.abs(plain(name).length - word.length) >= least) continue;
    const distance = editDistance(word, plain(name));
    if (distance < least) [best, least] = [name, distance];
  }
  return best;
}

/** Letters to insert, leave out, replace or swap with their neighbour (optimal string alignment). */
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

/** The error for a name that is not known; `what` begins its message: "openSession has no option 'kvBugdt'". */
export function unknownName(code: KvErrorCode, what: string, given: string, known: readonly string[]): KvError {
  const meant = nearestName(given, known);
  return new KvError(code, `${what} '${given}'`, {
    values: { given },
    hint: meant === null ? `known are ${known.join(', ')}` : `did you mean ${meant}?`,
  });
}

/** Only the fields that have a value, as options are passed on: an option that is undefined is one that was not given. */
export function given<T extends object>(fields: { readonly [K in keyof T]: T[K] | undefined }): T {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as T;
}

/** Refuses what is no object, and any key that is not in `known` (one entry for each key of T). Throws KvError 'bad-argument'. */
export function checkKeys<T extends object>(
  options: T,
  known: Readonly<Record<keyof T, true>>,
  what: string,
): asserts options is T {
  if (typeof options !== 'object' || options === null || Array.isArray(options)) {
    throw new KvError('bad-argument', `${what} takes its options as an object`, { values: { given: String(options) } });
  }
  for (const key of Object.keys(options))
    if (!Object.hasOwn(known, key)) throw unknownName('bad-argument', `${what} has no option`, key, Object.keys(known));
}
