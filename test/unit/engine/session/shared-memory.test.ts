// Sessions that share the kvBudget of an engine and write at once: on the reference model every answer is written to
// its end within the budget, whatever kind of session it is; who finds no room waits; and what cannot fit is refused
// with its numbers before anything is read.

import { afterEach, describe, expect, it } from 'vitest';
import {
  createEngine,
  type Engine,
  type EngineOptions,
  type EngineSession,
  type SessionOptions,
} from '../../../../engine/index.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { readLog, replaySession, timeline } from '../../../../witness/index.ts';
import { refused } from '../../../refusal.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { entriesOf, ids, MODEL } from '../on-reference.ts';
import { parseExposition } from '../serve/exposition.ts';

let engine: Engine;
afterEach(() => engine.close());

async function open(kvBudget: EngineOptions['kvBudget'], options: Partial<EngineOptions> = {}): Promise<void> {
  engine = await createEngine({ model: MODEL, threads: 1, stateDir: null, ...options, ...(kvBudget && { kvBudget }) });
}

const PROMPT = 'Once upon a time';
const TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:";

/** The samples of a metric, added up. */
async function metric(name: string): Promise<number> {
  const families = parseExposition(await engine.metrics());
  const family = families.find((one) => one.name === `palimpsest_${name}`)!;
  return family.samples.reduce((sum, { value }) => sum + value, 0);
}

/** How many passes over the weights there were. */
async function passes(): Promise<number> {
  const families = parseExposition(await engine.metrics());
  const { samples } = families.find(({ name }) => name === 'palimpsest_iteration_tokens_total')!;
  return samples.find(({ name }) => name.endsWith('_count'))!.value;
}

describe('eight sessions that write at once', () => {
  it.each([
    ['2MiB', 300],
    ['0.8MiB', 160],
    ['0.4MiB', 140],
  ])('within %s all write %i tokens', async (kvBudget, maxTokens) => {
    await open(kvBudget);
    const sessions = await Promise.all(Array.from({ length: 8 }, () => engine.openSession()));
    const results = sessions.map(
      (session, seed) => session.generate(PROMPT, { maxTokens, temperature: 0.8, seed }).result,
    );
    expect((await Promise.all(results)).map(({ tokens }) => tokens)).toEqual(sessions.map(() => maxTokens));
    expect(await metric('kv_bytes')).toBeLessThanOrEqual(await metric('kv_budget_bytes'));
    expect(await metric('room_refusals_total')).toBe(0);
    // And each goes on.
    for (const session of sessions) expect((await session.generate('Then', { maxTokens: 2 }).result).tokens).toBe(2);
  });

  it('write in the same passes what each writes alone', async () => {
    await open(undefined);
    const write = async (session: EngineSession, seed: number): Promise<string> => {
      const { text } = await session.generate(null, { maxTokens: 40, temperature: 0.8, seed }).result;
      return text;
    };
    const read = async (seed: number): Promise<EngineSession> => {
      const session = await engine.openSession({ exact: true });
      await session.read(ids(100 + seed, seed));
      return session;
    };
    const seeds = [1, 2, 3, 4, 5, 6, 7, 8];
    const alone: string[] = [];
    for (const seed of seeds) alone.push(await write(await read(seed), seed));
    const sessions: EngineSession[] = [];
    for (const seed of seeds) sessions.push(await read(seed));
    const before = await passes();
    expect(await Promise.all(sessions.map((session, at) => write(session, seeds[at]!)))).toEqual(alone);
    // One for each token, if all of them keep step.
    expect((await passes()) - before).toBeLessThan(60);
  });

  it('may be of any kind: exact, of fixed formats, with budgets of their own, forks and chats', async () => {
    await open('1.7MiB');
    const kinds: SessionOptions[] = [
      {},
      { exact: true },
      { cacheTypes: 'rot4:rot2' },
      { kvBudget: '0.6MiB' },
      { kldBudget: 0.05 },
    ];
    const sessions = await Promise.all(kinds.map((options) => engine.openSession(options)));
    await sessions[0]!.read(ids(150));
    sessions.push(await sessions[0]!.fork());
    const chats = await Promise.all(
      [1, 2].map(() => engine.chat({ template: TEMPLATE, maxTokens: 150, temperature: 0.8 })),
    );
    const ends = await Promise.all([
      ...sessions.map((session, seed) => session.generate(PROMPT, { maxTokens: 150, temperature: 0.8, seed }).result),
      ...chats.map((chat) => chat.send('Tell me of the sea.').result),
    ]);
    for (const { tokens, finish } of ends) expect(tokens === 150 || finish === 'stop').toBe(true);
    expect(chats.map(({ messages }) => messages.length)).toEqual([2, 2]);
  });

  it('wait for each other where only one fits, and an abort ends the wait', async () => {
    await open('0.4MiB');
    const [first, second, third] = await Promise.all([1, 2, 3].map(() => engine.openSession()));
    const abort = new AbortController();
    const writing = first!.generate(PROMPT, { maxTokens: 140, temperature: 0.8 }).result;
    const waiting = refused(second!.generate(PROMPT, { maxTokens: 140, signal: abort.signal }).result);
    const last = third!.generate(PROMPT, { maxTokens: 140, temperature: 0.8 }).result;
    expect(await refused(second!.read([5]))).toMatchObject({ code: 'busy' });
    abort.abort();
    expect((await waiting).code).toBe('aborted');
    expect([(await writing).tokens, (await last).tokens]).toEqual([140, 140]);
    expect(await metric('room_waits_total')).toBe(2);
  });
});

