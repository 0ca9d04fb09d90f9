/** Neighbours that become one, the best pair of all first, as both kinds of vocabulary join letters to words. */
import type { Slices } from './slices.ts';

const NONE = -1;
/** Candidates that are made or taken between two rests: a millisecond or two. */
const STEPS_A_SLICE = 2048;

/**
 * scoreOf: how early two symbols are joined; undefined: never. The highest score comes first, then the leftmost.
 * Symbols are a linked list in arrays. Candidates wait in a heap and are dropped if either side has changed since.
 */
export function* mergeBest(
  letters: readonly string[],
  scoreOf: (left: string, right: string) => number | undefined,
): Slices<string[]> {
  const symbols: (string | null)[] = [...letters];
  const next = Int32Array.from(letters, (_, i) => (i + 1 < letters.length ? i + 1 : NONE));
  const previous = Int32Array.from(letters, (_, i) => i - 1);
  const heap = new CandidateHeap();
  const propose = (left: number, right: number): void => {
    if (left === NONE || right === NONE) return;
    const score = scoreOf(symbols[left]!, symbols[right]!);
    if (score !== undefined) heap.push({ left, right, length: symbols[left]!.length + symbols[right]!.length, score });
  };
  let steps = 0;
  for (let i = 0; i + 1 < letters.length; i++) {
    propose(i, i + 1);
    if (++steps % STEPS_A_SLICE === 0) yield;
  }
  for (let best = heap.pop(); best !== undefined; best = heap.pop()) {
    if (++steps % STEPS_A_SLICE === 0) yield;
    const { left, right, length } = best;
    const [a, b] = [symbols[left], symbols[right]];
    // Lengths are enough: symbols only ever grow, so two that still add up to the word are the two that were meant.
    if (a == null || b == null || a.length + b.length !== length || next[left] !== right) continue;
    symbols[left] = a + b;
    symbols[right] = null;
    next[left] = next[right]!;
    if (next[left] !== NONE) previous[next[left]!] = left;
    propose(previous[left]!, left);
    propose(left, next[left]!);
  }
  return symbols.filter((symbol) => symbol !== null);
}

interface Candidate {
  readonly left: number;
  readonly right: number;
  /** Of both together. */
  readonly length: number;
  readonly score: number;
}

/** Highest score first, then leftmost. */
class CandidateHeap {
  readonly #items: Candidate[] = [];

  push(candidate: Candidate): void {
    const items = this.#items;
    let at = items.length;
    items.push(candidate);
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (!before(candidate, items[parent]!)) break;
      items[at] = items[parent]!;
      at = parent;
    }
    items[at] = candidate;
  }

  pop(): Candidate | undefined {
    const items = this.#items;
    const top = items[0];
    const last = items.pop();
    if (last === undefined || items.length === 0) return top;
    let at = 0;
    for (let child = 1; child < items.length; child = 2 * at + 1) {
      if (child + 1 < items.length && before(items[child + 1]!, items[child]!)) child++;
      if (!before(items[child]!, last)) break;
      items[at] = items[child]!;
      at = child;
    }
    items[at] = last;
    return top;
  }
}

const before = (a: Candidate, b: Candidate): boolean => a.score > b.score || (a.score === b.score && a.left < b.left);
