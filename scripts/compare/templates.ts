/**
 * `npm run compare -- templates DIR` renders every *.jinja of a folder for 24 conversations, here and with Python's
 * jinja2, set up as transformers does, and says where they differ. `--show` prints where the first difference of each
 * template begins, `--conversations FILE` takes others. `--record` writes what Python makes of the templates of
 * test/golden/templates, which the tests compare with.
 */
import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { renderChat } from '../../engine/transformer/chat-template.ts';
import { conversationIn } from '../../engine/transformer/conversation-file.ts';
import { compact, spelledValue } from '../../engine/transformer/template/spelled.ts';
import type { Text } from '../../engine/transformer/template/text.ts';
import { Dict } from '../../engine/transformer/template/values.ts';
import { KvError } from '../../native/index.ts';

const GOLDEN = fileURLToPath(new URL('../../test/golden/templates/', import.meta.url));
const PYTHON = fileURLToPath(new URL('templates.py', import.meta.url));
const VARIABLES = { bos_token: '<s>', eos_token: '</s>' };

/** By name, JSON of conversations as they are sent to an OpenAI server: numbers are as they were written. */
export type Spokens = Readonly<Record<string, string>>;
/** By template and conversation; null: refused. */
export type Rendered = Readonly<Record<string, Readonly<Record<string, string | null>>>>;

/** What we make of it; null: refused. */
export function renderHere(template: string, spoken: string, date: Date): string | null {
  const { messages, options } = conversationIn(Buffer.from(spoken), 'a conversation');
  const { tools, addGenerationPrompt = true, continueFinalMessage = false } = options;
  const request = {
    template,
    messages,
    tools,
    addGenerationPrompt,
    continueFinalMessage,
    variables: VARIABLES,
    date,
  };
  try {
    return renderChat(request).value;
  } catch (error) {
    if (error instanceof KvError) return null;
    throw error;
  }
}

export const readConstructs = (): Constructs => readJson<Constructs>(join(GOLDEN, 'constructs.json'));

/** What Python makes of templates. values: by name, JSON of all that they are given, or conversations. */
export function renderThere(
  date: string,
  templates: Readonly<Record<string, string>>,
  values: Spokens,
  kind: 'values' | 'conversations',
): Rendered {
  const variables = kind === 'values' ? {} : VARIABLES;
  const input = JSON.stringify({ date, templates, kind, variables, values });
  const { stdout, stderr, error } = spawnSync('python3', [PYTHON], { input, encoding: 'utf8', maxBuffer: 2 ** 30 });
  if (error !== undefined || stdout === '')
    throw new KvError(
      'missing-dependency',
      `python3 with jinja2 did not run: ${stderr ?? error?.message ?? ''}`.trim(),
      {
        hint: 'pip install jinja2',
      },
    );
  return JSON.parse(stdout) as Rendered;
}

const readJson = <T>(path: string): T => JSON.parse(readFileSync(path, 'utf8')) as T;

export const readTemplates = (folder: string): Readonly<Record<string, string>> =>
  Object.fromEntries(
    readdirSync(folder)
      .filter((name) => name.endsWith('.jinja'))
      .map((name) => [name, readFileSync(join(folder, name), 'utf8')]),
  );

export interface Constructs {
  readonly date: string;
  readonly data: Readonly<Record<string, unknown>>;
  readonly templates: readonly string[];
}

/** A file of conversations by name. */
export function readSpokens(path: string): Spokens {
  const file = spelledValue(readFileSync(path, 'utf8'));
  if (!(file instanceof Dict)) throw new KvError('bad-argument', `${path} has no conversations by name`);
  return Object.fromEntries(file.entries().map(([name, value]) => [(name as Text).value, compact(value)]));
}

function record(): void {
  const { date, data, templates } = readConstructs();
  const spoken = readSpokens(join(GOLDEN, 'conversations.json'));
  const values = { data: JSON.stringify(data) };
  const constructs = renderThere(date, Object.fromEntries(templates.map((text) => [text, text])), values, 'values');
  const chats = renderThere(date, readTemplates(GOLDEN), spoken, 'conversations');
  const lines = templates.map((text) => `    ${escaped(constructs[text]!['data'])}`).join(',\n');
  const files = Object.entries(chats).map(([name, texts]) => `    ${JSON.stringify(name)}: ${escaped(texts)}`);
  const recorded = `{\n  "constructs": [\n${lines}\n  ],\n  "chats": {\n${files.join(',\n')}\n  }\n}\n`;
  writeFileSync(join(GOLDEN, 'rendered.json'), recorded);
  console.log(`${templates.length} constructs and ${files.length} templates are recorded`);
}

/** JSON that shows which letters it has. */
const escaped = (value: unknown): string =>
  JSON.stringify(value).replace(/[^ -~]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`);

/** Returns 1 where something differs. */
export function templates(args: readonly string[]): number {
  if (args.includes('--record')) {
    record();
    return 0;
  }
  const at = args.indexOf('--conversations');
  const file = at < 0 ? join(GOLDEN, 'conversations.json') : args[at + 1]!;
  const folder = args.find((arg, index) => !arg.startsWith('--') && (at < 0 || index !== at + 1));
  if (folder === undefined) throw new KvError('bad-argument', 'npm run compare -- templates DIR: a folder of *.jinja');
  const spoken = readSpokens(file);
  const date = '2025-06-07T08:09:10';
  const texts = readTemplates(folder);
  const theirs = renderThere(date, texts, spoken, 'conversations');
  let differences = 0;
  for (const [name, text] of Object.entries(texts)) {
    const found = Object.entries(spoken).flatMap(([conversation, one]) => {
      const [ours, python] = [renderHere(text, one, new Date(date)), theirs[name]![conversation]!];
      return ours === python ? [] : [{ conversation, ours, python }];
    });
    differences += found.length;
    if (found.length > 0) console.log(`${name}: ${found.map(({ conversation }) => conversation).join(', ')}`);
    if (args.includes('--show') && found.length > 0) console.log(firstDifference(found[0]!));
  }
  const count = Object.keys(texts).length * Object.keys(spoken).length;
  console.log(`${differences} of ${count} renderings differ from Python's`);
  return differences === 0 ? 0 : 1;
}

function firstDifference({ ours, python }: { readonly ours: string | null; readonly python: string | null }): string {
  if (ours === null || python === null) return ours === null ? '  refused here' : '  refused by Python';
  let at = 0;
  while (ours[at] === python[at]) at++;
  const part = (text: string): string => JSON.stringify(text.slice(Math.max(0, at - 40), at + 60));
  return `  here   ${part(ours)}\n  Python ${part(python)}`;
}
