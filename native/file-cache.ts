/** What the system keeps of files that were read. */
import { integer } from './arguments.ts';
import { check, codeOf, loadBinary } from './load.ts';

/**
 * Tells the system that bytes of an open file need not stay in its cache. They can still be read, from the disk.
 * Answers whether the system takes such advice; Linux does. Throws 'bad-argument' for a descriptor that is not that of
 * an open file.
 */
export function forgetFileBytes(fd: number, offset: number, bytes: number): boolean {
  integer(fd, 'fd', 0, 2 ** 30);
  integer(offset, 'offset', 0, 2 ** 52);
  integer(bytes, 'bytes', 0, 2 ** 52);
  const status = loadBinary().forgetFileBytes(fd, offset, bytes);
  if (codeOf(status) === 'unsupported') return false;
  check(status, 'give back the cached bytes of a file', { fd, offset, bytes });
  return true;
}
