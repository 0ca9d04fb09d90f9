/** The model's thread: receives calls, answers in the order the work is done, streams events in between. */
import { parentPort, workerData } from 'node:worker_threads';
import { guardThread } from '../../memory/index.ts';
import { ThreadServer } from '../../native/index.ts';
import { hostCalls } from './calls/index.ts';
import { runtimeCalls } from './calls/runtime.ts';
import { Commons } from './commons.ts';
import { Gate } from './gate.ts';
import { Host, type HostOptions } from './host.ts';
import type { Started } from './model-thread.ts';
import type { News } from './news.ts';

const server = new ThreadServer<News>(parentPort);
const {
  gate: shared,
  isGuarded,
  isHeard,
  ...started
} = workerData as Started & { gate: SharedArrayBuffer; isGuarded: boolean; isHeard: boolean };
if (isGuarded) guardThread();
const gate = new Gate(shared);
const rules = {
  safePoint: () => gate.pass(),
  resting: (work) => gate.outside(work),
} satisfies Pick<HostOptions, 'safePoint' | 'resting'>;
const heard: Pick<HostOptions, 'onEvent'> = isHeard
  ? { onEvent: (event) => server.tell({ kind: 'event', event }) }
  : {};
const options = { around: <T>(work: () => Promise<T>): Promise<T> => gate.during(work), last: 'close' } as const;
if ('host' in started) {
  const onProgress: HostOptions['onProgress'] = (progress) => server.tell({ kind: 'loading', progress });
  const opening = gate.during(() => Host.open({ ...started.host, ...rules, ...heard, onProgress }));
  server.serve(opening.then(hostCalls), options);
} else {
  const opening = gate.during(() => Commons.open({ ...started.commons, ...heard }));
  server.serve(
    opening.then((commons) => runtimeCalls(commons, rules)),
    options,
  );
}
