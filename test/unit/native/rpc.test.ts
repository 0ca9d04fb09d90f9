// Calls across threads, with real threads: what is asked comes back as the handler made it, errors keep what they are,
// events come before answers, aborts arrive, and nobody waits for a thread that has ended.
import type { Worker } from 'node:worker_threads';
import { afterAll, afterEach, describe, expect, test } from 'vitest';
import { KvError, startThread, ThreadClient } from '../../../native/index.ts';
import type { OrderedCalls } from './rpc-ordered-thread.ts';
import type { RpcCalls } from './rpc-thread.ts';

const started: Worker[] = [];
afterEach(async () => {
  await Promise.all(started.splice(0).map((worker) => worker.terminate()));
});

function start(name: string): Worker {
  const worker = startThread(new URL(name, import.meta.url), null);
  started.push(worker);
  return worker;
}

const options = { thread: 'the tested thread', ended: () => new KvError('closed', 'the tested thread ended') };

function client(onNews?: (news: string) => void): ThreadClient<RpcCalls, string> {
  return new ThreadClient(start('./rpc-thread.ts'), onNews === undefined ? options : { ...options, onNews });
}

describe('a call', () => {
  // One thread for all that leave it as it was.
  const thread = startThread(new URL('./rpc-thread.ts', import.meta.url), null);
  const calls = new ThreadClient<RpcCalls, string>(thread, options);
  afterAll(() => thread.terminate());

  test('is answered with what its handler returns, whoever else waits', async () => {
    const own = client();
    const never = own.call('never', undefined);
    const answers = Promise.all([1, 2, 3].map((number) => own.call('double', { number })));
    expect(own.waiting).toBe(4);
    expect(await answers).toEqual([2, 4, 6]);
    expect(own.waiting).toBe(1);
    own.end(new Error('enough'));
    await expect(never).rejects.toThrow('enough');
  });

  test('has the types of its handler', () => {
    const wrong = (calls: ThreadClient<RpcCalls, string>): unknown[] => [
      // @ts-expect-error there is no such call
      calls.call('triple', { number: 1 }),
      // @ts-expect-error it wants a number
      calls.call('double', { number: '1' }),
      // @ts-expect-error it tells numbers
      calls.call('count', { to: 1, waits: false }, { onEvent: (text: string) => text }),
    ];
    expect(wrong).toHaveLength(1);
  });

  test('throws the KvError that its handler throws, with code, values and hint', async () => {
    const error = await calls.call('refuse', undefined).catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(KvError);
    expect(error).toMatchObject({ code: 'busy', message: 'refused', values: { tries: 3 }, hint: 'wait' });
  });

  test('throws what the operating system refused as such, and as no fault', async () => {
    const error = await calls.call('open', { path: '/no/such/file' }).catch((thrown: unknown) => thrown);
    expect(error).toMatchObject({ code: 'io', values: { path: '/no/such/file' } });
    expect(error).toBeInstanceOf(KvError);
  });

  test('throws a fault as an error with the stack of the thread', async () => {
    const error = (await calls.call('fail', undefined).catch((thrown: unknown) => thrown)) as Error;
    expect(error).not.toBeInstanceOf(KvError);
    expect(error.message).toBe('a fault');
    expect(error.stack).toMatch(/^TypeError: a fault[\s\S]*rpc-thread/);
  });

  test('throws when its parameters or its answer are no plain data', async () => {
    const bad = calls.call('double', { number: (() => 1) as never });
    await expect(bad).rejects.toMatchObject({
      code: 'bad-argument',
      message: expect.stringContaining('what was given to double cannot be sent to the tested thread'),
    });
    expect(calls.waiting).toBe(0);
    await expect(calls.call('answerAFunction', undefined)).rejects.toThrow(/could not be cloned/);
  });

  test('tells its events in order, and before the answer', async () => {
    const told: unknown[] = [];
    const onEvent = (step: number): void => void told.push(step);
    told.push(await calls.call('count', { to: 3, waits: false }, { onEvent }));
    expect(told).toEqual([1, 2, 3, 'done']);
  });

  test('is told when it is aborted, and ends as its handler will', async () => {
    const abort = new AbortController();
    const onEvent = (): void => abort.abort();
    const { signal } = abort;
    expect(await calls.call('count', { to: 1, waits: true }, { onEvent, signal })).toBe('aborted');
    await expect(calls.call('count', { to: 1, waits: true }, { signal })).rejects.toMatchObject({
      code: 'aborted',
      message: 'aborted before count began',
    });
  });

  test('is aborted by what the code throws that is told of an event, and ends with that', async () => {
    const told: number[] = [];
    const onEvent = (step: number): void => {
      told.push(step);
      throw new RangeError('enough');
    };
    await expect(calls.call('count', { to: 3, waits: true }, { onEvent })).rejects.toThrow(RangeError);
    expect(told).toEqual([1]);
  });

  test('that asks for what there is not is an error and nothing else', async () => {
    const untyped = calls as unknown as ThreadClient<{ readonly toString: () => string }>;
    await expect(untyped.call('toString', undefined)).rejects.toThrow("the thread has no call 'toString'");
  });
});

describe('a thread', () => {
  test('tells news that belong to no call', async () => {
    const told: string[] = [];
    await client((news) => told.push(news)).call('publish', { text: 'it rains' });
    expect(told).toEqual(['it rains']);
  });

  test('that crashes fails all calls with its error, later ones too', async () => {
    const calls = client();
    const waiting = calls.call('never', undefined);
    const crashing = calls.call('crash', undefined);
    await expect(waiting).rejects.toThrow('crashed');
    await crashing.catch(() => {});
    await expect(calls.call('double', { number: 1 })).rejects.toThrow('crashed');
    expect(calls.ended?.message).toBe('crashed');
  });

  test('ends by itself after its last call', async () => {
    const calls = client();
    const exit = new Promise((resolve) => started[0]!.once('exit', resolve));
    await calls.call('close', undefined);
    expect(await exit).toBe(0);
    await expect(calls.call('double', { number: 1 })).rejects.toMatchObject({ code: 'closed' });
  });

  test('that is ended from outside leaves nobody waiting', async () => {
    const calls = client();
    await calls.call('double', { number: 1 });
    const waiting = calls.call('never', undefined);
    await Promise.all([started[0]!.terminate(), expect(waiting).rejects.toMatchObject({ code: 'closed' })]);
    expect(calls.waiting).toBe(0);
  });

  test('whose handlers do not come about refuses every call with the reason', async () => {
    const calls = new ThreadClient<{ readonly ask: () => number }>(start('./rpc-closed-thread.ts'), options);
    for (let time = 0; time < 2; time++)
      await expect(calls.call('ask', undefined)).rejects.toMatchObject({ code: 'bad-model' });
  });

  test('does its calls as `around` says: here one after the other', async () => {
    const calls = new ThreadClient<OrderedCalls>(start('./rpc-ordered-thread.ts'), options);
    const works = ['a', 'b', 'c'].map((name, index) => calls.call('work', { name, waitMs: 20 - 10 * index }));
    expect(await Promise.all(works)).toEqual(['a', 'a b', 'a b c']);
  });
});
