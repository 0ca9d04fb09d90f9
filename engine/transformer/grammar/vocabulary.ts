/** The tokens of a model as the threads that follow grammars share them. */
import { setImmediate } from 'node:timers/promises';
import { byteLetters } from '../pieces.ts';
import type { LoadedModel } from '../types.ts';
import { markCharacter } from './source.ts';

export interface Vocabulary {
  readonly size: number;
  /** Tokens that end a text. */
  readonly endIds: readonly number[];
  /** What each token adds to a text, one behind the other. */
  readonly bytes: Uint8Array<SharedArrayBuffer>;
  /** Where the bytes of each begin, and where those of the last end. */
  readonly begins: Uint32Array<SharedArrayBuffer>;
}

/** Tokens that are looked at between two turns of the model's thread: some milliseconds. */
const SLICE = 4096;

/** Other work of the thread goes on meanwhile. */
export async function vocabularyOf({
  config,
  tokenizer,
}: Pick<LoadedModel, 'config' | 'tokenizer'>): Promise<Vocabulary> {
  const { vocabSize: size } = config;
  const endIds = [...new Set([...config.eosIds, ...tokenizer.eosIds])];
  const begins = new Uint32Array(new SharedArrayBuffer(4 * (size + 1)));
  const pieces: Uint8Array[] = [];
  for (let id = 0; id < size; id++) {
    if (id % SLICE === SLICE - 1) await setImmediate();
    const piece = tokenizer.bytes(id);
    pieces.push(piece);
    begins[id + 1] = begins[id]! + piece.length;
  }
  const bytes = new Uint8Array(new SharedArrayBuffer(begins[size]!));
  for (const [id, piece] of pieces.entries()) bytes.set(piece, begins[id]);
  return { size, endIds, bytes, begins };
}

/**
 * Every token as the bytes that it adds to a text, each byte as a letter, which is how byte-level vocabularies are
 * written and says the same of any other. Control tokens add none, and what adds nothing is never allowed; the last
 * token, one more than the model has, is the end of the text. A mark adds its character, and no other token does.
 */
export function wordsOf({ size, endIds, bytes, begins }: Vocabulary, marks: readonly number[]): string[] {
  const ends = new Set(endIds);
  const isMark = (byte: number): boolean => byte >= 1 && byte <= marks.length;
  return Array.from({ length: size + 1 }, (_, id) => {
    if (id === size || ends.has(id)) return '';
    const mark = marks.indexOf(id);
    if (mark >= 0) return byteLetters(Buffer.from(markCharacter(mark)));
    const piece = bytes.subarray(begins[id], begins[id + 1]);
    return piece.some(isMark) ? '' : byteLetters(piece);
  });
}
