/** The measured divergence of a session that stands in a log, to compare with what a simulation predicts. */
import { KvError } from '../../native/index.ts';
import { type Entry, findSession, readLog } from '../../witness/index.ts';
import type { Trace } from './reader.ts';

/** A cache as in `--caches`, and what it measured. */
export interface Logged {
  readonly cache: string;
  readonly meanKld: number;
}

/**
 * Reads what a session measured. A log holds no text, so that the session read the text of the trace is for the caller
 * to know; its model is checked. `typed`: the id or its beginning or end. Throws 'not-found', 'bad-argument',
 * 'model-mismatch', 'bad-log'.
 */
export function measuredInLog(dir: string, typed: string, { path, header }: Pick<Trace, 'path' | 'header'>): Logged {
  const session = findSession(dir, typed);
  const [open, close] = [...readLog(dir, { session, kinds: ['open', 'close'] })] as [Entry<'open'>, Entry<'close'>?];
  const { model, policy, requested } = open.body;
  if (model.digest !== header.model.digest)
    throw new KvError('model-mismatch', `session ${session} ran ${model.name}, the trace ${header.model.name}`, {
      values: { session, path, ran: model.digest, recorded: header.model.digest },
    });
  const meanKld = close?.body.meanKld ?? null;
  if (meanKld === null)
    throw new KvError('not-found', `session ${session} measured no divergence`, {
      values: { session },
      hint: 'record the trace with --measure instead',
    });
  const { kvBudget, kldBudget } = requested as { readonly kvBudget?: unknown; readonly kldBudget?: unknown };
  const budget = kvBudget ?? (kldBudget == null ? null : `kld:${String(kldBudget)}`);
  return { cache: budget === null ? policy.id : `${policy.id}@${String(budget)}`, meanKld };
}
