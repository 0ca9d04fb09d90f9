// A live view over a folder whose log is replaced, put back or taken away under it, and clients that go away before
// they are answered. Small logs on the real disk, asked over HTTP.
import { cpSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { type LiveView, serve } from '../../../../engine/index.ts';
import { LogReader } from '../../../../engine/serve/reader.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import type { KvError } from '../../../../native/index.ts';
import { openWitnessLog } from '../../../../witness/index.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { recordSession } from '../../witness/session.ts';
import { ask, refusal } from './ask.ts';

const folder = scratchFolders();

async function logOf(state: string, ...sessions: string[]): Promise<void> {
  const log = await openWitnessLog({ dir: logDir(state) });
  for (const session of sessions) recordSession(log, session);
  await log.close();
}

const sessionsOf = async ({ url }: LiveView): Promise<string[]> =>
  (await ask<{ rows: { session: string }[] }>(url, '/v1/sessions')).rows.map(({ session }) => session).sort();

test('another log in the place of the one that was read is read, and so is an older copy', async () => {
  const [state, other, copy] = [folder(), folder(), folder()];
  await logOf(state, 'first');
  cpSync(logDir(state), logDir(copy), { recursive: true });
  await logOf(state, 'second');
  await logOf(other, 'stranger');
  const view = await serve(state, { port: 0 });
  try {
    expect(await sessionsOf(view)).toEqual(['first', 'second']);
    for (const [from, expected] of [
      [other, ['stranger']],
      [copy, ['first']],
    ] as const) {
      rmSync(logDir(state), { recursive: true });
      cpSync(logDir(from), logDir(state), { recursive: true });
      await expect.poll(() => sessionsOf(view).catch(() => []), { timeout: 10_000 }).toEqual(expected);
    }
    // What is written to it then is told as before.
    await logOf(state, 'third');
    await expect.poll(() => sessionsOf(view), { timeout: 10_000 }).toEqual(['first', 'third']);
  } finally {
    await view.close();
  }
});

test('a folder whose log is gone is said to have none, until it has one again', async () => {
  const state = folder();
  await logOf(state, 'first');
  const view = await serve(state, { port: 0 });
  try {
    expect(await sessionsOf(view)).toEqual(['first']);
    renameSync(logDir(state), join(state, 'away'));
    for (const path of ['/v1/sessions', '/v1/decisions', '/metrics', '/v1/memory'])
      await expect
        .poll(() => refusal(view.url, path).catch(() => null), { timeout: 10_000 })
        .toEqual([404, 'not-found']);
    renameSync(join(state, 'away'), logDir(state));
    await expect.poll(() => sessionsOf(view).catch(() => []), { timeout: 10_000 }).toEqual(['first']);
  } finally {
    await view.close();
  }
});

test('sixty questions whose askers went away are not asked, and hold up nobody', async () => {
  const state = folder();
  await logOf(state, 'first');
  const reader = new LogReader(logDir(state));
  const gone = Array.from({ length: 60 }, () => new AbortController());
  const asked = gone.map(({ signal }) => reader.ask('decisions', { limit: 10 }, signal));
  const answers = Promise.allSettled(asked);
  for (const one of gone) one.abort();
  const codes = (await answers).map((one) => (one.status === 'rejected' ? (one.reason as KvError).code : 'answered'));
  // The first was begun before its asker went.
  expect(codes).toEqual(['answered', ...new Array(59).fill('aborted')]);
  expect((await reader.ask('decisions', { limit: 10 })).rows.length).toBeGreaterThan(0);
  // As many may wait as before, and one more is told to come again.
  const waiting = Array.from({ length: 65 }, () => reader.ask('decisions', { limit: 1 }));
  await expect(reader.ask('decisions', { limit: 1 })).rejects.toMatchObject({ code: 'busy' });
  await Promise.all(waiting);
  await reader.close();
  await expect(reader.ask('decisions', { limit: 1 })).rejects.toMatchObject({ code: 'closed' });
});
