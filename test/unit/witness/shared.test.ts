// Many writers share one log folder: eight processes write and read it at once, and every entry of every one is there
// once, under a seq of its own, in one log that verifies. A series that nobody holds is continued; one that is damaged
// or foreign is not.
import { execFile } from 'node:child_process';
import { cpSync, mkdirSync, readdirSync, readFileSync, renameSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, it } from 'vitest';
import {
  entryId,
  newId,
  openLogQuery,
  openWitnessLog,
  parseEntryId,
  readEntry,
  readLog,
  verifyLog,
  verifyText,
} from '../../../witness/index.ts';
import { TIER } from '../../tier.ts';
import { scratchFolders } from './folder.ts';
import { recordSession } from './session.ts';

const folder = scratchFolders();
const run = promisify(execFile);
const PROCESSES = TIER === 'home' ? 4 : 8;
const ENTRIES = 60;
const OPENINGS = 3;

/** Writes with `writers` writers at once. → the folder, and the seqs of each */
async function sharedLog(writers: number, entries = 5): Promise<{ dir: string; seqs: number[][] }> {
  const dir = folder();
  let now = 1000;
  const logs = [];
  for (let n = 0; n < writers; n++) logs.push(await openWitnessLog({ dir, clock: () => now++ }));
  const seqs = logs.map(() => [] as number[]);
  for (let n = 0; n < entries; n++)
    for (const [at, log] of logs.entries()) seqs[at]!.push(log.append(`session ${at}`, 'note', { n }) as number);
  for (const log of logs) await log.close();
  return { dir, seqs };
}

describe('a log folder with many writers', () => {
  it(`serves ${PROCESSES} processes that write and read at once`, async () => {
    const dir = folder();
    const sessions = Array.from({ length: PROCESSES }, () => newId());
    const answers = await Promise.all(
      sessions.map((session) =>
        run(process.execPath, [
          '--import',
          'tsx',
          join(import.meta.dirname, 'shared-child.ts'),
          dir,
          session,
          String(ENTRIES),
        ]),
      ),
    );
    const report = verifyLog(dir);
    expect(report).toMatchObject({ ok: true, entries: PROCESSES * ENTRIES * OPENINGS, tornBytes: 0, foreign: [] });
    expect(report.series.length).toBeGreaterThan(1);
    expect(report.series.length).toBeLessThanOrEqual(PROCESSES);
    const all = [...readLog(dir)];
    expect(new Set(all.map(({ seq }) => seq)).size).toBe(report.entries);
    for (const [at, { stdout }] of answers.entries()) {
      const seqs = JSON.parse(stdout) as number[];
      const own = all.filter(({ session }) => session === sessions[at]);
      expect(own.map(({ seq }) => seq)).toEqual(seqs);
      expect(own.map(({ body }) => (body as { n: number }).n)).toEqual(seqs.map((_, n) => n));
      expect(readEntry(dir, seqs[0]!).session).toBe(sessions[at]);
    }
    const times = all.map(({ timeMs }) => timeMs);
    expect(times).toEqual([...times].sort((a, b) => a - b));
  });

  it('is read as one log in order of time, and ids name one entry each', async () => {
    const { dir, seqs } = await sharedLog(3);
    const all = [...readLog(dir)];
    expect(all.map(({ session }) => session)).toEqual(Array.from({ length: 15 }, (_, at) => `session ${at % 3}`));
    expect(seqs[1]).toEqual([0, 1, 2, 3, 4].map((n) => 2 ** 32 + n));
    expect([entryId(seqs[0]![3]!), entryId(seqs[2]![3]!)]).toEqual(['3', '2:3']);
    for (const { seq, session } of all) {
      expect(parseEntryId(entryId(seq))).toBe(seq);
      expect(parseEntryId(String(seq))).toBe(seq);
      expect(readEntry(dir, seq)).toMatchObject({ seq, session });
    }
    for (const typed of ['', '1:', ':1', '-1', '1.5', '1:4294967296', '99999:1', '99999999999999999'])
      expect(() => parseEntryId(typed)).toThrowError(expect.objectContaining({ code: 'bad-argument' }));
    for (const seq of [5, 2 ** 32 + 5, 7 * 2 ** 32])
      expect(() => readEntry(dir, seq)).toThrowError(expect.objectContaining({ code: 'not-found' }));
    expect([...readLog(dir, { from: [4, 2 ** 32 + 3, 2 ** 32 + 4] })].map(({ seq }) => seq)).toEqual([
      ...seqs[2]!.slice(0, 4),
      4,
      2 ** 32 + 4,
      seqs[2]![4],
    ]);
  });

  it('is paged through from the newest decision to the oldest', async () => {
    const dir = folder();
    let now = 1000;
    const logs = [];
    for (let n = 0; n < 3; n++) logs.push(await openWitnessLog({ dir, clock: () => (now += 1) }));
    for (const [at, log] of logs.entries()) recordSession(log, `session ${at}`, { situations: 3 });
    for (const log of logs) await log.close();
    const query = openLogQuery(dir);
    const all = await query.decisions({ limit: 1000 });
    const paged: typeof all = [];
    for (let page = await query.decisions({ limit: 5 }); page.length > 0; ) {
      paged.push(...page);
      page = await query.decisions({ limit: 5, beforeSeq: page.at(-1)!.seq });
    }
    expect(paged).toEqual(all);
    expect((await query.sessions()).map(({ session }) => session)).toEqual(['session 2', 'session 1', 'session 0']);
  });

  it('keeps one series while writers come one after the other', async () => {
    const dir = folder();
    for (let n = 0; n < 5; n++) {
      const log = await openWitnessLog({ dir });
      expect(log.append('s', 'note', { n })).toBe(n);
      await log.close();
    }
    expect(readdirSync(dir)).toEqual(['00000000.wal']);
  });

  it('continues a free series, and times in it never fall', async () => {
    const { dir } = await sharedLog(3);
    const first = await openWitnessLog({ dir });
    const second = await openWitnessLog({ dir, clock: () => 1 });
    expect(second.append('s', 'note', {})).toBe(2 ** 32 + 5);
    await second.close();
    await first.close();
    expect(readEntry(dir, 2 ** 32 + 5).timeMs).toBeGreaterThan(1000);
    expect(readdirSync(dir).sort()).toEqual(['00000000.wal', 'writer-0001', 'writer-0002']);
  });

  it('refuses a series of another log, and one that stands in the place of another', async () => {
    const [a, b] = [await sharedLog(3), await sharedLog(2)];
    const foreign = folder();
    cpSync(a.dir, foreign, { recursive: true });
    cpSync(join(b.dir, 'writer-0001'), join(foreign, 'writer-0001'), { recursive: true, force: true });
    expect(verifyLog(foreign)).toMatchObject({ ok: false, problem: { segment: 'writer-0001/00000000.wal' } });
    expect(() => [...readLog(foreign)]).toThrowError(expect.objectContaining({ code: 'bad-log' }));
    const swapped = folder();
    cpSync(a.dir, swapped, { recursive: true });
    renameSync(join(swapped, 'writer-0001'), join(swapped, 'writer-0007'));
    expect(verifyLog(swapped)).toMatchObject({ ok: false, problem: { segment: 'writer-0007/00000000.wal' } });
  });
});

