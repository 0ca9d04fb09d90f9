// Logs that hold an entry that makes no sense, as earlier versions wrote some: a digest of 5,000 characters, half a
// byte that is freed. Nobody is locked out of them: whatever reads passes the entry over by name, and writers go on
// behind it.
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { eraseSession, openCache } from '../../../engine/index.ts';
import { logDir } from '../../../engine/state/folder.ts';
import { canonicalJson } from '../../../witness/canonical.ts';
import { encryptBytes } from '../../../witness/encryption.ts';
import {
  type Entry,
  nodeFiles,
  openLogQuery,
  openWitnessLog,
  readEntry,
  readLog,
  replay,
  type SenselessEntry,
  timeline,
  verifyLog,
} from '../../../witness/index.ts';
import { SessionKeys } from '../../../witness/keys.ts';
import { scratchFolders } from './folder.ts';
import { forgeLog, type Loose } from './forged.ts';
import { recordSession, tinyPolicy } from './session.ts';

const folder = scratchFolders();
const GOOD = ['first-session', 'third-session'] as const;
const BAD = 'second-session';
const root = join(import.meta.dirname, '..', '..', '..');

/** A state folder whose log tells three sessions, in one of which an entry is changed (→ its seq), or two. */
async function forged(
  kind: Entry['kind'],
  change: (body: Loose) => void,
  spoiled?: 'close',
): Promise<{ state: string; seq: number }> {
  const state = folder();
  const source = folder();
  const log = await openWitnessLog({ dir: source });
  for (const session of [GOOD[0], BAD, GOOD[1]]) recordSession(log, session);
  await log.close();
  const entries = structuredClone([...readLog(source)]) as unknown as Loose[];
  const seq = entries.findIndex((one) => one['session'] === BAD && one['kind'] === kind);
  change(entries[seq]!['body'] as Loose);
  const other = entries.find((one) => one['session'] === BAD && one['kind'] === spoiled);
  if (other !== undefined) (other['body'] as Loose)['reason'] = 'because';
  const keys = new SessionKeys(nodeFiles, logDir(state));
  nodeFiles.mkdirSync(logDir(state));
  for (const [at, entry] of entries.entries()) {
    const encryption = keys.encryption(at, entry['session'] as string, entry['kind'] as Entry['kind']);
    if (encryption !== null)
      entry['body'] = { committed: encryptBytes(encryption, Buffer.from(canonicalJson(entry['body']))) };
  }
  keys.save();
  forgeLog(logDir(state), entries);
  return { state, seq };
}

const palimpsest = (state: string, ...args: string[]) =>
  spawnSync(process.execPath, [join(root, 'dist', 'engine', 'cli', 'main.js'), ...args, '--state', state], {
    encoding: 'utf8',
  });

const half = (body: Loose): void => {
  (body['decision'] as Loose)['bytesFreed'] = 4096.5;
};
const long = (body: Loose): void => {
  (body['model'] as Loose)['digest'] = 'x'.repeat(5000);
};

it('verify goes on behind it to the end, and names it', async () => {
  const { state, seq } = await forged('decision', half, 'close');
  const all = [...readLog(logDir(state))].length + 2;
  const report = verifyLog(logDir(state));
  expect(report).toMatchObject({ ok: false, entries: all, problem: { seq } });
  const told = { timeMs: expect.any(Number), session: BAD };
  expect(report.senseless).toEqual([
    { ...told, seq, kind: 'decision', what: expect.stringContaining('bytesFreed') },
    { ...told, seq: expect.any(Number), kind: 'close', what: expect.stringContaining('reason') },
  ]);
  const said = palimpsest(state, 'audit', 'verify');
  expect(said.stdout).toContain(`entry ${seq} of session ${BAD}`);
  expect(said.stdout.replaceAll(/\s+/g, ' ')).toContain('Every entry is what was written');
  expect(said.status).toBe(2);
});

it('lists, counts and sessions pass it over and tell of it', async () => {
  const { state, seq } = await forged('open', long);
  const told: SenselessEntry[] = [];
  const query = openLogQuery(logDir(state), { onSenseless: (entry) => told.push(entry) });
  expect((await query.sessions()).map(({ session }) => session).sort()).toEqual([...GOOD].sort());
  expect(told).toMatchObject([{ seq, session: BAD, kind: 'open', what: expect.stringContaining('digest') }]);
  expect((await query.counts('session')).length).toBeGreaterThan(1);
  expect((await query.decisions({ session: BAD })).length).toBeGreaterThan(0);
  const said = palimpsest(state, 'audit', 'sessions');
  expect(said).toMatchObject({ status: 0, stderr: expect.stringContaining(`entry ${seq} of session ${BAD}`) });
});

it('whoever asks for that very entry is told why it is none', async () => {
  const { state, seq } = await forged('decision', half);
  expect(() => readEntry(logDir(state), seq)).toThrow(
    expect.objectContaining({ code: 'bad-log', values: expect.objectContaining({ seq }) }),
  );
  expect(timeline(logDir(state), BAD).map(({ text }) => text)).toContainEqual(expect.stringContaining('bytesFreed'));
});

it('replay decides other sessions again, and ends at the entry in its own', async () => {
  const { state, seq } = await forged('decision', half);
  const again = (session: string) => replay(logDir(state), session, () => tinyPolicy());
  for (const session of GOOD) expect(again(session)).toMatchObject({ equal: true, firstDifference: null });
  expect(again(BAD)).toMatchObject({ equal: false, firstDifference: { seq, what: 'entry' } });
});

it('replay says of a session whose beginning makes no sense which entry it is', async () => {
  const { state, seq } = await forged('open', long);
  expect(() => replay(logDir(state), BAD, () => tinyPolicy())).toThrow(
    expect.objectContaining({ code: 'bad-log', values: { seq, session: BAD } }),
  );
  expect(() => replay(logDir(state), 'nobody')).toThrow(expect.objectContaining({ code: 'not-found' }));
});

it('writers go on behind it, tables hold the rest, and erasing its session ends it', async () => {
  const { state, seq } = await forged('open', long);
  const cache = await openCache({ layers: 1, queryHeads: 1, kvHeads: 1, headDim: 64, stateDir: state });
  const rows = new Float32Array(130 * 64).fill(0.25);
  cache.append(0, rows, rows);
  cache.attention(0, rows);
  await cache.close();
  expect(verifyLog(logDir(state)).senseless).toMatchObject([{ seq }]);
  const indexed = palimpsest(state, 'audit', 'reindex', '--json');
  expect(indexed.status, indexed.stderr).toBe(0);
  await eraseSession(state, BAD);
  const report = verifyLog(logDir(state));
  expect(report).toMatchObject({ ok: true, problem: null });
  expect(report).not.toHaveProperty('senseless');
});

it('one that was not encrypted as entries are is damage, and ends the walk', () => {
  const dir = folder();
  const entry = (body: Loose): Loose => ({ seq: 0, timeMs: 0, session: 's', kind: 'note', body });
  forgeLog(dir, [entry({ word: 'x' }), entry({ sealed: 'AAAA' }), entry({ word: 'y' })]);
  const report = verifyLog(dir);
  expect(report).toMatchObject({ ok: false, entries: 1, problem: { seq: 1 } });
  expect(report).not.toHaveProperty('senseless');
  expect(() => [...readLog(dir)]).toThrow(expect.objectContaining({ code: 'bad-log' }));
});
