// What processes that were killed, and disks that were full, leave behind: locks that are not whole, temporary files,
// half a key, files where folders must be. Nothing of it bars the way of the next one, and what does is told in a
// sentence without a stack.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, readFileSync, symlinkSync, utimesSync, writeFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { openCache } from '../../../../engine/index.ts';
import { logDir, memoryDir } from '../../../../engine/state/folder.ts';
import { writeKeyPair } from '../../../../memory/index.ts';
import { removeLeftovers, replaceFile } from '../../../../native/index.ts';
import { keysDir, lockWriter } from '../../../../witness/index.ts';
import { refused } from '../../../refusal.ts';
import { scratchFolders } from '../../witness/folder.ts';

const folder = scratchFolders();
const root = join(import.meta.dirname, '..', '..', '..', '..');
const SHAPE = { layers: 1, queryHeads: 1, kvHeads: 1, headDim: 64 } as const;

/** The number of a process that was, and is no more. */
const deadPid = (): number => spawnSync(process.execPath, ['-e', '']).pid;
const makeOld = (path: string): void => utimesSync(path, new Date(0), new Date(0));
const open = async (stateDir: string) => (await openCache({ ...SHAPE, stateDir })).close();
const palimpsest = (...args: string[]) =>
  spawnSync(process.execPath, [join(root, 'dist', 'engine', 'cli', 'main.js'), ...args], {
    encoding: 'utf8',
    timeout: 60_000,
  });

describe('a lock', () => {
  const whole = { pid: process.pid, host: hostname(), boot: '', thread: '', start: '', token: 'x' };
  const parts = Object.keys(whole).map((name) => [name, JSON.stringify({ ...whole, [name]: undefined })] as const);
  it.each<readonly [string, string]>([
    ...parts,
    ['everything', ''],
    ['its end', JSON.stringify(whole).slice(0, 20)],
    ['an object', '[]'],
    ['sense', JSON.stringify({ ...whole, boot: 7 })],
  ])('that lacks %s holds nobody up', (_, text) => {
    const dir = folder();
    writeFileSync(join(dir, 'writer.lock'), text);
    const lock = lockWriter(dir);
    expect(() => lockWriter(dir)).toThrow(expect.objectContaining({ code: 'locked' }));
    lock.release();
    expect(readdirSync(dir)).toEqual([]);
  });

  it('that a killed process had written aside goes, and one that is being written stays', () => {
    const dir = folder();
    const [old, young] = ['writer.lock.0123456789abcdef', 'writer.lock.fedcba9876543210'];
    for (const name of [old, young]) writeFileSync(join(dir, name), '');
    makeOld(join(dir, old));
    lockWriter(dir).release();
    expect(readdirSync(dir)).toEqual([young]);
  });

  it('in whose place a folder lies, or a folder that is a file, is told in a sentence', () => {
    const dir = folder();
    mkdirSync(join(dir, 'writer.lock'));
    expect(() => lockWriter(dir)).toThrow(expect.objectContaining({ name: 'KvError', code: 'io' }));
    writeFileSync(join(dir, 'file'), '');
    const error = expect.objectContaining({ code: 'io', message: expect.stringContaining(join(dir, 'file')) });
    expect(() => lockWriter(join(dir, 'file'))).toThrow(error);
  });
});

it.each(['memory', 'log', 'memory/experiences'])(
  '%s being a file is told by its path, with what to do',
  async (name) => {
    const state = folder();
    mkdirSync(join(state, 'memory'), { recursive: true });
    const path = join(state, name);
    if (name === 'memory') return expect(await refusedAt(folder(), name)).toContain(name);
    writeFileSync(path, 'x');
    const error = await refused(open(state), path);
    expect(['io', 'bad-index']).toContain(error.code);
    expect(error.message).toContain(path);
  },
);

async function refusedAt(state: string, name: string): Promise<string> {
  writeFileSync(join(state, name), 'x');
  const error = await refused(open(state), name);
  expect(error.code).toBe('io');
  return error.message;
}

