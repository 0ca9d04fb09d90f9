/** Entry of the thread in which it is planned what of a log goes. */
import { parentPort } from 'node:worker_threads';
import { ThreadServer } from '../../native/index.ts';
import { planSegments, type RetentionPlan, type RetentionPolicy } from '../../witness/index.ts';

/** What the thread can be asked. */
export type RetentionCalls = typeof calls;

const calls = {
  plan: async ({ dir, policy }: { dir: string; policy: RetentionPolicy }): Promise<RetentionPlan> =>
    planSegments(dir, policy),
};

new ThreadServer(parentPort).serve(calls);
