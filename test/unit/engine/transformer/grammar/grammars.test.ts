// Grammars in GBNF and what schemas become: which texts they let through, what is refused before anything is written
// and with which code, and that a grammar which broke the library does no harm to the next. Classes of characters are
// compared with their definition, beyond ASCII and at the ends of every length of UTF-8.

import { describe, expect, it, test } from 'vitest';
import type { Range } from '../../../../../engine/transformer/grammar/characters.ts';
import type { GrammarOption } from '../../../../../engine/transformer/grammar/options.ts';
import { RandomNumbers } from '../../../../../engine/transformer/sampling/random.ts';
import { refused } from '../../../../refusal.ts';
import { codeOf } from '../../on-reference.ts';
import { onGrammars } from './following.ts';

const { model, grammars, follow } = onGrammars();

describe('GBNF', () => {
  it.each([
    ['root ::= "yes" | "no"', ['yes', 'no'], ['maybe', 'yesno']],
    [
      '# a comment with "quotes\nroot ::= (\n  item ", "\n)* item\nitem ::= [a-z]{2,3} # (',
      ['ab', 'ab, cde'],
      ['a', 'ab,cd'],
    ],
    ['root ::= "\\"" [^"\\\\]+ "\\"" "\\u00e9"?', ['"a"', '"é"é'], ['"', '""']],
    ['root ::= . . ', ['ab', 'é𝄞', '\n語'], ['a', 'abc']],
    ['root ::= [а-яё]+ | [^а-я\\n]', ['привет', 'x', '語'], ['ы2', '\n']],
    ['root ::= expr\nexpr ::= expr "+" term | term\nterm ::= [0-9]+', ['1+2+33'], ['+1', '1+']],
    ['root ::= x-1{2}\nx-1 ::= "a" "b"?', ['aa', 'abab'], ['a', 'bb']],
  ])('%s', async (gbnf, complete, others) => {
    for (const text of complete) expect([text, await follow({ gbnf }, text)]).toEqual([text, 'complete']);
    for (const text of others) expect([text, await follow({ gbnf }, text)]).not.toEqual([text, 'complete']);
  });

  it('characters of any class are those of its definition', async () => {
    const random = new RandomNumbers(5);
    const upTo = (most: number): number => Math.floor(random.uniform() * (most + 1));
    const isCharacter = (code: number): boolean => code >= 0 && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
    for (let i = 0; i < 150; i++) {
      const ranges = Array.from({ length: 1 + upTo(2) }, (): Range => {
        const from = upTo([0x7f, 0x7ff, 0xffff, 0x10ffff][upTo(3)]!);
        return [from, Math.min(0x10ffff, from + upTo([0, 20, 300, 70000][upTo(3)]!))];
      }).filter(([from, to]) => isCharacter(from) && (from > 0xdfff || to < 0xd800));
      if (ranges.length === 0) continue;
      const isNegated = upTo(1) === 1;
      const text = ranges
        .map((range) => range.map((code) => `\\U${code.toString(16).padStart(8, '0')}`).join('-'))
        .join('');
      const grammar = { gbnf: `root ::= [${isNegated ? '^' : ''}${text}] "."` };
      const codes = ranges.flatMap(([from, to]) => [from, to, from - 1, to + 1, upTo(0x10ffff)]).filter(isCharacter);
      for (const code of codes) {
        const isIn = ranges.some(([from, to]) => code >= from && code <= to) !== isNegated;
        const what = `${code.toString(16)} in ${JSON.stringify(ranges)}, ${isNegated}`;
        const followed = await follow(grammar, `${String.fromCodePoint(code)}.`);
        expect([what, followed]).toEqual([what, isIn ? 'complete' : 'refused']);
      }
    }
  });
});

it('alternatives that begin alike are kept apart, whatever they begin with', async () => {
  const words = [''];
  for (const word of words) if (word.length < 5) for (const letter of '37.') words.push(word + letter);
  for (const [gbnf, pattern] of [
    ['root ::= [1-5] [0-9] | [0-9] "." [0-9] | [0-9] "." [0-9] [0-9]', /^([1-5]\d|\d\.\d\d?)$/],
    ['root ::= [37]* [37] "."', /^[37]+\.$/],
    ['root ::= a | b\na ::= "3"+ "7" | "3" "."\nb ::= "3" [37]{2}', /^(3+7|3\.|3[37]{2})$/],
  ] as const)
    for (const word of words)
      expect([gbnf, word, (await follow({ gbnf }, word)) === 'complete']).toEqual([gbnf, word, pattern.test(word)]);
});

