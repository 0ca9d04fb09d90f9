/**
 * Run by retain-beside.test.ts as a process: keeps the state folder in argv[3] open for writing (`engine`), or asks the
 * writer of the first series to remove everything and does not wait for the answer (`ask`).
 */
import { writeSync } from 'node:fs';
import { openState } from '../../../../engine/state/folder.ts';
import { retainLog } from '../../../../engine/state/retention.ts';

const [what, stateDir] = process.argv.slice(2) as ['engine' | 'ask', string];
if (what === 'engine') {
  const state = await openState(stateDir, { mode: 'block' });
  writeSync(1, 'ready\n');
  process.stdin.resume();
  process.stdin.on('end', () => void state.close());
} else void retainLog(stateDir, { maxSize: '1KB' });
