// A chat over the reference model, with a template of its own: nothing that stays is read twice, whatever is said,
// taken back, edited, forked or answered anew; what it counts beforehand is what it reads; at the end of the context it
// does what was chosen and says so; and a refused or aborted question was never asked.

import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Chat, ChatAnswer, ChatMessage, ChatOptions, Engine } from '../../../../../engine/index.ts';
import { refused } from '../../../../refusal.ts';
import { codeOf, openEngine } from '../../on-reference.ts';

const TEMPLATE = `{% for m in messages %}{{ m.role }}:{{ m.content }}
{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}`;
const WITH_TOOLS = `{% if tools %}{{ tools | tojson }}
{% endif %}${TEMPLATE}{# <tool_call> #}`;
const STORY = 'Once upon a time there was a keeper of bees. ';

let engine: Engine;
beforeAll(async () => {
  engine = await openEngine(null);
});
afterAll(() => engine.close());

const open = (options: ChatOptions = {}): Promise<Chat> =>
  engine.chat({ template: TEMPLATE, system: STORY.repeat(8), maxTokens: 12, temperature: 0.8, ...options });
const say = (chat: Chat, text: string, options = {}): Promise<ChatAnswer> => chat.send(text, options).result;
/** Tokens of a conversation are those that were there, those that were read, and the answer. */
const sums = ({ reusedTokens, promptTokens, tokens, contextTokens }: ChatAnswer): boolean =>
  reusedTokens + promptTokens + tokens === contextTokens;

