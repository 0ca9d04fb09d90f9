/** A text of our own (models/text) for demonstrations, benches and tests. Its words are never edited, since the figures measured on it would move. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { packageRoot } from '../../native/index.ts';

/** The chronicle of an invented town, 31,000 characters of plain English; from its beginning again where more are asked for. */
export function ownText(charsMin = 0): string {
  const once = readFileSync(join(packageRoot(), 'models', 'text', 'chronicle.txt'), 'utf8').trimEnd();
  return Array.from({ length: Math.max(1, Math.ceil(charsMin / once.length)) }, () => once).join('\n\n');
}
