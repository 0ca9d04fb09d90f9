// Tokenizers that were made to hang or to fill memory: patterns that backtrack without end, replacements that make a
// text a thousand times as long, steps that never advance, thousands of added tokens that begin alike; and prompts that
// are far too long. Each must end as a KvError while the program can still be spoken to. What ends in time must be cut
// as it always was.

import { spawn } from 'node:child_process';
import { cpSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { createEngine } from '../../../../engine/index.ts';
import { loadModel } from '../../../../engine/transformer/load.ts';
import { hfTokenizer } from '../../../../engine/transformer/tokenizer-hf.ts';
import type { Tokenizer } from '../../../../engine/transformer/types.ts';
import { KvError } from '../../../../native/index.ts';
import { refusal } from '../../../refusal.ts';
import { referenceModel, temporaryFolder, tinyTokenizerJson, tinyWords } from './model-files.ts';

const folder = temporaryFolder();
afterAll(() => folder.remove());

const ids = { vocabSize: tinyWords.length, bosId: 0, eosIds: [1] };
const withSteps = (steps: object): Tokenizer => hfTokenizer({ ...tinyTokenizerJson, ...steps }, {}, ids);
const split = (pattern: object, more: object = {}): object => ({
  pre_tokenizer: {
    type: 'Sequence',
    pretokenizers: [
      { type: 'Split', pattern, behavior: 'Isolated', invert: false, ...more },
      { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: false },
    ],
  },
});
const replace = (pattern: object, content: unknown): object => ({ type: 'Replace', pattern, content });

const TEXT = `${'a'.repeat(40)}!`;

describe('a pattern without end', () => {
  test.each(['(a+)+$', '(a|aa)+$', '(?=(a+)+$)b'])('%s as a cut', (pattern) => {
    const tokenizer = withSteps(split({ Regex: pattern }));
    const error = refusal(() => tokenizer.encode(TEXT));
    expect(error).toMatchObject({ code: 'bad-tokenizer', message: expect.stringContaining('did not end within') });
    // An abort waits for it: before, two seconds.
    expect(error.values['ms']).toBeLessThan(600);
    // Nothing is left behind that would keep the next call from working.
    expect(tokenizer.decode(tokenizer.encode('hello'))).toBe('hello');
  });

  test('as a normalizer, and as a replacement between cuts', () => {
    const step = replace({ Regex: '(a+)+$' }, 'x');
    expect(refusal(() => withSteps({ normalizer: step }).encode(TEXT)).message).toContain('did not end within');
    const between = { pre_tokenizer: { type: 'Sequence', pretokenizers: [step] } };
    expect(refusal(() => withSteps(between).encode(TEXT)).message).toContain('did not end within');
  });
});

describe('refused when the model is loaded', () => {
  const long = 'b'.repeat(1000);
  const nested = (inner: object, depth: number): object =>
    depth === 0 ? inner : { type: 'Sequence', normalizers: [nested(inner, depth - 1)] };
  test.each<[string, object]>([
    ['a replacement of a thousand characters', { normalizer: replace({ String: 'a' }, long) }],
    ['one between any two characters', { normalizer: replace({ Regex: '' }, long) }],
    ['one of nothing by much', { normalizer: replace({ String: '' }, long) }],
    ['one that is no text', { normalizer: replace({ String: 'a' }, { length: 5 }) }],
    [
      'many small ones in a row',
      { normalizer: { type: 'Sequence', normalizers: Array(9).fill(replace({ String: 'a' }, 'aa')) } },
    ],
    ['one deep in sequences', { normalizer: nested(replace({ String: 'a' }, long), 20) }],
    ['a long beginning', { normalizer: { type: 'Prepend', prepend: long } }],
    ['a long word for a space', { pre_tokenizer: { type: 'Metaspace', replacement: '\u2581', str_rep: long } }],
    ['pieces of length 0', { pre_tokenizer: { type: 'FixedLength', length: 0 } }],
    ['pieces of length −1', { pre_tokenizer: { type: 'FixedLength', length: -1 } }],
    ['a hundred steps', { normalizer: { type: 'Sequence', normalizers: Array(100).fill({ type: 'NFC' }) } }],
    ['a pattern of 5,000 characters', split({ Regex: 'a?'.repeat(2500) })],
    ['a pattern that is no text', split({ Regex: 7 })],
    ['an added token of 300 characters', { added_tokens: [{ id: 5, content: 'x'.repeat(300) }] }],
    [
      'an id that no text can be made of',
      { model: { ...(tinyTokenizerJson['model'] as object), vocab: { a: { toString: null, valueOf: null } } } },
    ],
    ['pieces whose length has no text', { pre_tokenizer: { type: 'FixedLength', length: { toString: 7 } } }],
  ])('%s', (_, steps) => {
    expect(refusal(() => withSteps(steps)).code).toBe('bad-tokenizer');
  });
});

test('a pattern that is broken is refused, and one that is too large ends', () => {
  expect(refusal(() => withSteps(split({ Regex: '(' })).encode(TEXT)).code).toBe('bad-tokenizer');
  const large = withSteps(split({ Regex: `${'('.repeat(9)}a${'{999})'.repeat(9)}` }));
  try {
    expect(large.decode(large.encode('hello'))).toBe('hello');
  } catch (error) {
    expect(error).toMatchObject({ code: 'bad-tokenizer' });
  }
});

test('what ends in time is cut as without a watchdog', () => {
  // The same cut as GPT-2's, written so that it is not known to be harmless.
  const known = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
  for (const text of ['hello a hello!', 'a  b\nc ', 'hell'.repeat(5000)]) {
    expect(withSteps(split({ Regex: `(?:${known})` })).encode(text)).toEqual(
      withSteps(split({ Regex: known })).encode(text),
    );
  }
});

test('50,000 added tokens that begin alike cost no more than a few', () => {
  const tokens = Array.from({ length: 50_000 }, (_, i) => ({
    id: 2 + (i % 4),
    content: `aaaa${'a'.repeat(i % 50)}${i}`,
  }));
  const tokenizer = withSteps({ added_tokens: [...(tinyTokenizerJson['added_tokens'] as object[]), ...tokens] });
  expect(tokenizer.encode('a'.repeat(200_000)).length).toBe(200_000);
});

describe('a prompt that is too long', () => {
  test('is refused before it is cut, and a longer one at once', async () => {
    const { tokenizer, weights } = await loadModel('reference');
    weights.close();
    for (const text of ['a '.repeat(3e7), 'x'.repeat(6e7)]) {
      expect(refusal(() => tokenizer.encode(text, { tokensMax: 4096 })).code).toBe('context-too-long');
    }
  });

  test('is refused while it is merged, with a bound that is met exactly', async () => {
    const { tokenizer, weights } = await loadModel('reference');
    weights.close();
    const text = 'It was a long day. '.repeat(300);
    const whole = tokenizer.encode(text);
    expect(tokenizer.encode(text, { tokensMax: whole.length })).toEqual(whole);
    expect(refusal(() => tokenizer.encode(text, { tokensMax: whole.length - 1 })).code).toBe('context-too-long');
    expect(refusal(() => tokenizer.encode(text, { tokensMax: 10 })).code).toBe('context-too-long');
  });

  test('in a session and a chat', async () => {
    const engine = await createEngine({ model: 'reference', stateDir: null, threads: 1 });
    try {
      const session = await engine.openSession({});
      const prompt = 'word '.repeat(8e6);
      await expect(session.generate(prompt, { maxTokens: 1 }).result).rejects.toMatchObject({
        code: 'context-too-long',
      });
      // What is only somewhat too long is counted, so that the error can say by how much.
      const { contextLength } = engine.info.config;
      const some = Array.from({ length: contextLength }, () => 'a day').join(' ');
      await expect(session.generate(some, { maxTokens: 1 }).result).rejects.toMatchObject({
        code: 'context-too-long',
        hint: expect.stringMatching(/shorten the prompt by [\d,]+ tokens/),
      });
    } finally {
      await engine.close();
    }
  });
});

/** A copy of the reference model whose tokenizer cuts with a pattern that does not end. */
function hostileModel(): string {
  const dir = join(folder.dir, 'hostile');
  cpSync(referenceModel, dir, { recursive: true });
  const path = join(dir, 'tokenizer.json');
  const json = JSON.parse(readFileSync(path, 'utf8'));
  const bytes = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: false };
  const cut = { type: 'Split', pattern: { Regex: '(a+)+$' }, behavior: 'Isolated', invert: false };
  writeFileSync(path, JSON.stringify({ ...json, pre_tokenizer: { type: 'Sequence', pretokenizers: [cut, bytes] } }));
  return dir;
}

