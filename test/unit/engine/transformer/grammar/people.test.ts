// Schemas as people and their libraries send them, each with a text that is right and one that is not: what was once
// refused, or followed as something else.
import { describe, expect, it } from 'vitest';
import { z } from 'zod';
import type { GrammarOption, JsonSchema } from '../../../../../engine/transformer/grammar/options.ts';
import { grammarText } from '../../../../../engine/transformer/grammar/source.ts';
import { refused } from '../../../../refusal.ts';
import { onGrammars } from './following.ts';

const { grammars, follow } = onGrammars();

type Case = readonly [asks: string, jsonSchema: JsonSchema, right: readonly string[], wrong: readonly string[]];

const LONG = { type: 'object', properties: { d: { type: 'string', maxLength: 10_000 } }, required: ['d'] };
const said = (length: number): string => `{"d": "${'é'.repeat(length)}"}`;
const price = { anyOf: [{ type: 'number' }, { type: 'string', pattern: '^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$' }] };
const either = {
  type: 'object',
  anyOf: [{ properties: { a: { type: 'null' } } }, { properties: { b: { type: 'null' } } }],
};
const inner = {
  $id: 'https://example.com/outer',
  $defs: { hive: { $id: 'hive', $defs: { n: { type: 'integer' } }, type: 'array', items: { $ref: '#/$defs/n' } } },
};

