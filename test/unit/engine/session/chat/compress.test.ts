// A chat over the reference model that is compressed at the end of its context: nothing leaves, the bytes stay, pages
// go to lower formats, each answer says so, and what the bytes cannot hold in the lowest ones is refused with the
// numbers. Without a budget pages are in 8 bits up to the context; in an engine whose memory is shared the chat goes on
// where one without this is refused.

import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  type Chat,
  type ChatAnswer,
  type ChatOptions,
  createEngine,
  type Engine,
} from '../../../../../engine/index.ts';
import { refused } from '../../../../refusal.ts';
import { codeOf, MODEL, openEngine } from '../../on-reference.ts';

const TEMPLATE = `{% for m in messages %}{{ m.role }}:{{ m.content }}
{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}`;
const STORY = 'Once upon a time there was a keeper of bees. ';

let engine: Engine;
beforeAll(async () => {
  engine = await openEngine(null);
});
afterAll(() => engine.close());

const open = (options: ChatOptions = {}, by = engine): Promise<Chat> =>
  by.chat({ template: TEMPLATE, system: STORY, maxTokens: 8, atContextEnd: 'compress', ...options });

/** Says so much until it is refused. → the answers, and why it ended */
async function untilRefused(chat: Chat): Promise<{ answers: ChatAnswer[]; error: unknown }> {
  const answers: ChatAnswer[] = [];
  for (;;) {
    const messages = chat.messages;
    try {
      const answer = await chat.send(`${answers.length}. ${STORY.repeat(12)}`).result;
      const { kvBytes, budgetBytes } = await chat.session.report();
      if (budgetBytes !== null) expect(kvBytes).toBeLessThanOrEqual(budgetBytes);
      answers.push(answer);
    } catch (error) {
      expect(chat.messages).toEqual(messages);
      return { answers, error };
    }
  }
}

describe('a chat that is compressed at the end of its context', () => {
  it('goes on within the same bytes, says so, and at last is refused with the numbers', async () => {
    const chat = await open({ kvBudget: '60%', contextTokens: 640 });
    const most = engine.info.config.contextLength;
    expect(chat.contextTokens).toBe(640);
    expect(chat.mostTokens).toBeGreaterThan(1000);
    expect(chat.mostTokens).toBeLessThan(most);
    const { answers, error } = await untilRefused(chat);
    const before = answers.filter(({ compressed }) => compressed === null);
    const after = answers.filter(({ compressed }) => compressed !== null);
    for (const { contextTokens } of before) expect(contextTokens).toBeLessThanOrEqual(640);
    let bits = 16;
    for (const { compressed, contextTokens, dropped } of after) {
      expect(compressed).toMatchObject({ overTokens: contextTokens - 640, mostTokens: chat.mostTokens });
      expect(compressed!.effectiveBits).toBeLessThan(bits);
      expect(dropped).toEqual([]);
      bits = compressed!.effectiveBits;
    }
    expect([before.length, after.length].map((count) => count > 2)).toEqual([true, true]);
    expect(chat.messages).toHaveLength(1 + 2 * answers.length);
    const { tokens, roomTokens } = await chat.count(`${answers.length}. ${STORY.repeat(12)}`);
    expect(roomTokens).toBe(chat.mostTokens - tokens);
    expect(error).toMatchObject({
      code: 'context-too-long',
      values: { tokens, contextTokens: 640, mostTokens: chat.mostTokens, over: tokens + 8 - chat.mostTokens },
    });
    chat.rewind(3);
    expect(await chat.send('Why?').result).toMatchObject({ compressed: null });
    await chat.close();
  });

  it('without a budget keeps pages in 8 bits up to its context, and the bytes of that from there on', async () => {
    const chat = await open({ contextTokens: 640 });
    const { budgetBytes } = await chat.session.report();
    expect(budgetBytes).not.toBeNull();
    let answer = await chat.send(STORY.repeat(40)).result;
    expect(answer.compressed).toBeNull();
    const moved = async (): Promise<boolean> =>
      (await chat.session.report()).layers.some(({ kPages, vPages }) =>
        [kPages, vPages].some((pages) => Object.keys(pages).some((format) => format !== 'q8')),
      );
    expect(await moved()).toBe(false);
    while (answer.contextTokens < 2 * 640) answer = await chat.send(STORY.repeat(12)).result;
    expect(await moved()).toBe(true);
    expect(answer.compressed!.effectiveBits).toBeLessThan(6);
    expect((await chat.session.report()).kvBytes).toBeLessThanOrEqual(budgetBytes!);
    await chat.close();
  });

  it('has nothing to gain where its context is already all that the model or the bytes can hold', async () => {
    const whole = await open();
    expect(whole.mostTokens).toBe(whole.contextTokens);
    const small = await open({ kvBudget: '1.25MiB' });
    expect(small.mostTokens).toBe(small.contextTokens);
    const { answers, error } = await untilRefused(small);
    expect(answers.every(({ compressed }) => compressed === null)).toBe(true);
    expect(error).toMatchObject({ code: 'context-too-long' });
    for (const chat of [whole, small]) await chat.close();
  });

  it('gives way in memory that is shared, as one does that asks for nothing', async () => {
    const shared = await createEngine({ model: MODEL, threads: 1, stateDir: null, kvBudget: '1.5MiB' });
    for (const [atContextEnd, code] of [
      ['refuse', 'context-too-long'],
      ['compress', 'budget-exceeded'],
    ] as const) {
      const chat = await open({ atContextEnd, contextTokens: 2048 }, shared);
      const { answers, error } = await untilRefused(chat);
      expect(error).toMatchObject({ code });
      expect(answers.at(-1)!.contextTokens).toBeGreaterThan(1700);
      expect(chat.messages).toHaveLength(1 + 2 * answers.length);
      await chat.close();
    }
    await shared.close();
  });

  it('forks with its ends', async () => {
    const chat = await open({ kvBudget: '60%', contextTokens: 640 });
    await chat.send(STORY).result;
    const fork = await chat.fork();
    expect([fork.contextTokens, fork.mostTokens]).toEqual([chat.contextTokens, chat.mostTokens]);
    for (const one of [fork, chat]) await one.close();
  });

  it('plans its session by itself', async () => {
    const session = await engine.openSession();
    for (const beside of [{ session }, { tokensExpected: 900 }, { exact: true }])
      expect(await codeOf(open(beside))).toBe('bad-argument');
    const error = await refused(open({ kvBudget: '5%', contextTokens: 256 }));
    expect(error.code).toBe('budget-too-small');
    await session.close();
  });
});
