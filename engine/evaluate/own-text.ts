/**
 * A text of our own (models/text) for demonstrations, benches and tests. It must not be edited, because figures that
 * were measured with it would change.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../native/index.ts';

/**
 * The first characters of the chronicle of an invented town, 31,000 characters of plain English, which is repeated if
 * more are wanted.
 */
export function ownText(charsMin = 0): string {
  const once = readFileSync(join(packageRoot(), 'models', 'text', 'chronicle.txt'), 'utf8').trimEnd();
  return Array.from({ length: Math.max(1, Math.ceil(charsMin / once.length)) }, () => once).join('\n\n');
}
