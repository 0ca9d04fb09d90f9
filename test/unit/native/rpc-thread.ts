/** A thread for rpc.test.ts, with a call of every kind. */
import { openSync } from 'node:fs';
import { parentPort } from 'node:worker_threads';
import { type Caller, KvError, ThreadServer } from '../../../native/index.ts';

const server = new ThreadServer<string>(parentPort);

const aborted = (signal: AbortSignal): Promise<void> =>
  new Promise((resolve) => signal.addEventListener('abort', () => resolve(), { once: true }));

const calls = {
  double: ({ number }: { readonly number: number }): number => 2 * number,
  refuse: (): never => {
    throw new KvError('busy', 'refused', { values: { tries: 3 }, hint: 'wait' });
  },
  fail: async (): Promise<never> => {
    throw new TypeError('a fault');
  },
  open: ({ path }: { readonly path: string }): number => openSync(path, 'r'),
  answerAFunction: (): unknown => () => 1,
  /** Tells of its steps, and waits to be aborted where it is asked to. */
  count: async (
    { to, waits }: { readonly to: number; readonly waits: boolean },
    { tell, signal }: Caller<number>,
  ): Promise<string> => {
    for (let step = 1; step <= to; step++) tell(step);
    if (waits) await aborted(signal);
    return signal.aborted ? 'aborted' : 'done';
  },
  never: (): Promise<never> => new Promise(() => {}),
  publish: ({ text }: { readonly text: string }): void => server.tell(text),
  crash: (): void => {
    setImmediate(() => {
      throw new Error('crashed');
    });
  },
  close: (): void => {},
};

/** What this thread can be asked. */
export type RpcCalls = typeof calls;

server.serve(calls, { last: 'close' });
