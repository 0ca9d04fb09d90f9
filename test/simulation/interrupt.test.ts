// Interrupts `palimpsest run` on the reference model with SIGINT: it stops where the log is whole, says so in the log,
// and exits with 130.
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Entry, readLog, verifyLog } from '../../witness/index.ts';
import { MAIN, runUntilEnded, type Watch, writePrompt } from '../suite/run-process.ts';

const dir = mkdtempSync(join(tmpdir(), 'palimpsest-interrupt-'));
const prompt = join(dir, 'prompt.txt');

beforeAll(() => {
  expect(existsSync(MAIN), 'dist is built').toBe(true);
  writePrompt(prompt);
});
afterAll(() => rmSync(dir, { recursive: true, force: true }));

describe('run interrupted with SIGINT', () => {
  it.each([
    ['while it reads', { onReading: (kill) => kill('SIGINT') }, false],
    ['while it writes', { onWriting: (kill) => kill('SIGINT') }, true],
  ] satisfies [string, Watch, boolean][])(
    '%s exits with 130 and its log says that it was aborted',
    async (name, watch, keeps) => {
      const state = join(dir, name.replaceAll(' ', '-'));
      const ended = await runUntilEnded(prompt, state, watch);
      expect([ended.code, ended.signal], ended.stderr).toEqual([130, null]);
      expect(verifyLog(join(state, 'log'))).toMatchObject({ ok: true, problem: null, tornBytes: 0 });
      const last = [...readLog(join(state, 'log'))].at(-1) as Entry<'close'>;
      expect(last.kind).toBe('close');
      expect(last.body.reason).toBe('aborted');
      // It stopped before it was done: what was read of a prompt is taken back, what was written stays.
      expect(last.body.tokens > 0).toBe(keeps);
      const whole = [...readLog(join(state, 'log'))].find(({ kind }) => kind === 'open') as Entry<'open'>;
      expect(last.body.tokens).toBeLessThan(whole.body.requested['tokensExpected'] as number);
    },
  );
});
