/**
 * Writes policy/decisions.gen.ts, the formats that the policy offers for keys with outlier channels, and the table of
 * its page, from scripts/decisions.json, which `npm run evaluate -- decide` writes. With `--check` it writes nothing,
 * and fails when a file has something else.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { DecisionRow } from '../lab/evaluate/decide.ts';
import { FORMATS, type FormatName, isAutomatic } from '../native/format.ts';
import { PER_CHANNEL } from '../policy/outlier-keys.ts';

const root = join(import.meta.dirname, '..');
const rows = JSON.parse(readFileSync(join(root, 'scripts', 'decisions.json'), 'utf8')) as DecisionRow[];

/**
 * What wins with outlier channels, by key format, that no policy chooses otherwise, and what shows that there are any;
 * best first.
 */
const winners = rows.filter(({ outliers }) => outliers).map(({ keys }) => keys as FormatName);
const offered = [...new Set([...winners, PER_CHANNEL as FormatName])]
  .filter((name) => !isAutomatic(name))
  .sort((a, b) => FORMATS[a].rank - FORMATS[b].rank);

const source = `// Written by scripts/generate-decisions.ts from scripts/decisions.json; change that file and run npm run generate.
import type { FormatName } from '../native/index.ts';

/** Formats that win for keys with outlier channels, or show them, and are offered for no other keys, best first. */
export const OUTLIER_KEYS: readonly FormatName[] = [${offered.map((name) => `'${name}'`).join(', ')}];
`;

const small = (value: number): string => (value < 1e-4 ? value.toExponential(1) : String(value));
const table = `
| outlier channels | query heads a KV head | d | tokens | bits at most | keys : values | bits | KLD |
|---|---|---|---|---|---|---|---|
${rows
  .map(
    ({ outliers, queriesPerKv, headDim, context, targetBits, keys, values, bits, meanKld }) =>
      `| ${[outliers ? 'yes' : 'no', queriesPerKv, headDim, context, targetBits, `\`${keys}:${values}\``, bits, small(meanKld)].join(' | ')} |`,
  )
  .join('\n')}
`;

const page = join(root, 'policy', 'README.md');
const old = readFileSync(page, 'utf8');
const outputs = [
  [join(root, 'policy', 'decisions.gen.ts'), source],
  [page, old.replace(/(<!-- decisions: .*? -->)[\s\S]*?(<!-- end -->)/, (_, from, to) => from + table + to)],
] as const;
for (const [path, text] of outputs) {
  let there = '';
  try {
    there = readFileSync(path, 'utf8');
  } catch {
    // The file is missing: it is written below, or reported by --check.
  }
  if (there === text) continue;
  if (process.argv.includes('--check')) {
    console.error(`${path} is stale: run npm run generate`);
    process.exitCode = 1;
  } else writeFileSync(path, text);
}
