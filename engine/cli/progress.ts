/** Progress on stderr: a bar on a terminal, one JSON object a line for programs, nothing otherwise. */
import { bytesText } from '../../native/index.ts';
import type { Progress } from '../types.ts';

export type ProgressKind = 'bar' | 'jsonl' | 'none';

export class ProgressLine {
  readonly #kind: ProgressKind;
  #shown = false;

  constructor(kind: ProgressKind, stream: { isTTY?: boolean } = process.stderr) {
    this.#kind = kind === 'bar' && stream.isTTY !== true ? 'none' : kind;
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

  /** A bar alone: `done` of `total`, and a few words behind it. */
  share(label: string, done: number, total: number, words: string): void {
    if (this.#kind !== 'bar') return;
    const filled = Math.round((done / Math.max(1, total)) * 24);
    const bar = '█'.repeat(filled) + '░'.repeat(24 - filled);
    process.stderr.write(`\r${label.padEnd(14)} ${bar} ${String(done).padStart(6)}/${total} ${words}`);
    this.#shown = true;
  }

  /** Ends the bar's line, so that what follows starts on its own. */
  done(): void {
    if (this.#shown) process.stderr.write('\n');
    this.#shown = false;
  }
}
