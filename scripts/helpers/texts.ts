/**
 * Texts of known kinds: those of ../shared/data and of this repository, chats made of what people in novels say, and
 * tables made of random words and numbers. Works that are held out are in no training window; of the one play, and of
 * the encyclopedia, other parts are.
 */
import { execFileSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { TextKind } from '../../engine/sidecar/hint.ts';

/** A work, or as much of it as is used. */
export interface Work {
  readonly name: string;
  readonly kind: TextKind;
  readonly isHeldOut: boolean;
  readonly text: string;
}

const WORK_LETTERS_MAX = 400_000;
const UNXZ_BYTES_MAX = 2 ** 27;

const novels = (text: string): string[] => text.split('\n\f\n');
/** What is said in a novel, between its quotes. */
const spoken = (text: string): string[] =>
  Array.from(text.matchAll(/["“]([^"”]{20,400})["”]/g), ([, said]) => said!.replaceAll(/\s+/g, ' '));

/** The same words in the ways in which programs write chats. */
const CHATS: readonly ((turn: string, i: number) => string)[] = [
  (turn, i) => `${i % 2 === 0 ? 'User' : 'Assistant'}: ${turn}\n`,
  (turn, i) => `<|im_start|>${i % 2 === 0 ? 'user' : 'assistant'}\n${turn}<|im_end|>\n`,
  (turn, i) => `**${i % 2 === 0 ? 'Anna' : 'Ben'}**\n\n${turn}\n\n`,
  (turn, i) =>
    `[${String(9 + (i % 12)).padStart(2, '0')}:${String((i * 7) % 60).padStart(2, '0')}] ${i % 3 === 0 ? 'kim' : 'lee'}: ${turn}\n`,
];

function tables(words: readonly string[], next: () => number, letters: number): string[] {
  const pick = (): string => words[Math.floor(next() * words.length)]!;
  const number = (): string => (next() < 0.5 ? String(Math.floor(next() * 10_000)) : (next() * 100).toFixed(2));
  const row = (columns: number): string[] =>
    Array.from({ length: columns }, (_, i) => (i % 3 === 0 ? pick() : number()));
  const spellings: readonly ((cells: readonly string[], names: readonly string[]) => string)[] = [
    (cells) => `${cells.join(',')}\n`,
    (cells) => `${cells.join('\t')}\n`,
    (cells) => `| ${cells.join(' | ')} |\n`,
    (cells, names) =>
      `{${cells.map((cell, i) => `"${names[i]}": ${Number.isNaN(Number(cell)) ? `"${cell}"` : cell}`).join(', ')}}\n`,
    (cells) => `- ${cells[0]}: ${cells.slice(1).join(', ')}\n`,
    (cells) => `${cells.map((cell) => cell.padEnd(14)).join('')}\n`,
  ];
  return spellings.map((spell) => {
    const names = Array.from({ length: 6 }, pick);
    let text = '';
    while (text.length < letters) text += spell(row(3 + Math.floor(next() * 4)), names);
    return text;
  });
}

/** root: of this repository. next: random numbers. */
export function works(root: string, next: () => number): Work[] {
  const data = join(root, '..', 'shared', 'data');
  const unxz = (path: string): string =>
    execFileSync('xz', ['-dc', join(data, `${path}.xz`)], { encoding: 'utf8', maxBuffer: UNXZ_BYTES_MAX });
  const work = (name: string, kind: TextKind, isHeldOut: boolean, text: string): Work => ({
    name,
    kind,
    isHeldOut,
    text: text.slice(0, WORK_LETTERS_MAX),
  });
  const english = novels(unxz('english-novels/train.txt')).filter((_, i) => i % 3 === 0);
  const unseen = readdirSync(join(data, 'english-novels', 'heldout')).map((file) =>
    unxz(`english-novels/heldout/${file.slice(0, -3)}`),
  );
  const sources = (folder: string, ends: string): string =>
    readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' })
      .filter((file) => file.endsWith(ends))
      .map((file) => readFileSync(join(root, folder, file), 'utf8'))
      .join('\n');
  const play = unxz('tinyshakespeare/input.txt');
  const stories = unxz('tinystories-sample/tinystories.txt');
  const python = readdirSync(join(data, 'python-code')).filter((file) => file.endsWith('.py.xz'));
  const chats = (texts: readonly string[], isHeldOut: boolean): Work[] =>
    CHATS.map((write, way) => work(`chat ${way}`, 'dialogue', isHeldOut, texts.flatMap(spoken).map(write).join('')));
  const words = [...new Set(english[0]!.toLowerCase().match(/[a-z]{3,}/g))];
  const cut = Math.floor(words.length / 2);
  return [
    ...english.map((text, i) => work(`novel ${i}`, 'prose', false, text)),
    ...unseen.map((text, i) => work(`unseen novel ${i}`, 'prose', true, text)),
    work('stories', 'prose', false, stories.slice(0, stories.length * 0.7)),
    work('stories, other part', 'prose', true, stories.slice(stories.length * 0.7)),
    work('play', 'dialogue', false, play.slice(0, play.length * 0.7)),
    work('play, other part', 'dialogue', true, play.slice(play.length * 0.7)),
    ...chats(english, false),
    ...chats(unseen, true),
    work('encyclopedia', 'reference', false, unxz('wikitext-2/valid.txt')),
    work('encyclopedia, other part', 'reference', true, unxz('wikitext-2/test.txt')),
    ...python.map((file, i) => work(file, 'code', i % 3 === 2, unxz(`python-code/${file.slice(0, -3)}`))),
    work('TypeScript', 'code', false, sources('engine', '.ts')),
    work('C++', 'code', false, sources('native/kernels', '.h')),
    work('other TypeScript', 'code', true, sources('witness', '.ts')),
    ...tables(words.slice(0, cut), next, 60_000).map((text, i) => work(`table ${i}`, 'tables', false, text)),
    ...tables(words.slice(cut), next, 60_000).map((text, i) => work(`other table ${i}`, 'tables', true, text)),
    ...['freytag_ahnen', 'goethe_lehr', 'keller_heinrich'].map((name) =>
      work(name, 'german', false, unxz(`german-novels/${name}.txt`)),
    ),
    work('kafka_schloss', 'german', true, unxz('german-novels/kafka_schloss.txt')),
  ];
}