const CASES: readonly Case[] = [
  ['format beside pattern: the pattern', { type: 'string', format: 'uuid', pattern: '^a+$' }, ['"aa"'], ['"b"']],
  [
    'format beside a pattern that looks ahead: the format, and the pattern in the end',
    { type: 'string', format: 'date', pattern: '^(?!19)' },
    ['"2024-01-02"'],
    ['"1999-01-02"', '"x"'],
  ],
  ['an unknown format: any text', { type: 'string', format: 'binary' }, ['"é"'], ['1']],
  ['a pattern without anchors: found anywhere', { type: 'string', pattern: '\\S' }, ['" a "', '"ab"'], ['""', '"  "']],
  ['maxLength 10000: in the end', LONG, [said(1), said(10_000)], [said(10_001)]],
  ['minLength and pattern: both', { type: 'string', minLength: 3, pattern: '^a+$' }, ['"aaa"'], ['"aa"', '"bbb"']],
  ['many items: in the end', { type: 'array', items: { type: 'null' }, minItems: 600 }, [], ['[null]']],
  ['multipleOf: its multiples', { type: 'integer', multipleOf: 7 }, ['0', '-21', '7007'], ['8', '70000000000000001']],
  [
    'multipleOf within bounds',
    { type: 'number', multipleOf: 0.25, minimum: 0, maximum: 1 },
    ['0.75', '1'],
    ['0.3', '1.25'],
  ],
  ['multipleOf of a hundredth', { type: 'number', multipleOf: 0.01 }, ['3.14', '-2'], ['3.141']],
  [
    'multipleOf and one bound',
    { type: 'integer', exclusiveMinimum: 0, multipleOf: 50 },
    ['50', '1000'],
    ['0', '-50', '20'],
  ],
  [
    'multipleOf and bounds far apart',
    { type: 'integer', minimum: 5, maximum: 99_999, multipleOf: 3 },
    ['6', '99999'],
    ['7', '3'],
  ],
  ['a bound beyond what is written', { type: 'number', minimum: -3.5e38, maximum: 3.5e38 }, ['1.5'], ['1e39', '"a"']],
  ['a bound of many digits', { type: 'number', minimum: 1e-300, maximum: 1 }, ['0.5', '1'], ['0', '-1']],
  [
    'uniqueItems of a few values',
    { type: 'array', items: { enum: ['a', 'b'] }, uniqueItems: true },
    ['["a", "b"]', '[]'],
    ['["a", "a"]'],
  ],
  [
    'uniqueItems and counts',
    { type: 'array', items: { enum: [1, 2, 3] }, uniqueItems: true, minItems: 2, maxItems: 2 },
    ['[1, 3]'],
    ['[1]', '[1, 2, 3]'],
  ],
  [
    'uniqueItems of any texts: in the end',
    { type: 'array', items: { type: 'string' }, uniqueItems: true },
    ['["a", "b"]'],
    ['["a", "a"]'],
  ],
  [
    'a tuple by items: [...]',
    { type: 'array', items: [{ type: 'integer' }], additionalItems: false },
    ['[1]'],
    ['["a"]', '[1, 2]'],
  ],
  ['exclusiveMinimum as draft 4 has it', { type: 'integer', minimum: 1, exclusiveMinimum: true }, ['2'], ['1']],
  ['type beside anyOf', either, ['{"a": null}', '{"b": null}'], ['1', '{"a": 1}']],
  [
    'properties beside anyOf',
    { ...either, properties: { k: { type: 'integer' } }, required: ['k'] },
    ['{"k": 1, "a": null}', '{"k": 1}'],
    ['{"a": null}'],
  ],
  [
    'allOf of several',
    {
      allOf: [
        { type: 'integer', minimum: 2 },
        { type: 'number', maximum: 4 },
      ],
    },
    ['3'],
    ['1', '5', '3.5'],
  ],
  [
    'constraints beside $ref',
    { $ref: '#/$defs/n', maximum: 3, $defs: { n: { type: 'integer', minimum: 2 } } },
    ['2', '3'],
    ['1', '4'],
  ],
  ['enum beside type and pattern', { enum: ['a', 'b', 1], type: 'string', pattern: '^a' }, ['"a"'], ['"b"', '1']],
  ['$ref by $id', { ...inner, $ref: 'https://example.com/hive' }, ['[1, 2]'], ['["a"]']],
  ['$ref by the $id of the schema', { ...inner, $ref: 'https://example.com/outer#/$defs/hive' }, ['[1]'], ['1']],
  ['$ref by $anchor', { $ref: '#here', $defs: { a: { $anchor: 'here', type: 'null' } } }, ['null'], ['1']],
  [
    'propertyNames of any text',
    { type: 'object', propertyNames: { type: 'string' }, additionalProperties: { type: 'null' } },
    ['{"é": null}'],
    ['{"é": 1}'],
  ],
  [
    'propertyNames by pattern',
    { type: 'object', propertyNames: { pattern: '^[a-z]+$' }, additionalProperties: { type: 'null' } },
    ['{"ab": null}'],
    ['{"1": null}'],
  ],
  [
    'propertyNames by enum',
    { type: 'object', propertyNames: { enum: ['a', 'b'] }, additionalProperties: { type: 'null' }, required: ['b'] },
    ['{"b": null}', '{"a": null, "b": null}'],
    ['{"a": null}', '{"b": null, "c": null}'],
  ],
  [
    'patternProperties',
    { type: 'object', patternProperties: { '^x-': { type: 'null' } }, additionalProperties: false },
    ['{"x-1": null}', '{}'],
    ['{"y": null}', '{"x-1": 1}'],
  ],
  [
    'minProperties and maxProperties of free names',
    { type: 'object', additionalProperties: { type: 'null' }, minProperties: 1, maxProperties: 2 },
    ['{"a": null, "b": null}'],
    ['{}', '{"a": null, "b": null, "c": null}'],
  ],
  [
    'minProperties of names that are given',
    { type: 'object', properties: { a: { type: 'null' }, b: { type: 'null' } }, minProperties: 1 },
    ['{"b": null}'],
    ['{}'],
  ],
  [
    'unevaluatedProperties',
    { allOf: [{ properties: { a: { type: 'null' } } }], type: 'object', unevaluatedProperties: false },
    ['{"a": null}'],
    ['{"b": 1}'],
  ],
  ["Pydantic's Decimal", price, ['1.5', '"-1.5"', '"12"'], ['"."', '"a"']],
  [
    "Pydantic's optional date with a default",
    { anyOf: [{ type: 'string', format: 'date-time' }, { type: 'null' }], default: null },
    ['null', '"2024-01-02T03:04:05Z"'],
    ['"x"'],
  ],
  [
    "Pydantic's model with a reference and a description",
    {
      $defs: { Kind: { enum: ['bee', 'fly'], title: 'Kind', type: 'string' } },
      properties: {
        kind: { $ref: '#/$defs/Kind', description: 'what it is' },
        n: { exclusiveMinimum: 0, type: 'integer' },
      },
      required: ['kind', 'n'],
      title: 'Animal',
      type: 'object',
    },
    ['{"kind": "bee", "n": 1}'],
    ['{"kind": "bee", "n": 0}', '{"kind": "cat", "n": 1}'],
  ],
];

describe('a schema that people send', () => {
  it.each(CASES)('%s', async (_, jsonSchema, right, wrong) => {
    for (const text of right) expect([text.slice(0, 80), await follow({ jsonSchema }, text)]).toContain('complete');
    for (const text of wrong) expect([text.slice(0, 80), await follow({ jsonSchema }, text)]).not.toContain('complete');
  });

  it("is OpenAI's strict form of zod's schemas: draft 7, all required, what may be missing is null", async () => {
    const step = z.object({ explanation: z.string(), output: z.string().nullable() });
    const schema = z.toJSONSchema(z.object({ steps: z.array(step), again: step }), {
      target: 'draft-7',
      reused: 'ref',
    });
    const right = '{"steps": [{"explanation": "a", "output": null}], "again": {"explanation": "b", "output": "c"}}';
    expect(await follow({ jsonSchema: schema }, right)).toBe('complete');
    expect(await follow({ jsonSchema: schema }, right.replace('"output": null', '"x": 1'))).toBe('refused');
  });
});

