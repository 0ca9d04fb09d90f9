// Answers that follow a grammar, through the engine and its thread: greedy and drawn, in a chat and in continuations,
// cut short by their tokens, refused before anything is read; and on the command line from a file and from a text, with
// the exit codes.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Ajv2020 } from 'ajv/dist/2020.js';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Engine } from '../../../../../engine/index.ts';
import { dir, expectRefused, lastLine, palimpsest } from '../../cli/command.ts';
import { codeOf, openEngine } from '../../on-reference.ts';

const SCHEMA = {
  type: 'object',
  properties: { kept: { enum: ['bees', 'cats'] }, count: { type: 'integer', minimum: 1, maximum: 99 } },
  required: ['kept', 'count'],
} as const;
const TEMPLATE = `{% for m in messages %}{{ m.role }}:{{ m.content }}
{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}`;
const fulfils = new Ajv2020().compile(SCHEMA);
let engine: Engine;
beforeAll(async () => {
  engine = await openEngine(null);
});
afterAll(() => engine.close());

describe('an answer', () => {
  it.each([{}, { temperature: 1.5, topK: 0, topP: 1, minP: 0, seed: 5 }, { repeatPenalty: 1.5, logprobs: 1 }])(
    'fulfils its schema with %j',
    async (options) => {
      const session = await engine.openSession({});
      const grammar = { jsonSchema: SCHEMA };
      const answer = await session.generate('Once upon a time ', { ...options, grammar, maxTokens: 64 }).result;
      expect([answer.finish, answer.grammarComplete]).toEqual(['stop', true]);
      expect([answer.text, fulfils(JSON.parse(answer.text))]).toEqual([answer.text, true]);
      expect(answer.tokens).toBeLessThan(64);
      await session.close();
    },
  );

  it('says that its grammar is not complete where its tokens end', async () => {
    const session = await engine.openSession({});
    const cut = await session.generate('Once', { grammar: { jsonSchema: SCHEMA }, maxTokens: 3 }).result;
    expect([cut.finish, cut.grammarComplete]).toEqual(['length', false]);
    const open = await session.generate(null, { grammar: { gbnf: 'root ::= "a"*' }, maxTokens: 1 }).result;
    expect([open.text.replaceAll('a', ''), open.grammarComplete]).toEqual(['', true]);
    const none = await session.generate(null, { grammar: { gbnf: 'root ::= ""' } }).result;
    expect([none.text, none.tokens, none.finish]).toEqual(['', 0, 'stop']);
    expect((await session.generate(null, { maxTokens: 1 }).result).grammarComplete).toBeNull();
    await session.close();
  });

  it('that breaks a rule which is looked at in the end is not complete', async () => {
    const session = await engine.openSession({});
    for (const [pattern, isRight] of [
      ['^(?=b)a$', false],
      ['^(?=a)a$', true],
    ] as const) {
      const answer = await session.generate('Once', { grammar: { jsonSchema: { type: 'string', pattern } } }).result;
      expect([answer.text, answer.finish, answer.grammarComplete]).toEqual(['"a"', 'stop', isRight]);
    }
    await session.close();
  });

  it('is refused before anything is read', async () => {
    const session = await engine.openSession({});
    const generate = (grammar: never): Promise<unknown> => session.generate('Once', { grammar }).result;
    expect(await codeOf(generate({ gbnf: 'root ::=' } as never))).toBe('bad-argument');
    expect(await codeOf(generate({ jsonSchema: { not: { type: 'null' } } } as never))).toBe('unsupported');
    expect(await codeOf(generate('x' as never))).toBe('bad-argument');
    expect((await session.report()).tokens).toBe(0);
    const chat = await engine.chat({ template: TEMPLATE });
    expect(await codeOf(chat.send('Hello', { grammar: { gbnf: '' } }).result)).toBe('bad-argument');
    expect([chat.messages.length, (await chat.session.report()).tokens]).toEqual([0, 0]);
  });

  it('of a chat, and each of several continuations, follows it as well', async () => {
    const grammar = { jsonSchema: SCHEMA };
    const chat = await engine.chat({ template: TEMPLATE, grammar, maxTokens: 64, temperature: 1 });
    for (const question of ['Who?', 'And then?'])
      expect(fulfils(JSON.parse((await chat.send(question).result).text))).toBe(true);
    expect((await chat.send('Well?', { grammar: { gbnf: 'root ::= "yes" | "no"' } }).result).text).toMatch(
      /^(yes|no)$/,
    );
    await chat.close();
    const session = await engine.openSession({});
    const all = await session.continuations('Once', { n: 3, temperature: 1, grammar, maxTokens: 64 });
    for (const { text } of all) expect(fulfils(JSON.parse(text))).toBe(true);
    await session.close();
  });
});

describe('run', () => {
  const run = (...args: string[]): ReturnType<typeof palimpsest> =>
    palimpsest(['run', '-m', 'reference', '-p', join(dir, 'prompt.txt'), '-n', '64', '--json', ...args]);

  it('takes a schema and a grammar as a text or from a file', async () => {
    writeFileSync(join(dir, 'prompt.txt'), 'Once upon a time there was ');
    writeFileSync(join(dir, 'schema.json'), JSON.stringify(SCHEMA));
    writeFileSync(join(dir, 'answer.gbnf'), 'root ::= "bees" | "cats"\n');
    for (const schema of [JSON.stringify(SCHEMA), join(dir, 'schema.json')]) {
      const { code, out } = await run('--json-schema', schema);
      expect([code, fulfils(JSON.parse(out.split('\n')[0]!))]).toEqual([0, true]);
      expect(lastLine(out)).toMatchObject({ grammarComplete: true });
    }
    for (const grammar of ['root ::= "bees" | "cats"', join(dir, 'answer.gbnf')])
      expect((await run('--grammar', grammar)).out).toMatch(/^(bees|cats)\n/);
    expect((await run('--json-schema', JSON.stringify(SCHEMA), '-n', '2')).err).toMatch(
      /before its grammar is complete/,
    );
  });

  it('refuses what cannot be followed', async () => {
    expectRefused(await run('--json-schema', '{'), 'bad-argument', /is not JSON/);
    expectRefused(await run('--json-schema', '{"not": {"type": "null"}}'), 'unsupported', /'not'/);
    expectRefused(await run('--json-schema', join(dir, 'missing.json')), 'not-found', /missing\.json/);
    expectRefused(await run('--grammar', 'root ::= <a>'), 'unsupported', /token/);
    expectRefused(await run('--grammar', 'root ::= a'), 'bad-argument', /not defined/);
    expectRefused(await run('--grammar', 'root ::= "a"', '--json-schema', '{}'), 'bad-argument', /one grammar/);
  });
});
