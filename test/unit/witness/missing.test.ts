// A log of which a segment is missing, or two have changed their names: each is named by verify, by every reader and by
// the next writer. The last one leaves no gap, so only a checkpoint that was kept elsewhere tells. Small real logs.
import { cpSync, readdirSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import type { KvError } from '../../../native/index.ts';
import {
  makeCheckpointKeys,
  openWitnessLog,
  parseCheckpoint,
  readLog,
  signLog,
  verifyAgainst,
  verifyLog,
} from '../../../witness/index.ts';
import { fill, scratchFolders } from './folder.ts';

const folder = scratchFolders();

async function segments(dir: string): Promise<string[]> {
  const log = await openWitnessLog({ dir, segmentBytesMax: 600 });
  await fill(log, 30);
  await log.close();
  return readdirSync(dir)
    .filter((name) => name.endsWith('.wal'))
    .sort();
}

async function said(work: () => unknown): Promise<string> {
  try {
    await work();
    return 'nothing';
  } catch (error) {
    const { code, message } = error as KvError;
    return `${code}: ${message}`;
  }
}

it.each([
  ['the second', (dir: string, names: string[]) => rmSync(join(dir, names[1]!)), '00000001.wal'],
  [
    'two in the middle',
    (dir: string, names: string[]) => names.slice(2, 4).map((name) => rmSync(join(dir, name))),
    '00000002.wal',
  ],
  ['the first', (dir: string, names: string[]) => rmSync(join(dir, names[0]!)), '00000000.wal'],
  ['the one before the last', (dir: string, names: string[]) => rmSync(join(dir, names.at(-2)!)), null],
  [
    'two renamed',
    (dir: string, names: string[]) => {
      renameSync(join(dir, names[1]!), join(dir, 'away'));
      renameSync(join(dir, names[2]!), join(dir, names[1]!));
      renameSync(join(dir, 'away'), join(dir, names[2]!));
    },
    '00000001.wal',
  ],
] as const)('%s is named', async (_, change, name) => {
  const dir = folder();
  const names = await segments(dir);
  expect(names.length).toBeGreaterThan(6);
  change(dir, names);
  const named = name ?? names.at(-2)!;
  const { ok, problem } = verifyLog(dir);
  expect([ok, JSON.stringify(problem)]).toEqual([false, expect.stringContaining(named)]);
  expect(await said(() => [...readLog(dir)])).toMatch(new RegExp(`bad-log: .*${named}`));
  expect(await said(() => openWitnessLog({ dir }))).toMatch(/bad-log/);
});

it('the last one is missed by a checkpoint that was kept elsewhere', async () => {
  const [dir, keys, copy] = [folder(), folder(), join(folder(), 'copy')];
  const names = await segments(dir);
  const verifier = makeCheckpointKeys(join(keys, 'key'));
  const checkpoints = signLog(dir, join(keys, 'key')).map((note) => parseCheckpoint(note, [verifier], 'anchor.txt'));
  cpSync(dir, copy, { recursive: true });
  rmSync(join(copy, names.at(-1)!));
  expect(verifyLog(copy)).toMatchObject({ ok: true });
  const { ok, problem } = verifyAgainst(copy, checkpoints);
  expect([ok, JSON.stringify(problem)]).toEqual([false, expect.stringContaining('its end is missing')]);
});
