// Wrapping the keys of a log by a new master key: afterwards that key alone opens every session and the old one none,
// also when a process that did it was killed before any of its steps. Logs have sessions under an old master key and
// one from before there was any.
import { spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import {
  closeSync,
  cpSync,
  linkSync,
  openSync,
  readdirSync,
  readFileSync,
  readSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeAll, expect, it } from 'vitest';
import {
  destroySession,
  keysDir,
  lockWriter,
  openWitnessLog,
  readLog,
  rewrapLogKeys,
  useMasterKeys,
  verifyLog,
} from '../../../witness/index.ts';
import { isDealt } from '../../tier.ts';
import { scratchFolders } from './folder.ts';

const folder = scratchFolders();
const [old, next] = [randomBytes(32), randomBytes(32)];
const SESSIONS = ['before', 'first', 'second', 'third'];
let made = '';
afterEach(() => useMasterKeys([]));

async function write(dir: string, sessions: readonly string[]): Promise<void> {
  const log = await openWitnessLog({ dir, encrypt: true });
  for (const session of sessions) log.append(session, 'note', { of: session });
  await log.close();
}

beforeAll(async () => {
  made = join(folder(), 'log');
  await write(made, ['before']);
  useMasterKeys([old]);
  await write(made, ['first', 'second', 'third']);
});

function copy(): string {
  const dir = join(folder(), 'log');
  cpSync(made, dir, { recursive: true });
  return dir;
}

/** The sessions whose entries these master keys open. */
function readable(dir: string, masters: readonly Uint8Array[]): string[] {
  useMasterKeys(masters);
  return [...readLog(dir)].map(({ session }) => session).filter((session) => session !== '');
}
const keyFiles = (dir: string): string[] => readdirSync(keysDir(dir)).filter((name) => name.includes('.key'));

function expectRewrapped(dir: string): void {
  expect(readable(dir, [next])).toEqual(SESSIONS);
  expect(readable(dir, [old])).toEqual([]);
  expect(readable(dir, [])).toEqual([]);
  expect(keyFiles(dir).every((name) => name.endsWith('.key'))).toBe(true);
  expect(verifyLog(dir)).toMatchObject({ ok: true, foreign: [] });
}

it('the new master key opens every session, and what an old one could open is overwritten where it stood', () => {
  const dir = copy();
  // A second name keeps the old file in reach after it was replaced.
  const names = keyFiles(dir);
  const aside = names.map((name) => join(folder(), name));
  for (const [at, name] of names.entries()) linkSync(join(keysDir(dir), name), aside[at]!);
  const before = aside.map((path) => readFileSync(path));
  useMasterKeys([next, old]);
  const report = rewrapLogKeys(dir);
  expect(report).toEqual({ master: expect.stringMatching(/^[0-9a-f]{16}$/), rewrapped: 4, already: 0 });
  expectRewrapped(dir);
  for (const [at, path] of aside.entries()) {
    const after = readFileSync(path);
    expect(after.length).toBe(before[at]!.length);
    expect(after.equals(before[at]!)).toBe(false);
    expect(after.includes('session')).toBe(false);
  }
  useMasterKeys([next]);
  expect(rewrapLogKeys(dir)).toEqual({ ...report, rewrapped: 0, already: 4 });
});

it('a process that is killed before a step loses nothing, and the same call finishes', () => {
  const child = join(import.meta.dirname, 'rewrap-child.ts');
  const masters = [next, old].map((key) => key.toString('hex'));
  // The name of the master key, three steps for each of four keys, and the end.
  const steps = 2 + 3 * SESSIONS.length;
  for (let step = 0; step <= steps; step++) {
    if (!isDealt(step, 3)) continue;
    const dir = copy();
    const { signal, status, stderr } = spawnSync(
      process.execPath,
      ['--import', 'tsx', child, dir, String(step), ...masters],
      { encoding: 'utf8' },
    );
    expect([signal, status], `${step}: ${stderr}`).toEqual(step < steps ? ['SIGKILL', null] : [null, 0]);
    expect(readable(dir, [next, old]), String(step)).toEqual(SESSIONS);
    expect(verifyLog(dir), String(step)).toMatchObject({ ok: true, foreign: [] });
    useMasterKeys([next, old]);
    const { rewrapped, already } = rewrapLogKeys(dir);
    expect(rewrapped + already, String(step)).toBe(4);
    expectRewrapped(dir);
  }
});

it('nothing changes where a master key is missing, a key file is none, or another process is at it', () => {
  const dir = copy();
  const contents = (): string[] =>
    readdirSync(keysDir(dir)).map((name) => readFileSync(join(keysDir(dir), name), 'utf8'));
  const before = contents();
  const refuses = (masters: readonly Uint8Array[], code: string): void => {
    useMasterKeys(masters);
    expect(() => rewrapLogKeys(dir)).toThrow(expect.objectContaining({ code }));
    expect(contents()).toEqual(before);
  };
  refuses([], 'bad-argument');
  refuses([next], 'bad-config');
  const [path] = keyFiles(dir).map((name) => join(keysDir(dir), name));
  const text = readFileSync(path!, 'utf8');
  for (const wrong of ['', '{}', 'null', text.replace('"session":"', '"session":"x')]) {
    writeFileSync(path!, wrong);
    useMasterKeys([next, old]);
    expect(() => rewrapLogKeys(dir)).toThrow(expect.objectContaining({ code: 'bad-file' }));
  }
  writeFileSync(path!, text);
  const lock = lockWriter(keysDir(dir));
  useMasterKeys([next, old]);
  expect(() => rewrapLogKeys(dir)).toThrow(expect.objectContaining({ code: 'locked' }));
  lock.release();
  expect(() => rewrapLogKeys(folder())).toThrow(expect.objectContaining({ code: 'not-found' }));
});

it('a session that is erased meanwhile stays erased', () => {
  const dir = copy();
  useMasterKeys([next, old]);
  for (const at of ['write', 'rename', 'overwrite']) {
    const state = copy();
    let isFirst = true;
    rewrapLogKeys(state, (step) => {
      if (step !== at || !isFirst) return;
      isFirst = false;
      for (const session of SESSIONS) destroySession(state, session);
    });
    expect(keyFiles(state), at).toEqual([]);
    expect(readable(state, [next, old])).toEqual([]);
    useMasterKeys([next, old]);
  }
  // What a killed process left of a key that was destroyed then.
  const [name] = keyFiles(dir);
  const held = openSync(join(keysDir(dir), name!), 'r');
  const text = Buffer.alloc(4096);
  const bytes = readSync(held, text);
  closeSync(held);
  for (const session of SESSIONS) destroySession(dir, session);
  writeFileSync(join(keysDir(dir), name!), text.subarray(0, bytes));
  writeFileSync(join(keysDir(dir), `${name}.tmp`), text.subarray(0, bytes));
  rewrapLogKeys(dir);
  expect(keyFiles(dir)).toEqual([]);
  rmSync(keysDir(dir), { recursive: true });
  expect(rewrapLogKeys(dir)).toMatchObject({ rewrapped: 0, already: 0 });
});
