// A conversation on a terminal: what counts as one question, what ends what, and the commands, on a real terminal that
// Python opens.

import { spawn } from 'node:child_process';
import { cpSync, existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { afterAll, describe, expect, it } from 'vitest';
import { ChatInput } from '../../../../engine/cli/chat-input.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { readLog } from '../../../../witness/index.ts';
import { referenceModel } from '../transformer/model-files.ts';
import { dir, root } from './command.ts';

afterAll(() => rmSync(dir, { recursive: true, force: true }));

/** A terminal without a screen: keys go in, what is shown is collected. */
function terminal(): { chat: ChatInput; press(keys: string): void; shown(): string; stop: AbortController } {
  const input = new PassThrough();
  const output = new PassThrough();
  let shown = '';
  output.on('data', (chunk) => (shown += chunk));
  const stop = new AbortController();
  const chat = new ChatInput({ signal: stop.signal, input, output });
  return { chat, press: (keys) => void input.write(keys), shown: () => shown, stop };
}

/** The reference model, with a template of its own. */
function chatModel(): string {
  const model = join(dir, 'chat-model');
  cpSync(referenceModel, model, { recursive: true });
  writeFileSync(join(model, 'chat_template.jinja'), '{% for m in messages %}{{ m.content }}\n{% endfor %}');
  return model;
}

const CTRL_C = '\u0003';
const CTRL_D = '\u0004';
const pasted = (text: string): string => `\u001b[200~${text}\u001b[201~`;

describe('what is typed', () => {
  it('is a question a line', async () => {
    const { chat, press } = terminal();
    press('one\rtwo\r');
    expect([await chat.next(), await chat.next()]).toEqual(['one', 'two']);
    chat.close();
  });
  it('is one question where it was pasted, with what is typed around it', async () => {
    const { chat, press } = terminal();
    press(`see: ${pasted('first\rsecond\r\rlast')} ok?\rnext\r`);
    expect([await chat.next(), await chat.next()]).toEqual(['see: first\nsecond\n\nlast ok?', 'next']);
    chat.close();
  });
  it('keeps a backslash that was pasted, and goes on behind one that was typed', async () => {
    const { chat, press, shown } = terminal();
    press(`${pasted('a\\\rb')}\rc\\\rd\r`);
    expect([await chat.next(), await chat.next()]).toEqual(['a\\\nb', 'c\nd']);
    expect(shown()).toContain('… ');
    chat.close();
  });
});

describe('Ctrl-C', () => {
  it('ends the answer that is running, and not the conversation', async () => {
    const { chat, press } = terminal();
    const signal = chat.startTurn();
    press(CTRL_C);
    expect(signal.aborted).toBe(true);
    chat.endTurn();
    press('more\r');
    expect(await chat.next()).toBe('more');
    chat.close();
  });
  it('forgets what was typed', async () => {
    const { chat, press } = terminal();
    press(`first\\\rsecond${CTRL_C}third\r`);
    expect(await chat.next()).toBe('third');
    chat.close();
  });
  it('pressed twice ends the conversation, unless something was typed between', async () => {
    const { chat, press, shown } = terminal();
    press(`${CTRL_C}word\r${CTRL_C}`);
    expect(await chat.next()).toBe('word');
    expect(shown()).toContain('Ctrl-C once more ends the conversation');
    press(CTRL_C);
    expect(await chat.next()).toBe(null);
    expect(shown().endsWith('\u001b[?2004l')).toBe(true);
  });
  it('is not needed where the input ends or a signal comes', async () => {
    const { chat, press } = terminal();
    press(CTRL_D);
    expect(await chat.next()).toBe(null);
    const other = terminal();
    const next = other.chat.next();
    other.stop.abort();
    expect(await next).toBe(null);
  });
});

/** Runs the command on a terminal of its own, types the next of the keys at each prompt, and returns what was shown. */
function onTerminal(args: readonly string[], keys: readonly string[]): Promise<{ code: number | null; shown: string }> {
  const open = 'import pty, sys, os\nsys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))';
  const main = join(root, 'dist/engine/cli/main.js');
  const child = spawn('python3', ['-c', open, process.execPath, main, ...args], { cwd: dir, timeout: 600_000 });
  let shown = '';
  let typed = 0;
  child.stdin.on('error', () => {});
  child.stdout.on('data', (chunk) => {
    shown += chunk;
    if (shown.split('> \u001b[').length - 1 > typed) child.stdin.write(keys[typed++] ?? CTRL_D);
  });
  return new Promise((resolve) => child.on('close', (code) => resolve({ code, shown })));
}

describe('run --chat on a terminal', () => {
  it('answers a pasted text as one question, saves what was said, and says where an answer was cut', async () => {
    const model = chatModel();
    const keys = [
      `${pasted('hello\rhello')}\r`,
      '/budget\r',
      '/nonsense\r',
      '/lowmem on\r',
      '/lowmem\r',
      '/continue\r',
      '/save said.json\r',
    ];
    const args = ['run', '-m', model, '--chat', '-n', '3', '--state', join(dir, 'state'), '--progress', 'none'];
    const { code, shown } = await onTerminal(args, keys);
    expect({ code, shown }).toMatchObject({ code: 0, shown: expect.stringContaining('cut at 3 tokens') });
    expect(shown).toContain('there is no /nonsense');
    expect(shown).toContain('KV cache');
    expect(shown).toContain('memory is short');
    expect(shown).toContain('/lowmem takes on or off');
    expect(existsSync(join(dir, 'said.json'))).toBe(true);
    const said = JSON.parse(readFileSync(join(dir, 'said.json'), 'utf8'));
    // What /continue adds is part of the same answer.
    expect(shown.match(/cut at 3 tokens/g)).toHaveLength(2);
    expect(said).toHaveLength(2);
    expect(said).toMatchObject([{ role: 'user', content: 'hello\nhello' }, { role: 'assistant' }]);
  });

  it('opens the conversation by its first question where adapters are proposed for that', async () => {
    const model = chatModel();
    const state = join(dir, 'proposed-state');
    const args = [
      'run',
      '-m',
      model,
      '--chat',
      '-n',
      '3',
      '--state',
      state,
      '--progress',
      'none',
      '--lora',
      'proposed',
    ];
    const question = 'hello and a good day '.repeat(4).trim();
    const { code, shown } = await onTerminal(args, ['/budget\r', '/help\r', `${question}\r`]);
    expect({ code, shown }).toMatchObject({ code: 0, shown: expect.stringContaining('cut at 3 tokens') });
    expect(shown).toContain('ask it first');
    const [open] = [...readLog(logDir(state), { kinds: ['open'] })];
    const { proposal } = open!.body as { proposal?: { because: { rule: string; measured: number } } };
    expect(proposal!.because.rule).toBe('proposal-text');
    expect(proposal!.because.measured).toBeGreaterThan(10);
    // Whoever says nothing has no session.
    const none = join(dir, 'silent-state');
    const silent = await onTerminal(
      args.map((arg) => (arg === state ? none : arg)),
      [],
    );
    expect(silent.code).toBe(0);
    expect([...readLog(logDir(none), { kinds: ['open'] })]).toEqual([]);
  });
});
