/** The model's thread: receives calls, answers in the order the work is done, streams events in between. */
import { parentPort, workerData } from 'node:worker_threads';
import { guardThread } from '../../memory/index.ts';
import { ThreadServer } from '../../native/index.ts';
import { hostCalls } from './calls/index.ts';
import { Gate } from './gate.ts';
import { Host, type HostOptions } from './host.ts';
import type { News } from './news.ts';

const server = new ThreadServer<News>(parentPort);
const {
  host: options,
  gate: shared,
  isGuarded,
  isHeard,
} = workerData as { host: HostOptions; gate: SharedArrayBuffer; isGuarded: boolean; isHeard: boolean };
if (isGuarded) guardThread();
const gate = new Gate(shared);
const opening = gate.during(() =>
  Host.open({
    ...options,
    safePoint: () => gate.pass(),
    resting: (work) => gate.outside(work),
    onProgress: (progress) => server.tell({ kind: 'loading', progress }),
    ...(isHeard ? { onEvent: (event) => server.tell({ kind: 'event', event }) } : {}),
  }),
);
server.serve(opening.then(hostCalls), { around: (work) => gate.during(work), last: 'close' });
