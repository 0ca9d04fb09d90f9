// Asks for the tokens that the Python package `tokenizers` (0.23) gives: what stands behind a control token in
// vocabularies that put a space before a text, and added tokens beside white space and in other forms of Unicode. The
// vocabularies are small and made here; the answers were written down once.

import { describe, expect, test } from 'vitest';
import type { GgufValue } from '../../../../engine/transformer/gguf.ts';
import { byteLetters } from '../../../../engine/transformer/pieces.ts';
import type { VocabularyTokenizer } from '../../../../engine/transformer/tokenizer.ts';
import { ggufTokenizer } from '../../../../engine/transformer/tokenizer-gguf.ts';
import { hfTokenizer } from '../../../../engine/transformer/tokenizer-hf.ts';

const SPACE = '\u2581';
const LETTERS = [SPACE, ...'Helo', 'i', '[', ']', '/', 'I', 'N', 'S', 'T', 'a'];
const MERGES = ['▁ ▁', '▁ H', '▁H e', '▁He l', '▁Hel l', '▁Hell o', '▁H i'].map((merge) => merge.split(' '));
const BYTES = Array.from({ length: 256 }, (_, byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`);
const CONTROLS = ['<unk>', '<s>', '</s>'];
const WORDS = [...CONTROLS, ...BYTES, ...MERGES.map((merge) => merge.join('')), ...LETTERS];

const added = (id: number, content: string, more: Readonly<Record<string, unknown>> = {}) => ({
  ...{ id, content, special: false, normalized: false, single_word: false, lstrip: false, rstrip: false },
  ...more,
});

function folder(normalizer: unknown, preTokenizer: unknown): VocabularyTokenizer {
  const json = {
    added_tokens: CONTROLS.map((content, id) => added(id, content, { special: true })),
    normalizer,
    pre_tokenizer: preTokenizer,
    decoder: {
      type: 'Sequence',
      decoders: [{ type: 'Replace', pattern: { String: SPACE }, content: ' ' }, { type: 'ByteFallback' }],
    },
    model: {
      ...{ type: 'BPE', unk_token: '<unk>', fuse_unk: true, byte_fallback: true, merges: MERGES },
      vocab: Object.fromEntries(WORDS.map((word, id) => [word, id])),
    },
  };
  return hfTokenizer(json, {}, { vocabSize: WORDS.length, bosId: 1, eosIds: [2] });
}

function file(more: readonly [string, GgufValue][] = []): VocabularyTokenizer {
  const rank = (word: string): number => MERGES.findIndex((merge) => merge.join('') === word);
  const typeOf = (word: string): number => (CONTROLS.includes(word) ? 3 : BYTES.includes(word) ? 6 : 1);
  const metadata = new Map<string, GgufValue>([
    ['tokenizer.ggml.model', 'llama'],
    ['tokenizer.ggml.tokens', WORDS],
    ['tokenizer.ggml.scores', Float32Array.from(WORDS, (word) => (rank(word) < 0 ? -1000 : -rank(word)))],
    ['tokenizer.ggml.token_type', Int32Array.from(WORDS, typeOf)],
    ['tokenizer.ggml.bos_token_id', 1],
    ['tokenizer.ggml.eos_token_id', 2],
    ...more,
  ]);
  return ggufTokenizer(metadata, WORDS.length);
}

const wordsOf = (tokenizer: VocabularyTokenizer, text: string, words: readonly string[] = WORDS): string =>
  tokenizer
    .encode(text, { special: true })
    .map((id) => words[id])
    .join(' ');

const REPLACE = { type: 'Replace', pattern: { String: ' ' }, content: SPACE };
const metaspace = (scheme: string) => ({
  ...{ type: 'Metaspace', replacement: SPACE, prepend_scheme: scheme, split: false },
});

describe('a text behind a control token, where a space goes before a text', () => {
  const LEGACY = [
    ['<s>Hello', '<s> ▁Hello'],
    ['<s> Hello', '<s> ▁▁ H e l l o'],
    ['<s>[INST]  Hi [/INST]', '<s> ▁ [ I N S T ] ▁▁ H i ▁ [ / I N S T ]'],
    ['</s> Hi', '</s> ▁▁ H i'],
    ['Hello</s>Hello', '▁Hello </s> ▁Hello'],
    [' </s> ', '▁▁ </s> ▁▁'],
    ['ä<s>ä', '▁ <0xC3> <0xA4> <s> ▁ <0xC3> <0xA4>'],
    ['<s>\nHello', '<s> ▁ <0x0A> H e l l o'],
  ] as const;
  const FIRST = [
    ['<s>Hello', '<s> H e l l o'],
    ['<s> Hello', '<s> ▁Hello'],
    ['</s> Hi', '</s> ▁Hi'],
    ['Hello</s>Hello', '▁Hello </s> H e l l o'],
    [' Hello', '▁Hello'],
    ['ä<s>ä', '▁ <0xC3> <0xA4> <s> <0xC3> <0xA4>'],
  ] as const;
  const ALWAYS = [
    ['<s>Hello', '<s> ▁Hello'],
    ['<s> Hello', '<s> ▁Hello'],
    ['<s></s>Hi', '<s> </s> ▁Hi'],
    [' </s> ', '▁ </s> ▁'],
  ] as const;
  const NEVER = [
    ['<s>Hello', '<s> H e l l o'],
    ['Hello <s> Hi', 'H e l l o ▁ <s> ▁Hi'],
  ] as const;

  test('in a folder is what Python makes of it, whichever way its tokenizer puts the space', () => {
    const prepended = folder({ type: 'Sequence', normalizers: [{ type: 'Prepend', prepend: SPACE }, REPLACE] }, null);
    for (const [text, words] of LEGACY) expect(wordsOf(prepended, text)).toBe(words);
    for (const [text, words] of FIRST) expect(wordsOf(folder(null, metaspace('first')), text)).toBe(words);
    for (const [text, words] of ALWAYS) expect(wordsOf(folder(null, metaspace('always')), text)).toBe(words);
    for (const [text, words] of NEVER) {
      expect(wordsOf(folder(null, metaspace('never')), text)).toBe(words);
      expect(wordsOf(folder(REPLACE, null), text)).toBe(words);
    }
  });

  test('in a GGUF file is what Python makes of the older kind, as in llama.cpp; none where the file says so', () => {
    for (const [text, words] of LEGACY) expect(wordsOf(file(), text)).toBe(words);
    const without = file([['tokenizer.ggml.add_space_prefix', false]]);
    for (const [text, words] of NEVER) expect(wordsOf(without, text)).toBe(words);
  });
});

describe('an added token', () => {
  const words = [
    '<s>',
    ...new Set([...'xyz', ...byteLetters(Buffer.from('  Zürichu\u0308\u1e27\u0085\ufeff\u2003\u00a0'))]),
  ];
  const first = words.length;
  const more = [
    added(first, 'Zürich', { normalized: true }),
    added(first + 1, '<l>', { lstrip: true }),
    added(first + 2, '<r>', { rstrip: true }),
    added(first + 3, '  '),
    added(first + 4, 'Zu\u0308ch', { normalized: true }),
    added(first + 5, '<lr>', { lstrip: true, rstrip: true }),
  ];
  const all = [...words, ...more.map(({ content }) => content)];
  const tokenizer = (normalizer: unknown): VocabularyTokenizer => {
    const json = {
      added_tokens: more,
      normalizer,
      pre_tokenizer: { type: 'ByteLevel', add_prefix_space: false, use_regex: false },
      decoder: { type: 'ByteLevel' },
      model: { type: 'BPE', vocab: Object.fromEntries(words.map((word, id) => [word, id])), merges: [] },
    };
    return hfTokenizer(json, {}, { vocabSize: all.length, bosId: null, eosIds: [] });
  };

  test.each([
    ['Zürich', 'Zürich'],
    ['Zu\u0308rich', 'Zürich'],
    ['xZu\u0308richx', 'x Zürich x'],
    ['Züch', 'Zu\u0308ch'],
    // The mark makes another letter of the h.
    ['Zürich\u0308', 'Z Ã ¼ r i c á ¸ §'],
    ['Zu\u0308ch', 'Zu\u0308ch'],
  ])('that counts in normalized text is found in any form of it: %j', (text, expected) => {
    expect(wordsOf(tokenizer({ type: 'NFC' }), text, all)).toBe(expected);
  });

  test('is found as it is written where nothing is normalized', () => {
    expect(wordsOf(tokenizer(null), 'Zürich', all)).toBe('Zürich');
    expect(wordsOf(tokenizer(null), 'Zu\u0308rich', all)).toBe('Z u Ì Ī r i c h');
  });

  test.each([
    ['x\u0085<l>', 'x <l>'],
    ['x\ufeff<l>', 'x ï » ¿ <l>'],
    ['x \u2003<l>x', 'x <l> x'],
    ['<r>\u0085\u00a0x', '<r> x'],
    ['<r>  x', '<r>    x'],
    ['<r>   x', '<r>    Ġ x'],
    ['<r> x', '<r> x'],
    ['x  <l>', 'x    <l>'],
    ['<r> <r> x', '<r> <r> x'],
    ['<r>  <lr>  x', '<r>    <lr>    x'],
    ['<lr>    x', '<lr>       x'],
  ])('swallows the white space that Unicode has, and none that is a token itself: %j', (text, expected) => {
    expect(wordsOf(tokenizer(null), text, all)).toBe(expected);
  });
});
