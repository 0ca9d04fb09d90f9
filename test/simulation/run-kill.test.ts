// Kills `palimpsest run` on the reference model at random moments with SIGKILL: every entry that was acknowledged before the kill must be
// in the log, the log must verify, and the next run must open the same state folder. 20 rounds here; PALIMPSEST_KILL_ROUNDS asks for more.
import { spawn, spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { ownProse } from '../../engine/cli/start.ts';
import { seeded } from '../../engine/evaluate/recall.ts';
import { readLog, verifyLog } from '../../witness/index.ts';

const root = join(import.meta.dirname, '..', '..');
const main = join(root, 'dist', 'engine', 'cli', 'main.js');
const rounds = Number(process.env['PALIMPSEST_KILL_ROUNDS'] ?? 20);
const seed = Number(process.env['PALIMPSEST_SEED'] ?? Date.now() % 1e9);
const dir = mkdtempSync(join(tmpdir(), 'palimpsest-kill-'));
const prompt = join(dir, 'prompt.txt');
let filler = ownProse(root);
while (filler.length < 12_000) filler += `\n\n${filler}`;
writeFileSync(prompt, filler.slice(0, 12_000));

afterAll(() => rmSync(dir, { recursive: true, force: true }));

/** Runs until killed. → highest sequence number that the run had reported as acknowledged. */
function killed(state: string, killAfterMs: number): Promise<number> {
  return new Promise((resolve) => {
    const child = spawn(process.execPath, [main, 'run', '-m', 'reference', '-p', prompt, '--kv-budget', '25%', '-n', '400', '--state', state, '--progress', 'jsonl', '--threads', '1'], { stdio: ['ignore', 'ignore', 'pipe'] });
    let acknowledged = -1;
    let rest = '';
    let timer: NodeJS.Timeout | null = null;
    child.stderr.on('data', (chunk: Buffer) => {
      // The clock starts with the first progress line, so that kills fall into the work and not into the loading of the model.
      timer ??= setTimeout(() => child.kill('SIGKILL'), killAfterMs);
      const lines = (rest + chunk.toString()).split('\n');
      rest = lines.pop()!;
      for (const line of lines) if (line.startsWith('{')) acknowledged = Math.max(acknowledged, (JSON.parse(line) as { acknowledgedSeq: number }).acknowledgedSeq);
    });
    child.on('close', () => {
      if (timer !== null) clearTimeout(timer);
      resolve(acknowledged);
    });
  });
}

describe(`run killed with SIGKILL (${rounds} rounds, seed ${seed})`, () => {
  it('keeps every acknowledged entry, verifies, and opens again', { timeout: rounds * 20_000 }, async () => {
    expect(existsSync(main), 'dist is built').toBe(true);
    const random = seeded(seed);
    const state = join(dir, 'state');
    let withEntries = 0;
    for (let round = 0; round < rounds; round++) {
      const acknowledged = await killed(state, random() * 2500);
      const report = verifyLog(join(state, 'log'));
      expect(report.problem, `round ${round}`).toBeNull();
      expect(report.entries, `round ${round}: entries on disk against acknowledged`).toBeGreaterThan(acknowledged);
      if (acknowledged >= 0) withEntries++;
    }
    expect(withEntries, 'rounds in which something had been acknowledged').toBeGreaterThan(rounds / 4);
    const seqs = [...readLog(join(state, 'log'))].map((entry) => entry.seq);
    expect(seqs).toEqual(seqs.map((_, i) => i));
    const reindexed = spawnSync(process.execPath, [main, 'audit', 'reindex', '--state', state, '--json'], { encoding: 'utf8' });
    expect(reindexed.status, reindexed.stderr).toBe(0);
    const { entries } = JSON.parse(reindexed.stdout.trim().split('\n').at(-1)!) as { entries: number };
    expect(entries).toBe([...readLog(join(state, 'log'))].length);
  });
});
