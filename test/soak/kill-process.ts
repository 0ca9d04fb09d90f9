/**
 * Kills of `palimpsest run` itself, on one state folder: every acknowledged entry is in the log, and the index of
 * sessions has what the log has.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { openSessionIndex } from '../../engine/state/sessions.ts';
import { FINGERPRINT_DIM, sessionsOf } from '../../memory/index.ts';
import { readLog, verifyLog } from '../../witness/index.ts';
import { runUntilEnded, writePrompt } from '../suite/run-process.ts';
import type { Kill } from './kills.ts';

const READING_MS_MAX = 600;
const WRITING_MS_MAX = 2000;
/** More than a life has sessions. */
const SESSIONS_MAX = 1000;

export async function* processLife(next: () => number, kills: number): AsyncGenerator<Kill, void, undefined> {
  const root = mkdtempSync(join(tmpdir(), 'palimpsest-soak-'));
  const prompt = join(root, 'prompt.txt');
  const state = join(root, 'state');
  const log = join(state, 'log');
  writePrompt(prompt);
  let acknowledged = 0;
  try {
    for (let kill = 0; kill < kills; ) {
      // Every second one is spread over the reading, the others over reading and writing.
      const afterMs = next() * (kill % 2 === 0 ? READING_MS_MAX : WRITING_MS_MAX);
      const ended = await runUntilEnded(prompt, state, {
        onReading: (end) => void setTimeout(end, afterMs, 'SIGKILL'),
      });
      acknowledged = Math.max(acknowledged, ended.acknowledged + 1);
      // A run that was over before its time came is no kill, but must not have failed.
      const isKill = ended.signal === 'SIGKILL';
      const isFailure = !isKill && ended.code !== 0;
      const started = performance.now();
      const { problem, entries } = verifyLog(log);
      const whole = [...readLog(log)];
      const sessions = await openSessionIndex({ stateDir: state });
      const ends = [...sessionsOf(whole, '', FINGERPRINT_DIM)];
      const found = ends.length === 0 ? [] : await sessions.nearestSessions(Array.from(ends[0]!.vector), SESSIONS_MAX);
      await sessions.close();
      if (!isKill && !isFailure) continue;
      kill++;
      yield {
        afterMs,
        acknowledged,
        lost: Math.max(0, acknowledged - entries),
        failed: isFailure ? 1 : 0,
        unhealed:
          (problem === null ? 0 : 1) +
          Math.abs(found.length - ends.length) +
          whole.filter(({ seq }, i) => seq !== i).length,
        healedMs: performance.now() - started,
      };
    }
  } finally {
    rmSync(root, { recursive: true, force: true });
  }
}
