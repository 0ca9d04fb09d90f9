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
    if (this.#kind === 'none') return;
    const share = progress.tokens / Math.max(1, progress.tokensTotal);
    const filled = Math.round(share * 24);
    const bar = '█'.repeat(filled) + '░'.repeat(24 - filled);
    process.stderr.write(
      `\r${label.padEnd(14)} ${bar} ${String(progress.tokens).padStart(6)}/${progress.tokensTotal} ${progress.tokensPerSecond.toFixed(0).padStart(5)} tok/s ${bytesText(progress.kvBytes).padStart(9)}`,
    );
    this.#shown = true;
  }

  /** Ends the bar's line, so that what follows starts on its own. */
  done(): void {
    if (this.#shown) process.stderr.write('\n');
    this.#shown = false;
  }
}
