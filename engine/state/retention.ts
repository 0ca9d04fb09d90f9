/** Retention of a state folder that nobody writes, and what depends on the log that goes. */
import { KvError } from '../../native/index.ts';
import { forgetEmbedded, planRetention, type RetentionReport, retain } from '../../witness/index.ts';
import type { LogRetention } from '../options/types.ts';
import { logDir, sqlDir } from './folder.ts';
import { ASK_MS, policyOf } from './retention-policy.ts';

/** Options of retainLog. */
export interface RetainOptions extends LogRetention {
  /** Only say what would go. Default false. */
  readonly dryRun?: boolean;
}

/**
 * Removes the oldest segments of the log as a policy says: whole segments, of sessions that ended and are not held.
 * What is left verifies, and says what was removed. An engine that runs is asked to do it for what it writes; one that
 * does not within ten seconds is named (`busy`), and nothing of its series goes. Throws 'not-found', 'bad-log',
 * 'bad-argument', 'log-unwritable', 'locked', 'io'.
 */
export async function retainLog(stateDir: string, options: RetainOptions): Promise<RetentionReport> {
  const dir = logDir(stateDir);
  const policy = policyOf(options, Date.now());
  if (options.dryRun === true) return planRetention(dir, policy);
  const report = await retain(dir, policy, { askMs: ASK_MS });
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