describe('a chat', () => {
  it('streams what it answers, and reads only what is new', async () => {
    const chat = await open();
    const reply = chat.send('Who kept the bees?');
    let text = '';
    for await (const piece of reply) text += piece;
    const first = await reply.result;
    expect(text).toBe(first.text);
    expect(first).toMatchObject({ reusedTokens: 0, dropped: [], toolCalls: [], finish: 'length', seed: 0 });
    expect(sums(first)).toBe(true);
    let before = first;
    for (const question of ['And then?', 'Why?', 'Tell me all of it.']) {
      const count = await chat.count(question);
      const answer = await say(chat, question);
      expect(answer.reusedTokens).toBe(before.contextTokens);
      expect(count).toEqual({
        tokens: answer.reusedTokens + answer.promptTokens,
        reusedTokens: answer.reusedTokens,
        readTokens: answer.promptTokens,
        roomTokens: chat.contextTokens - answer.reusedTokens - answer.promptTokens,
      });
      expect(answer.promptTokens).toBeLessThan(20);
      expect(sums(answer)).toBe(true);
      before = answer;
    }
    expect(chat.messages.map(({ role }) => role)).toEqual(['system', ...Array(4).fill(['user', 'assistant']).flat()]);
    expect((await chat.session.report()).tokens).toBe(before.contextTokens);
    await chat.close();
  });

  it('says with each text where the bytes of its cache are, if it is asked to', async () => {
    const chat = await open({ tierSummary: true });
    const answer = chat.send('Who kept the bees?');
    let tokens = 0;
    for await (const { tiers } of answer.events()) {
      expect(tiers!.tokens).toBeGreaterThanOrEqual(tokens);
      tokens = tiers!.tokens;
    }
    await answer.result;
    expect(tokens).toBe((await chat.session.report()).tokens);
    for await (const { tiers } of chat.regenerate({ tierSummary: false }).events()) expect(tiers).toBeNull();
    await chat.close();
  });

  it('answers anew with the next seed, and reads one token for it', async () => {
    const chat = await open();
    const first = await say(chat, 'Who kept the bees?', { seed: 4 });
    const second = await chat.regenerate().result;
    expect(second).toMatchObject({ seed: 5, promptTokens: 1 });
    expect(second.text).not.toBe(first.text);
    const third = await chat.regenerate({ seed: 4 }).result;
    expect(third.text).toBe(first.text);
    expect(chat.messages).toHaveLength(3);
    expect(chat.messages[2]).toEqual(third.message);
    await chat.close();
  });

  it('goes on with an answer that was cut as if it had never been, and reads nothing for it', async () => {
    const [cut, whole] = [await open({ temperature: 0 }), await open({ temperature: 0 })];
    const long = await say(whole, 'Who kept the bees?', { maxTokens: 30 });
    const first = await say(cut, 'Who kept the bees?', { maxTokens: 18 });
    const second = await cut.send([], { maxTokens: 12, continueFinalMessage: true }).result;
    expect(second.promptTokens).toBeLessThanOrEqual(1);
    expect(first.text + second.text).toBe(long.text);
    expect(cut.messages).toEqual(whole.messages);
    expect(second.message).toEqual(cut.messages[2]);
    const third = await say(cut, 'And then?');
    expect(third.reusedTokens).toBeGreaterThanOrEqual(second.contextTokens - 1);
    await cut.close();
    await whole.close();
  });

  it('goes on with the beginning of an answer, and with the same when it is answered anew', async () => {
    const chat = await open();
    const begun: ChatMessage[] = [
      { role: 'user', content: 'Who kept the bees?' },
      { role: 'assistant', content: 'It was' },
    ];
    const first = await chat.send(begun, { continueFinalMessage: true }).result;
    expect(first.message).toEqual({ role: 'assistant', content: `It was${first.text}` });
    const second = await chat.regenerate().result;
    expect(second).toMatchObject({ seed: 1, message: { content: `It was${second.text}` } });
    expect(chat.messages.slice(1)).toEqual([begun[0], second.message]);
    await chat.close();
  });

  it.each<[string, ChatMessage[]]>([
    ['a question', [{ role: 'user', content: 'Who?' }]],
    ['calls', [{ role: 'assistant', content: 'x', toolCalls: [{ id: 'c', name: 'f', arguments: {} }] }]],
    ['nothing', []],
  ])('does not go on with %s', async (_, input) => {
    const chat = await open();
    const error = await refused(chat.send(input, { continueFinalMessage: true }).result);
    expect(error).toMatchObject({ code: 'bad-argument' });
    expect(chat.messages).toHaveLength(1);
    await chat.close();
  });

  it('goes back, and reads from there', async () => {
    const chat = await open();
    const first = await say(chat, 'Who kept the bees?');
    const second = await say(chat, 'And then?');
    expect(chat.rewind()).toEqual([{ role: 'user', content: 'And then?' }, second.message]);
    const third = await say(chat, 'And then?');
    expect(third.text).toBe(second.text);
    expect(third.reusedTokens).toBeGreaterThanOrEqual(first.contextTokens - 1);
    expect(chat.rewind(0)).toHaveLength(5);
    expect(await say(chat, 'Who?')).toMatchObject({ reusedTokens: 0 });
    await chat.close();
  });

  it('whose earlier turn is edited reads from the page of what changed', async () => {
    const chat = await open();
    for (const question of ['Who kept the bees?', STORY.repeat(16), 'And then?']) await say(chat, question);
    const tokens = (await chat.session.report()).tokens;
    chat.edit(5, 'And after that?');
    const { tokens: rendered, readTokens } = await chat.count();
    const answer = await say(chat, 'Why?');
    expect(answer.reusedTokens).toBeGreaterThan(tokens - 2 * 128);
    expect(answer.reusedTokens).toBeLessThan(tokens);
    expect(readTokens).toBeLessThanOrEqual(rendered - answer.reusedTokens);
    expect(chat.messages[5]).toEqual({ role: 'user', content: 'And after that?' });
    await chat.close();
  });

  it('forks, and each goes on by itself', async () => {
    const chat = await open({ kvBudget: '40%', contextTokens: 1024 });
    const before = await say(chat, STORY.repeat(10));
    const fork = await chat.fork();
    const [one, other] = [await say(chat, 'Why?'), await say(fork, 'Why?')];
    expect(other.text).toBe(one.text);
    expect([one, other].map(({ reusedTokens }) => reusedTokens)).toEqual([before.contextTokens, before.contextTokens]);
    fork.edit(0, 'Be brief.');
    expect(await say(fork, 'And?')).toMatchObject({ reusedTokens: 0 });
    expect(await say(chat, 'And?')).toMatchObject({ reusedTokens: one.contextTokens });
    for (const it of [fork, chat]) await it.close();
  });

  it('begins with what was said elsewhere, over a session that has it already', async () => {
    const session = await engine.openSession();
    const chat = await open({ session });
    const first = await say(chat, 'Who?');
    const again = await engine.chat({ template: TEMPLATE, session, messages: chat.messages, maxTokens: 4 });
    expect((await again.count()).reusedTokens).toBeGreaterThan(first.contextTokens - 12);
    expect(again.contextTokens).toBe(engine.info.config.contextLength);
    await chat.close();
  });

  it('keeps an answer that a stop string ended without it, and reads what that takes', async () => {
    const chat = await open({ temperature: 0 });
    const whole = await say(chat, 'Who?');
    const stop = whole.text.slice(8, 12);
    const cut = await chat.regenerate({ stop: [stop] }).result;
    expect(cut).toMatchObject({ finish: 'stop', text: whole.text.slice(0, whole.text.indexOf(stop)) });
    const next = await say(chat, 'And?');
    expect(next.reusedTokens).toBeLessThan(cut.contextTokens);
    expect(sums(next)).toBe(true);
    await chat.close();
  });

  it('with tools tells the model of them, and leaves words that are no call as text', async () => {
    const tools = [{ name: 'now', description: 'Tells the time', parameters: { type: 'object', properties: {} } }];
    const chat = await open({ template: WITH_TOOLS, tools });
    expect(chat.callFormat).toBe('hermes');
    const [{ tokens }, without] = [await chat.count('Hi'), await open()];
    expect(tokens).toBeGreaterThan((await without.count('Hi')).tokens + 10);
    const reply = chat.send('Hi');
    let text = '';
    for await (const piece of reply) text += piece;
    expect(await reply.result).toMatchObject({ text, toolCalls: [] });
    const answers: ChatMessage[] = [
      { role: 'tool', content: 'noon', toolCallId: 'call00001', name: 'now' },
      { role: 'user', content: 'Well?' },
    ];
    expect((await chat.send(answers).result).tokens).toBe(12);
    for (const one of [chat, without]) await one.close();
  });
});

