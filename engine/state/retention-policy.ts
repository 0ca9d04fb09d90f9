/** Retention as people write it, and as the log takes it. */
import { parseTime, type RetentionPolicy } from '../../witness/index.ts';
import { parseBytes } from '../options/parse-budget.ts';
import type { LogRetention } from '../options/types.ts';

/**
 * A writer that is asked to remove segments answers between two steps of its sessions; one that does not within this
 * time is left alone.
 */
export const ASK_MS = 10_000;

/** Throws 'bad-argument'. */
export function policyOf({ olderThan, maxSize }: LogRetention, nowMs: number): RetentionPolicy {
  return {
    ...(olderThan === undefined ? {} : { beforeMs: parseTime(olderThan, nowMs) }),
    ...(maxSize === undefined ? {} : { maxBytes: parseBytes(maxSize, 'maxSize') }),
  };
}