describe('schemas', () => {
  const object = { type: 'object', properties: { a: { type: 'integer' }, 'b"': { type: 'string' } }, required: ['b"'] };
  it.each([
    [object, ['{"b\\"": "x"}', '{"a": 1, "b\\"": ""}'], ['{}', '{"a": 1}', '{"b\\"": "x", "c": 1}']],
    [{ type: 'object', additionalProperties: { type: 'null' } }, ['{}', '{"x": null, "y": null}'], ['{"x": 1}']],
    [{ type: 'string', minLength: 2, maxLength: 2 }, ['"ab"', '" ~"'], ['"a"', '"abc"', '"\n\n"']],
    [{ type: 'string', pattern: '^a"[\\\\\\d]$' }, ['"a\\"\\\\"', '"a\\"7"'], ['"a"7"', '"a\\"\\"']],
    [{ type: 'number', exclusiveMinimum: 0, maximum: 1 }, ['0.5', '1', '1.0', '0.000001'], ['0', '0.0', '1.01', '-1']],
    [{ type: 'integer', minimum: -5, exclusiveMaximum: 120 }, ['-5', '0', '119'], ['-6', '120', '05', '-0', '1.0']],
    [
      { type: 'array', items: { type: 'null' }, minItems: 1, maxItems: 2 },
      ['[null]', '[null, null]'],
      ['[]', '[null,null]'],
    ],
    [{ type: ['integer', 'null'] }, ['1', 'null'], ['"1"']],
    [{ type: 'string', enum: ['a', 1, 'é\n'] }, ['"a"', '"é\\n"'], ['1']],
    [{ properties: { a: { $ref: '#' } } }, ['{"a": {"a": {}}}'], ['1', '{"a": 1}']],
    [
      {
        oneOf: [
          { type: 'object', properties: { k: { const: 'x' } }, required: ['k'] },
          { type: 'object', properties: { k: { const: 'y' } }, required: ['k'] },
        ],
      },
      ['{"k": "x"}', '{"k": "y"}'],
      ['{"k": "z"}'],
    ],
  ])('%j', async (jsonSchema, complete, others) => {
    for (const text of complete) expect([text, await follow({ jsonSchema }, text)]).toEqual([text, 'complete']);
    for (const text of others) expect([text, await follow({ jsonSchema }, text)]).not.toEqual([text, 'complete']);
  });
});

const nested = (depth: number): object =>
  depth === 0 ? { type: 'null' } : { type: 'array', items: nested(depth - 1) };

test.each<[string, unknown]>([
  ['bad-argument', 'root ::= "a"'],
  ['bad-argument', {}],
  ['bad-argument', { gbnf: 1 }],
  ['bad-argument', { jsonSchema: 'x' }],
  ['bad-argument', { jsonSchema: {}, gbnf: '' }],
  ['bad-argument', { gbnf: '' }],
  ['bad-argument', { gbnf: 'root ::= "a' }],
  ['bad-argument', { gbnf: 'root ::= missing' }],
  ['bad-argument', { gbnf: 'root ::= root' }],
  ['bad-argument', { gbnf: 'root ::= [z-é-a]'.replace('z-é', 'é-z') }],
  ['bad-argument', { gbnf: `root ::= "${'a'.repeat(300_000)}"` }],
  ['unsupported', { gbnf: 'root ::= <think>' }],
  ['unsupported', { gbnf: `root ::= ${'('.repeat(9999)}"a"${')'.repeat(9999)}` }],
  ['unsupported', { gbnf: 'root ::= [a-z]{1,1000000000}' }],
  ['bad-argument', { jsonSchema: false }],
  ['bad-argument', { jsonSchema: { type: 'text' } }],
  ['bad-argument', { jsonSchema: { enum: [] } }],
  ['bad-argument', { jsonSchema: { type: 'string', pattern: '(' } }],
  ['bad-argument', { jsonSchema: { type: 'integer', minimum: 2, maximum: 1 } }],
  ['bad-argument', { jsonSchema: { type: 'string', minLength: -1 } }],
  ['bad-argument', { jsonSchema: { $ref: '#/$defs/none' } }],
  ['unsupported', { jsonSchema: { $ref: 'https://example.com/schema.json' } }],
  ['unsupported', { jsonSchema: { not: { type: 'string' } } }],
  ['unsupported', { jsonSchema: { type: 'string', pattern: '(a)\\1' } }],
  ['unsupported', { jsonSchema: { type: 'string', pattern: 'a^b' } }],
  ['unsupported', { jsonSchema: { type: 'string', pattern: '((a{99}){99}){99}' } }],
  ['unsupported', { jsonSchema: { allOf: [{ $ref: '#' }, { type: 'string' }] } }],
  ['bad-argument', { jsonSchema: { allOf: [{ type: 'string' }, { type: 'null' }] } }],
  ['bad-argument', { jsonSchema: { type: 'number', multipleOf: 0 } }],
  ['bad-argument', { jsonSchema: { type: 'object', maxProperties: 0, required: ['a'] } }],
  ['unsupported', { jsonSchema: { oneOf: [{ type: 'string' }, { enum: ['a'] }] } }],
  ['unsupported', { jsonSchema: nested(100) }],
])('%s: %j', async (code, grammar) => {
  expect(await codeOf(grammars().open(grammar as GrammarOption), JSON.stringify(grammar).slice(0, 200))).toBe(code);
  // The library aborts on a bad grammar, and is opened anew for the next.
  expect(await follow({ gbnf: 'root ::= "a"' }, 'a')).toBe('complete');
});