describe('at the end of its context a chat', () => {
  it('refuses with the numbers, and stays as it was', async () => {
    const chat = await open({ contextTokens: 256 });
    await say(chat, 'Who?');
    const messages = chat.messages;
    const error = await refused(chat.send(STORY.repeat(12)).result);
    const { tokens } = await chat.count(STORY.repeat(12));
    expect(error).toMatchObject({
      code: 'context-too-long',
      values: { tokens, maxTokens: 12, contextTokens: 256, over: tokens + 12 - 256, dropped: 0 },
    });
    expect(error.hint).toContain('drop-oldest');
    expect(chat.messages).toEqual(messages);
    expect((await say(chat, 'Why?')).contextTokens).toBeLessThanOrEqual(256);
    await chat.close();
  });

  it('drops the oldest turns, says which, and keeps the system message', async () => {
    const chat = await open({ contextTokens: 400, atContextEnd: 'drop-oldest' });
    const asked: ChatMessage[] = [];
    const dropped: ChatMessage[] = [];
    for (let turn = 0; turn < 9; turn++) {
      const content = `${turn}. ${STORY.repeat(3)}`;
      const before = chat.messages;
      const answer = await say(chat, content);
      asked.push({ role: 'user', content }, answer.message);
      dropped.push(...answer.dropped);
      expect(answer.contextTokens).toBeLessThanOrEqual(400);
      expect(sums(answer)).toBe(true);
      if (answer.dropped.length > 0) {
        expect(answer.dropped).toEqual(before.slice(1, 1 + answer.dropped.length));
        expect(answer.contextTokens).toBeLessThanOrEqual(300);
      }
      expect(chat.messages[0]!.role).toBe('system');
    }
    expect(dropped.length).toBeGreaterThan(2);
    expect([...dropped, ...chat.messages.slice(1)]).toEqual(asked);
    const error = await refused(chat.send(STORY.repeat(60)).result);
    expect(error).toMatchObject({ code: 'context-too-long', values: { dropped: chat.messages.length - 1 } });
    await chat.close();
  });

  it('that a budget in bytes makes shorter than was asked for is refused with what it holds', async () => {
    const error = await refused(open({ kvBudget: '0.5MiB', contextTokens: 2048 }));
    expect(error.code).toBe('budget-too-small');
    const { holdsTokens } = error.values as { holdsTokens: number };
    expect(error.message).toContain(`holds a conversation of ${holdsTokens} tokens, and contextTokens is 2048`);
    const chat = await open({ kvBudget: '0.5MiB', contextTokens: holdsTokens });
    expect(chat.contextTokens).toBe(holdsTokens);
    await chat.close();
  });

  it('that a budget in bytes makes short ends where the budget does', async () => {
    const chat = await open({ kvBudget: '1.25MiB', atContextEnd: 'drop-oldest', openFormat: 'f16', windowTokens: 128 });
    expect(chat.contextTokens).toBeLessThan(engine.info.config.contextLength);
    let dropped = 0;
    for (let turn = 0; turn < 8; turn++) dropped += (await say(chat, STORY.repeat(20))).dropped.length;
    expect(dropped).toBeGreaterThan(0);
    const { kvBytes, budgetBytes, decisions } = await chat.session.report();
    expect(kvBytes).toBeLessThanOrEqual(budgetBytes!);
    expect(decisions).toBeGreaterThan(0);
    await chat.close();
  });
});

