/** A thread for rpc.test.ts that does one call after the other. */
import { parentPort } from 'node:worker_threads';
import { ThreadServer } from '../../../native/index.ts';

const begun: string[] = [];
let last: Promise<unknown> = Promise.resolve();

const calls = {
  work: async ({ name, waitMs }: { readonly name: string; readonly waitMs: number }): Promise<string> => {
    begun.push(name);
    await new Promise((resolve) => setTimeout(resolve, waitMs));
    return begun.join(' ');
  },
};

/** What this thread can be asked. */
export type OrderedCalls = typeof calls;

new ThreadServer(parentPort).serve(calls, {
  around: (work) => {
    const result = last.then(work);
    last = result.catch(() => {});
    return result;
  },
});