describe('what is not of the log', () => {
  async function logOf(segments: number): Promise<string> {
    const dir = folder();
    const log = await openWitnessLog({ dir, segmentBytesMax: 300 });
    for (let n = 0; readdirSync(dir).length < segments; n++) {
      log.append('s', 'note', { n, pad: 'x'.repeat(100) });
      await log.flush();
    }
    await log.close();
    return dir;
  }
  const names = (dir: string): string[] => readdirSync(dir).filter((name) => name.endsWith('.wal'));

  // Before: sound with the same head, and the next run wrote over the entries of the second segment.
  it('segments renumbered by one are found, and no writer touches them', async () => {
    const dir = await logOf(5);
    for (const name of names(dir).reverse())
      renameSync(join(dir, name), join(dir, `${String(Number(name.slice(0, 8)) + 1).padStart(8, '0')}.wal`));
    const bytes = names(dir).map((name) => readFileSync(join(dir, name)));
    expect(verifyLog(dir)).toMatchObject({
      ok: false,
      problem: { what: expect.stringContaining('segment 0 stands where segment 1 must be') },
    });
    await expect(openWitnessLog({ dir })).rejects.toMatchObject({ code: 'bad-log' });
    expect(names(dir).map((name) => readFileSync(join(dir, name)))).toEqual(bytes);
  });

  // Before: sound, and 'bad-log' for every writer.
  it('an empty segment far behind the others is named, and locks nobody out', async () => {
    const dir = await logOf(2);
    writeFileSync(join(dir, '99999999.wal'), '');
    const { entries } = verifyLog(dir);
    const log = await openWitnessLog({ dir });
    expect(log.append('s', 'note', {})).toBe(entries);
    await log.close();
    const report = verifyLog(dir);
    expect(report).toMatchObject({ ok: true, foreign: [{ file: '99999999.wal', bytes: 0 }] });
    expect(verifyText(report)).toContain('99999999.wal, 0 bytes: is not of the log');
  });

  it('files, folders, a segment that was renamed and bytes behind the end are named to the byte', async () => {
    const dir = await logOf(4);
    const last = names(dir).at(-1) as string;
    const size = readFileSync(join(dir, last)).length;
    renameSync(join(dir, last), join(dir, `${last}.torn`));
    const before = names(dir).at(-1) as string;
    const end = readFileSync(join(dir, before)).length;
    truncateSync(join(dir, before), end + 700);
    writeFileSync(join(dir, 'notes.txt'), 'mine');
    mkdirSync(join(dir, 'things'));
    const { ok, foreign, tornBytes } = verifyLog(dir);
    expect([ok, tornBytes]).toEqual([true, 700]);
    expect([...foreign].sort((a, b) => (a.file < b.file ? -1 : 1))).toMatchObject([
      { file: before, offset: end, bytes: 700 },
      { file: `${last}.torn`, offset: 0, bytes: size, what: expect.stringContaining('no entry says') },
      { file: 'notes.txt', bytes: 4 },
      { file: 'things', bytes: null },
    ]);
    // A tail that a writer set aside is accounted for by the entry that it wrote.
    await (await openWitnessLog({ dir })).close();
    expect(
      verifyLog(dir)
        .foreign.map(({ file }) => file)
        .sort(),
    ).toEqual([`${last}.torn`, 'notes.txt', 'things']);
    expect(verifyText(verifyLog(dir))).toContain('What this cannot know');
  });
});