describe('what never ends', () => {
  it.each([
    'root ::= "a" root',
    'root ::= "a" | loop\nloop ::= "b" (loop | "c" loop)',
    'root ::= item+\nitem ::= "(" item{1,2} ")"',
  ])('is refused as a grammar: %s', async (gbnf) => {
    const error = await refused(grammars().open({ gbnf }));
    expect([error.code, error.message]).toEqual(['bad-argument', 'the grammar asks for a text that never ends']);
  });

  it.each([
    { type: 'object', properties: { a: { $ref: '#' } }, required: ['a'] },
    { type: 'array', items: { $ref: '#' }, minItems: 1 },
    {
      anyOf: [{ type: 'null' }, { $ref: '#/$defs/l' }],
      $defs: { l: { type: 'array', items: { $ref: '#/$defs/l' }, minItems: 1 } },
    },
  ])('is refused as a schema: %j', async (jsonSchema) => {
    const error = await refused(grammars().open({ jsonSchema }));
    expect([error.code, error.message]).toEqual(['bad-argument', 'the schema asks for a text that never ends']);
  });

  it('is not what may come back to itself any number of times, nor a rule that nothing asks for', async () => {
    for (const [gbnf, text] of [
      ['root ::= "a" root | "b"', 'aab'],
      ['root ::= "(" root? ")"', '(())'],
      ['root ::= "(" root* ")"', '(()())'],
      ['root ::= "(" root{0,2} ")" # ( root', '(()())'],
      ['root ::= "a"\nunused ::= "b" unused', 'a'],
      ['root ::= a | b\na ::= "x" b\nb ::= "y" a | [z(|]', 'xz'],
    ] as const)
      expect([gbnf, await follow({ gbnf }, text)]).toEqual([gbnf, 'complete']);
    const list = {
      type: 'object',
      properties: { next: { anyOf: [{ $ref: '#' }, { type: 'null' }] } },
      required: ['next'],
    };
    expect(await follow({ jsonSchema: list }, '{"next": {"next": null}}')).toBe('complete');
  });
});

it('names what is wrong and where', async () => {
  const open = (grammar: GrammarOption): Promise<unknown> => grammars().open(grammar);
  expect((await refused(open({ gbnf: 'root ::= a\na ::= "x' }))).message).toMatch(/line 2/);
  const schema = { type: 'object', properties: { n: { contains: {} } } };
  expect((await refused(open({ jsonSchema: schema }))).message).toMatch(/'contains' at #\/properties\/n/);
});

it('a text that can only end is over, one that may go on is complete, and a model ends it with its own tokens', async () => {
  const over = (await grammars().open({ gbnf: 'root ::= ""' }))!;
  expect([over.isComplete, over.isOver]).toEqual([true, true]);
  const more = (await grammars().open({ gbnf: 'root ::= "a"*' }))!;
  expect([more.isComplete, more.isOver]).toEqual([true, false]);
  const [end] = model().tokenizer.eosIds;
  const [begun, mask] = [(await grammars().open({ gbnf: 'root ::= "a"' }))!.mask, more.mask];
  const bit = (words: Int32Array): number => (words[end! >>> 5]! >>> (end! & 31)) & 1;
  expect([bit(begun), bit(mask)]).toEqual([0, 1]);
});
