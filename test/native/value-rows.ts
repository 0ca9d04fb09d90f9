/**
 * What tests of values that are skipped or weighed with fewer bits share: how far rows of a page are from what they are
 * coded from, and keys that get uneven attention.
 */
import { fromHalf, type KvCache, PAGE_TOKENS, SINK_TOKENS } from '../../native/index.ts';
import { normals } from './dense.ts';
import { storedFields } from './sides.ts';

/**
 * The largest of a number of each row over the rot pages of layer 0, per KV head. `of` gets ‖v̂ − o‖, o being what a
 * row is coded from, the mean of its page or zero, the exponent of its scale, in sixteenths (-128: a zero row), and the
 * largest such exponent of the page and head.
 */
export function largestOfRows(
  cache: KvCache,
  { kvHeads, headDim }: { readonly kvHeads: number; readonly headDim: number },
  of: (distance: number, exponent: number, most: number) => number,
): number[] {
  const largest = new Array<number>(kvHeads).fill(0);
  const { pages } = cache.table(0);
  for (let page = 0; page < pages - 1; page++) {
    const rows = cache.decode(0, page, 'v');
    const stored = storedFields(cache, 0, page, 'v');
    const means = new Int8Array(stored.mean!.buffer);
    const references = new Int8Array(stored.reference!.buffer);
    const exponents = new Int8Array(stored.exponents!.buffer);
    const scales = fromHalf(new Uint16Array(stored.meanScale!.buffer)).map((x, head) => x * 2 ** references[head]!);
    for (let head = 0; head < kvHeads; head++) {
      const own = exponents.subarray(head * PAGE_TOKENS, (head + 1) * PAGE_TOKENS);
      const most = Math.max(...own);
      for (let t = page === 0 ? SINK_TOKENS : 0; t < PAGE_TOKENS; t++) {
        const isFromZero = (stored.fromZero![(head * PAGE_TOKENS + t) >> 3]! >> (t & 7)) & 1;
        const scale = isFromZero ? 0 : scales[head]!;
        let sum = 0;
        for (let c = 0; c < headDim; c++) {
          const x = rows[(t * kvHeads + head) * headDim + c]! - scale * means[head * headDim + c]!;
          sum += x * x;
        }
        largest[head] = Math.max(largest[head]!, of(Math.sqrt(sum), own[t]!, most));
      }
    }
  }
  return largest;
}

/** Keys of a page that leans towards `direction` by chance, so that some pages hold next to nothing. */
export function unevenKeys(random: () => number, kvHeads: number, direction: ArrayLike<number>): Float32Array {
  const lean = 2 * random();
  const headDim = direction.length;
  return normals(random, PAGE_TOKENS * kvHeads * headDim).map((x, i) => x + lean * direction[i % headDim]!);
}

/** What no share is. */
export const NO_SHARES = [-0.1, 1.1, Number.NaN, '0.1', undefined] as unknown as readonly number[];
