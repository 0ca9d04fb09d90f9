/** Compares a session with the exact cache on the same tokens. */
import { given, KvError } from '../../native/index.ts';
import type { Progress } from '../options/types.ts';
import { addDivergence, emptySums, NO_TARGET, toDivergence } from '../session/divergence.ts';
import type { ReadOptions } from '../session/prompt.ts';
import { Session } from '../session/session.ts';
import type { Divergence } from '../session/types.ts';

/**
 * Reads the session's tokens into an exact session, and compares the last rows, which `session` kept because of
 * `compareTokens`.
 */
export async function compareWithExact(
  session: Session,
  signal: AbortSignal,
  onProgress?: (progress: Progress) => void,
): Promise<Divergence> {
  const { hiddenSize } = session.runtime.model.config;
  // This is a copy, because the session may go on while its tokens are read.
  const tokens = [...session.tokens];
  const ours = session.hiddenRows();
  const rows = ours.length / hiddenSize;
  if (rows === 0)
    throw new KvError('bad-argument', 'the session kept nothing to compare', {
      hint: 'open the session with compareTokens > 0',
    });
  const exact = Session.open(session.runtime, { ...session.setup, exact: true, witness: false, compareTokens: rows });
  try {
    await exact.read(tokens, given<ReadOptions>({ signal, onProgress }));
    const targets = Int32Array.from(tokens.slice(tokens.length - rows + 1).concat(NO_TARGET));
    const sums = emptySums();
    await addDivergence(sums, session.runtime.dense, exact.hiddenRows(), ours, targets, hiddenSize);
    return toDivergence(sums);
  } finally {
    exact.close();
  }
}
