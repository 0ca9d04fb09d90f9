/**
 * SentencePiece BPE over a vocabulary with scores: of all neighbours whose concatenation is a word, the pair with the
 * highest score is joined first, and the leftmost of equals. Letters that are not words become their bytes. Spaces are
 * U+2581, and a text gets one in front. Source of the method: SentencePiece (arXiv 1808.06226), its BPE model.
 */

export interface ScoredWords {
  /** Words that text may become, without control, unknown and byte tokens. */
  readonly idOf: ReadonlyMap<string, number>;
  readonly scoreOf: (id: number) => number;
  /** Id of each byte, -1 where the vocabulary has none. */
  readonly byteIds: Int32Array;
  readonly unknownId: number;
  readonly spacePrefix: boolean;
}

const NONE = -1;

export function encodeScored(text: string, words: ScoredWords): number[] {
  if (text === '') return [];
  const letters = [...`${words.spacePrefix ? ' ' : ''}${text}`.replaceAll(' ', '\u2581')];
  const symbols = mergeByScore(letters, words);
  const ids: number[] = [];
  for (const symbol of symbols) {
    const id = words.idOf.get(symbol);
    if (id !== undefined) ids.push(id);
    else pushBytes(symbol, words, ids);
  }
  return ids;
}

function pushBytes(symbol: string, { byteIds, unknownId }: ScoredWords, ids: number[]): void {
  const bytes = new TextEncoder().encode(symbol);
  if (bytes.some((byte) => byteIds[byte] === NONE)) ids.push(unknownId);
  else for (const byte of bytes) ids.push(byteIds[byte]!);
}

/** Symbols are a linked list in arrays. Candidates wait in a heap and are dropped if either side has changed since. */
function mergeByScore(letters: readonly string[], { idOf, scoreOf }: ScoredWords): string[] {
  const symbols: (string | null)[] = [...letters];
  const next = Int32Array.from(letters, (_, i) => (i + 1 < letters.length ? i + 1 : NONE));
  const previous = Int32Array.from(letters, (_, i) => i - 1);
  const heap = new CandidateHeap();
  const propose = (left: number, right: number): void => {
    if (left === NONE || right === NONE) return;
    const word = symbols[left]! + symbols[right]!;
    const id = idOf.get(word);
    if (id !== undefined) heap.push({ left, right, word, score: scoreOf(id) });
  };
  for (let i = 0; i + 1 < letters.length; i++) propose(i, i + 1);
  for (let best = heap.pop(); best !== undefined; best = heap.pop()) {
    const { left, right, word } = best;
    const [a, b] = [symbols[left], symbols[right]];
    // Lengths are enough: symbols only ever grow, so two that still add up to the word are the two that were meant.
    if (a == null || b == null || a.length + b.length !== word.length || next[left] !== right) continue;
    symbols[left] = word;
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
  readonly word: string;
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
