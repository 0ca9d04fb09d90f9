/** Pages changed their form without a decision of this session. The next situation tells the policy. */
import type { BodyOf, Fields } from './field.ts';
import { changes } from './parts.ts';
import { one, whole } from './type.ts';

export const CHANGE = {
  /**
   * Keys and values were made again from a latent, were given back for room, a fork that shares the page moved it, the
   * sliding window of its layer has left it behind, or its layer was degraded and it came back from its original.
   */
  cause: { type: one(['restore', 'give-back', 'shared', 'sliding-window', 'degraded']) },
  changes: { type: changes },
  bytesBefore: { type: whole },
  bytesAfter: { type: whole },
  tokens: { type: whole },
} as const satisfies Fields;

export type ChangeBody = BodyOf<typeof CHANGE>;
