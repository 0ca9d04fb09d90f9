/** Retention as people write it, and as the log takes it. */
import { KvError } from '../../native/index.ts';
import { parseTime, type RetentionPolicy } from '../../witness/index.ts';
import { parseBudget } from '../options/parse-budget.ts';
import type { LogRetention } from '../options/types.ts';

/**
 * A writer that is asked to remove segments answers between two steps of its sessions; one that does not within this
 * time is left alone.
 */
export const ASK_MS = 10_000;

/** Throws 'bad-argument'. */
export function policyOf({ olderThan, maxSize }: LogRetention, nowMs: number): RetentionPolicy {
  if (typeof maxSize === 'string' && maxSize.includes('%'))
    throw new KvError('bad-argument', `a log has no size of which ${maxSize} could be a share`, {
      values: { maxSize },
    });
  return {
    ...(olderThan === undefined ? {} : { beforeMs: parseTime(olderThan, nowMs) }),
    ...(maxSize === undefined ? {} : { maxBytes: parseBudget(maxSize, null) }),
  };
}