describe('a temporary file', () => {
  it('of a process that was killed goes with the next save of the same file, and with that of another', () => {
    const dir = folder();
    const dead = deadPid();
    const names = [`a.json.${dead}.tmp`, `a.json.${process.pid}.tmp`, `b.json.${dead}.tmp`, 'notes.tmp', 'a.json.tmp'];
    for (const name of names) writeFileSync(join(dir, name), 'x');
    replaceFile(join(dir, 'a.json'), Buffer.from('{}'));
    expect(readdirSync(dir).sort()).toEqual(['a.json', 'a.json.tmp', `b.json.${dead}.tmp`, 'notes.tmp']);
    removeLeftovers(dir, (name) => name.startsWith('b'));
    expect(readdirSync(dir).sort()).toEqual(['a.json', 'a.json.tmp', 'notes.tmp']);
    expect(() => removeLeftovers(join(dir, 'nothing'), () => true)).not.toThrow();
  });

  it('of a key that nobody uses goes when the folder is opened', async () => {
    const state = folder();
    await open(state);
    mkdirSync(keysDir(logDir(state)), { recursive: true });
    const [old, young] = ['0'.repeat(32), '1'.repeat(32)].map((name) =>
      join(keysDir(logDir(state)), `${name}.key.tmp`),
    );
    for (const path of [old!, young!]) writeFileSync(path, '{');
    makeOld(old!);
    const [dead, alive] = [deadPid(), process.pid].map((pid) => join(keysDir(logDir(state)), `master.${pid}.tmp`));
    for (const path of [dead!, alive!]) writeFileSync(path, 'x');
    await open(state);
    expect([old!, young!, dead!, alive!].map((path) => existsSync(path))).toEqual([false, true, false, true]);
    expect(readdirSync(memoryDir(state))).not.toContain('writer.lock');
  });
});

it('a pair of keys that could not be written leaves nothing, and the next one is made', () => {
  const dir = folder();
  const path = join(dir, 'audit.key');
  mkdirSync(`${path}.pub`);
  expect(() => writeKeyPair(path)).toThrow();
  expect(existsSync(path)).toBe(false);
  expect(() => writeKeyPair(join(dir, 'nowhere', 'audit.key'))).toThrow(expect.objectContaining({ code: 'io' }));
  writeKeyPair(join(dir, 'other.key'));
  expect(existsSync(join(dir, 'other.key'))).toBe(true);
});

it('a link in the place of a temporary file is not followed', () => {
  const dir = folder();
  const theirs = join(dir, 'theirs');
  writeFileSync(theirs, 'as it was');
  symlinkSync(theirs, join(dir, `a.json.${process.pid}.tmp`));
  replaceFile(join(dir, 'a.json'), Buffer.from('{}'));
  expect(readFileSync(theirs, 'utf8')).toBe('as it was');
});

// Only root may open it, and only where the system has it.
it.skipIf(process.getuid?.() !== 0 || !existsSync('/proc/kmsg'))(
  'a file that never ends is not waited for (needs root)',
  () => {
    for (const args of [
      ['inspect', '/proc/kmsg'],
      ['run', '-m', 'reference', '-p', '/proc/kmsg', '--state', folder()],
    ]) {
      const { status, signal, stderr } = palimpsest(...args);
      expect({ args, signal }).toEqual({ args, signal: null });
      expect(status === 0 || /\[(io|bad-file|context-too-long|unsupported|bad-argument)\]/.test(stderr), stderr).toBe(
        true,
      );
    }
  },
);

describe('palimpsest run', () => {
  const prompt = (dir: string): string => {
    const path = join(dir, 'prompt.txt');
    writeFileSync(path, 'Once upon a time there was a keeper of bees.');
    return path;
  };
  const run = (dir: string, ...args: string[]) =>
    palimpsest(
      'run',
      '-m',
      'reference',
      '-t',
      '1',
      '-p',
      prompt(dir),
      '-n',
      '4',
      '--state',
      join(dir, 'state'),
      ...args,
    );

  it('says that a rule left entries out, and does not blame the disk', () => {
    const dir = folder();
    writeFileSync(join(dir, 'rules.json'), '[{"action":"drop","kinds":["close","evidence"]}]');
    const { stderr, status } = run(dir, '--log-rules', join(dir, 'rules.json'));
    expect(status).toBe(0);
    expect(stderr).toContain('that a rule left out');
    expect(stderr).not.toContain('disk');
  });

  it('says that no place has taken a checkpoint, and does not end well', () => {
    const dir = folder();
    writeKeyPair(join(dir, 'audit.key'));
    const key = ['--anchor-key', join(dir, 'audit.key')];
    const away = run(dir, '--anchor', 'http://127.0.0.1:9/', ...key);
    expect(away.stderr).toContain('Not anchored');
    expect(away.status).toBe(2);
    const kept = run(dir, '--anchor', join(dir, 'anchor.txt'), ...key);
    expect(kept).toMatchObject({ status: 0, stderr: expect.not.stringContaining('Not anchored') });
  });
});
