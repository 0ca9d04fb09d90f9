/**
 * The built command in a process of its own, in a folder of its own, and what every ending of it must look like; its
 * help and what it answers without a process.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { CommanderError } from 'commander';
import { expect } from 'vitest';
import { reportFailure } from '../../../../engine/cli/failure.ts';
import { program } from '../../../../engine/cli/program.ts';

export const root = join(import.meta.dirname, '../../../..');
const main = join(root, 'dist/engine/cli/main.js');
export const dir = mkdtempSync(join(tmpdir(), 'palimpsest-cli-'));

export interface Result {
  readonly code: number | null;
  readonly signal: string | null;
  readonly out: string;
  readonly err: string;
}

export interface Ways {
  readonly input?: string;
  readonly env?: Readonly<Record<string, string>>;
  /** File descriptor for stdout instead of a pipe. */
  readonly stdout?: number;
  readonly with?: (child: ChildProcess) => void;
}

export function palimpsest(args: readonly string[], ways: Ways = {}): Promise<Result> {
  const child = spawn(process.execPath, [main, ...args], {
    cwd: dir,
    env: { PATH: process.env['PATH'], ...ways.env },
    stdio: ['pipe', ways.stdout ?? 'pipe', 'pipe'],
    // Only so that a command that hangs ends at all; a busy machine is slow.
    timeout: 600_000,
    killSignal: 'SIGKILL',
  });
  let out = '';
  let err = '';
  child.stdout?.on('data', (chunk) => (out += chunk));
  child.stderr!.on('data', (chunk) => (err += chunk));
  child.stdin!.on('error', () => {});
  child.stdin!.end(ways.input ?? '');
  ways.with?.(child);
  return new Promise((resolve) => child.on('close', (code, signal) => resolve({ code, signal, out, err })));
}

/** What is written to a stream from now on, until it is put back. */
function caught(stream: NodeJS.WriteStream): { text: string; putBack(): void } {
  const { write } = stream;
  const all = {
    text: '',
    putBack: () => {
      stream.write = write;
    },
  };
  stream.write = ((chunk: string | Uint8Array, ...more: unknown[]) => {
    all.text += typeof chunk === 'string' ? chunk : Buffer.from(chunk).toString();
    const written = more.at(-1);
    if (typeof written === 'function') written();
    return true;
  }) as typeof write;
  return all;
}

/**
 * The same command in this process, for what it answers: a process of its own takes half a second to load it, and two
 * more where it opens tables. One at a time, with every path whole, and none that keeps keys or waits for signals.
 */
export async function answered(args: readonly string[]): Promise<Result> {
  const [out, err] = [caught(process.stdout), caught(process.stderr)];
  let code: number;
  try {
    await program().parseAsync([...args], { from: 'user' });
    code = Number(process.exitCode ?? 0);
  } catch (error) {
    code = error instanceof CommanderError ? (error.exitCode === 0 ? 0 : 2) : reportFailure(error);
  } finally {
    process.exitCode = undefined;
    out.putBack();
    err.putBack();
  }
  return { code, signal: null, out: out.text, err: err.text };
}

/** The help of a command, as it is printed, without a process. */
export async function helpOf(words: readonly string[]): Promise<string> {
  let text = '';
  const asked = program((part) => (text += part)).parseAsync([...words, '--help'], { from: 'user' });
  await expect(asked).rejects.toMatchObject({ code: 'commander.helpDisplayed', exitCode: 0 });
  return text;
}

export const lastLine = (text: string): Record<string, unknown> => JSON.parse(text.trimEnd().split('\n').at(-1)!);

export function expectRefused(result: Result, code: string, ...words: (string | RegExp)[]): void {
  expect(result).toMatchObject({ code: 2, out: '' });
  if (code !== '')
    expect(result.err).toContain(result.err.startsWith('{') ? `{"error":{"code":"${code}"` : `[${code}]`);
  for (const word of words) expect(result.err).toMatch(word);
  expect(result.err).not.toMatch(/^\s+at .*:\d+/m);
  expect(result.err).not.toContain('[object Object]');
  expect(result.err).not.toContain('undefined');
}

/** Characters as a terminal counts them, for text without wide ones. */
export const widest = (text: string): number => Math.max(...text.split('\n').map((line) => [...line].length));
