// Calls as Mistral writes them, as a list and name by name, with ids and without: what is no call comes back as text,
// and nothing throws.
import { expect, it } from 'vitest';
import { mistral } from '../../../../../../engine/session/chat/calls/mistral.ts';
import { staysText } from './malformed.ts';

it('reads a list of calls, with their ids', () => {
  const list = '[TOOL_CALLS] [{"name": "a", "arguments": {"x": 1}, "id": "abc123DEF"}, {"name": "b", "arguments": {}}]';
  expect(mistral.parse(list)).toEqual({
    text: '',
    calls: [
      { name: 'a', arguments: { x: 1 }, id: 'abc123DEF' },
      { name: 'b', arguments: {} },
    ],
  });
});

it('reads calls by name, as newer tokenizers have them', () => {
  expect(mistral.parse('Well.[TOOL_CALLS]a[ARGS]{"x": "{"}[TOOL_CALLS]b[CALL_ID]abcdefghi[ARGS]{}')).toEqual({
    text: 'Well.',
    calls: [
      { name: 'a', arguments: { x: '{' } },
      { name: 'b', arguments: {}, id: 'abcdefghi' },
    ],
  });
  expect(mistral.parse('[TOOL_CALLS]now{}')?.calls).toEqual([{ name: 'now', arguments: {} }]);
});

it.each(staysText)('leaves %j as text', (inner) => {
  expect(mistral.parse(`[TOOL_CALLS]${inner}`)).toBeNull();
  expect(mistral.parse(`[TOOL_CALLS][${inner}]`)).toBeNull();
});

it('leaves what has no mark, no name, or more behind it as text', () => {
  for (const answer of [
    'words',
    '[TOOL_CALLS][ARGS]{}',
    '[TOOL_CALLS]a[ARGS]{} and',
    '[TOOL_CALLS][{"name": "a"}] and',
  ])
    expect(mistral.parse(answer), answer).toBeNull();
});

it('is told by its mark', () => {
  expect(mistral.isOf("{{ '[TOOL_CALLS]' }}")).toBe(true);
  expect(mistral.isOf('[INST]')).toBe(false);
});