describe('sessions whose pages went for another one', () => {
  it('go on from their tokens, also if a page was being tried when it went', async () => {
    await open('0.45MiB');
    const sessions = [await engine.openSession(), await engine.openSession()];
    for (let turn = 0; turn < 6; turn++) {
      const session = sessions[turn % 2]!;
      await session.read(ids(turn < 2 ? 192 : 8, turn));
      expect((await session.report()).tokens).toBe(192 + 8 * Math.floor(turn / 2));
    }
    const metrics = await engine.metrics();
    expect(metrics).toMatch(/^palimpsest_sessions_parked\{place="reread"\} 1$/m);
    expect(metrics).toMatch(/^palimpsest_room_refusals_total 0$/m);
  });
});

describe('maxConcurrent', () => {
  it('has so many at work at once, the others in turn, and an abort ends a wait', async () => {
    await open(undefined, { maxConcurrent: 2 });
    const sessions = await Promise.all([1, 2, 3, 4].map(() => engine.openSession({ exact: true })));
    const abort = new AbortController();
    const ended: number[] = [];
    const write = async (at: number, maxTokens: number, options = {}): Promise<number> => {
      const { tokens } = await sessions[at]!.generate(PROMPT, { maxTokens, temperature: 0.8, ...options }).result;
      ended.push(at);
      return tokens;
    };
    const first = [write(0, 300), write(1, 150)];
    const aborted = refused(write(2, 10, { signal: abort.signal }));
    const last = write(3, 10);
    while ((await metric('num_requests_waiting')) < 2);
    expect(await metric('num_requests_running')).toBe(2);
    abort.abort();
    expect(await aborted).toMatchObject({ code: 'aborted' });
    expect(await Promise.all([...first, last])).toEqual([300, 150, 10]);
    expect(ended).toEqual([1, 3, 0]);
    expect(await metric('room_waits_total')).toBe(0);
  });
});

describe('interTokenTargetMs', () => {
  it.each([
    [0.001, 16],
    [1e6, 128],
  ])('of %f: prompts are read in pieces of up to %i tokens beside an answer', async (interTokenTargetMs, most) => {
    await open(undefined, { interTokenTargetMs });
    const [writer, reader] = await Promise.all([1, 2].map(() => engine.openSession({ exact: true })));
    const abort = new AbortController();
    const writing = writer!.generate(PROMPT, { maxTokens: 900, temperature: 0.8, signal: abort.signal });
    const { value: first } = await writing[Symbol.asyncIterator]().next();
    expect(first).toBeDefined();
    const told = [0];
    await reader!.read(ids(256), { onProgress: ({ tokens }) => told.push(tokens) });
    abort.abort();
    expect((await writing.result).finish).toBe('aborted');
    expect(Math.max(...told.slice(1).map((tokens, at) => tokens - told[at]!))).toBe(most);
  });
});

describe('schedulingPriority', () => {
  it('says who begins first of those that wait, who came first among equals', async () => {
    await open(undefined, { maxConcurrent: 1 });
    const priorities = [0, 5, 0, -5, 0];
    const sessions = await Promise.all(
      priorities.map((schedulingPriority) => engine.openSession({ exact: true, schedulingPriority })),
    );
    const ended: number[] = [];
    const write = async (at: number, maxTokens: number): Promise<void> => {
      await sessions[at]!.generate(PROMPT, { maxTokens, temperature: 0.8 }).result;
      ended.push(at);
    };
    const writing = [write(0, 100), ...[1, 2, 3, 4].map((at) => write(at, 3))];
    await Promise.all(writing);
    expect(ended).toEqual([0, 3, 2, 4, 1]);
  });
});

