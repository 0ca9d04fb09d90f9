/**
 * What is read: passages of the texts in evaluation-windows.json, which are scored, and lessons, which teach. No lesson
 * shares text with a passage.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { ownText } from '../../engine/evaluate/own-text.ts';
import { recallDocument } from '../../engine/evaluate/recall.ts';
import type { Tokenizer } from '../../engine/transformer/types.ts';
import { KvError } from '../../native/index.ts';
import { textOf } from './texts.ts';

const root = fileURLToPath(new URL('../..', import.meta.url));

export interface Window {
  readonly kind: string;
  readonly file: string;
  readonly from: number;
  readonly characters: number;
}

/**
 * Where the lessons of a kind are: lesson n is in file n mod the number of files, `step` characters behind the last one
 * from it.
 */
interface Source {
  readonly kind: string;
  readonly files: readonly string[];
  readonly from: number;
  readonly step: number;
}

interface Windows {
  readonly windows: readonly Window[];
  readonly recall: Omit<Window, 'kind'> & { readonly documents: number };
  readonly lessons: readonly Source[];
}

/** A stretch of tokens of one kind of text. */
export interface Passage {
  readonly text: string;
  readonly kind: string;
  readonly ids: readonly number[];
}

export const WINDOWS = JSON.parse(readFileSync(join(root, 'scripts', 'evaluation-windows.json'), 'utf8')) as Windows;

/** What `npm run calibrate` measured with SmolLM2: windows are named by their kind, and share no text with passages. */
export const MEASURED = join(root, 'scripts', 'calibration-smollm2-135m.json');

/** Documents with codes in them: a kind of text of its own. */
export const RECALL = 'recall';
export const KINDS: readonly string[] = [...new Set(WINDOWS.windows.map(({ kind }) => kind)), RECALL];
/** The text that ships with the package, for checkouts without the others. */
export const CHRONICLE = 'chronicle';
/** More characters than a token of any tokenizer here takes on average. */
const CHARACTERS_PER_TOKEN = 6;
/** Recall documents that are scored; their seeds and those of lessons lie apart. */
const RECALL_PASSAGES = 2;
const RECALL_LESSON_SEED = 1000;
/** Characters handed to the tokenizer for a lesson: more than its tokens need. */
const LESSON_CHARACTERS = 40_000;

export const content = ({ file, from, characters }: Omit<Window, 'kind'>): string =>
  textOf(file).slice(from, from + characters);

/** Filler of recall documents: of its own where the texts are, else the chronicle. */
export const filler = (kinds: readonly string[], tokens: number): string =>
  kinds.every((kind) => kind === CHRONICLE) ? ownText(tokens * CHARACTERS_PER_TOKEN) : content(WINDOWS.recall);

/**
 * The first passages of a kind, each of exactly `tokens` tokens, BOS included where the model has one. Throws
 * 'bad-argument' for a text that is too short.
 */
export function passagesOf(tokenizer: Tokenizer, kind: string, count: number, tokens: number): Passage[] {
  if (kind === RECALL)
    return Array.from({ length: Math.min(count, RECALL_PASSAGES) }, (_, index) => ({
      text: `${RECALL} ${index + 1}`,
      kind,
      ids: recallDocument(tokenizer, content(WINDOWS.recall), tokens, index).tokens,
    }));
  if (kind === CHRONICLE)
    return [{ text: kind, kind, ids: exactly(tokenizer, ownText(tokens * CHARACTERS_PER_TOKEN), tokens, kind) }];
  return WINDOWS.windows
    .filter((window) => window.kind === kind)
    .slice(0, count)
    .map((window, index) => ({
      text: `${kind} ${index + 1}`,
      kind,
      ids: exactly(tokenizer, content(window), tokens, window.file),
    }));
}

/** The n-th lesson of a kind, of exactly `tokens` tokens. Throws 'bad-argument'. */
export function lessonOf(tokenizer: Tokenizer, kind: string, n: number, tokens: number): number[] {
  const source = WINDOWS.lessons.find((one) => one.kind === kind);
  if (source === undefined)
    throw new KvError('bad-argument', `no lessons of kind ${kind}`, { values: { kind, known: KINDS.join(', ') } });
  const file = source.files[n % source.files.length]!;
  const from = source.from + Math.floor(n / source.files.length) * source.step;
  const characters = LESSON_CHARACTERS;
  if (kind === RECALL)
    return [...recallDocument(tokenizer, content({ file, from, characters }), tokens, RECALL_LESSON_SEED + n).tokens];
  return exactly(tokenizer, content({ file, from, characters }), tokens, file);
}

function exactly(tokenizer: Tokenizer, text: string, tokens: number, file: string): number[] {
  const head = tokenizer.addBos && tokenizer.bosId !== null ? [tokenizer.bosId] : [];
  const ids = [...head, ...tokenizer.encode(text).slice(0, tokens - head.length)];
  if (ids.length < tokens)
    throw new KvError('bad-argument', `${file} has ${ids.length} tokens there, not ${tokens}`, {
      values: { file, tokens: ids.length, needed: tokens },
    });
  return ids;
}
