// The log of a state folder that is open: retention takes what is old whenever a segment is complete, also where
// several writers share the folder; a session that goes on keeps what it has; what is left verifies and replays.
import { readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { logDir, openState, type State } from '../../../../engine/state/folder.ts';
import { readLog, replay, verifyLog } from '../../../../witness/index.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { recordSession, tinyPolicy } from '../../witness/session.ts';

const folder = scratchFolders();
const MOST = 400_000;

const bytesOf = (stateDir: string): number =>
  readdirSync(logDir(stateDir), { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.wal'))
    .reduce((sum, name) => sum + statSync(join(logDir(stateDir), name)).size, 0);

/** Sessions one after the other until so many bytes more were written. → the last of them */
async function write({ log }: State, bytes: number, name: string): Promise<string> {
  let written = 0;
  for (let n = 0; ; n++) {
    const before = log.bytes;
    const session = `${name} ${n}`;
    recordSession(log, session);
    await log.flush();
    written += Math.max(0, log.bytes - before);
    if (written >= bytes) return session;
  }
}

it('a log is as large as it may be while it is written, and what is left replays', { timeout: 120_000 }, async () => {
  const stateDir = folder();
  const open = (): Promise<State> => openState(stateDir, { mode: 'block', retention: { maxSize: MOST } });
  const states = [await open(), await open()];
  let last = '';
  for (let round = 0; round < 4; round++)
    for (const [n, state] of states.entries()) last = await write(state, 250_000, `s${round}${n}`);
  // The log says of both writers that segments went, without having been opened again.
  await expect
    .poll(() => bytesOf(stateDir), { timeout: 60_000, interval: 200 })
    // What each of them is writing stays, a segment of at most 64 KiB and an entry.
    .toBeLessThan(MOST + 2 * 70_000);
  for (const state of states) await state.close();
  const removed = [...readLog(logDir(stateDir), { kinds: ['retention'] })];
  expect(new Set(removed.map(({ seq }) => seq >= 2 ** 32)).size).toBe(2);
  expect(verifyLog(logDir(stateDir))).toMatchObject({ ok: true });
  expect(replay(logDir(stateDir), last, () => tinyPolicy())).toMatchObject({ equal: true });
});

it('a session that goes on keeps its beginning, and loses it when it has ended', { timeout: 120_000 }, async () => {
  const stateDir = folder();
  const state = await openState(stateDir, { mode: 'block', retention: { maxSize: MOST } });
  state.log.append('goes on', 'note', { n: 0 });
  await write(state, 2 * MOST, 'others');
  expect([...readLog(logDir(stateDir), { session: 'goes on' })]).toHaveLength(1);
  expect(bytesOf(stateDir)).toBeGreaterThan(MOST);
  await state.close();
  const again = await openState(stateDir, { mode: 'block', retention: { maxSize: MOST } });
  await again.close();
  expect(bytesOf(stateDir)).toBeLessThan(MOST + 70_000);
  expect([...readLog(logDir(stateDir), { session: 'goes on' })]).toHaveLength(0);
});
