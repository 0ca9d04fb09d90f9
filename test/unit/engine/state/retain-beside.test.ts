// Retention from one process while another one writes the log: the writer is asked and does it, and whoever is killed
// in the middle leaves a log that verifies and that the next one goes on with. Real processes, since a lock names one.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, expect, it } from 'vitest';
import { logDir } from '../../../../engine/state/folder.ts';
import { retainLog } from '../../../../engine/state/retention.ts';
import { holdSession, openWitnessLog, readLog, retain, verifyLog } from '../../../../witness/index.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { recordSession } from '../../witness/session.ts';

const folder = scratchFolders();
const children: ChildProcess[] = [];
afterEach(() => {
  for (const child of children.splice(0)) child.kill('SIGKILL');
});

/** A state folder with sessions of long ago, in many segments. */
async function old(): Promise<string> {
  const stateDir = join(folder(), 'state');
  let now = Date.now() - 1e9;
  const log = await openWitnessLog({
    dir: logDir(stateDir),
    encrypt: true,
    segmentBytesMax: 2000,
    clock: () => now++,
  });
  for (let n = 0; n < 4; n++) recordSession(log, `s${n}`);
  await log.close();
  return stateDir;
}

function start(what: 'engine' | 'ask', stateDir: string): ChildProcess {
  const program = join(import.meta.dirname, 'retain-child.ts');
  const child = spawn(process.execPath, ['--import', 'tsx', program, what, stateDir], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  children.push(child);
  return child;
}

async function startEngine(stateDir: string): Promise<ChildProcess> {
  const child = start('engine', stateDir);
  await once(child.stdout!, 'data');
  return child;
}

const segmentsOf = (stateDir: string): number =>
  readdirSync(logDir(stateDir)).filter((name) => name.endsWith('.wal')).length;
const askedIn = (stateDir: string): string[] => {
  const dir = join(logDir(stateDir), 'removals');
  return existsSync(dir) ? readdirSync(dir).filter((name) => /\.(request|claimed)$/.test(name)) : [];
};
const bytesOf = (stateDir: string): number =>
  readdirSync(logDir(stateDir))
    .filter((name) => name.endsWith('.wal'))
    .reduce((sum, name) => sum + statSync(join(logDir(stateDir), name)).size, 0);

it('a log goes while another process writes it, which goes on writing', { timeout: 60_000 }, async () => {
  const stateDir = await old();
  const engine = await startEngine(stateDir);
  const before = bytesOf(stateDir);
  const report = await retainLog(stateDir, { maxSize: '1KB' });
  expect(report).toMatchObject({ busy: [], series: [{ series: 0 }], sessions: expect.arrayContaining(['s0', 's1']) });
  expect(bytesOf(stateDir)).toBeLessThan(before / 2);
  expect(askedIn(stateDir)).toEqual([]);
  expect(verifyLog(logDir(stateDir))).toMatchObject({ ok: true, foreign: [] });
  engine.stdin!.end();
  expect((await once(engine, 'exit'))[0]).toBe(0);
  expect([...readLog(logDir(stateDir), { kinds: ['retention'] })]).toHaveLength(1);
  expect(verifyLog(logDir(stateDir))).toMatchObject({ ok: true });
});

it('what was asked by a process that was killed is not done behind a hold', { timeout: 60_000 }, async () => {
  const stateDir = await old();
  const engine = await startEngine(stateDir);
  // A writer that is stopped answers nobody.
  engine.kill('SIGSTOP');
  const asker = start('ask', stateDir);
  await expect.poll(() => askedIn(stateDir).length, { timeout: 30_000 }).toBe(1);
  asker.kill('SIGKILL');
  await once(asker, 'exit');
  const held = await holdSession(logDir(stateDir), 's0', { by: 'a test' });
  expect(held.changed).toBe(true);
  expect(askedIn(stateDir)).toEqual([]);
  const before = segmentsOf(stateDir);
  engine.kill('SIGCONT');
  expect(await retainLog(stateDir, { maxSize: '1KB' })).toMatchObject({ series: [], held: ['s0'] });
  expect(segmentsOf(stateDir)).toBe(before);
});

it('a writer that dies while it is asked leaves its series to whoever asks', { timeout: 60_000 }, async () => {
  const stateDir = await old();
  const engine = await startEngine(stateDir);
  engine.kill('SIGSTOP');
  const report = retainLog(stateDir, { maxSize: '1KB' });
  await expect.poll(() => askedIn(stateDir).length, { timeout: 30_000 }).toBe(1);
  engine.kill('SIGKILL');
  expect(await report).toMatchObject({ busy: [], sessions: expect.arrayContaining(['s0', 's1']) });
  expect(askedIn(stateDir)).toEqual([]);
  expect(verifyLog(logDir(stateDir))).toMatchObject({ ok: true });
});

it('a writer that does not answer in time is named, and does nothing later', { timeout: 60_000 }, async () => {
  const stateDir = await old();
  const engine = await startEngine(stateDir);
  engine.kill('SIGSTOP');
  const before = segmentsOf(stateDir);
  expect(await retain(logDir(stateDir), { maxBytes: 1000 }, { askMs: 500 })).toMatchObject({ busy: [0], series: [] });
  expect(askedIn(stateDir)).toEqual([]);
  engine.kill('SIGCONT');
  engine.stdin!.end();
  await once(engine, 'exit');
  expect(segmentsOf(stateDir)).toBe(before);
});
