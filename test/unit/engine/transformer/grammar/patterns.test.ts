// Patterns of schemas against the regular expressions of JavaScript: every text of some letters, and texts that JSON
// escapes, has to be complete where the pattern is found in it, and nowhere else.
import { expect, it } from 'vitest';
import { onGrammars } from './following.ts';

const { follow } = onGrammars();

const WORDS = [''];
for (const word of WORDS) if (word.length < 4) WORDS.push(...['a', 'b', 'c'].map((letter) => word + letter));
const OTHERS = ['a b', ' ', 'é', 'aé', 'éa', 'a\n', 'a-.b', 'a"', '𝄞a', 'ab.'];

it.each([
  ['a pattern without ^ and $ is searched', ['a', 'a.b', 'ab*c', '', '(a|ab)(c|bcb)', 'a|b|c', 'a{2}', '[^a]b', '\\S']],
  ['^ binds the beginning, $ the end', ['^a', 'a$', '^a$', '[ab]c?$', '(ab)+$', '^(?:a|b){2}', '^(a*)*$', '^$']],
  ['each alternative has its own ^ and $', ['^a|b$', 'b|^c$', '^$|^ab$', '^(a|b$)', '(^a|b)c', '(?:^|b)a(?:$|c)']],
  ['a look around and a border of a word are looked at in the end', ['(?!b)a', '\\bab\\b', 'c(?=a)', '(?<!b)a']],
  ['what is no pattern of Unicode is read as browsers do', ['^[\\w-.]+$', '^[\\-.]?a']],
])('%s', async (_, patterns) => {
  for (const pattern of patterns) {
    const isUnicode = !pattern.includes('\\w-.') && !pattern.includes('\\-');
    const expression = new RegExp(pattern, isUnicode ? 'u' : '');
    for (const text of [...WORDS, ...OTHERS]) {
      const followed = await follow({ jsonSchema: { type: 'string', pattern } }, JSON.stringify(text));
      expect([pattern, text, followed === 'complete']).toEqual([pattern, text, expression.test(text)]);
    }
  }
});

it('a class has the characters that it names, those that JSON escapes as well', async () => {
  for (const [pattern, right, wrong] of [
    ['^[ -~]+$', ['a"\\ ~'], ['é', '\n']],
    ['^[\\s\\S]{2}$', ['"\n', 'é𝄞'], ['"']],
    ['^[^\\S"]$', [' '], ['a']],
    ['^\\p{Script=Cyrillic}+$', ['привет'], ['a']],
    ['^[\\u{1F600}-\\u{1F602}]$', ['\u{1F601}'], ['\u{1F603}']],
    ['^[\\D]$', ['a'], ['1']],
  ] as const) {
    const jsonSchema = { type: 'string', pattern };
    for (const text of right)
      expect([pattern, text, await follow({ jsonSchema }, JSON.stringify(text))]).toContain('complete');
    for (const text of wrong)
      expect([pattern, text, await follow({ jsonSchema }, JSON.stringify(text))]).not.toContain('complete');
  }
});

it('several patterns for one text are followed together', async () => {
  const allOf = ['^ab', 'x', 'c$'].map((pattern) => ({ pattern }));
  for (const [text, isRight] of [
    ['abxc', true],
    ['ab"x..c', true],
    ['abc', false],
    ['xabc', false],
  ] as const)
    expect(
      [text, await follow({ jsonSchema: { type: 'string', allOf } }, JSON.stringify(text))].includes('complete'),
    ).toBe(isRight);
  // Two that have to stand first: one is followed, and the other looked at in the end.
  const both = { type: 'string', allOf: [{ pattern: '^a' }, { pattern: '^.b' }] };
  expect(await follow({ jsonSchema: both }, '"ab"')).toBe('complete');
  expect(await follow({ jsonSchema: both }, '"ac"')).toBe('begun');
});
