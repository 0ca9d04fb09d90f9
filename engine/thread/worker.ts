/** The model's thread: receives calls, answers in the order the work is done, streams events in between. */
import { parentPort, workerData } from 'node:worker_threads';
import { assert } from '../../native/index.ts';
import { Gate } from './gate.ts';
import { Host, type HostOptions } from './host.ts';
import { type AbortCall, type Call, LOADING, type Reply, toWire } from './protocol.ts';

const port = parentPort;
assert(port !== null, 'engine/thread/worker.ts runs as a worker thread only');
const reply = (message: Reply): void => port.postMessage(message);
const running = new Map<number, AbortController>();

const { host: options, gate: shared } = workerData as { host: HostOptions; gate: SharedArrayBuffer };
const gate = new Gate(shared);
const opening = gate.during(() =>
  Host.open({
    ...options,
    safePoint: () => gate.pass(),
    onProgress: (event) => reply({ id: LOADING, kind: 'event', event }),
  }),
);
// Reported through the first call; without this line an early failure would end the thread unheard.
opening.catch(() => {});

async function serve(call: Call): Promise<void> {
  const abort = new AbortController();
  running.set(call.id, abort);
  try {
    const host = await opening;
    if (call.method === 'close') {
      await gate.during(() => host.close());
      reply({ id: call.id, kind: 'value', value: null });
      port!.close();
      return;
    }
    const value = await gate.during(() =>
      host.call(call.method, call.params, (event) => reply({ id: call.id, kind: 'event', event }), abort.signal),
    );
    reply({ id: call.id, kind: 'value', value });
  } catch (error) {
    reply({ id: call.id, kind: 'error', error: toWire(error) });
  } finally {
    running.delete(call.id);
  }
}

port.on('message', (message: Call | AbortCall) => {
  if ('abort' in message) running.get(message.abort)?.abort();
  else void serve(message);
});
