/** The bytes of each token, so that decoding is concatenation and a stream never has to guess at half a character. */

/**
 * Byte-level vocabularies write one letter per byte: printable bytes stand for themselves, the others are numbered from
 * U+0100.
 */
const BYTE_LETTERS: readonly string[] = alphabet();
const LETTER_BYTES: ReadonlyMap<number, number> = new Map(
  BYTE_LETTERS.map((letter, byte) => [letter.charCodeAt(0), byte]),
);

/** GPT-2's table: '!'–'~', '¡'–'¬' and '®'–'ÿ' stand for themselves. */
function alphabet(): string[] {
  let next = 0x100;
  return Array.from({ length: 256 }, (_, byte) => {
    const printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    return String.fromCharCode(printable ? byte : next++);
  });
}

export const byteLetter = (byte: number): string => BYTE_LETTERS[byte]!;

/** Bytes as byte-level vocabularies write them. */
export const byteLetters = (bytes: Uint8Array): string => Array.from(bytes, byteLetter).join('');

export type PieceStyle =
  /** Each letter is a byte. */
  | 'byte-level'
  /** U+2581 is a space, <0x41> a byte. */
  | 'metaspace'
  /** The text itself, as in added tokens. */
  | 'plain';

const encoder = new TextEncoder();

/** Bytes of one word. */
export function pieceBytes(word: string, style: PieceStyle): Uint8Array {
  if (style === 'plain') return encoder.encode(word);
  if (style === 'metaspace') {
    const byte = /^<0x([0-9A-Fa-f]{2})>$/.exec(word);
    return byte === null
      ? encoder.encode(word.replaceAll('\u2581', ' '))
      : Uint8Array.of(Number.parseInt(byte[1]!, 16));
  }
  const bytes = new Uint8Array(word.length);
  for (let i = 0; i < word.length; i++) {
    const byte = LETTER_BYTES.get(word.charCodeAt(i));
    // A word outside this alphabet was added as plain text.
    if (byte === undefined) return encoder.encode(word);
    bytes[i] = byte;
  }
  return bytes;
}

/** Bytes by token id in one buffer; ids without a word have none. */
export class Pieces {
  #bytes: Uint8Array = new Uint8Array(1 << 16);
  #used = 0;
  readonly #starts: Uint32Array;
  readonly #lengths: Uint32Array;
  /** Bytes of the longest token. */
  longest = 0;
  /** The same of those that begin with each byte. */
  readonly #longestBy = new Uint32Array(256);

  constructor(idCount: number) {
    this.#starts = new Uint32Array(idCount);
    this.#lengths = new Uint32Array(idCount);
  }

  set(id: number, bytes: Uint8Array): void {
    if (this.#used + bytes.length > this.#bytes.length) {
      const grown = new Uint8Array(Math.max(2 * this.#bytes.length, this.#used + bytes.length));
      grown.set(this.#bytes.subarray(0, this.#used));
      this.#bytes = grown;
    }
    this.#bytes.set(bytes, this.#used);
    this.#starts[id] = this.#used;
    this.#lengths[id] = bytes.length;
    this.#used += bytes.length;
    this.longest = Math.max(this.longest, bytes.length);
    if (bytes.length > 0) this.#longestBy[bytes[0]!] = Math.max(this.#longestBy[bytes[0]!]!, bytes.length);
  }

  /** Bytes of the longest token that begins with a byte of this text. */
  longestIn(text: string): number {
    let longest = 0;
    for (const letter of new Set(text))
      for (const byte of encoder.encode(letter)) longest = Math.max(longest, this.#longestBy[byte]!);
    return longest;
  }

  get(id: number): Uint8Array {
    const start = this.#starts[id] ?? 0;
    return this.#bytes.subarray(start, start + (this.#lengths[id] ?? 0));
  }
}
