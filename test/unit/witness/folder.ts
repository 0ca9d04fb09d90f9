/** Scratch folders for one test file, what lies in them, and entries to fill a log with. */
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll } from 'vitest';
import type { WitnessLog } from '../../../witness/index.ts';

export function scratchFolders(): () => string {
  const made: string[] = [];
  afterAll(() => {
    for (const dir of made) rmSync(dir, { recursive: true, force: true });
  });
  return () => {
    const dir = mkdtempSync(join(tmpdir(), 'palimpsest-witness-'));
    made.push(dir);
    return dir;
  };
}

/** Paths of all files in a folder and below it. */
export const filesOf = (dir: string): string[] =>
  readdirSync(dir, { recursive: true, withFileTypes: true })
    .filter((one) => one.isFile())
    .map((one) => join(one.parentPath, one.name));

/** Appends `count` notes {n: 0 …} and waits for the disk. */
export async function fill(log: WitnessLog, count: number, pad = 0): Promise<void> {
  for (let n = 0; n < count; n++) log.append('s', 'note', { n, pad: 'x'.repeat(pad) });
  await log.flush();
}
