/** All that can be asked of the model's thread. */
import type { ThreadClient } from '../../../native/index.ts';
import type { Host } from '../host.ts';
import type { News } from '../news.ts';
import { adapterCalls } from './adapters.ts';
import { answerCalls } from './answers.ts';
import { chatCalls } from './chats.ts';
import { embeddingCalls } from './embeddings.ts';
import { engineCalls } from './engine.ts';
import { parkingCalls } from './parking.ts';
import { sessionCalls } from './sessions.ts';
import { tourCalls } from './tour.ts';

export const hostCalls = (host: Host) => ({
  ...engineCalls(host),
  ...adapterCalls(host),
  ...sessionCalls(host),
  ...parkingCalls(host),
  ...answerCalls(host),
  ...chatCalls(host),
  ...embeddingCalls(host),
  ...tourCalls(host),
});

export type HostCalls = ReturnType<typeof hostCalls>;

/** The side that asks: a thread of its own, or an engine among others. */
export type HostClient = Pick<ThreadClient<HostCalls, News>, 'call' | 'ended'>;
