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
import { KvError } from '../../native/index.ts';

const GOLDEN = fileURLToPath(new URL('../../test/golden/templates/', import.meta.url));
const PYTHON = fileURLToPath(new URL('templates.py', import.meta.url));
const VARIABLES = { bos_token: '<s>', eos_token: '</s>' };

/** As it is sent to an OpenAI server. */
export interface Spoken {
  readonly messages: readonly object[];
  readonly tools?: readonly object[];
  readonly add_generation_prompt?: boolean;
}

export type Spokens = Readonly<Record<string, Spoken>>;
/** By template and conversation; null: refused. */
export type Rendered = Readonly<Record<string, Readonly<Record<string, string | null>>>>;

/** What we make of it; null: refused. */
export function renderHere(template: string, spoken: Spoken, date: Date): string | null {
  const { messages, options } = conversationIn(spoken);
  const { tools, addGenerationPrompt = true } = options;
  const request = { template, messages, tools, addGenerationPrompt, continuesLast: false, variables: VARIABLES, date };
  try {
    return renderChat(request).value;
  } catch (error) {
    if (error instanceof KvError) return null;
    throw error;
  }
}

/** What Python makes of templates and values. */
function renderThere(date: string, templates: Readonly<Record<string, string>>, values: object): Rendered {
  const input = JSON.stringify({ date, templates, values });
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

/** What Python is given of a conversation, as transformers gives it. */
const valuesOf = ({ messages, tools, add_generation_prompt: prompt = true }: Spoken): object => ({
  ...VARIABLES,
  messages,
  tools: tools ?? null,
  documents: null,
  add_generation_prompt: prompt,
});

const mapped = <T, R>(record: Readonly<Record<string, T>>, change: (value: T) => R): Record<string, R> =>
  Object.fromEntries(Object.entries(record).map(([name, value]) => [name, change(value)]));

function record(): void {
  const { date, data, templates } = readJson<Constructs>(join(GOLDEN, 'constructs.json'));
  const spoken = readJson<Spokens>(join(GOLDEN, 'conversations.json'));
  const constructs = renderThere(date, Object.fromEntries(templates.map((text) => [text, text])), { data });
  const chats = renderThere(date, readTemplates(GOLDEN), mapped(spoken, valuesOf));
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
  const spoken = readJson<Spokens>(file);
  const date = '2025-06-07T08:09:10';
  const texts = readTemplates(folder);
  const theirs = renderThere(date, texts, mapped(spoken, valuesOf));
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
