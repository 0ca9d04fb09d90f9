// What Python's jinja2 made of small templates, set up as transformers does (npm run compare -- templates --record):
// each construct that published chat templates use, and whole templates for conversations with tools, thoughts, nulls,
// zeros and odd white space. Ours must make the same of them, and know of each letter whether it was given.
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';
import { TemplateFault, TemplateRefusal } from '../../engine/transformer/template/fault.ts';
import { givenValue } from '../../engine/transformer/template/given.ts';
import { renderTemplate } from '../../engine/transformer/template/template.ts';
import type { Text } from '../../engine/transformer/template/text.ts';
import {
  type Constructs,
  type Rendered,
  readSpokens,
  readTemplates,
  renderHere,
} from '../../scripts/compare/templates.ts';

const folder = fileURLToPath(new URL('templates/', import.meta.url));
const read = <T>(name: string): T => JSON.parse(readFileSync(folder + name, 'utf8')) as T;
const { date, data, templates } = read<Constructs>('constructs.json');
const recorded = read<{ readonly constructs: readonly (string | null)[]; readonly chats: Rendered }>('rendered.json');
const spoken = readSpokens(`${folder}conversations.json`);
const chats = readTemplates(folder);

function render(template: string, values: Readonly<Record<string, unknown>>): Text | null {
  const given = new Map(Object.entries(values).map(([name, value]) => [name, givenValue(value)] as const));
  try {
    return renderTemplate(template, given, { date: new Date(date), letters: JSON.stringify(values).length });
  } catch (error) {
    if (error instanceof TemplateFault || error instanceof TemplateRefusal) return null;
    throw error;
  }
}

describe('as Python has it', () => {
  test.each(templates.map((template, index) => [template, recorded.constructs[index]!] as const))('%j', (template, text) => {
    expect(render(template, data)?.value ?? null).toBe(text);
  });

  test.each(Object.keys(chats))('%s', (name) => {
    const ours = Object.entries(spoken).map(([title, one]) => [title, renderHere(chats[name]!, one, new Date(date))]);
    expect(Object.fromEntries(ours)).toEqual(recorded.chats[name]);
  });
});

/** Plain data in which each letter is a Greek one, which no template has. */
function greek(value: unknown): unknown {
  if (typeof value === 'string')
    return value.replace(/[a-z]/gi, (letter) => String.fromCharCode(0x3b1 + (letter.toLowerCase().charCodeAt(0) % 17)));
  if (Array.isArray(value)) return value.map(greek);
  return value;
}

const GREEK = /[\u0370-\u03ff]/;

describe('a letter that was given', () => {
  const named = Object.fromEntries(Object.entries(data).map(([name, value]) => [name, greek(value)]));
  const content = (value: object): object => ({ ...value, content: greek((value as { content: string }).content) });
  const values = { ...named, messages: (data['messages'] as object[]).map(content) };

  test('is known as given, whatever a template does with it', () => {
    let letters = 0;
    for (const template of templates) {
      const text = render(template, values);
      for (let at = 0; at < (text?.value.length ?? 0); at++) {
        if (!GREEK.test(text!.value[at]!)) continue;
        letters++;
        expect(text!.isOwn(at, at + 1), `${template}: letter ${at} of ${text!.value}`).toBe(false);
      }
    }
    expect(letters).toBeGreaterThan(400);
  });

  test.each([
    ['{{ w }}<end>', '#####<end>'],
    ["{{ '<' ~ w ~ '>' }}", '<#####>'],
    ["{{ w.split('b')[1] ~ 'b' }}", '##b'],
    ["{{ w.replace('b', 'X') }}", '##X##'],
    ["{{ '<b>'.replace('b', w) }}", '<#####>'],
    ['{{ w[1:3] ~ "x" ~ w[::-1] }}', '##x#####'],
    ['{{ (" " ~ w ~ " ") | trim | upper }}', '#####'],
    ['{{ [w, "x"] | join("-") }}', '#####-x'],
    ["{{ '%s!' % w }}{{ '<{}>'.format(w) }}", '#####!<#####>'],
    ['{% set x %}[{{ w }}]{% endset %}{{ x }}', '[#####]'],
    ['{% macro f(x) %}({{ x }}){% endmacro %}{{ f(w) }}', '(#####)'],
    ['{{ {"k": w} | tojson }}', '{"k": #######}'],
  ])('%s keeps letters of its own', (template, shown) => {
    const text = render(template, { w: 'aabaa' })!;
    const marked = [...text.value].map((letter, at) => (text.isOwn(at, at + 1) ? letter : '#'));
    expect(marked.join('')).toBe(shown);
  });
});