describe('the whole program with a pattern without end', () => {
  const cli = join(import.meta.dirname, '..', '..', '..', '..', 'dist', 'engine', 'cli', 'main.js');

  test('says so, and a session and an engine can be closed meanwhile', async () => {
    const engine = await createEngine({ model: hostileModel(), stateDir: null, threads: 1 });
    const session = await engine.openSession({});
    const generation = session.generate(TEXT, { maxTokens: 1 });
    const closing = engine.close();
    await expect(generation.result).rejects.toBeInstanceOf(KvError);
    await closing;
  });

  test.each([[], ['SIGINT'], ['SIGINT', 'SIGINT']])('on the command line, with %j', async (...signals) => {
    const args = [
      'run',
      '--model',
      hostileModel(),
      '--state',
      join(folder.dir, 'state'),
      '--progress',
      'none',
      '--prompt',
      folder.write('prompt.txt', TEXT),
    ];
    const child = spawn(process.execPath, [cli, ...args], { stdio: ['ignore', 'ignore', 'pipe'] });
    let stderr = '';
    child.stderr.setEncoding('utf8').on('data', (text: string) => (stderr += text));
    for (const [i, signal] of (signals as NodeJS.Signals[]).entries())
      setTimeout(() => child.kill(signal), 900 + 200 * i);
    const code = await new Promise((done) => child.on('close', (exit, by) => done(exit ?? by)));
    if (signals.length === 0) expect(stderr).toContain('did not end within');
    expect(signals.length === 0 ? [2] : [2, 130, 'SIGINT']).toContain(code);
  });
});
