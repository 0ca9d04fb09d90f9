/** The thread that reads a log for the live view: answers calls, and tells of new decisions. */
import { parentPort, workerData } from 'node:worker_threads';
import { ThreadServer } from '../../native/index.ts';
import { useMasterKeys } from '../../witness/index.ts';
import { Follower, type ToldDecision } from './follow.ts';

const server = new ThreadServer<readonly ToldDecision[]>(parentPort);
const { dir, masterKeys } = workerData as { readonly dir: string; readonly masterKeys: readonly Uint8Array[] };
useMasterKeys(masterKeys);

const calls = (follower: Follower) => ({
  sessions: follower.sessions.bind(follower),
  session: follower.session.bind(follower),
  top: follower.top.bind(follower),
  map: follower.map.bind(follower),
  decisions: follower.decisions.bind(follower),
  after: follower.after.bind(follower),
  unwatch: follower.unwatch.bind(follower),
  explain: follower.explain.bind(follower),
  quality: follower.quality.bind(follower),
  memory: follower.memory.bind(follower),
  metrics: follower.metrics.bind(follower),
  verify: follower.verify.bind(follower),
});

/** What the log's reader can be asked. */
export type ReaderCalls = ReturnType<typeof calls>;

server.serve(calls(new Follower(dir, (decisions) => server.tell(decisions))));
