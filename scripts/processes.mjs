/** Programs that the bootstrap starts, what it says about them, and how it ends with them. */
import { spawn } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

export const root = path.join(path.dirname(fileURLToPath(import.meta.url)), '..');
export const at = (...parts) => path.join(root, ...parts);
export const say = (text) => process.stderr.write(text);

/** A failure that is reported by its message alone, without a stack trace. */
export class Stop extends Error {
  constructor(message, output = '') {
    super(message);
    this.output = output;
  }
}

const children = new Set();
let interrupted = false;

/** Prints what is known of a failure; nothing where a person ended it. */
export function explain(error) {
  if (interrupted) return;
  if (!(error instanceof Stop)) return say(`${error?.stack ?? error}\n`);
  if (error.output.trim() !== '') say(`\n${error.output.trimEnd()}\n\n`);
  say(`${error.message}\n`);
}

/**
 * Runs a program and returns { code, output }. With `quiet` its output is collected and returned, with `aside` all of
 * it goes to stderr, and otherwise the program uses our terminal.
 */
export function run(program, args, { quiet = false, aside = false, env = {} } = {}) {
  return new Promise((resolve) => {
    const child = spawn(program, args, {
      cwd: root,
      env: { ...process.env, ...env },
      stdio: quiet ? ['ignore', 'pipe', 'pipe'] : aside ? ['ignore', 2, 2] : 'inherit',
      shell: process.platform === 'win32' && program === 'npm',
    });
    children.add(child);
    const chunks = [];
    child.stdout?.on('data', (chunk) => chunks.push(chunk));
    child.stderr?.on('data', (chunk) => chunks.push(chunk));
    child.on('error', (error) => {
      children.delete(child);
      resolve({ code: 127, output: String(error) });
    });
    child.on('close', (code, signal) => {
      children.delete(child);
      resolve({ code: code ?? 128 + (os.constants.signals[signal] ?? 0), output: Buffer.concat(chunks).toString() });
    });
  });
}

export const node = (args, options) => run(process.execPath, args, options);

/** Runs the npm that started us, or else the one on the PATH. */
export function npm(args, options) {
  const caller = process.env.npm_execpath ?? '';
  return path.basename(caller) === 'npm-cli.js' ? node([caller, ...args], options) : run('npm', args, options);
}

/** True if one of some programs is on the PATH. */
export const onPath = (names) =>
  names.some((name) =>
    (process.env.PATH ?? '')
      .split(path.delimiter)
      .some(
        (dir) => dir !== '' && (fs.existsSync(path.join(dir, name)) || fs.existsSync(path.join(dir, `${name}.exe`))),
      ),
  );

/** Prints one line that says what is being done and how long it took. If it fails, throws its output and the hint. */
export async function stage(title, hint, work) {
  say(`${title} … `);
  const start = Date.now();
  const { code, output } = await work();
  say(`${code === 0 ? 'done' : 'FAILED'} (${((Date.now() - start) / 1000).toFixed(1)} s)\n`);
  if (code !== 0) throw new Stop(hint, output);
}

/** Signals end what runs before they end us. */
export function endWithChildren() {
  // The child shares our terminal, so Ctrl-C reaches it too. We stay until it has ended.
  process.on('SIGINT', () => {
    interrupted = true;
    if (children.size === 0) process.exit(130);
  });
  for (const signal of ['SIGTERM', 'SIGHUP']) {
    process.on(signal, () => {
      for (const child of children) child.kill(signal);
      if (children.size === 0) process.exit(128 + os.constants.signals[signal]);
    });
  }
}
