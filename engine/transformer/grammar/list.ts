/** Lists of a schema: their first items, all others, how many there are, and whether each is there once. */
import { KvError } from '../../../native/index.ts';
import { canonical } from './fulfils.ts';
import { isNothing } from './modern.ts';
import type { Node } from './references.ts';
import { lengths, type Writing } from './writing.ts';

/** Of so many values at most, a list without repetition is followed: it has them in the order of the schema. */
const UNIQUE_MAX = 32;

/** Where the first elements have schemas of their own, all of those are written. */
export function listExpression(node: Node, where: string, depth: number, writing: Writing): string {
  const { prefixItems = [], items = true, uniqueItems = false } = node;
  const { rules, repetitions } = writing;
  const { comma } = rules.notation;
  if (!Array.isArray(prefixItems))
    throw new KvError('bad-argument', `prefixItems at ${where} must be a list`, { values: { where } });
  const { least, most } = lengths(node, ['minItems', 'maxItems'], where);
  const first = prefixItems.slice(0, most);
  const isClosed = isNothing(items) || most === first.length;
  if (isClosed && least > first.length)
    throw new KvError('bad-argument', `the array at ${where} can have no length`, { values: { where, least, most } });
  if (uniqueItems === true && most > 1) {
    const unique = first.length === 0 ? uniqueList(items, { least, most }, where, writing) : null;
    if (unique !== null) return unique;
    writing.leave();
  }
  const parts = first.map((schema, index) => writing.node(schema, `${where}/prefixItems/${index}`, depth + 1));
  if (isClosed) return parts.length === 0 ? '"[]"' : rules.add(`"[" ${parts.join(` ${comma} `)} "]"`);
  const item = writing.node(items, `${where}/items`, depth + 1);
  const isCounted = repetitions.addLength(Number.isFinite(most) ? most : least);
  if (!isCounted) writing.leave();
  const fewest = isCounted ? Math.max(0, least - parts.length) : 0;
  const end = isCounted && Number.isFinite(most) ? most - parts.length : null;
  if (parts.length > 0)
    return rules.add(`"[" ${parts.join(` ${comma} `)} (${comma} ${item}){${fewest},${end ?? ''}} "]"`);
  const more = `${item} (${comma} ${item}){${Math.max(0, fewest - 1)},${end === null ? '' : end - 1}}`;
  return rules.add(fewest > 0 ? `"[" ${more} "]"` : `"[" (${more})? "]"`);
}

/** null: the items are not among a few values. */
function uniqueList(
  items: unknown,
  { least, most }: { readonly least: number; readonly most: number },
  where: string,
  { rules, values }: Writing,
): string | null {
  const listed = values(items, `${where}/items`);
  if (listed === null) return null;
  const all = [...new Map(listed.map((value) => [canonical(value), value])).values()];
  if (least > all.length)
    throw new KvError('bad-argument', `the array at ${where} has fewer values than items`, {
      values: { where, least },
    });
  if (all.length > UNIQUE_MAX) return null;
  // How many were written matters up to here.
  const limit = Math.max(1, least, most < all.length ? most : 0);
  const { notation } = rules;
  let behind: (string | null)[] = Array.from({ length: limit + 1 }, (_, count) => (count >= least ? '"]"' : null));
  for (const value of all.toReversed()) {
    const written = notation.value(value, where);
    const next = behind;
    behind = next.map((without, count) => {
      const with_ = count >= most ? null : next[Math.min(limit, count + 1)]!;
      const taken = with_ === null ? null : `${count === 0 ? '' : `${notation.comma} `}${written} ${with_}`;
      const ways = [taken, without].filter((way) => way !== null);
      return ways.length === 0 ? null : ways.length === 1 ? ways[0]! : rules.add(ways.join(' | '));
    });
  }
  return rules.add(`"[" ${behind[0]!}`);
}
