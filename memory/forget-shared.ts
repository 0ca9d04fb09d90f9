/**
 * Taking a session off a Qdrant server. A deleted point stays in the files of its segment until the server rewrites
 * them, so its vector is overwritten in place before it is deleted. What the server's write-ahead log has of it goes
 * when that is reused.
 */
import { KvError } from '../native/index.ts';
import { checkQdrantOptions, type QdrantOptions, QdrantServer } from './qdrant-server.ts';
import { Deadline, type Limits } from './vector.ts';

/** For one collection; a session has one point, and another one for each time that it was opened again. */
const DEADLINE_MS = 30_000;
const PAGE = 256;
/** Pause before a server that is still reading its own log is looked at again. */
const APPLYING_MS = 50;

/**
 * Removes every point of a session from the collections of all versions that palimpsest made under the name in
 * `options`. → how many points there were. Whatever is gone already is passed over. Throws 'network', 'database',
 * 'bad-config', 'unsupported', 'missing-dependency', 'aborted'.
 */
export async function forgetShared(options: QdrantOptions, log: string, session: string): Promise<number> {
  checkQdrantOptions(options);
  const server = await QdrantServer.open(options);
  await server.version();
  const { data } = await server.call(undefined, (calls, init) => calls.getCollections({}, init));
  const ours = new RegExp(`^${options.collection ?? 'palimpsest'}-v\\d+-d(\\d+)$`);
  let points = 0;
  for (const { name } of data.result?.collections ?? []) {
    const dim = Number(ours.exec(name)?.[1]);
    if (dim > 0) points += await forgetIn(server, name, dim, log, session);
  }
  return points;
}

async function forgetIn(
  server: QdrantServer,
  collection_name: string,
  dim: number,
  log: string,
  session: string,
): Promise<number> {
  const deadline = new Deadline({ deadlineMs: DEADLINE_MS });
  const limits = (): Limits => ({ deadlineMs: Math.max(0, deadline.leftMs) });
  const filter = {
    must: [
      { key: 'log', match: { value: log } },
      { key: 'payload.session', match: { value: session } },
    ],
  };
  await settled(server, collection_name, limits);
  for (let points = 0; ; ) {
    const found = await server.call(limits(), (calls, init) =>
      calls.scrollPoints({ collection_name, filter, limit: PAGE, with_payload: false, with_vector: false }, init),
    );
    const ids = (found.data.result?.points ?? []).map(({ id }) => id);
    if (ids.length === 0) return points;
    points += ids.length;
    // They keep the two fields by which they are found, for whoever has to finish this.
    const emptied = ids.map((id) => ({
      id,
      vector: new Array<number>(dim).fill(0),
      payload: { log, payload: { session } },
    }));
    await server.call(limits(), (calls, init) =>
      calls.upsertPoints({ collection_name, wait: true, points: emptied }, init),
    );
    await server.call(limits(), (calls, init) =>
      calls.deletePoints({ collection_name, wait: true, points: ids }, init),
    );
  }
}

/**
 * Waits for a server that was killed until it has applied the end of its write-ahead log: before that, points are
 * missing that are on its disk.
 */
async function settled(server: QdrantServer, collection_name: string, limits: () => Limits): Promise<void> {
  for (;;) {
    const { data } = await server.call(limits(), (calls, init) => calls.getCollection({ collection_name }, init));
    if ((data.result?.update_queue?.length ?? 0) === 0) return;
    if (limits().deadlineMs === 0)
      throw new KvError('database', `Qdrant at ${server.url} has not applied its own log yet`, {
        values: { url: server.url },
        hint: 'do the same again later',
      });
    await new Promise((resolve) => setTimeout(resolve, APPLYING_MS));
  }
}
