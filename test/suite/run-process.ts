/** `palimpsest run` on the reference model as a process of its own, to be ended from outside. */
import { spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { ownText } from '../../engine/evaluate/own-text.ts';

const root = join(import.meta.dirname, '..', '..');
export const MAIN = join(root, 'dist', 'engine', 'cli', 'main.js');
/** Fits the context of 4096 tokens with the answer, even if every token were two characters. */
const PROMPT_CHARACTERS = 7000;
const ANSWER_TOKENS = 400;

export interface Ended {
  /** Highest sequence number that the run reported as acknowledged, −1 for none. */
  readonly acknowledged: number;
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly stderr: string;
}

export interface Watch {
  /** Asked once, when the first progress line of reading is there: the model is loaded, the work has begun. */
  onReading?(kill: (signal: NodeJS.Signals) => void): void;
  /** Asked once, when the first of the answer is there. */
  onWriting?(kill: (signal: NodeJS.Signals) => void): void;
}

export function writePrompt(path: string): void {
  writeFileSync(path, ownText(PROMPT_CHARACTERS).slice(0, PROMPT_CHARACTERS));
}

export function runUntilEnded(prompt: string, state: string, watch: Watch): Promise<Ended> {
  const flags = ['--kv-budget', '25%', '-n', String(ANSWER_TOKENS), '--temperature', '1', '--threads', '1'];
  const args = [MAIN, 'run', '-m', 'reference', '-p', prompt, ...flags, '--state', state, '--progress', 'jsonl'];
  return new Promise((resolve) => {
    const child = spawn(process.execPath, args, { cwd: root, stdio: ['ignore', 'pipe', 'pipe'] });
    const kill = (signal: NodeJS.Signals): void => void child.kill(signal);
    const asked = { reading: false, writing: false };
    let acknowledged = -1;
    let stderr = '';
    let rest = '';
    child.stderr.on('data', (chunk: Buffer) => {
      stderr += chunk.toString();
      const lines = (rest + chunk.toString()).split('\n');
      rest = lines.pop()!;
      for (const line of lines.filter((one) => one.startsWith('{'))) {
        const { acknowledgedSeq } = JSON.parse(line) as { acknowledgedSeq?: number };
        // Lines of loading acknowledge nothing: the work has not begun.
        if (acknowledgedSeq === undefined) continue;
        acknowledged = Math.max(acknowledged, acknowledgedSeq);
        if (!asked.reading) watch.onReading?.(kill);
        asked.reading = true;
      }
    });
    child.stdout.on('data', () => {
      if (!asked.writing) watch.onWriting?.(kill);
      asked.writing = true;
    });
    child.on('close', (code, signal) => resolve({ acknowledged, code, signal, stderr }));
  });
}
