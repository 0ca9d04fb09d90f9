/** Checkpoints in a file: text that only grows. It should lie where whoever can write the log cannot write. */
import fs from 'node:fs';
import { dirname } from 'node:path';
import { KvError, syncFolder } from '../native/index.ts';
import { CUT_END } from './checkpoint.ts';

/** Adds checkpoints to the end of a file and syncs it; makes the file where there is none. Throws 'io'. */
export function appendCheckpoints(path: string, notes: readonly string[]): void {
  try {
    const isNew = !fs.existsSync(path);
    const fd = fs.openSync(path, 'a+');
    try {
      fs.writeFileSync(fd, `${isCut(fd) ? CUT_END : ''}${notes.join('')}`);
      fs.fdatasyncSync(fd);
    } finally {
      fs.closeSync(fd);
    }
    if (isNew) syncFolder(dirname(path));
  } catch (cause) {
    throw new KvError('io', `cannot add checkpoints to ${path}: ${(cause as Error).message}`, {
      values: { path },
      hint: 'check the path, its permissions and the free space',
      cause,
    });
  }
}

/** True if a crash left the beginning of a line. */
function isCut(fd: number): boolean {
  const { size } = fs.fstatSync(fd);
  const last = Buffer.alloc(1);
  return size > 0 && fs.readSync(fd, last, 0, 1, size - 1) === 1 && last.toString() !== '\n';
}
