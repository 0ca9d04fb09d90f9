// Erasing a session, on the reference model: two sessions run, are indexed in SQL and as vectors, and one of them is
// erased. Afterwards no number that only this one knew stands in any file of the state folder, as text or as bytes, and
// everything else is as it was. Nothing shorter shows that no file of any index keeps a number; each case begins with a
// state folder that two sessions have filled.

import { spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { createEngine, eraseSession, holdSession, openSessionIndex } from '../../../../engine/index.ts';
import { logDir, readBook, sqlDir } from '../../../../engine/state/folder.ts';
import {
  type Entry,
  keysDir,
  openAuditIndex,
  openLogQuery,
  openWitnessLog,
  readLog,
  replay,
  verifyLog,
} from '../../../../witness/index.ts';
import { placeEmptySql } from '../../../empty-sql.ts';
import { refused } from '../../../refusal.ts';
import { isDealt } from '../../../tier.ts';
import { filesOf, scratchFolders } from '../../witness/folder.ts';
import { answered, expectRefused, lastLine, palimpsest } from '../cli/command.ts';
import { codeOf, ids, MODEL, openEngine, written } from '../on-reference.ts';

const folder = scratchFolders();
let made = '';
let erased = '';
let other = '';

beforeAll(async () => {
  made = join(folder(), 'state');
  const engine = await openEngine(made);
  const first = await written(engine, { kvBudget: '30%' });
  const second = await written(engine, { kvBudget: '40%' }, ids(1000, 7));
  [erased, other] = [first.id, second.id];
  await first.close();
  await second.close();
  await engine.close();
  await placeEmptySql(sqlDir(made));
  await (await openAuditIndex({ logDir: logDir(made), dir: sqlDir(made) })).close();
  mkdirSync(join(made, 'reports'));
  writeFileSync(join(made, 'reports', 'a.html'), `<p>${'x'.repeat(2 ** 20 - 20)}${erased}</p>`);
  writeFileSync(join(made, 'reports', 'b.html'), `<p>${other}</p>`);
});

function copy(): string {
  const state = join(folder(), 'state');
  cpSync(made, state, { recursive: true });
  return state;
}

/**
 * Some of what one session alone has said: long numbers as they are spelled and as a database keeps them, and its
 * fingerprint as a vector index does.
 */
function secretsOf(state: string): { texts: string[]; bytes: Buffer[] } {
  const numbers = (session: string): Set<string> =>
    new Set(
      [...readLog(logDir(state), { session })].flatMap(({ body }) => JSON.stringify(body).match(/\d\.\d{8,}/g) ?? []),
    );
  const [own, others] = [numbers(erased), numbers(other)];
  const texts = [...own].filter((text) => !others.has(text)).slice(-25);
  const close = (session: string): readonly number[] =>
    ([...readLog(logDir(state), { session, kinds: ['close'] })] as Entry<'close'>[])[0]!.body.fingerprint;
  const strange = close(erased).filter((x) => !close(other).includes(x) && Math.fround(x) !== x);
  const floats = strange.map((x) => Buffer.from(Float32Array.of(x).buffer));
  return {
    texts,
    bytes: [...floats, ...[...texts, ...strange].map((x) => Buffer.from(Float64Array.of(Number(x)).buffer))],
  };
}

/** Files of a folder in which one of them stands. */
function found(state: string, { texts, bytes }: ReturnType<typeof secretsOf>): string[] {
  const isThere = (content: Buffer): boolean => {
    const text = content.toString('latin1');
    return texts.some((one) => text.includes(one)) || bytes.some((one) => content.includes(one));
  };
  return filesOf(state).filter((path) => isThere(readFileSync(path)));
}

/** No part of it is left, and the rest is whole. */
async function expectErased(state: string, secrets: ReturnType<typeof secretsOf>): Promise<void> {
  const log = logDir(state);
  expect(found(state, secrets)).toEqual([]);
  const naming = filesOf(state).filter((path) => readFileSync(path).includes(erased));
  expect(naming.filter((path) => !path.endsWith('.wal'))).toEqual([]);
  const report = verifyLog(log);
  expect(report).toMatchObject({ ok: true, problem: null, foreign: [] });
  expect(report.unopened).toBeGreaterThan(10);
  expect([...readLog(log)].filter(({ session }) => session === erased).map(({ kind, body }) => [kind, body])).toEqual([
    ['erase', { by: 'eraseSession' }],
  ]);
  expect(replay(log, other)).toMatchObject({ equal: true, complete: true });
  const book = await readBook(state);
  expect(book.rebuilt).toBe(null);
  expect(book.seqs.length).toBe(1);
  await book.close();
}

describe('a session', () => {
  it('is known in log, tables and vectors before it is erased, and nowhere afterwards', async () => {
    const state = copy();
    const secrets = secretsOf(state);
    expect(secrets.texts.length).toBe(25);
    expect(secrets.bytes.length).toBeGreaterThan(30);
    const where = found(state, secrets).map((path) => path.slice(state.length + 1).split('/')[0]);
    expect(new Set(where)).toEqual(new Set(['memory', 'sql']));
    expect(await eraseSession(state, erased)).toEqual({
      session: erased,
      entries: expect.any(Number),
      erasedMs: null,
      files: ['reports/a.html'],
      databaseRows: null,
      qdrantPoints: null,
    });
    await expectErased(state, secrets);
    expect(existsSync(join(state, 'reports', 'b.html'))).toBe(true);
    const log = logDir(state);
    const sql = await openAuditIndex({ logDir: log, dir: sqlDir(state) });
    const { rows } = await sql.query(
      'select session from sessions union select session from decisions union select session from experiences',
    );
    await sql.close();
    expect(rows).toEqual([[other]]);
    expect(found(state, secrets)).toEqual([]);
  });

  it('is refused by name when it was erased, and other answers leave it out', async () => {
    const state = copy();
    const [first] = await openLogQuery(logDir(state)).decisions({ session: erased });
    await eraseSession(state, erased);
    expect((await openLogQuery(logDir(state)).sessions()).map(({ session }) => session)).toEqual([other]);
    expect(() => replay(logDir(state), erased)).toThrow(expect.objectContaining({ code: 'sealed' }));
    for (const args of [
      ['replay', erased],
      ['explain', String(first!.seq)],
      ['list', '--session', erased],
    ])
      expectRefused(await answered(['audit', ...args, '--state', state]), 'sealed', /was erased/);
    const sessions = await openSessionIndex({ stateDir: state });
    const near = await sessions.nearestSessions(new Array(14).fill(0.5), 5);
    await sessions.close();
    expect(near.map(({ payload }) => payload.session)).toEqual([other]);
  });

  it('that was erased is not erased again, but what is left of it is looked for', async () => {
    const state = copy();
    await eraseSession(state, erased);
    writeFileSync(join(state, 'late.json'), JSON.stringify({ session: erased }));
    const again = await eraseSession(state, erased.slice(0, 30));
    expect(again).toMatchObject({ session: erased, files: ['late.json'] });
    expect(again.erasedMs).toBeGreaterThan(0);
    const log = [...readLog(logDir(state), { session: erased, kinds: ['erase'] })];
    expect(log.length).toBe(1);
  });

  it('that does not exist, runs, is held, or was written unencrypted is refused, and nothing happens to it', async () => {
    const state = copy();
    expect(await codeOf(eraseSession(state, 'nobody'))).toBe('not-found');
    expect(await codeOf(eraseSession(join(state, 'none'), erased))).toBe('not-found');
    const engine = await openEngine(state);
    const running = await written(engine, { kvBudget: '60%' }, ids(600));
    await running.flush();
    expect(await codeOf(eraseSession(state, running.id))).toBe('busy');
    await running.close();
    // The engine goes on, keeps the book, and forgets the session when the next one ends.
    const late = await refused(eraseSession(state, running.id));
    expect(late.code).toBe('locked');
    const next = await written(engine, { kvBudget: '60%' }, ids(600, 3));
    await next.close();
    await engine.close();
    await eraseSession(state, running.id);
    const book = await readBook(state);
    expect(book.seqs.length).toBe(3);
    await book.close();

    expect(await holdSession(state, other)).toEqual({ session: other, changed: true });
    expect(await holdSession(state, other)).toEqual({ session: other, changed: false });
    expect(await codeOf(eraseSession(state, other))).toBe('held');
    expect([...readLog(logDir(state), { session: other })].length).toBeGreaterThan(10);
    await holdSession(state, other, { release: true });
    await eraseSession(state, other);
    expect(await codeOf(holdSession(state, other))).toBe('sealed');

    const log = await openWitnessLog({ dir: logDir(state) });
    log.append('plain', 'note', { word: 1 });
    await log.close();
    expect(await codeOf(eraseSession(state, 'plain'))).toBe('unsupported');
    expect(verifyLog(logDir(state))).toMatchObject({ ok: true });
  });

  it('whose writer was killed can be erased, also while another writer holds the series', async () => {
    const state = join(folder(), 'state');
    const log = await openWitnessLog({ dir: logDir(state), encrypt: true, clock: () => Date.now() - 60_000 });
    log.append('killed', 'note', { word: 1 });
    await log.close();
    const later = await openWitnessLog({ dir: logDir(state), encrypt: true });
    later.append('now', 'note', { word: 2 });
    await later.flush();
    expect(await codeOf(eraseSession(state, 'now'))).toBe('busy');
    expect(await eraseSession(state, 'killed')).toMatchObject({ entries: 1 });
    await later.close();
    expect(verifyLog(logDir(state))).toMatchObject({ ok: true, unopened: 1 });
  });
});

const STEPS = ['key', 'sql', 'database', 'experience', 'qdrant', 'files', 'entry'];

it('an erasure that ends between any two steps is finished by the next', async () => {
  const child = join(import.meta.dirname, 'erase-child.ts');
  const secrets = secretsOf(made);
  for (const step of STEPS.filter((_, place) => isDealt(place, 3))) {
    const state = copy();
    const { signal } = spawnSync(process.execPath, ['--import', 'tsx', child, state, erased, step], {
      encoding: 'utf8',
    });
    expect(signal, step).toBe('SIGKILL');
    expect(verifyLog(logDir(state)), step).toMatchObject({ ok: true });
    await eraseSession(state, erased);
    await expectErased(state, secrets);
  }
});

it('the key is overwritten before it is removed', async () => {
  const state = copy();
  const keys = keysDir(logDir(state));
  const contents = readdirSync(keys).map((name) => readFileSync(join(keys, name), 'utf8'));
  const key = contents.find((text) => text.includes(erased))!;
  await eraseSession(state, erased);
  const marks = readdirSync(keys).filter((name) => name.endsWith('.erased'));
  expect(marks.map((name) => statSync(join(keys, name)).size)).toEqual([0]);
  expect(filesOf(state).some((path) => readFileSync(path).includes(JSON.parse(key).key))).toBe(false);
});

it('the command asks, and does what it says with --yes', async () => {
  const state = copy();
  expectRefused(await answered(['audit', 'erase', '--state', state]), 'bad-argument', /no session was named/);
  const asked = await answered(['audit', 'erase', '--session', erased, '--state', state]);
  expectRefused(asked, 'bad-argument', /--yes/);
  expect([...readLog(logDir(state), { session: erased })].length).toBeGreaterThan(10);
  const held = await answered(['audit', 'hold', '--session', erased, '--state', state]);
  expect(held).toMatchObject({ code: 0, out: expect.stringContaining('neither erase nor retain') });
  expectRefused(await answered(['audit', 'erase', '--session', erased, '--yes', '--state', state]), 'held');
  await answered(['audit', 'hold', '--session', erased, '--release', '--state', state]);
  const done = await palimpsest(['audit', 'erase', '--session', erased, '--yes', '--json', '--state', state]);
  expect(lastLine(done.out)).toMatchObject({ session: erased, erasedMs: null, files: ['reports/a.html'] });
  const twice = await answered(['audit', 'erase', '--session', erased, '--yes', '--state', state]);
  expect(twice).toMatchObject({ code: 0, out: expect.stringContaining('was erased') });
  const verified = await answered(['audit', 'verify', '--state', state]);
  expect(verified).toMatchObject({ code: 0, out: expect.stringContaining('could not be opened') });
});

it('lists and counts say on stderr, once, how many sessions they passed over, and nothing where there was none', async () => {
  const state = copy();
  const asked = (...args: string[]) => answered(['audit', ...args, '--state', state]);
  const lists = [
    ['list', '--json'],
    ['count', '--format', 'csv'],
    ['sessions', '--format', 'jsonl'],
    ['similar', 'long'],
  ];
  for (const args of lists) expect(await asked(...args)).toMatchObject({ code: 0, err: '' });
  await eraseSession(state, erased);
  for (const args of lists) {
    const { code, out, err } = await asked(...args);
    expect([code, err]).toEqual([0, 'Passed over: 1 session that was erased.\n']);
    expect(out).not.toContain(erased);
  }
  expect((await asked('list', '--since', '2100-01-01')).err).toBe('');
  expect((await asked('list', '--session', other)).err).toBe('');
  const sums = await asked('query', 'select count(*) from sessions', '--json');
  expect(lastLine(sums.out)).toMatchObject({ rows: [[1]], passedOver: { erased: 1, missing: 0 } });
  expect(sums.err).toContain('Passed over: 1 session that was erased.');
});

it('the command wraps keys that lay open, then by another master key, and without it sessions are passed over', async () => {
  const state = copy();
  const [first, second] = ['1'.repeat(64), '2'.repeat(64)];
  const asked = (...args: string[]) => palimpsest(['audit', ...args, '--json', '--state', state]);
  expectRefused(await asked('rewrap'), 'bad-argument', /no master key/);
  // Tables lie in the folder until a master key wraps the log.
  const counted = (...args: string[]) => asked('query', 'select count(*) from sessions', ...args);
  const tables = (): number => readdirSync(join(state, 'sql'), { recursive: true }).length;
  await counted();
  expect(tables()).toBeGreaterThan(100);
  const wrapped = await asked('rewrap', '--master-key', first);
  expect(lastLine(wrapped.out)).toMatchObject({ rewrapped: 2, already: 0 });
  expect(tables()).toBeLessThan(3);
  expect(lastLine((await counted('--master-key', first)).out)).toMatchObject({ rows: [[2]] });
  expect(tables()).toBeLessThan(3);
  expectRefused(await asked('rewrap', '--master-key', second), 'bad-config', /was not given/);
  const again = await asked('rewrap', '--master-key', second, first);
  expect(lastLine(again.out)).toMatchObject({ rewrapped: 2, already: 0 });
  const whole = await asked('sessions', '--master-key', second);
  expect([lastLine(whole.out)].flat().length).toBe(2);
  expect(whole.err).toBe('');
  const locked = await asked('sessions', '--master-key', first);
  expect(locked).toMatchObject({ code: 0, err: 'Passed over: 2 sessions whose keys are not here.\n' });
  // What was learned is read from the log, so an export says what it could not ask.
  const exported = (...args: string[]) =>
    palimpsest(['thresholds', 'export', join(state, 'out.json'), '-m', MODEL, '--json', '--state', state, ...args]);
  const told = await exported('--master-key', second);
  expect([told.code, told.err]).toEqual([0, '']);
  expect(lastLine(told.out)).toMatchObject({ passedOver: { erased: 0, missing: 0 } });
  const lacking = await exported();
  expect(lacking).toMatchObject({ code: 0, err: 'Passed over: 2 sessions whose keys are not here.\n' });
  expect(lastLine(lacking.out)).toMatchObject({ passedOver: { erased: 0, missing: 2 } });
  await asked('rewrap', '--master-key', second);
});

it('the command retains, after a dry run that says the same', async () => {
  const state = copy();
  const asked = ['audit', 'retain', '--max-size', '1KB', '--json', '--state', state];
  const [dry, done] = [await answered([...asked, '--dry-run']), await palimpsest(asked)];
  expect({ ...lastLine(done.out), dryRun: true }).toEqual(lastLine(dry.out));
  expectRefused(await answered(['audit', 'retain', '--state', state]), 'bad-argument', /an age or a size/);
  expectRefused(await answered(['audit', 'retain', '--max-size', '50%', '--state', state]), 'bad-argument');
  expectRefused(
    await answered(['audit', 'retain', '--older-than', 'soon', '--state', state]),
    'bad-argument',
    /not a time/,
  );
  expect(verifyLog(logDir(state))).toMatchObject({ ok: true });
});

it('an engine retains when it opens', async () => {
  const state = join(folder(), 'state');
  const old = await openWitnessLog({
    dir: logDir(state),
    encrypt: true,
    segmentBytesMax: 1000,
    clock: () => Date.now() - 1e9,
  });
  for (let n = 0; n < 40; n++) old.append('old', 'note', { n, pad: 'x'.repeat(100) });
  await old.close();
  const segments = (): number => readdirSync(logDir(state)).filter((name) => name.endsWith('.wal')).length;
  const before = segments();
  const options = { model: MODEL, threads: 1, stateDir: state };
  await (await createEngine({ ...options, logRetention: { olderThan: '60d' } })).close();
  expect(segments()).toBe(before);
  await (await createEngine({ ...options, logRetention: { olderThan: '2d' } })).close();
  expect(segments()).toBeLessThan(3);
  expect(verifyLog(logDir(state))).toMatchObject({ ok: true });
  await expect(createEngine({ ...options, logRetention: { maxSize: 'much' } })).rejects.toMatchObject({
    code: 'bad-argument',
  });
});
