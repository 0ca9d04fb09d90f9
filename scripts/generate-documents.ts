/**
 * Writes the parts of documents that are described elsewhere: of the formats, from their descriptors, a table between
 * `<!-- formats: … -->` and `<!-- end -->`, and a list of names between `<!-- format names: … -->` and `<!-- end -->`;
 * of the events of an engine a table between `<!-- events: … -->` and `<!-- end -->`, and of the rungs on which bytes
 * are found one behind `<!-- reclaim ladder: … -->`. Between `<!-- packed texts: … -->` or `<!-- packed shapes: … -->`
 * and `<!-- end -->` stands what packed bodies name, and between `<!-- threshold ID: … -->` and `<!-- end -->` the
 * value that it has without evidence. With `--check` it writes nothing, and fails when a document has something else
 * there.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { EVENTS, type EventRow } from '../engine/events/table.ts';
import {
  CODECS,
  FORMAT_NAMES,
  FORMATS,
  type FormatName,
  isAutomatic,
  isYardstick,
  PAGE_TOKENS,
} from '../native/format.ts';
import { fieldBytes } from '../native/formats/descriptor.ts';
import { RECLAIM_LADDER, type ReclaimStage } from '../policy/reclaim.ts';
import { defaultThresholds } from '../policy/thresholds.ts';
import { PACKED_SHAPES, PACKED_TEXTS } from '../witness/pack-lists.ts';

const fieldsOf = (name: FormatName) => FORMATS[name].parts.flatMap(({ fields }) => fields);

/** The bits that one element takes in a head of d channels, all metadata included. */
function bits(name: FormatName, d: number): string {
  const bytes = fieldsOf(name).reduce((sum, field) => sum + fieldBytes(field, d), 0);
  return String(Number(((8 * bytes) / (PAGE_TOKENS * d)).toFixed(2)));
}

/** The same as a formula in d. */
function bitsFormula(name: FormatName): string {
  const sum = (of: 'elementBits' | 'tokenBytes' | 'channelBytes' | 'headBytes'): number =>
    fieldsOf(name).reduce((total, field) => total + (field[of] ?? 0), 0);
  const terms: [bits: number, over: string][] = [
    [sum('elementBits'), ''],
    [8 * sum('tokenBytes'), '/d'],
    [8 * sum('channelBytes'), `/${PAGE_TOKENS}`],
    [8 * sum('headBytes'), `/${PAGE_TOKENS}d`],
  ];
  return terms.flatMap(([count, over]) => (count === 0 ? [] : [`${count}${over}`])).join(' + ');
}

function row(name: FormatName): string {
  const { from, tier, layoutVersion } = FORMATS[name];
  const sources = from === 'better' ? 'any better one' : from.map((other) => `\`${other}\``).join(', ');
  const error = `${Number((100 * CODECS[name].tolerance.relative).toPrecision(2))}%`;
  const cells = [
    `\`${name}\``,
    bitsFormula(name),
    bits(name, 64),
    bits(name, 128),
    error,
    isYardstick(name) ? 'to compare with' : isAutomatic(name) ? tier : `${tier}, keys with outlier channels`,
    sources,
    layoutVersion,
  ];
  return `| ${cells.join(' | ')} |`;
}

function eventRow(name: string, { level, fields, says }: EventRow): string {
  const told = Object.entries(fields).map(([field, { type, means }]) => `\`${field}\`: ${means} (${type})`);
  return `| \`${name}\` | ${level} | ${says.replaceAll(/[{}]/g, '`')} | ${told.join('; ')} |`;
}

/** Some words to a line, as a block of code. */
function block(words: readonly string[]): string {
  const lines = [''];
  for (const word of words) {
    const last = lines.at(-1) as string;
    if (last.length + word.length > 130) lines.push(word);
    else lines[lines.length - 1] = last === '' ? word : `${last} ${word}`;
  }
  return `\n\n${lines.map((line) => `    ${line}`).join('\n')}\n\n`;
}

/** Who is asked in each stage of the ladder. */
const ASKED: Readonly<Record<ReclaimStage, string>> = {
  waiting: 'those that wait',
  named: 'whom the policy of the pool names',
  all: 'all others',
};

const TEXTS: Readonly<Record<string, string>> = {
  'format names': FORMAT_NAMES.filter(isAutomatic)
    .map((name) => `\`${name}\``)
    .join(', '),
  'packed texts': block(PACKED_TEXTS),
  'packed shapes': `\n\n${PACKED_SHAPES.map((keys) => `    ${keys.join(' ')}`).join('\n')}\n\n`,
  formats: `
| format | bits of an element | d = 64 | d = 128 | error of a Gaussian row, at most | tier | may come from | layout version |
|---|---|---|---|---|---|---|---|
${FORMAT_NAMES.map(row).join('\n')}
`,
  'reclaim ladder': `
| rung | who is asked | with \`idleSessions\` | where bytes come from | what that costs |
|---|---|---|---|---|
${RECLAIM_LADDER.map(({ id, stage, places, finds, costs }) => `| \`${id}\` | ${ASKED[stage]} | ${places.map((place) => `\`${place}\``).join(', ')} | ${finds} | ${costs} |`).join('\n')}
`,
  events: `
| event | level | says | fields |
|---|---|---|---|
${Object.entries(EVENTS)
  .map(([name, event]) => eventRow(name, event))
  .join('\n')}
`,
};

const { thresholds } = defaultThresholds(1);

/** Throws for a threshold that there is not. */
function textOf(what: string): string {
  const [, id] = /^threshold (\S+)$/.exec(what) ?? [];
  const text = id === undefined ? TEXTS[what] : thresholds[id]?.value;
  if (text === undefined) throw new Error(`nothing is known of '${what}'`);
  return String(text);
}

const DOCUMENTS = [
  ...['README.md', 'ARCHITECTURE.md', 'native/README.md'],
  ...['guide', 'library', 'log-format', 'operate'].map((name) => `docs/${name}.md`),
];

for (const name of DOCUMENTS) {
  const file = join(import.meta.dirname, '..', name);
  const old = readFileSync(file, 'utf8');
  const text = old.replace(
    /(<!-- ([\w .]+): written by npm run generate -->)[\s\S]*?(<!-- end -->)/g,
    (_, begin: string, what: string, end: string) => begin + textOf(what) + end,
  );
  if (text === old) continue;
  if (process.argv.includes('--check')) {
    console.error(`${name} is stale: run npm run generate`);
    process.exitCode = 1;
  } else writeFileSync(file, text);
}