describe('onPressure', () => {
  const [tokens, kvBudget] = [700, '1.6MiB'] as const;

  /** One that holds most of the memory, and one with other ways. */
  async function pair(onPressure: SessionOptions['onPressure']): Promise<[EngineSession, EngineSession]> {
    const first = await engine.openSession();
    await first.read(ids(tokens));
    return [first, await engine.openSession(onPressure === undefined ? {} : { onPressure })];
  }
  const kvBytes = async (session: EngineSession): Promise<number> => (await session.report()).kvBytesNow;

  it("'degrade', the default: pages go lower for a call, which its report says", async () => {
    await open(kvBudget, { idleSessions: 'keep' });
    const [first, second] = await pair(undefined);
    const before = await kvBytes(first);
    expect((await first.report()).pressure).toEqual({
      ...{ waitedCalls: 0, waitedMs: 0, shortCalls: 0, shortBytes: 0, floorBytes: 0, weight: 1 },
    });
    await second.read(ids(tokens, 2));
    expect(await kvBytes(first)).toBeLessThan(before);
    const { pressure } = await second.report();
    expect(pressure).toMatchObject({ waitedCalls: 0, shortCalls: 1 });
    expect(pressure!.shortBytes).toBeGreaterThan(0);
    expect(await metric('room_shortages_total')).toBe(1);
    expect(await metric('room_waits_total')).toBe(0);
  });

  it("'refuse': a call is refused with the numbers where somebody would have to give up bytes, and nobody does", async () => {
    await open(kvBudget, { idleSessions: 'keep', onPressure: 'refuse' });
    const [first, second] = await pair(undefined);
    const before = await kvBytes(first);
    const { code, values } = await refused(second.read(ids(tokens, 2)));
    expect(code).toBe('budget-exceeded');
    expect(values).toMatchObject({ tokens, budgetBytes: Math.floor(1.6 * 2 ** 20), heldBytes: before });
    expect(values['roomBytes']).toBe((values['budgetBytes'] as number) - before);
    expect(values['neededBytes']).toBeGreaterThan(values['roomBytes'] as number);
    expect(await kvBytes(first)).toBe(before);
    // As much as there is room for it may have, and others may have more.
    await second.read(ids(100, 2));
    const third = await engine.openSession({ onPressure: 'degrade' });
    await third.read(ids(tokens, 3));
    expect(await kvBytes(first)).toBeLessThan(before);
    expect(await metric('room_refusals_total')).toBe(1);
  });

  it("'refuse': whoever is let in by it has nobody give up anything, whatever they are used for", async () => {
    await open(kvBudget, { onPressure: 'refuse' });
    const sessions = await Promise.all([1, 2, 3].map(() => engine.openSession()));
    let refusals = 0;
    for (let turn = 0; refusals < 6; turn++) {
      const calls = sessions.map((session, at) =>
        session.generate(ids(40 + 10 * at, turn), { maxTokens: 20 + turn, temperature: 0.8, seed: turn }).result.then(
          () => 0,
          () => 1,
        ),
      );
      refusals += (await Promise.all(calls)).reduce((sum: number, one) => sum + one, 0);
    }
    for (const session of sessions) {
      const { decisions, tokens: held, pressure } = await session.report();
      expect([decisions, pressure!.shortCalls]).toEqual([0, 0]);
      expect(held).toBeGreaterThan(200);
    }
    expect(await metric('kv_bytes')).toBeGreaterThan(0.8 * (await metric('kv_budget_bytes')));
  });

  it("'refuse' does not wait behind those that wait for room", async () => {
    await open('0.4MiB');
    const [first, second, third] = await Promise.all(
      [undefined, undefined, 'refuse' as const].map((onPressure) =>
        engine.openSession(onPressure === undefined ? {} : { onPressure }),
      ),
    );
    const writing = [first!, second!].map((one) => one.generate(PROMPT, { maxTokens: 140, temperature: 0.8 }).result);
    expect((await refused(third!.generate(PROMPT, { maxTokens: 140 }).result)).code).toBe('budget-exceeded');
    expect((await Promise.all(writing)).map((one) => one.tokens)).toEqual([140, 140]);
  });

  it("'queue': a call waits for those at work before anybody gives up anything", async () => {
    await open(kvBudget, { idleSessions: 'keep' });
    const [first, second] = await pair('queue');
    const before = await kvBytes(first);
    const writing = first.generate(null, { maxTokens: 100, temperature: 0.8, seed: 3 });
    const abort = new AbortController();
    const aborted = refused(second.read(ids(tokens, 2), { signal: abort.signal }));
    while ((await metric('num_requests_waiting')) < 1);
    abort.abort();
    expect((await aborted).code).toBe('aborted');
    const waiting = second.read(ids(tokens, 2));
    expect((await writing.result).tokens).toBe(100);
    // Nobody is at work any more for whom it could wait: from now on pages go lower.
    await waiting;
    expect(await kvBytes(first)).toBeLessThan(before);
    expect((await second.report()).pressure).toMatchObject({ waitedCalls: 1, shortCalls: 1 });
  });

  it("'queue' begins as everything is where another one leaves its room", async () => {
    await open(kvBudget, { idleSessions: 'keep' });
    const [first, second] = await pair('queue');
    const writing = first.generate(null, { maxTokens: 300, temperature: 0.8 });
    const waiting = second.read(ids(tokens, 2));
    while ((await metric('num_requests_waiting')) < 1);
    const ended = refused(writing.result);
    await first.close();
    await ended;
    await waiting;
    const { pressure } = await second.report();
    expect(pressure).toMatchObject({ waitedCalls: 1, shortCalls: 0, shortBytes: 0 });
    expect(pressure!.waitedMs).toBeGreaterThan(0);
    expect(await metric('room_shortages_total')).toBe(0);
  });
});

