/**
 * Kills of a process that does nothing but write its log, as fast as it can: every acknowledged entry is there, the log
 * opens, its index is made.
 */
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { openAuditIndex, openWitnessLog, readLog, verifyLog } from '../../witness/index.ts';
import type { Kill } from './kills.ts';

const WRITER = join(import.meta.dirname, 'log-writer.mjs');
/** From the start, so that the opening of a log that was killed before is met as well. */
const STARTING_MS_MAX = 120;
const WRITING_MS_MAX = 60;
/** Making a database takes longer than ten kills, so only some logs are put into one. */
const INDEX_SHARE = 0.03;

/**
 * Starts a writer and kills it at some time after it began, or after it opened the log. → the highest seq that it told,
 * −1 for none
 */
function writeAndKill(args: readonly string[], afterMs: number, isFromStart: boolean): Promise<number> {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, [WRITER, ...args], { stdio: ['ignore', 'pipe', 'pipe'] });
    const kill = (): void => void setTimeout(() => child.kill('SIGKILL'), afterMs);
    let [said, problem] = ['', ''];
    if (isFromStart) kill();
    child.stdout.setEncoding('latin1').on('data', (text: string) => {
      if (said === '' && !isFromStart) kill();
      said += text;
    });
    child.stderr.setEncoding('utf8').on('data', (text: string) => (problem += text));
    child.on('error', reject);
    // A line that was cut by the kill was not said.
    child.on('close', (_, signal) =>
      signal === 'SIGKILL' && problem === ''
        ? resolve(Math.max(-1, ...said.split('\n').slice(0, -1).slice(-1).map(Number)))
        : reject(new Error(`the writer ended by itself: ${problem}`)),
    );
  });
}

export async function* logLife(next: () => number, kills: number): AsyncGenerator<Kill, void, undefined> {
  const dir = mkdtempSync(join(tmpdir(), 'palimpsest-soak-'));
  const pick = (list: readonly number[]): string => String(list[Math.floor(next() * list.length)]);
  const isEncrypted = next() < 0.5;
  const isIndexed = next() < INDEX_SHARE;
  // Most writers ask for the disk all the time; the logs of the others are long enough to time how they are opened.
  const flushEvery = next() < 0.98 ? '16' : '200';
  let acknowledged = 0;
  try {
    for (let kill = 0; kill < kills; kill++) {
      const isFromStart = next() < 0.3;
      const afterMs = next() * (isFromStart ? STARTING_MS_MAX : WRITING_MS_MAX);
      const args = [
        dir,
        isEncrypted ? 'encrypted' : 'plain',
        pick([2000, 20_000, 1 << 24]),
        pick([0, 1, 20]),
        flushEvery,
      ];
      acknowledged = Math.max(acknowledged, 1 + (await writeAndKill(args, afterMs, isFromStart)));
      const { problem, entries } = acknowledged === 0 ? { problem: null, entries: 0 } : verifyLog(dir);
      const restarted = performance.now();
      const log = await openWitnessLog({ dir });
      const healedMs = performance.now() - restarted;
      await log.close();
      let unhealed = problem === null ? 0 : 1;
      if (kill === kills - 1) {
        const made = verifyLog(dir).entries;
        const read = [...readLog(dir)];
        unhealed +=
          Math.abs(read.length - made) +
          read.filter(({ seq, kind, body }, i) => seq !== i || (kind === 'note' && !isRight(body))).length;
        if (isIndexed) {
          const index = await openAuditIndex({ logDir: dir });
          await index.close();
          unhealed += Math.abs(index.report.entries - made);
        }
      }
      yield {
        afterMs,
        acknowledged,
        lost: Math.max(0, acknowledged - entries),
        failed: 0,
        unhealed,
        healedMs,
        entries,
      };
    }
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

const isRight = (body: unknown): boolean => (body as { double: number }).double === 2 * (body as { n: number }).n;
