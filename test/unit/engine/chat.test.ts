// Turns of a conversation over one cache: with a template that a person can read, each turn must add exactly what the whole
// rendering has beyond what was read and generated before, and a template that rewrites the past falls back to the question.
import { expect, it } from 'vitest';
import { ChatTurns } from '../../../engine/cli/chat.ts';
import type { ChatMessage } from '../../../engine/model/types.ts';

/** One id per character; a conversation ends in the answer's opening. */
const ids = (text: string): number[] => [...text].map((char) => char.codePointAt(0)!);
const text = (tokens: readonly number[]): string => String.fromCodePoint(...tokens);
const render = (messages: readonly ChatMessage[]): string =>
  `${messages.map(({ role, content }) => `<${role[0]}>${content}</>`).join('')}<a>`;

it('reads the end of the last answer and the new question, never what the cache holds', async () => {
  const turns = new ChatTurns(async (messages) => ids(render(messages)), [{ role: 'system', content: 'kind' }]);
  expect(text(await turns.ask('one'))).toBe('<s>kind</><u>one</><a>');
  turns.answered();
  expect(text(await turns.ask('two'))).toBe('</><u>two</><a>');
  // Not answered, for it did not fit: the next question takes its place.
  expect(text(await turns.ask('2'))).toBe('</><u>2</><a>');
  turns.answered();
  expect(text(await turns.ask('three'))).toBe('</><u>three</><a>');
});

it('asks the question alone where the template does not keep what it said', async () => {
  const turns = new ChatTurns(async (messages) => ids(`${messages.length}${render(messages)}`), []);
  expect(text(await turns.ask('one'))).toBe('1<u>one</><a>');
  turns.answered();
  expect(text(await turns.ask('two'))).toBe('1<u>two</><a>');
});
