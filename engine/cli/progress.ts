/** Progress on stderr: a bar on a terminal, one JSON object on each line for programs, and otherwise nothing. */
import { bytesText, columnsOf, jsonText, printable } from '../../native/index.ts';
import type { Progress } from '../options/types.ts';
import type { LoadProgress } from '../transformer/types.ts';

export type ProgressKind = 'bar' | 'jsonl' | 'none';

/** The length of the bar on a terminal that is wide enough. */
const BAR_CHARS = 24;

/**
 * One line of at most `columns` − 1 characters, because some terminals break a full line. If it is too long, the bar is
 * shortened first, then the words.
 */
export function progressText(label: string, done: number, total: number, words: string, columns: number): string {
  const name = label.padEnd(14);
  const count = `${String(done).padStart(6)}/${total}`;
  const room = Math.min(BAR_CHARS, columns - 4 - `${name}${count}${words}`.length);
  const filled = Math.round((room * done) / Math.max(1, total));
  if (room >= 4) return `${name} ${'█'.repeat(filled)}${'░'.repeat(room - filled)} ${count} ${words}`;
  const shorter = [`${name} ${count} ${words}`, `${name} ${count}`, count.trim()];
  return shorter.find((text) => text.length < columns) ?? '';
}

const LOAD_LABELS: Readonly<Record<LoadProgress['stage'], string>> = {
  download: 'downloading',
  verify: 'verifying',
  load: 'loading',
};

/** The bars that a terminal shows now: one, or none. */
const shown = new Set<ProgressLine>();

/** Writes a line to stderr in the place of the bar, which comes back with the next progress. */
export function besideProgress(line: string): void {
  for (const bar of shown) bar.erase();
  process.stderr.write(`${line}\n`);
}

export class ProgressLine {
  readonly #kind: ProgressKind;
  #shown = 0;

  constructor(kind: ProgressKind) {
    this.#kind = kind === 'bar' && process.stderr.isTTY !== true ? 'none' : kind;
  }

  update(label: string, progress: Progress): void {
    if (this.#kind === 'jsonl') {
      process.stderr.write(`${JSON.stringify({ label, ...progress })}\n`);
      return;
    }
    const { tokens, tokensTotal, tokensPerSecond, kvBytes } = progress;
    const speed = `${tokensPerSecond.toFixed(0).padStart(5)} tok/s ${bytesText(kvBytes).padStart(9)}`;
    this.share(label, tokens, tokensTotal, speed);
  }

  /** Shows a bar for `done` of `total` and a few words after it. */
  share(label: string, done: number, total: number, words: string): void {
    if (this.#kind === 'jsonl') process.stderr.write(`${JSON.stringify({ label, done, total })}\n`);
    if (this.#kind !== 'bar') return;
    const line = progressText(label, done, total, words, columnsOf(process.stderr));
    process.stderr.write(`\r${line.padEnd(this.#shown)}`);
    this.#shown = line.length;
    shown.add(this);
  }

  /** Shows how far a model is: MiB of its files, or layers. Programs get the numbers as they are. */
  load({ stage, file, done, total }: LoadProgress): void {
    const label = LOAD_LABELS[stage];
    if (this.#kind === 'jsonl') process.stderr.write(`${jsonText({ label, stage, file, done, total })}\n`);
    if (this.#kind !== 'bar') return;
    const unit = stage === 'load' ? 1 : 2 ** 20;
    const words = stage === 'load' ? 'layers' : `MiB ${printable(file ?? '')}`;
    this.share(label, Math.floor(done / unit), Math.ceil(total / unit), words);
  }

  /** Takes the bar away, so that what is printed next stands in its place. */
  erase(): void {
    if (this.#shown > 0) process.stderr.write(`\r${' '.repeat(this.#shown)}\r`);
    this.#gone();
  }

  /** Ends the line of the bar, so that what is printed next begins on a new one. */
  done(): void {
    if (this.#shown > 0) process.stderr.write('\n');
    this.#gone();
  }

  #gone(): void {
    this.#shown = 0;
    shown.delete(this);
  }
}
