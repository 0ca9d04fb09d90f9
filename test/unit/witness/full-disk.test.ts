// A disk that is really full: a small tmpfs, and a process whose files may not grow. Nothing is lost in silence: in
// every mode each entry that was made is in the log or counted by the writer, and in mode drop by a note in the log
// itself.
import { execFileSync, spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { afterEach, expect, it } from 'vitest';
import { missingEntries, readLog, verifyLog } from '../../../witness/index.ts';
import { scratchFolders } from './folder.ts';

const folder = scratchFolders();
const ENTRIES = 300;
const child = join(import.meta.dirname, 'full-child.ts');
const mounted: string[] = [];
afterEach(() => {
  for (const dir of mounted.splice(0)) execFileSync('umount', [dir]);
});

function expectAccounted(dir: string, said: string): void {
  const { missing, dropped } = JSON.parse(said) as { missing: number; dropped: number };
  const report = verifyLog(dir);
  expect(report).toMatchObject({ ok: true, tornBytes: 0 });
  const entries = [...readLog(dir)];
  const made = entries.filter(({ session }) => session !== '');
  expect(dropped).toBeGreaterThan(0);
  expect(made.length + dropped).toBe(ENTRIES);
  expect(missing).toBe(dropped);
  expect(missingEntries(dir, 'even') + missingEntries(dir, 'odd')).toBe(dropped);
  expect(entries.at(-1)).toMatchObject({ kind: 'note', session: '', body: { note: 'dropped', entries: dropped } });
}

it('counts and notes what a full file system kept out', (context) => {
  const dir = folder();
  const mount = spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=64k', 'tmpfs', dir]);
  if (mount.status !== 0) context.skip('needs the right to mount a tmpfs');
  mounted.push(dir);
  const { stdout, stderr, status } = spawnSync(
    process.execPath,
    ['--import', 'tsx', child, dir, String(ENTRIES), 'drop'],
    {
      encoding: 'utf8',
    },
  );
  expect([status, stderr]).toEqual([0, '']);
  expectAccounted(dir, stdout);
});

it.skipIf(process.platform === 'win32')(
  'counts and notes what a limit of the file size kept out (needs a shell)',
  () => {
    const dir = folder();
    const command = `trap '' XFSZ; ulimit -f 40; exec "${process.execPath}" --import tsx "${child}" "${dir}" ${ENTRIES} drop`;
    const { stdout, stderr, status } = spawnSync('bash', ['-c', command], { encoding: 'utf8' });
    expect([status, stderr]).toEqual([0, '']);
    expectAccounted(dir, stdout);
  },
);

it.skipIf(process.platform === 'win32').each(['block', 'halt'] as const)(
  'counts what a limit of the file size kept out, mode %s (needs a shell)',
  (mode) => {
    const dir = folder();
    const command = `trap '' XFSZ; ulimit -f 40; exec "${process.execPath}" --import tsx "${child}" "${dir}" ${ENTRIES} ${mode}`;
    const { stdout, stderr, status } = spawnSync('bash', ['-c', command], { encoding: 'utf8' });
    expect([status, stderr]).toEqual([0, '']);
    const { made, dropped } = JSON.parse(stdout) as { made: number; dropped: number };
    expect(made).toBeLessThan(ENTRIES);
    expect(dropped).toBeGreaterThan(0);
    expect([...readLog(dir)].length + dropped).toBe(made);
    expect(verifyLog(dir)).toMatchObject({ ok: true, tornBytes: 0 });
  },
);
