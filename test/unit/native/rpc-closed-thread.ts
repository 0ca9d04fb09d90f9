/** A thread for rpc.test.ts whose handlers do not come about. */
import { parentPort } from 'node:worker_threads';
import { KvError, ThreadServer } from '../../../native/index.ts';

const opening = Promise.reject<{ readonly ask: () => number }>(new KvError('bad-model', 'it does not load'));
new ThreadServer(parentPort).serve(opening);
