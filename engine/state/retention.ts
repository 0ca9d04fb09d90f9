/** Retention of a state folder: the policy as people write it, and what depends on the log that goes. */
import { KvError } from '../../native/index.ts';
import {
  forgetEmbedded,
  parseTime,
  planRetention,
  type RetentionPolicy,
  type RetentionReport,
  retain,
} from '../../witness/index.ts';
import { parseBudget } from '../cache/budget.ts';
import type { LogRetention } from '../options/types.ts';
import { logDir, sqlDir } from './folder.ts';

/** Options of retainLog. */
export interface RetainOptions extends LogRetention {
  /** Only say what would go. Default false. */
  readonly dryRun?: boolean;
}

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

/**
 * Removes the oldest segments of the log as a policy says: whole segments, of sessions that ended and are not held.
 * What is left verifies, and says what was removed. Series that another process writes are left to it (`busy`). Throws
 * 'not-found', 'bad-log', 'bad-argument', 'log-unwritable', 'io'.
 */
export async function retainLog(stateDir: string, options: RetainOptions): Promise<RetentionReport> {
  const dir = logDir(stateDir);
  const policy = policyOf(options, Date.now());
  if (options.dryRun === true) return planRetention(dir, policy);
  const report = await retain(dir, policy);
  if (report.sessions.length > 0) await forgetTables(stateDir);
  return report;
}

/**
 * The embedded database would keep their rows until it is next compared with the log; one that is in use is compared
 * then.
 */
async function forgetTables(stateDir: string): Promise<void> {
  try {
    await forgetEmbedded(sqlDir(stateDir));
  } catch (error) {
    if (!(error instanceof KvError) || error.code !== 'locked') throw error;
  }
}
