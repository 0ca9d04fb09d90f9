// Ends `palimpsest run` on the reference model from outside. Killed at random moments with SIGKILL: every entry that was acknowledged before
// must be in the log, the log must verify, and the next run must open the same state folder (20 rounds here; PALIMPSEST_KILL_ROUNDS asks for
// more, PALIMPSEST_SEED repeats one). Interrupted with SIGINT: it stops where the log is whole, says so in the log, and exits with 130.
import { spawn, spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { ownText } from '../../engine/evaluate/own-text.ts';
import { seeded } from '../../engine/evaluate/recall.ts';
import { type Entry, readLog, verifyLog } from '../../witness/index.ts';

const root = join(import.meta.dirname, '..', '..');
const main = join(root, 'dist', 'engine', 'cli', 'main.js');
const rounds = Number(process.env['PALIMPSEST_KILL_ROUNDS'] ?? 20);
const seed = Number(process.env['PALIMPSEST_SEED'] ?? Date.now() % 1e9);
const dir = mkdtempSync(join(tmpdir(), 'palimpsest-kill-'));
const prompt = join(dir, 'prompt.txt');
/** Fits the context of 4096 tokens with the answer, even if every token were two characters. */
const PROMPT_CHARACTERS = 7000;
const ANSWER_TOKENS = 400;

beforeAll(() => {
  expect(existsSync(main), 'dist is built').toBe(true);
  writeFileSync(prompt, ownText(PROMPT_CHARACTERS).slice(0, PROMPT_CHARACTERS));
});
afterAll(() => rmSync(dir, { recursive: true, force: true }));

interface Ended {
  /** Highest sequence number that the run reported as acknowledged, −1 for none. */
  readonly acknowledged: number;
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly stderr: string;
}

interface Watch {
  /** Asked once, when the first progress line is there: the model is loaded, the work has begun. */
  onReading?(kill: (signal: NodeJS.Signals) => void): void;
  /** Asked once, when the first of the answer is there. */
  onWriting?(kill: (signal: NodeJS.Signals) => void): void;
}

function runUntilEnded(state: string, watch: Watch): Promise<Ended> {
  const flags = ['--kv-budget', '25%', '-n', String(ANSWER_TOKENS), '--temperature', '1', '--threads', '1'];
  const args = [main, 'run', '-m', 'reference', '-p', prompt, ...flags, '--state', state, '--progress', 'jsonl'];
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
        acknowledged = Math.max(acknowledged, (JSON.parse(line) as { acknowledgedSeq: number }).acknowledgedSeq);
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

describe(`run killed with SIGKILL (${rounds} rounds, seed ${seed})`, () => {
  it('keeps every acknowledged entry, verifies, and opens again', { timeout: rounds * 20_000 }, async () => {
    const random = seeded(seed);
    const state = join(dir, 'state');
    let killed = 0;
    let withEntries = 0;
    for (let round = 0; round < rounds; round++) {
      // Every second one is spread over the reading, the others over reading and writing.
      const afterMs = random() * (round % 2 === 0 ? 600 : 2000);
      const ended = await runUntilEnded(state, { onReading: (kill) => void setTimeout(kill, afterMs, 'SIGKILL') });
      if (ended.signal === 'SIGKILL') killed++;
      // On a fast machine a run may be over before its time comes; nothing else may end it.
      else expect(ended.code, `round ${round}: ${ended.stderr}`).toBe(0);
      const report = verifyLog(join(state, 'log'));
      expect(report.problem, `round ${round}`).toBeNull();
      expect(report.entries, `round ${round}: entries on disk against acknowledged`).toBeGreaterThan(
        ended.acknowledged,
      );
      if (ended.acknowledged >= 0) withEntries++;
    }
    expect(killed, 'rounds that were killed').toBeGreaterThan(rounds / 4);
    expect(withEntries, 'rounds in which something had been acknowledged').toBeGreaterThan(rounds / 4);
    const seqs = [...readLog(join(state, 'log'))].map((entry) => entry.seq);
    expect(seqs).toEqual(seqs.map((_, i) => i));
    const reindexed = spawnSync(process.execPath, [main, 'audit', 'reindex', '--state', state, '--json'], {
      encoding: 'utf8',
    });
    expect(reindexed.status, reindexed.stderr).toBe(0);
    const { entries } = JSON.parse(reindexed.stdout.trim().split('\n').at(-1)!) as { entries: number };
    expect(entries).toBe(seqs.length);
  });
});

describe('run interrupted with SIGINT', () => {
  it.each([
    ['while it reads', { onReading: (kill) => kill('SIGINT') }, false],
    ['while it writes', { onWriting: (kill) => kill('SIGINT') }, true],
  ] satisfies [string, Watch, boolean][])(
    '%s exits with 130 and its log says that it was aborted',
    async (name, watch, keeps) => {
      const state = join(dir, name.replaceAll(' ', '-'));
      const ended = await runUntilEnded(state, watch);
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