describe('what cannot be followed', () => {
  it.each([
    [{ not: { type: 'null' } }, "'not'"],
    [{ if: {}, else: false }, "'if'"],
    [{ type: 'array', contains: {} }, "'contains'"],
    [{ dependentRequired: { a: ['b'] } }, "'dependentRequired'"],
    [{ oneOf: [{ type: 'string' }, { enum: ['a'] }] }, "'oneOf' of alternatives that may both hold"],
    [{ type: 'string', pattern: '(a)\\1' }, '\\1'],
    [{ $ref: 'https://example.com/other' }, 'which is not in it'],
    [{ type: 'number', minimum: 1e16 }, 'the bound 10000000000000000'],
  ] as const)('%j is refused by name, and by its place', async (part, said) => {
    const jsonSchema = { type: 'object', properties: { p: part } };
    const error = await refused(grammars().open({ jsonSchema }));
    expect([error.code, error.message]).toEqual(['unsupported', expect.stringContaining(said)]);
    expect(error.message).toContain('#/properties/p');
  });
});

describe('a grammar that cannot be compiled is refused before anything is read:', () => {
  it.each([
    ['a rule that there is not', 'root ::= "a" x', 'bad-argument'],
    ['a rule that is itself', 'root ::= root', 'bad-argument'],
    ['brackets that do not close', 'root ::= ("a"', 'bad-argument'],
  ])('%s', async (_, gbnf, code) => {
    expect((await refused(grammars().open({ gbnf }))).code).toBe(code);
  });

  it('one of the empty text alone is over at once, and is no free text', async () => {
    const constraint = (await grammars().open({ gbnf: 'root ::= ("")' }))!;
    expect([constraint.isComplete, constraint.isOver]).toEqual([true, true]);
    constraint.close();
  });
});

describe('what would take minutes is refused, or takes none:', () => {
  const many = <T>(count: number, one: (index: number) => T): T[] => Array.from({ length: count }, (_, i) => one(i));
  const numbers = many(80, (i) => [`n${i}`, { type: 'number', minimum: i / 7, maximum: 1000 / (i + 1) + i }] as const);
  const names = Object.fromEntries(many(200, (i) => [`${'a'.repeat(40)}${i}!`, {}]));
  it.each<[string, GrammarOption, RegExp]>([
    ['thousands of alternatives', { jsonSchema: { oneOf: many(20_000, (i) => ({ const: i })) } }, /may both hold/],
    ['thousands of classes', { gbnf: `root ::= ${'[ab] '.repeat(6000)}` }, /more texts and classes/],
    ['bounds of many digits', { jsonSchema: { properties: Object.fromEntries(numbers) } }, /more texts and classes/],
    ['counts of counts', { jsonSchema: { type: 'string', pattern: '((a{40}){40}){40}' } }, /add up to/],
    [
      'a pattern that goes back for ever, for names',
      { jsonSchema: { properties: names, patternProperties: { '^(a+)+$': {} } } },
      /takes too long/,
    ],
    [
      'a schema that doubles with each level',
      {
        jsonSchema: {
          $ref: '#/$defs/a0',
          $defs: Object.fromEntries(
            many(40, (i) => {
              const next = { $ref: `#/$defs/a${i + 1}`, title: `${i}` };
              return [`a${i}`, i === 39 ? { type: 'null' } : { allOf: [{ anyOf: [next, next] }, { type: 'null' }] }];
            }),
          ),
        },
      },
      /alternatives beside each other|never ends/,
    ],
  ])('%s', (_, grammar, said) => {
    expect(() => grammarText(grammar)).toThrow(said);
  });

  it('hundreds of alternatives, and a bound of three hundred digits', async () => {
    expect(await follow({ jsonSchema: { oneOf: many(300, (i) => ({ const: i })) } }, '299')).toBe('complete');
    expect(await follow({ jsonSchema: { type: 'number', exclusiveMinimum: 1e-300 } }, '0.1')).toBe('complete');
  });

  it('a pattern that goes back for ever, looked at in the end', async () => {
    const jsonSchema = { type: 'string', pattern: '^(?=(a+)+$)[a!]+$' };
    expect(await follow({ jsonSchema }, `"${'a'.repeat(40)}!"`)).toBe('begun');
    expect(await follow({ jsonSchema }, '"aaa"')).toBe('complete');
  });
});
