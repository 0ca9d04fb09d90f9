/**
 * Writes docs/options.md, the reference of all options, from the tables of options. With `--check` it writes nothing,
 * and fails when something else is there.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { ANSWERS_OPTIONS } from '../engine/openai/options.ts';
import { LATENT_OPTIONS } from '../engine/options/latent-options.ts';
import {
  CACHE_OPTIONS,
  CONTINUATION_OPTIONS,
  ENGINE_OPTIONS,
  GENERATE_OPTIONS,
  GOVERNING_OPTIONS,
  PARK_OPTIONS,
  SEND_OPTIONS,
  SESSION_OPTIONS,
  STATE_OPTIONS,
} from '../engine/options/table.ts';
import { SERVE_OPTIONS, STREAM_OPTIONS } from '../engine/serve/options.ts';
import { CONVERSATION_OPTIONS } from '../engine/thread/chat-options.ts';
import type { Option } from '../native/index.ts';

type Table = Readonly<Record<string, Option>>;

const without = (table: Table, ...others: readonly Table[]): Table =>
  Object.fromEntries(Object.entries(table).filter(([name]) => !others.some((other) => Object.hasOwn(other, name))));

const SECTIONS: readonly (readonly [title: string, about: string, table: Table])[] = [
  [
    'A cache, whoever owns the runtime',
    'Of `openSession`, `resume`, `engine.chat` and `openCache`.',
    GOVERNING_OPTIONS,
  ],
  [
    'A session',
    'Of `openSession`, `resume` (which takes `onProgress` and `signal` as well) and `engine.chat`, beside those of a cache.',
    without(SESSION_OPTIONS, GOVERNING_OPTIONS),
  ],
  [
    'A cache of a runtime of your own',
    'Of `openCache` and `loadCache`, beside those of a cache and of a state folder.',
    without(CACHE_OPTIONS, GOVERNING_OPTIONS, STATE_OPTIONS),
  ],
  ['Latents of a cache', 'Of `latents` of `openCache`; sessions take the first two.', LATENT_OPTIONS],
  ['An engine', 'Of `createEngine`, beside those of a state folder.', without(ENGINE_OPTIONS, STATE_OPTIONS)],
  ['A state folder', 'Of `createEngine` and `openCache`.', STATE_OPTIONS],
  [
    'An answer',
    'Of `generate`, `continuations`, `send` and `regenerate`, and but for the last two of `engine.chat`, where they hold for every answer.',
    GENERATE_OPTIONS,
  ],
  [
    'Several answers',
    'Of `continuations`, beside those of an answer.',
    without(CONTINUATION_OPTIONS, GENERATE_OPTIONS),
  ],
  [
    'An answer of a chat',
    'Of `engine.chat`, `send` and `regenerate`, beside those of an answer.',
    without(SEND_OPTIONS, GENERATE_OPTIONS),
  ],
  ['A chat', 'Of `engine.chat`, beside those of a cache, a session and an answer.', CONVERSATION_OPTIONS],
  ['Parking', 'Of `park`.', PARK_OPTIONS],
  ['The live view', 'Of `serve`.', SERVE_OPTIONS],
  ['Answers for OpenAI clients', 'Of `answers` of `serve`.', ANSWERS_OPTIONS],
  ['Clients that follow decisions', 'Of `stream` of `serve`.', STREAM_OPTIONS],
];

/** A cell of a table: a bar would end it. */
const cell = (text: string): string => text.replaceAll('|', '\\|');

function row([name, option]: readonly [string, Option]): string {
  const flags = option.flags === undefined ? [option.flag] : Object.values(option.flags).map(({ flag }) => flag);
  const cells = [
    `\`${name}\``,
    option.help,
    option.rule.says,
    option.default === undefined ? '' : `\`${JSON.stringify(option.default)}\``,
    flags.flatMap((flag) => (flag === undefined ? [] : [`\`${flag}\``])).join(', '),
  ];
  return `| ${cells.map(cell).join(' | ')} |`;
}

const section = ([title, about, table]: (typeof SECTIONS)[number]): string => `## ${title}

${about}

| option | means | is | default | flag |
|---|---|---|---|---|
${Object.entries(table).map(row).join('\n')}
`;

const TEXT = `# Options

Every option of the library with what it may be, its default, and its flag on the command line. A flag is also an environment variable (\`--kv-budget\`:
\`PALIMPSEST_KV_BUDGET\`) and a key of the file that \`--config\` names (\`docs/cli.md\`). Another value is refused before any work, by every function and by the
command line alike. Written by \`npm run generate\` from the tables that the checks are made from (\`engine/options/table.ts\`); \`docs/library.md\` explains them.

${SECTIONS.map(section).join('\n')}`;

const file = join(import.meta.dirname, '..', 'docs', 'options.md');
const isCheck = process.argv.includes('--check');
let old = '';
try {
  old = readFileSync(file, 'utf8');
} catch (error) {
  if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
}
if (old !== TEXT && isCheck) {
  console.error('docs/options.md is stale: run npm run generate');
  process.exitCode = 1;
} else if (old !== TEXT) writeFileSync(file, TEXT);
