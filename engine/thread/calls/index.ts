/** All that can be asked of the model's thread. */
import type { ThreadClient } from '../../../native/index.ts';
import type { LoadProgress } from '../../transformer/types.ts';
import type { Host } from '../host.ts';
import { answerCalls } from './answers.ts';
import { chatCalls } from './chats.ts';
import { engineCalls } from './engine.ts';
import { parkingCalls } from './parking.ts';
import { sessionCalls } from './sessions.ts';
import { tourCalls } from './tour.ts';

export const hostCalls = (host: Host) => ({
  ...engineCalls(host),
  ...sessionCalls(host),
  ...parkingCalls(host),
  ...answerCalls(host),
  ...chatCalls(host),
  ...tourCalls(host),
});

export type HostCalls = ReturnType<typeof hostCalls>;

/** The side that asks. Its news are of the loading of the model. */
export type HostClient = ThreadClient<HostCalls, LoadProgress>;
