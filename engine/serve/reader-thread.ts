/** The thread that reads a log for the live view: answers calls, and tells of new decisions (id 0). */
import { parentPort, workerData } from 'node:worker_threads';
import { assert } from '../../native/index.ts';
import { useMasterKeys } from '../../witness/index.ts';
import { type Call, type Reply, toWire } from '../thread/protocol.ts';
import { Follower } from './follow.ts';

const port = parentPort;
assert(port !== null, 'engine/serve/reader-thread.ts runs as a worker thread only');
const reply = (message: Reply): void => port.postMessage(message);
const { dir, masterKeys } = workerData as { readonly dir: string; readonly masterKeys: readonly Uint8Array[] };
useMasterKeys(masterKeys);
const follower = new Follower(dir, (decisions) => reply({ id: 0, kind: 'event', event: decisions }));

port.on('message', ({ id, method, params }: Call) => {
  const work = async (): Promise<unknown> => follower[method as 'decisions'](params as never);
  work().then(
    (value) => reply({ id, kind: 'value', value }),
    (error: unknown) => reply({ id, kind: 'error', error: toWire(error) }),
  );
});