describe('a question', () => {
  it('that was aborted while it was read was never asked; an answer that was stays as far as it came', async () => {
    const chat = await open();
    await say(chat, 'Who?');
    const messages = chat.messages;
    const abort = new AbortController();
    const reading = chat.send(STORY.repeat(40), { signal: abort.signal, onProgress: () => abort.abort() });
    expect(await codeOf(reading.result)).toBe('aborted');
    expect(chat.messages).toEqual(messages);
    const reply = chat.send('Why?', { maxTokens: 500 });
    for await (const _ of reply) break;
    const answer = await reply.result;
    expect(answer.finish).toBe('aborted');
    expect(chat.messages.at(-1)).toEqual(answer.message);
    expect((await say(chat, 'And?')).reusedTokens).toBeGreaterThanOrEqual(answer.contextTokens - 1);
    await chat.close();
  });

  it('waits for the answer before it', async () => {
    const chat = await open();
    const reply = chat.send('Who?');
    await Promise.resolve();
    expect(await codeOf(chat.send('Why?').result)).toBe('busy');
    expect(await codeOf(chat.fork())).toBe('busy');
    expect(() => chat.rewind()).toThrow(/is answering/);
    expect((await reply.result).tokens).toBe(12);
    await chat.close();
  });

  it.each<[string, unknown, string]>([
    ['nothing', [], 'bad-argument'],
    ['of nobody', { role: 'robot', content: 'x' }, 'bad-argument'],
    ['without words', { role: 'user' }, 'bad-argument'],
    ['a number', 3, 'bad-argument'],
  ])('that is %s is refused', async (_, input, code) => {
    const chat = await open();
    expect(await codeOf(chat.send(input as string).result)).toBe(code);
    expect(await codeOf(chat.count(input as string))).toBe(code);
    expect(chat.messages).toHaveLength(1);
    await chat.close();
  });
});

describe('a chat is not opened', () => {
  it.each<[string, object, string]>([
    ['without a template', { template: undefined }, 'bad-tokenizer'],
    ['with a template that has no place for what is said', { template: 'chatml' }, 'bad-argument'],
    ['with tools that its template does not know', { tools: [{ name: 'now' }] }, 'unsupported'],
    ['with tools that are none', { template: WITH_TOOLS, tools: [{}] }, 'bad-argument'],
    ['with messages that are none', { messages: [{ role: 'user' }] }, 'bad-argument'],
    ['with messages that are no list', { messages: 'Hi' }, 'bad-argument'],
    ['with a system message that is no text', { system: 3 }, 'bad-argument'],
    ['with an end that there is not', { atContextEnd: 'forget' }, 'bad-argument'],
    ['for more tokens than the model has', { contextTokens: 5000 }, 'bad-argument'],
    ['with an option that there is not', { prompt: 'Hi' }, 'bad-argument'],
    ['with too small a budget', { kvBudget: '10KiB' }, 'budget-too-small'],
  ])('%s', async (_, options, code) => {
    expect(await codeOf(open(options as ChatOptions))).toBe(code);
  });

  it('with options for a session that is open already', async () => {
    const session = await engine.openSession();
    expect(await codeOf(open({ session, kvBudget: '40%' }))).toBe('bad-argument');
    const chat = await open({ session });
    expect(await codeOf(chat.regenerate().result)).toBe('bad-argument');
    for (const index of [-1, 1, 0.5]) expect(() => chat.edit(index, 'x')).toThrow(/has no place/);
    expect(() => chat.rewind(7)).toThrow(/has no place/);
    await chat.close();
  });
});