describe('a budget that becomes short', () => {
  const folder = scratchFolders();

  it('is made up for by whoever keeps its old pages in most bits, which its log says, and the logs replay', async () => {
    const dir = folder();
    await open('1.6MiB', { stateDir: dir, idleSessions: 'keep' });
    const first = await engine.openSession();
    await first.read(ids(700));
    const second = await engine.openSession();
    await second.read(ids(700, 2));
    const bytes: number[] = [];
    for (const session of [first, second]) bytes.push((await session.report()).kvBytesNow);
    await engine.close();
    const notes = entriesOf(dir, first.id, 'note').filter(({ body }) => 'gaveUpBytes' in body);
    expect(notes.length).toBeGreaterThan(0);
    for (const { body } of notes) {
      expect(body).toMatchObject({ gaveUpFor: second.id, gaveUpBy: 'even', tokens: 700 });
      expect(body['gaveUpBytes']).toBeGreaterThan(0);
    }
    // Who waits counts as having a quarter more, and gives first, but not all.
    expect(bytes[0]! / bytes[1]!).toBeGreaterThan(0.6);
    expect(bytes[0]! / bytes[1]!).toBeLessThan(1);
    const told = timeline(logDir(dir), first.id).map(({ text }) => text);
    const gave =
      /^Gave up .* for session .*: its turn by 'even' \(entry \d+\), on rung 'demote' of the ladder \(.*\)\.$/;
    expect(told.some((text) => gave.test(text))).toBe(true);
    for (const { id } of [first, second])
      expect(replaySession(readLog(logDir(dir), { session: id }))).toMatchObject({ equal: true });
  });
});

describe('a budget in which not even one session fits', () => {
  it('is refused with its numbers before anything is read, and the session can be used', async () => {
    await open('0.25MiB');
    const session = await engine.openSession();
    const error = await refused(session.generate(PROMPT, { maxTokens: 300 }).result);
    expect(error.code).toBe('budget-exceeded');
    expect(error.values).toMatchObject({ tokens: 305, budgetBytes: 262_144, roomBytes: 262_144 });
    expect(error.values['neededBytes']).toBeGreaterThan(262_144);
    expect((await session.report()).tokens).toBe(0);
    expect((await session.generate(PROMPT, { maxTokens: 20 }).result).tokens).toBe(20);
    expect(await metric('room_refusals_total')).toBe(1);
  });

  it('leaves what was read of an answer in the messages of its chat', async () => {
    await open(undefined);
    const session = await engine.openSession({ kvBudget: '0.25MiB' });
    const chat = await engine.chat({ session, template: TEMPLATE, maxTokens: 900, temperature: 0.8, seed: 2 });
    const answer = chat.send('Tell me of the sea.');
    let text = '';
    const error = await refused(
      (async () => {
        for await (const piece of answer) text += piece;
      })(),
    );
    expect(error.code).toBe('budget-too-small');
    expect(chat.messages).toEqual([
      { role: 'user', content: 'Tell me of the sea.' },
      { role: 'assistant', content: text },
    ]);
    expect(text.length).toBeGreaterThan(100);
  });
});
