/** The report of a session: one page of HTML that needs nothing else, made from the log alone. */
import { FORMATS, KvError } from '../../native/index.ts';
import { isLatent, type LaterForm } from '../../policy/index.ts';
import type { Checkpoint } from '../checkpoint.ts';
import { findId } from '../id.ts';
import { readEnvelopes, readLog } from '../read.ts';
import { type ReplayReport, replay } from '../replay.ts';
import { NO_SESSION } from '../types.ts';
import { verifyAgainst, verifyLog } from '../verify.ts';
import { collect } from './collect.ts';
import { reportHtml } from './html.ts';
import { poolOf } from './pool.ts';
import { pageScript } from './script.ts';

/**
 * The report of one session of the log in `dir` as a page of HTML: open it in a browser, print it or send it.
 * `session`: its id, or the beginning or the end of it. With `checkpoints` (`readCheckpoints`) the log is compared with
 * what was signed. Of a damaged log it shows what stands before the damage, and says so. Throws 'not-found' (no such
 * log or session), 'bad-argument' (several sessions begin so), 'bad-log' (damage before the session begins), 'sealed'
 * (the session was erased, or its key is not here).
 */
export function sessionReport(
  dir: string,
  session: string,
  { checkpoints }: { readonly checkpoints?: readonly Checkpoint[] } = {},
): string {
  const verified = checkpoints === undefined ? verifyLog(dir) : verifyAgainst(dir, checkpoints);
  const id = findId(sessionsOf(untilDamage(readEnvelopes(dir), verified.ok)), session, 'session');
  const collected = collect(untilDamage(readLog(dir, { session: id }), verified.ok));
  const pool = verified.ok ? poolOf(dir, collected) : null;
  return reportHtml(collected, { verified, replayed: verified.ok ? replayed(dir, id) : null, pool }, pageScript());
}

/**
 * What the tier map of a report is drawn from (`page/history.ts`): facts of the session and its moves, as columns.
 * session: its whole id. Throws 'not-found', 'bad-log', 'sealed'.
 */
export function sessionMap(dir: string, session: string): object {
  const {
    trials: _,
    canaries: _kept,
    origins: _origins,
    starts: _starts,
    ...map
  } = collect(readLog(dir, { session })).data;
  return { ...map, formTiers: map.forms.map((form) => tierOf(form as LaterForm)) };
}

const tierOf = (form: LaterForm): string => (form === 'freed' ? form : isLatent(form) ? 'latent' : FORMATS[form].tier);

function* sessionsOf(entries: Iterable<{ readonly session: string }>): Generator<string> {
  for (const { session } of entries) if (session !== NO_SESSION) yield session;
}

function* untilDamage<T>(entries: Iterable<T>, isSound: boolean): Generator<T> {
  try {
    yield* entries;
  } catch (error) {
    if (isSound || !(error instanceof KvError && error.code === 'bad-log')) throw error;
  }
}

/** null for a policy that is not built in. */
function replayed(dir: string, session: string): ReplayReport | null {
  try {
    return replay(dir, session);
  } catch (error) {
    if (error instanceof KvError && error.code === 'unsupported') return null;
    throw error;
  }
}
